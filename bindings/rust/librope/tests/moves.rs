//! Keys and values that move from slots to slots: what arrives has the bits of `apply` on keys that were
//! gathered, nothing else changes, and what does not fit is refused before anything is written.

mod common;

use common::Random;
use librope::{
    Config, Context, Error, KvCache, Operation, Pages, Pairing, Pool, Positions, Result, Scale,
    Slots, Step, ViewMut,
};

const DIM: usize = 32;
const HEADS: usize = 2;
const ROW: usize = HEADS * DIM;
const PAGES: usize = 12;
const SIZE: usize = 4;
const TOKENS: usize = 9;

fn rope() -> Context {
    Config::new(DIM, 10000.0, Pairing::Halves).with_rotary_dim(16).build().unwrap()
}

fn refused(result: Result<()>) -> String {
    match result {
        Err(Error::InvalidArgument(message)) => message,
        other => panic!("{other:?}"),
    }
}

fn gather(memory: &[f32], slots: &[i64]) -> Vec<f32> {
    let row = |&s: &i64| &memory[usize::try_from(s).unwrap() * ROW..][..ROW];
    slots.iter().flat_map(row).copied().collect()
}

fn scatter(memory: &mut [f32], rows: &[f32], slots: &[i64]) {
    for (row, &slot) in rows.chunks(ROW).zip(slots) {
        memory[usize::try_from(slot).unwrap() * ROW..][..ROW].copy_from_slice(row);
    }
}

fn cache<'a>(k: &'a mut [f32], v: &'a mut [f32]) -> KvCache<'a> {
    KvCache::new(PAGES, SIZE).with_k(Pages::nhd(k, HEADS)).with_v(Pages::nhd(v, HEADS))
}

/// Distinct slots in any order.
fn some_slots(random: &mut Random, first: usize, end: usize) -> Vec<i64> {
    let mut free: Vec<usize> = (first..end).collect();
    (0..TOKENS).map(|_| free.swap_remove(random.below(free.len())) as i64).collect()
}

#[test]
fn moves_have_the_bits_of_apply_on_gathered_keys() {
    let rope = rope();
    let pool = Pool::new(2).unwrap();
    let mut random = Random(11);
    for n in 0..200 {
        let len = PAGES * SIZE * ROW;
        let [k, v, other_k, other_v]: [Vec<f32>; 4] = std::array::from_fn(|_| random.vec(len));
        let half = PAGES * SIZE / 2;
        let from = some_slots(&mut random, 0, half);
        let to = if n % 3 == 0 { from.clone() } else { some_slots(&mut random, half, 2 * half) };
        let before: Vec<i64> = (0..TOKENS).map(|_| random.below(5000) as i64).collect();
        let after: Vec<i64> = (0..TOKENS).map(|_| random.below(5000) as i64).collect();
        let step = Step::new(1, TOKENS, Positions::tokens(&after));
        let step = match n % 2 {
            0 => step.rerotating(Positions::tokens(&before)),
            _ => step.with_operation(Operation::Shift),
        };
        let step = if n % 5 == 0 { step.with_runner(pool.runner()) } else { step };
        let mut keys = gather(&k, &from);
        rope.apply(&step, (), ViewMut::bshd(&mut keys, HEADS)).unwrap();
        let values = gather(&v, &from);

        // In one cache, then from one to another.
        let (mut moved_k, mut moved_v) = (k.clone(), v.clone());
        let slots = step.with_slots(Slots::mapped(&to));
        let slots = if to == from { slots } else { slots.with_source(Slots::mapped(&from)) };
        rope.move_slots(&slots, &mut cache(&mut moved_k, &mut moved_v)).unwrap();
        let (mut want_k, mut want_v) = (k.clone(), v.clone());
        scatter(&mut want_k, &keys, &to);
        scatter(&mut want_v, &values, &to);
        assert_eq!(moved_k, want_k, "{n}");
        assert_eq!(moved_v, want_v, "{n}");

        let (mut to_k, mut to_v) = (other_k.clone(), other_v.clone());
        let (mut from_k, mut from_v) = (k.clone(), v.clone());
        let source = cache(&mut from_k, &mut from_v);
        rope.move_between(&slots, &source, &mut cache(&mut to_k, &mut to_v)).unwrap();
        let (mut want_k, mut want_v) = (other_k, other_v);
        scatter(&mut want_k, &keys, &to);
        scatter(&mut want_v, &values, &to);
        assert_eq!((to_k, to_v), (want_k, want_v), "{n}");
        assert_eq!((from_k, from_v), (k, v), "{n}");
    }
}

#[test]
fn sets_of_frequencies_are_those_before_and_after() {
    let configs = [10000.0, 500_000.0].map(|theta| Config::new(DIM, theta, Pairing::Halves));
    let rope = Context::with_sets(&configs).unwrap();
    let mut random = Random(3);
    let raw: Vec<f32> = random.vec(TOKENS * ROW);
    let forward = |first, sets: &[i32], keys: &mut [f32]| {
        let step = Step::new(1, TOKENS, Positions::Offset(first)).with_freq_sets(sets);
        rope.apply(&step, (), ViewMut::bshd(keys, HEADS)).unwrap();
    };
    let (mut moved, mut want) = (raw.clone(), raw);
    forward(70, &[0], &mut moved);
    forward(5, &[1], &mut want);
    let step = Step::new(1, TOKENS, Positions::Offset(5)).with_freq_sets(&[1]);
    let step = step.rerotating(Positions::Offset(70)).from_freq_sets(&[0]);
    rope.apply(&step, (), ViewMut::bshd(&mut moved, HEADS)).unwrap();
    for (moved, want) in moved.iter().zip(&want) {
        assert!((moved - want).abs() < 5e-6, "{moved} {want}");
    }
    assert_ne!(moved, want);

    let step = Step::new(1, TOKENS, Positions::Offset(5)).with_freq_sets(&[1]);
    let mut says = |step: &Step<'_>, words: &str| {
        let message = refused(rope.apply(step, (), ViewMut::bshd(&mut moved, HEADS)));
        assert!(message.contains(words), "{message}");
    };
    let before = step.rerotating(Positions::Offset(70));
    says(&before.from_freq_sets(&[]), ": from_freq_sets has 0 entries");
    says(&before.with_freq_sets(&[]), ": freq_sets has 0 entries");
    says(
        &step.rerotating(Positions::tokens(&[70i64])),
        "the positions of rerotating: the array of ids has 1 entry",
    );
}

#[test]
fn codes_move_with_their_scales() {
    let rope = Config::new(DIM, 10000.0, Pairing::Halves).build().unwrap();
    let mut random = Random(5);
    let mut codes: Vec<i8> = (0..4 * ROW).map(|_| random.below(255) as i8).collect();
    let mut scales: Vec<f32> = (0..4 * HEADS).map(|i| 0.01 * (i + 1) as f32).collect();
    let (mut v, mut v_scales) = (codes.clone(), scales.clone());
    let mut turned: Vec<f32> =
        codes[..ROW].iter().enumerate().map(|(i, &c)| f32::from(c) * scales[i / DIM]).collect();
    let step = Step::new(1, 1, Positions::tokens(&[100i64])).with_operation(Operation::Shift);
    rope.apply(&step, (), ViewMut::bshd(&mut turned, HEADS)).unwrap();
    let step = step.with_source(Slots::mapped(&[0])).with_slots(Slots::mapped(&[2]));

    let (codes_before, scales_before) = (codes.clone(), scales.clone());
    let mut cache = KvCache::new(2, 2)
        .with_k(Pages::nhd(&mut codes, HEADS).with_scale(Scale::computed(&mut scales)))
        .with_v(Pages::nhd(&mut v, HEADS).with_scale(Scale::computed(&mut v_scales)));
    rope.move_slots(&step, &mut cache).unwrap();
    drop(cache);
    let (to, to_scales) = (2 * ROW..3 * ROW, 2 * HEADS..3 * HEADS);
    assert_eq!((&v[to.clone()], &v_scales[to_scales.clone()]), (&v[..ROW], &v_scales[..HEADS]));
    assert_eq!(
        (&codes[..2 * ROW], &codes[3 * ROW..]),
        (&codes_before[..2 * ROW], &codes_before[3 * ROW..])
    );
    assert_eq!(scales[..2 * HEADS], scales_before[..2 * HEADS]);
    for (h, head) in turned.chunks(DIM).enumerate() {
        let scale = head.iter().fold(0f32, |most, x| most.max(x.abs())) / 127.0;
        assert_eq!(scales[to_scales.clone()][h], scale);
        let stored = &codes[to.clone()][h * DIM..][..DIM];
        let code = |x: &f32| (x * (1.0 / scale)).round_ties_even() as i8;
        assert!(stored.iter().zip(head).all(|(c, x)| *c == code(x)));
    }

    // Another memory, of f32.
    let (mut k, mut to_v) = (vec![0f32; 4 * ROW], vec![0f32; 4 * ROW]);
    let source = KvCache::new(2, 2)
        .with_k(Pages::nhd(&mut codes, HEADS).with_scale(Scale::computed(&mut scales)))
        .with_v(Pages::nhd(&mut v, HEADS).with_scale(Scale::computed(&mut v_scales)));
    let mut to =
        KvCache::new(2, 2).with_k(Pages::nhd(&mut k, HEADS)).with_v(Pages::nhd(&mut to_v, HEADS));
    rope.move_between(&step, &source, &mut to).unwrap();
    drop((source, to));
    assert_eq!(k[2 * ROW..3 * ROW], turned);
    assert_eq!(to_v[2 * ROW], f32::from(v[0]) * v_scales[0]);
}

#[test]
fn keys_that_were_stored_as_they_came_turn_by_forward() {
    let mut random = Random(7);
    let k: Vec<f32> = random.vec(PAGES * SIZE * ROW);
    let nope = Config::nope(DIM).build().unwrap();
    let step = Step::new(1, 2, Positions::Offset(9));
    let mut turned = k[..2 * ROW].to_vec();
    rope().apply(&step, (), ViewMut::bshd(&mut turned, HEADS)).unwrap();
    let step = step.with_source(Slots::mapped(&[0, 1])).with_slots(Slots::mapped(&[2, 3]));
    let forward = step.with_operation(Operation::Forward);
    for (rope, step, want) in [(&rope(), &forward, &turned[..]), (&nope, &step, &k[..2 * ROW])] {
        let mut moved = k.clone();
        let mut cache = KvCache::new(PAGES, SIZE).with_k(Pages::nhd(&mut moved, HEADS));
        rope.move_slots(step, &mut cache).unwrap();
        drop(cache);
        assert_eq!(moved[2 * ROW..4 * ROW], *want);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let rope = rope();
    let (mut k, mut v) = (vec![1.0; PAGES * SIZE * ROW], vec![2.0; PAGES * SIZE * ROW]);
    let mut cache = cache(&mut k, &mut v);
    let step = Step::new(1, 2, Positions::Offset(0)).rerotating(Positions::Offset(9));
    let no_slots = refused(rope.move_slots(&step, &mut cache));
    assert!(no_slots.contains("Step::with_slots"), "{no_slots}");
    let in_turn = step.with_source(Slots::mapped(&[3, 4])).with_slots(Slots::mapped(&[4, 5]));
    let clash = refused(rope.move_slots(&in_turn, &mut cache));
    assert!(clash.contains("token 1 of batch row 0 is read in slot 4"), "{clash}");
    let missing = step.with_source(Slots::mapped(&[3, 48])).with_slots(Slots::mapped(&[14, 15]));
    let missing = refused(rope.move_slots(&missing, &mut cache));
    assert!(missing.contains("Context::move_slots: the source's slots[1] (48)"), "{missing}");
    let short = Step::new(1, 3, Positions::Offset(0)).rerotating(Positions::tokens(&[1i64, 2]));
    let mut keys = vec![0.0; 3 * ROW];
    let short = refused(rope.apply(&short, (), ViewMut::bshd(&mut keys, HEADS)));
    assert!(short.contains('3'), "{short}");
    let no_start = in_turn.with_source(Slots::linear(&[]));
    let no_start = refused(rope.move_slots(&no_start, &mut cache));
    assert!(no_start.contains("of the source: the array of starts has 0 entries"), "{no_start}");
    let mut few = vec![0.0; ROW];
    for (source, words) in [
        (KvCache::new(0, SIZE), "the source's pages (0) is required, and must be positive"),
        (KvCache::new(2, SIZE), "the source's k with pages 2, page size 4"),
    ] {
        let source = source.with_k(Pages::nhd(&mut few, HEADS));
        let message = refused(rope.move_between(&in_turn, &source, &mut cache));
        assert!(message.starts_with(&format!("Context::move_between: {words}")), "{message}");
    }
    let unsaid = Step::new(1, 2, Positions::Offset(0)).with_slots(Slots::mapped(&[4, 5]));
    let unsaid_of = refused(rope.move_slots(&unsaid, &mut cache));
    assert!(
        unsaid_of.contains("a move needs Step::rerotating or Step::with_operation"),
        "{unsaid_of}"
    );
    let mut q = vec![0.0; 2 * ROW];
    let appended = rope.append(&in_turn, ViewMut::bshd(&mut q, HEADS), (), (), &mut cache);
    let appended = refused(appended);
    assert!(appended.contains("with_source is for move_slots"), "{appended}");
    drop(cache);
    assert!(k.iter().all(|&x| x == 1.0) && v.iter().all(|&x| x == 2.0));
}
