//! A small engine: sequences of different lengths decode together, in pages that are allotted as they
//! grow. Each step is prepared once; every layer then turns q and stores k and v in one call, and attention
//! reads the pages. The result is that of contiguous caches.

use librope::{
    CacheShape, Config, Context, Pairing, Positions, Result, Shape, Slots, Step, ViewMut,
};

const DIM: usize = 64;
const Q_HEADS: usize = 4;
const HEADS: usize = 2; // of k and v
const PAGE_SIZE: usize = 4;
const PAGES: usize = 16;
const WIDTH: usize = 6; // the most pages of a sequence
const ROW: usize = HEADS * DIM;
const LAYERS: usize = 3;

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

/// Stands for a projection: some numbers that depend on layer, sequence, place, and what they are for.
fn projected(at: [usize; 3], what: usize, heads: usize) -> impl Iterator<Item = f32> {
    let seed = (at[0] * 1000 + at[1] * 100 + at[2] * 3 + what) as f32;
    (0..heads * DIM).map(move |i| (seed + i as f32 * 0.37).sin())
}

/// The pages of a layer, and the same in a cache for each sequence, which the result is checked with.
struct Layer {
    keys: Vec<f32>,
    values: Vec<f32>,
    plain: [(Vec<f32>, Vec<f32>); 3],
}

impl Layer {
    /// Attends with the last token of each sequence to its slots, and to contiguous caches that `apply` has
    /// filled. Returns the largest number.
    fn check(
        &mut self,
        rope: &Context,
        step: &Step<'_>,
        [q, k, v]: [&[f32]; 3],
        cu_seqlens: &[i32],
        slots: impl Fn(usize, usize) -> usize,
    ) -> Result<f32> {
        let (mut turned, mut largest) = (k.to_vec(), 0.0f32);
        rope.apply(step, (), ViewMut::bshd(&mut turned, HEADS))?;
        for (s, (plain_k, plain_v)) in self.plain.iter_mut().enumerate() {
            let rows = cu_seqlens[s] as usize..cu_seqlens[s + 1] as usize;
            plain_k.extend_from_slice(&turned[rows.start * ROW..rows.end * ROW]);
            plain_v.extend_from_slice(&v[rows.start * ROW..rows.end * ROW]);
            let all: Vec<usize> = (0..plain_k.len() / ROW).collect();
            let slots: Vec<usize> = all.iter().map(|&n| slots(s, n)).collect();
            let last = &q[(rows.end - 1) * Q_HEADS * DIM..][..Q_HEADS * DIM];
            let paged = attend(last, &self.keys, &self.values, &slots);
            assert_eq!(paged, attend(last, plain_k, plain_v, &all), "sequence {s}");
            largest = paged.iter().fold(largest, |most, x| most.max(x.abs()));
        }
        Ok(largest)
    }
}

fn main() -> Result<()> {
    let rope = Config::new(DIM, 10000.0, Pairing::Halves).build()?;
    let memory = || vec![0.0f32; PAGES * PAGE_SIZE * ROW];
    let layer = || Layer { keys: memory(), values: memory(), plain: Default::default() };
    let mut layers: Vec<Layer> = (0..LAYERS).map(|_| layer()).collect();
    // What all layers have in common.
    let (of_q, of_kv) = (Shape::<f32>::bshd(Q_HEADS), Shape::<f32>::bshd(HEADS));
    let cache =
        CacheShape::new(PAGES, PAGE_SIZE, Shape::<f32>::nhd(HEADS), Shape::<f32>::nhd(HEADS));

    let mut free: Vec<i32> = (0..PAGES as i32).collect();
    let prompts = [5usize, 1, 9];
    let mut table = vec![-1i32; prompts.len() * WIDTH];
    let mut lengths = [0i32; 3]; // of each sequence, before the step
    let mut largest = 0.0f32;
    for step in 0..8 {
        // The prompts first, packed; then a token of each sequence.
        let counts = if step == 0 { prompts } else { [1; 3] };
        let mut cu_seqlens = vec![0i32];
        for (s, &count) in counts.iter().enumerate() {
            cu_seqlens.push(cu_seqlens[s] + count as i32);
            let start = lengths[s] as usize;
            for entry in start.div_ceil(PAGE_SIZE)..(start + count).div_ceil(PAGE_SIZE) {
                // From both ends in turns, so that pages of a sequence are not adjacent.
                let page = if entry % 2 == 0 { free.pop() } else { Some(free.remove(0)) };
                table[s * WIDTH + entry] = page.expect("a free page");
            }
        }
        let tokens = cu_seqlens[3] as usize;
        let now =
            Step::new(1, tokens, Positions::seq_offsets(&lengths)).with_cu_seqlens(&cu_seqlens);
        let slots = Slots::paged(&table, WIDTH, &lengths);
        let call = rope.prepare_append(&now.with_slots(slots), of_q, of_kv, of_kv, cache)?;
        for (n, layer) in layers.iter_mut().enumerate() {
            let project = |what, heads| {
                let places = counts.iter().enumerate().flat_map(|(s, &count)| {
                    (lengths[s] as usize..).take(count).map(move |place| [n, s, place])
                });
                places.flat_map(|at| projected(at, what, heads)).collect::<Vec<f32>>()
            };
            let (mut q, k, v) = (project(0, Q_HEADS), project(1, HEADS), project(2, HEADS));

            // The engine's own call, for each layer.
            call.apply(&mut q, &k, &v, (&mut layer.keys, &mut layer.values))?;

            let page = |s: usize, n: usize| table[s * WIDTH + n / PAGE_SIZE] as usize;
            let slot = |s, n| page(s, n) * PAGE_SIZE + n % PAGE_SIZE;
            largest = largest.max(layer.check(&rope, &now, [&q, &k, &v], &cu_seqlens, slot)?);
        }
        for (length, count) in lengths.iter_mut().zip(counts) {
            *length += count as i32;
        }
    }
    assert!(largest > 0.1, "attention of zeros says nothing");
    let used = PAGES - free.len();
    println!("{lengths:?} tokens in {used} pages of {LAYERS} layers, as in contiguous caches");
    Ok(())
}
