//! A small engine: sequences of different lengths decode together, in pages that are allotted as they
//! grow. Each step norms q and k as Qwen3 does, turns them, and stores k and v, in one call; attention
//! then reads the pages. The result is that of contiguous caches.

use librope::{
    Config, KvCache, Norm, Norms, Pages, Pairing, Positions, Slots, Step, View, ViewMut,
};

const DIM: usize = 64;
const Q_HEADS: usize = 4;
const HEADS: usize = 2; // of k and v
const PAGE_SIZE: usize = 4;
const PAGES: usize = 16;
const WIDTH: usize = 6; // the most pages of a sequence
const ROW: usize = HEADS * DIM;

/// Attention of one token's q over the k and v of `slots`, in their order.
fn attend(q: &[f32], keys: &[f32], values: &[f32], slots: &[usize]) -> Vec<f32> {
    let mut out = vec![0.0; q.len()];
    for (h, (q, out)) in q.chunks(DIM).zip(out.chunks_mut(DIM)).enumerate() {
        let head = h / (Q_HEADS / HEADS) * DIM;
        let dot = |k: &[f32]| q.iter().zip(k).map(|(a, b)| a * b).sum::<f32>() / 8.0;
        let scores: Vec<f32> = slots.iter().map(|s| dot(&keys[s * ROW + head..][..DIM])).collect();
        let most = scores.iter().copied().fold(f32::MIN, f32::max);
        let sum: f32 = scores.iter().map(|s| (s - most).exp()).sum();
        for (s, score) in slots.iter().zip(scores) {
            let weight = (score - most).exp() / sum;
            let value = &values[s * ROW + head..][..DIM];
            out.iter_mut().zip(value).for_each(|(o, v)| *o += weight * v);
        }
    }
    out
}

/// Stands for a projection: some numbers that depend on sequence, place, and what they are for.
fn projected(sequence: usize, place: usize, what: usize, heads: usize) -> Vec<f32> {
    let seed = (sequence * 100 + place * 3 + what) as f32;
    (0..heads * DIM).map(|i| (seed + i as f32 * 0.37).sin()).collect()
}

fn main() -> librope::Result<()> {
    let rope = Config::new(DIM, 10000.0, Pairing::Halves).build()?;
    let (q_weight, k_weight) = (projected(9, 0, 0, 1), projected(9, 1, 0, 1)); // of the norms
    let of_k = Norms::new().with_k(Norm::rms(&k_weight, 1e-6));
    let layer = of_k.with_q(Norm::rms(&q_weight, 1e-6));
    let (mut keys, mut values) =
        (vec![0.0f32; PAGES * PAGE_SIZE * ROW], vec![0.0f32; PAGES * PAGE_SIZE * ROW]);
    let mut free: Vec<i32> = (0..PAGES as i32).collect();
    let prompts = [5usize, 1, 9];
    let mut table = vec![-1i32; prompts.len() * WIDTH];
    let mut lengths = [0i32; 3]; // of each sequence, before the step

    // The same in a cache for each sequence, as the result is checked with.
    let mut plain = vec![(Vec::new(), Vec::new()); prompts.len()];
    let mut largest = 0.0f32;
    for step in 0..8 {
        // The prompts first, packed; then a token of each sequence.
        let counts = if step == 0 { prompts } else { [1; 3] };
        let mut cu_seqlens = vec![0i32];
        let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
        for (s, &count) in counts.iter().enumerate() {
            let start = lengths[s] as usize;
            for place in start..start + count {
                q.extend(projected(s, place, 0, Q_HEADS));
                k.extend(projected(s, place, 1, HEADS));
                v.extend(projected(s, place, 2, HEADS));
            }
            cu_seqlens.push(cu_seqlens[s] + count as i32);
            let have = start.div_ceil(PAGE_SIZE);
            for entry in have..(start + count).div_ceil(PAGE_SIZE) {
                // From both ends in turns, so that pages of a sequence are not adjacent.
                let page = if entry % 2 == 0 { free.pop() } else { Some(free.remove(0)) };
                table[s * WIDTH + entry] = page.expect("a free page");
            }
        }
        let tokens = cu_seqlens[3] as usize;
        let now =
            Step::new(1, tokens, Positions::seq_offsets(&lengths)).with_cu_seqlens(&cu_seqlens);
        let mut turned = k.clone();
        rope.apply(&now.with_norms(&of_k), (), ViewMut::bshd(&mut turned, HEADS))?;

        // The engine's own call, for each layer: this one has one.
        rope.append(
            &now.with_norms(&layer).with_slots(Slots::paged(&table, WIDTH, &lengths)),
            ViewMut::bshd(&mut q, Q_HEADS),
            View::bshd(&k, HEADS),
            View::bshd(&v, HEADS),
            &mut KvCache::new(PAGES, PAGE_SIZE)
                .with_k(Pages::nhd(&mut keys, HEADS))
                .with_v(Pages::nhd(&mut values, HEADS)),
        )?;

        for (s, (old_k, old_v)) in plain.iter_mut().enumerate() {
            let rows = cu_seqlens[s] as usize..cu_seqlens[s + 1] as usize;
            old_k.extend_from_slice(&turned[rows.start * ROW..rows.end * ROW]);
            old_v.extend_from_slice(&v[rows.start * ROW..rows.end * ROW]);
            lengths[s] += counts[s] as i32;
            let pages = &table[s * WIDTH..][..WIDTH];
            let slot = |n: usize| pages[n / PAGE_SIZE] as usize * PAGE_SIZE + n % PAGE_SIZE;
            let slots: Vec<usize> = (0..lengths[s] as usize).map(slot).collect();
            let all: Vec<usize> = (0..slots.len()).collect();
            let last = &q[(rows.end - 1) * Q_HEADS * DIM..][..Q_HEADS * DIM];
            let paged = attend(last, &keys, &values, &slots);
            let contiguous = attend(last, old_k, old_v, &all);
            assert_eq!(paged, contiguous, "sequence {s} of step {step}");
            largest = paged.iter().fold(largest, |most, x| most.max(x.abs()));
        }
    }
    assert!(largest > 0.1, "attention of zeros says nothing");
    println!("{lengths:?} tokens in {} pages, as in contiguous caches", PAGES - free.len());
    Ok(())
}
