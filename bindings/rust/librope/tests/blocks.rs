//! Outputs and caches in blocks of Q8_0 are those of ggml's formula, in calls, prepared calls and moves; what
//! does not fit is refused before anything is written.

mod common;

use common::{Random, refused};
use librope::half::f16;
use librope::{
    Call, Config, Context, KvCache, Layer, Layout, Operation, Pages, Pairing, Positions, Q80,
    Scale, Slots, Step, Strides, View, ViewMut,
};

const DIM: usize = 64;
const HEADS: usize = 2;
const TOKENS: usize = 5;
const ROW: usize = HEADS * DIM;
/// Blocks of a token.
const BLOCKS: usize = ROW / Q80::CHANNELS;
const PLACES: [i32; TOKENS] = [3, 0, 7, -1, 4];
const UNTOUCHED: Q80 = Q80 { d: f16::NEG_ONE, codes: [99; 32] };

fn rope() -> Context {
    Config::new(DIM, 10000.0, Pairing::Halves).build().unwrap()
}

fn step<'a>() -> Step<'a> {
    Step::new(1, TOKENS, Positions::Offset(11))
}

fn turned(x: &[f32]) -> Vec<f32> {
    let mut x = x.to_vec();
    rope().apply(&step(), ViewMut::bshd(&mut x, HEADS), ()).unwrap();
    x
}

/// `quantize_row_q8_0_ref`.
fn coded(x: &[f32]) -> Vec<Q80> {
    let code = |x: &[f32]| {
        let d = x.iter().fold(0.0f32, |most, x| most.max(x.abs())) / 127.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        let codes = std::array::from_fn(|i| (x[i] * inverse).round() as i8);
        Q80 { d: f16::from_f32(d), codes }
    };
    x.chunks(Q80::CHANNELS).map(code).collect()
}

/// `dequantize_row_q8_0`.
fn values(blocks: &[Q80]) -> Vec<f32> {
    blocks.iter().flat_map(|b| b.codes.map(|code| f32::from(code) * b.d.to_f32())).collect()
}

/// What memory of this many slots holds after these heads have been stored.
fn after(slots: usize, x: &[f32]) -> Vec<Q80> {
    let mut memory = vec![UNTOUCHED; slots * BLOCKS];
    for (token, &slot) in coded(x).chunks(BLOCKS).zip(&PLACES) {
        let Ok(slot) = usize::try_from(slot) else { continue };
        memory[slot * BLOCKS..][..BLOCKS].copy_from_slice(token);
    }
    memory
}

#[test]
fn calls_write_the_blocks_of_ggml() {
    let mut random = Random(1);
    let [mut q, k, v, rest]: [Vec<f32>; 4] = std::array::from_fn(|_| random.vec(TOKENS * ROW));
    q[..DIM].fill(0.0);
    let rope = rope();
    let step = step().with_slots(Slots::mapped(&PLACES));
    // An output whose heads have a block between them.
    let apart = Strides { batch: 0, token: HEADS * (DIM + 32), head: DIM + 32 };
    let mut out = [const { [UNTOUCHED; TOKENS * HEADS * 3] }; 2];
    let mut rest_out = [vec![UNTOUCHED; TOKENS * BLOCKS], vec![UNTOUCHED; TOKENS * BLOCKS]];
    let mut keys = [vec![UNTOUCHED; 8 * BLOCKS], vec![UNTOUCHED; 8 * BLOCKS]];
    let mut data = keys.clone();

    let mut cache = KvCache::new(2, 4)
        .with_k(Pages::nhd(&mut keys[0], HEADS))
        .with_v(Pages::nhd(&mut data[0], HEADS));
    let call = Call::new()
        .with_q((View::bshd(&q, HEADS), ViewMut::strided(&mut out[0], HEADS, apart)))
        .with_k(View::bshd(&k, HEADS))
        .with_v(View::bshd(&v, HEADS))
        .with_rest((View::bshd(&rest, HEADS), ViewMut::bhsd(&mut rest_out[0], HEADS)))
        .with_cache(&mut cache);
    rope.apply_call(&step, call).unwrap();

    let mut cache = KvCache::new(2, 4)
        .with_k(Pages::<Q80>::nhd(&mut [], HEADS))
        .with_v(Pages::<Q80>::nhd(&mut [], HEADS));
    let call = Call::new()
        .with_q((View::<f32>::bshd(&[], HEADS), ViewMut::<Q80>::strided(&mut [], HEADS, apart)))
        .with_k(View::<f32>::bshd(&[], HEADS))
        .with_v(View::<f32>::bshd(&[], HEADS))
        .with_rest((View::<f32>::bshd(&[], HEADS), ViewMut::<Q80>::bhsd(&mut [], HEADS)))
        .with_cache(&mut cache);
    let call = rope.prepare_call(&step, call).unwrap();
    let layer = Layer::new().with_q(&q).with_q_out(&mut out[1][..]).with_k(&k).with_v(&v);
    let layer = layer.with_rest(&rest).with_rest_out(&mut rest_out[1]);
    call.apply(layer.with_cache_k(&mut keys[1]).with_cache_v(&mut data[1])).unwrap();

    let heads = coded(&turned(&q));
    for n in 0..2 {
        for (head, want) in out[n].chunks(3).zip(heads.chunks(2)) {
            assert_eq!((&head[..2], head[2]), (want, UNTOUCHED));
        }
        for (i, head) in coded(&rest).chunks(2).enumerate() {
            assert_eq!(rest_out[n][(i % HEADS * TOKENS + i / HEADS) * 2..][..2], *head);
        }
        assert_eq!(keys[n], after(8, &turned(&k)));
        assert_eq!(data[n], after(8, &v));
    }
}

#[test]
fn blocks_move() {
    let rope = Config::new(DIM, 10000.0, Pairing::Halves)
        .with_angle(librope::Angle::Exact)
        .build()
        .unwrap();
    let mut random = Random(3);
    let (mut keys, mut data) =
        (coded(&random.vec::<f32>(4 * ROW)), coded(&random.vec::<f32>(4 * ROW)));
    let (before, data_before) = (keys.clone(), data.clone());
    // The first of two tokens stays at its position.
    let step = Step::new(1, 2, Positions::tokens(&[0i64, 100])).with_operation(Operation::Shift);
    let mut moved = values(&before[..2 * BLOCKS]);
    rope.apply(&step, (), ViewMut::bshd(&mut moved, HEADS)).unwrap();
    let want = [&before[..BLOCKS], &coded(&moved[ROW..])].concat();

    let mut cache = KvCache::new(2, 2)
        .with_k(Pages::nhd(&mut keys, HEADS))
        .with_v(Pages::nhd(&mut data, HEADS));
    let there = step.with_source(Slots::mapped(&[0, 1])).with_slots(Slots::mapped(&[2, 3]));
    rope.move_slots(&there, &mut cache).unwrap();
    rope.move_slots(&step.with_slots(Slots::mapped(&[0, 1])), &mut cache).unwrap(); // where they are
    drop(cache);
    assert_eq!(keys, [&want[..], &want].concat());
    assert_eq!(data, [&data_before[..2 * BLOCKS], &data_before[..2 * BLOCKS]].concat());

    // To another memory of f32, and back.
    let (mut from, mut wide, mut back) = (before, vec![0f32; 4 * ROW], vec![UNTOUCHED; 4 * BLOCKS]);
    let source = KvCache::new(2, 2).with_k(Pages::nhd(&mut from, HEADS));
    let mut floats = KvCache::new(2, 2).with_k(Pages::nhd(&mut wide, HEADS));
    rope.move_between(&there, &source, &mut floats).unwrap();
    let none = Step::new(1, 2, Positions::tokens(&[0i64, 0])).with_operation(Operation::Shift);
    let none = none.with_source(Slots::mapped(&[2, 3])).with_slots(Slots::mapped(&[1, 0]));
    let mut blocks = KvCache::new(2, 2).with_k(Pages::nhd(&mut back, HEADS));
    rope.move_between(&none, &floats, &mut blocks).unwrap();
    drop((floats, blocks));
    assert_eq!(wide[3 * ROW..], moved[ROW..]);
    assert_eq!(back[..BLOCKS], want[BLOCKS..]);
    assert!(back[2 * BLOCKS..].iter().all(|&block| block == UNTOUCHED));
}

#[test]
fn what_does_not_fit_is_refused() {
    let q: Vec<f32> = Random(2).vec(TOKENS * ROW);
    let mut out = vec![UNTOUCHED; TOKENS * BLOCKS];
    let says = |message: String, words: &str| assert!(message.contains(words), "{message}");
    let apply = |out: ViewMut<'_, Q80>| rope().apply(&step(), (View::bshd(&q, HEADS), out), ());
    let long = "heads 2, channels 64 and layout Bshd needs 20 blocks of 32 channels, and its slice \
                has 19";
    says(refused(apply(ViewMut::bshd(&mut out[1..], HEADS))), long);
    let beyond = Strides { batch: 0, token: ROW + 32, head: DIM };
    says(
        refused(apply(ViewMut::strided(&mut out, HEADS, beyond))),
        "blocks of 32 channels or more, and its slice has 20",
    );
    let odd = Strides { batch: 0, token: ROW - 16, head: DIM };
    says(refused(apply(ViewMut::strided(&mut out, HEADS, odd))), "must be multiples of 32");
    let scaled = ViewMut::bshd(&mut out, HEADS).with_scale(Scale::given(1.0));
    says(
        refused(apply(scaled)),
        "q_out.scale must be None with dtype (DType::Q80), whose blocks have their own",
    );

    let narrow = Config::new(48, 10000.0, Pairing::Halves).build().unwrap();
    let (step, q) = (Step::new(1, 2, Positions::Offset(0)), &q[..2 * 2 * 48]);
    let odd = ViewMut::bshd(&mut out[..6], 2);
    says(
        refused(narrow.apply(&step, (View::bshd(q, 2), odd), ())),
        "q_out must have a head_dim (48) that is a multiple of 32",
    );
    let step = step.with_slots(Slots::mapped(&[0, 1]));
    let mut cache = KvCache::new(1, 3).with_k(Pages::nhd(&mut out[..11], HEADS));
    says(
        refused(rope().append(&step, (), View::bshd(&vec![1f32; 2 * ROW], HEADS), (), &mut cache)),
        "the cache's k with pages 1, page size 3, heads 2, channels 64",
    );
    let call =
        Call::new().with_q((View::<f32>::bshd(&[], HEADS), ViewMut::<Q80>::bshd(&mut [], HEADS)));
    let rope = rope();
    let call = rope.prepare_call(&Step::new(1, 2, Positions::Offset(0)), call).unwrap();
    let (x, mut codes) = (vec![1f32; 2 * ROW], vec![0i8; 2 * BLOCKS]);
    says(
        refused(call.apply(Layer::new().with_q(&x).with_q_out(&mut out[..7]))),
        "q_out has 7 elements, and the prepared call needs 8",
    );
    says(
        refused(call.apply(Layer::new().with_q(&x).with_q_out(&mut codes))),
        "q_out is a slice of I8, and the prepared call needs one of Q80",
    );
    assert!(out.iter().all(|&block| block == UNTOUCHED), "a refused call has written");
}

/// Slices, shapes and strides at random: a call is refused, or it writes nothing beside its slice; and a
/// prepared call takes and refuses the same.
#[test]
fn blocks_stay_in_their_slices() {
    const FENCE: usize = 30;
    let (mut random, mut taken) = (Random(7), [0; 2]);
    for n in 0..3000i64 {
        let dim = random.pick(&[32, 32, 64, 64, 96, 48]);
        let rope = Config::new(dim, 10000.0, Pairing::Halves).build().unwrap();
        let (tokens, heads) = (1 + random.below(4), 1 + random.below(3));
        let (mut layout, mut need) = (Layout::Bshd, tokens * heads * dim);
        if random.below(2) == 0 {
            let head = dim + 16 * random.below(3);
            let token = (heads * head + 16 * random.below(5)).saturating_sub(32);
            layout = Layout::Strided(Strides { batch: 0, token, head });
            need = (tokens - 1) * token + (heads - 1) * head + dim;
        }
        let length = (need / Q80::CHANNELS + random.below(3)).saturating_sub(1);
        let mut whole = vec![UNTOUCHED; length + 2 * FENCE];
        let q: Vec<f32> = random.vec(tokens * heads * dim);
        let step = Step::new(1, tokens, Positions::Offset(n));
        let out = ViewMut::new(&mut whole[FENCE..FENCE + length], layout, heads);
        let result = rope.apply(&step, (View::bshd(&q, heads), out), ());
        let described = ViewMut::<Q80>::new(&mut [], layout, heads);
        let call = Call::new().with_q((View::<f32>::bshd(&[], heads), described));
        let layer = Layer::new().with_q(&q).with_q_out(&mut whole[FENCE..FENCE + length]);
        let again = rope.prepare_call(&step, call).and_then(|call| call.apply(layer));
        assert_eq!(result.is_ok(), again.is_ok(), "{n}: {result:?} {again:?}");
        let beside = whole[..FENCE].iter().chain(&whole[FENCE + length..]);
        assert!(beside.copied().all(|block| block == UNTOUCHED), "{n}: {result:?}");
        taken[usize::from(result.is_ok())] += 1;
    }
    assert!(taken.iter().all(|&n| n >= 500), "{taken:?}");
}
