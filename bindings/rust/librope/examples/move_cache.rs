//! Keys of a long conversation, which are in a paged cache, move, and nothing is computed again. A page is cut out:
//! the keys behind it shift down by as many positions, in their slots. Then the conversation grows beyond what its
//! model was trained for: they turn to the frequencies of `YaRN`, where they are. The program compares them with
//! keys that are rotated anew.

use librope::{
    Angle, Config, Context, KvCache, Operation, Pages, Pairing, Positions, Result, Scaling, Slots,
    Step, View, ViewMut, Yarn,
};

const DIM: usize = 64;
const HEADS: usize = 2;
const ROW: usize = HEADS * DIM;
const PAGES: usize = 8;
const PAGE_SIZE: usize = 4;
const FIRST: i64 = 30_000; // position of the first of these tokens
const TOKENS: usize = 10;
const CUT: usize = PAGE_SIZE; // tokens that leave
const KEPT: usize = TOKENS - CUT;

/// What stands in the slots of these pages, token after token.
fn stored(memory: &[f32], pages: &[i32]) -> Vec<f32> {
    let slot = |n: usize| pages[n / PAGE_SIZE] as usize * PAGE_SIZE + n % PAGE_SIZE;
    (0..KEPT).flat_map(|n| &memory[slot(n) * ROW..][..ROW]).copied().collect()
}

/// How far keys are from those that are rotated from FIRST on, by this set of frequencies.
fn off(rope: &Context, keys: &[f32], x: &[f32], set: i32) -> Result<f32> {
    let (mut want, sets) = (x.to_vec(), [set]);
    let step = Step::new(1, KEPT, Positions::Offset(FIRST)).with_freq_sets(&sets);
    rope.apply(&step, (), ViewMut::bshd(&mut want, HEADS))?;
    Ok(keys.iter().zip(&want).fold(0.0, |most, (key, want)| most.max((key - want).abs())))
}

fn main() -> Result<()> {
    // SHIFT adds angles, and these are exact sums under Angle::Exact alone.
    let trained = Config::new(DIM, 10000.0, Pairing::Halves).with_angle(Angle::Exact);
    let longer = trained.clone().with_scaling(Scaling::Yarn(Yarn::new(4.0, 32_768)));
    let rope = Context::with_sets(&[trained, longer])?;
    let numbers =
        |step: f32| -> Vec<f32> { (0..TOKENS * ROW).map(|i| (step * i as f32).sin()).collect() };
    let (k, v) = (numbers(0.7), numbers(0.3)); // before rotation
    let mut keys = vec![0.0f32; PAGES * PAGE_SIZE * ROW];
    let mut values = keys.clone();
    let mut cache = KvCache::new(PAGES, PAGE_SIZE)
        .with_k(Pages::nhd(&mut keys, HEADS))
        .with_v(Pages::nhd(&mut values, HEADS));

    // The last tokens of the conversation so far.
    let table = [5, 2, 7];
    let step = Step::new(1, TOKENS, Positions::Offset(FIRST)).with_freq_sets(&[0]);
    let step = step.with_slots(Slots::paged(&table, 3, &[0]));
    rope.append(&step, (), View::bshd(&k, HEADS), View::bshd(&v, HEADS), &mut cache)?;

    // Page 5 is free again; all that is behind it moves by one distance.
    let kept = Slots::paged(&table[1..], 2, &[0]);
    let step = Step::new(1, KEPT, Positions::Same(-(CUT as i64))).with_freq_sets(&[0]);
    let step = step.with_operation(Operation::Shift).with_slots(kept);
    rope.move_slots(&step, &mut cache)?;
    drop(cache);
    let moved = stored(&keys, &table[1..]);
    let shifted = off(&rope, &moved, &k[CUT * ROW..], 0)?;
    let apart = off(&rope, &moved, &k[CUT * ROW..], 1)?;
    assert!(stored(&values, &table[1..]) == v[CUT * ROW..], "values have no position, and stay");

    // Positions stay, and frequencies change; so would positions, if others were given.
    let mut cache = KvCache::new(PAGES, PAGE_SIZE).with_k(Pages::nhd(&mut keys, HEADS));
    let step = Step::new(1, KEPT, Positions::Offset(FIRST)).with_freq_sets(&[1]);
    let step = step.rerotating(Positions::Offset(FIRST)).from_freq_sets(&[0]).with_slots(kept);
    rope.move_slots(&step, &mut cache)?;
    drop(cache);
    let rerotated = off(&rope, &stored(&keys, &table[1..]), &k[CUT * ROW..], 1)?;

    println!(
        "largest error of a key: {shifted:.1e} shifted, {rerotated:.1e} with other frequencies"
    );
    assert!(shifted < 2e-6 && rerotated < 2e-6, "keys are elsewhere");
    assert!(apart > 0.01, "both sets of frequencies are the same");
    Ok(())
}
