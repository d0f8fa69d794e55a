//! Calls with all that they may have: outputs in other types and in 8 bits, repeated heads, values and a
//! rest beside them, in one call and prepared, have the bits of plain calls and the codes of the formula.

mod common;

use common::{Random, refused};
use librope::half::bf16;
use librope::{
    Call, Config, Context, F8E4M3, KvCache, Layer, Layout, Pages, Pairing, Positions, Result,
    Scale, Slots, Step, Strides, View, ViewMut,
};

const DIM: usize = 32;
const TOKENS: usize = 5;

fn rope() -> Context {
    Config::new(DIM, 10000.0, Pairing::Halves).build().unwrap()
}

fn step<'a>() -> Step<'a> {
    Step::new(1, TOKENS, Positions::Offset(11))
}

fn turned(x: &[f32], heads: usize) -> Vec<f32> {
    rope().apply_to_vec(&step(), View::bshd(x, heads), Layout::Bshd).unwrap()
}

/// The code of x by the formula of rope.h.
fn code(x: f32, scale: f32) -> i8 {
    (x * (1.0 / scale)).round_ties_even().clamp(-128.0, 127.0) as i8
}

/// What a call computes and writes for adjacent channels.
fn computed(x: &[f32]) -> f32 {
    x.iter().fold(0.0f32, |most, x| most.max(x.abs())) / 127.0
}

#[test]
fn outputs_may_have_another_type_and_heads_that_repeat() {
    let q: Vec<f32> = Random(1).vec(TOKENS * 2 * DIM);
    let want = turned(&q, 2);
    let mut out = vec![bf16::ZERO; 3 * q.len()];
    rope().apply(&step(), (View::bshd(&q, 2), ViewMut::bshd(&mut out, 6)), ()).unwrap();
    for (i, x) in out.iter().enumerate() {
        let (token, head, c) = (i / (6 * DIM), i / DIM % 6, i % DIM);
        assert_eq!(*x, bf16::from_f32(want[(token * 2 + head / 3) * DIM + c]), "{i}");
    }
    let odd = (View::bshd(&q, 2), ViewMut::bshd(&mut out[..TOKENS * 3 * DIM], 3));
    assert!(refused(rope().apply(&step(), odd, ())).contains("heads"));
}

#[test]
fn codes_are_those_of_the_formula() {
    let q: Vec<f32> = Random(2).vec(TOKENS * 2 * DIM);
    let want = turned(&q, 2);
    let apply = |out: &mut [i8], layout, scale: Scale<'_>| {
        let out = ViewMut::new(out, layout, 2).with_scale(scale);
        rope().apply(&step(), (View::bshd(&q, 2), out), ())
    };
    let mut codes = vec![99i8; q.len()];
    apply(&mut codes, Layout::Bshd, Scale::given(0.02)).unwrap();
    assert!(codes.iter().zip(&want).all(|(&c, &x)| c == code(x, 0.02)));

    // [batch, heads, tokens, groups], as the output.
    let mut scales = vec![0.0f32; TOKENS * 2 * 2];
    apply(&mut codes, Layout::Bhsd, Scale::computed(&mut scales).with_group(16)).unwrap();
    for (i, (codes, &scale)) in codes.chunks(16).zip(&scales).enumerate() {
        let (head, token, half) = (i / (2 * TOKENS), i / 2 % TOKENS, i % 2);
        let group = &want[(token * 2 + head) * DIM + half * 16..][..16];
        assert_eq!(scale, computed(group));
        assert!(codes.iter().zip(group).all(|(&c, &x)| c == code(x, scale)), "{i}");
    }

    // Powers of two as exponents, given back to the next call.
    let mut exponents = vec![0u8; TOKENS * 2];
    let mut again = codes.clone();
    apply(&mut codes, Layout::Bshd, Scale::computed_e8m0(&mut exponents)).unwrap();
    apply(&mut again, Layout::Bshd, Scale::given_e8m0(&exponents)).unwrap();
    assert_eq!(codes, again);
    for ((head, codes), &e) in want.chunks(DIM).zip(codes.chunks(DIM)).zip(&exponents) {
        let scale = 2f32.powi(i32::from(e) - 127);
        assert!(scale >= computed(head) && scale < 2.0 * computed(head));
        assert!(codes.iter().zip(head).all(|(&c, &x)| c == code(x, scale)));
    }

    // One for each head of all tokens, by strides.
    let of_heads = [0.5f32, 0.01];
    let strides = Strides { batch: 0, token: 0, head: 1 };
    apply(&mut codes, Layout::Bshd, Scale::given_array(&of_heads).with_strides(strides)).unwrap();
    for (i, (&c, &x)) in codes.iter().zip(&want).enumerate() {
        assert_eq!(c, code(x, of_heads[i / DIM % 2]));
    }
}

#[test]
fn scales_that_do_not_fit_are_refused() {
    let q: Vec<f32> = Random(3).vec(TOKENS * 2 * DIM);
    let mut codes = vec![99i8; q.len()];
    let mut apply = |scale: Option<Scale<'_>>| {
        let out = ViewMut::bshd(&mut codes, 2);
        let out = match scale {
            Some(scale) => out.with_scale(scale),
            None => out,
        };
        refused(rope().apply(&step(), (View::bshd(&q, 2), out), ()))
    };
    let says = |message: String, words: &str| assert!(message.contains(words), "{message}");
    let mut nine = [0.0f32; 9];
    says(apply(None), "Context::apply: q_out.scale (None) is required");
    says(apply(Some(Scale::given(-1.0))), "q_out.scale.value (-1)");
    says(
        apply(Some(Scale::computed(&mut nine))),
        "the scales of q_out are [batch, tokens, heads, groups] = [1, 5, 2, 1] and need 10 elements, and \
         their slice has 9",
    );
    let apart = Strides { batch: 0, token: 2, head: 1 };
    says(apply(Some(Scale::computed(&mut nine).with_strides(apart))), "by their strides");
    says(
        apply(Some(Scale::given(1.0).with_strides(apart))),
        "the one scale of q_out has no strides",
    );
    says(apply(Some(Scale::given(1.0).with_group(7))), "group (7) must be 0 with value");
    let together = Strides::default();
    says(apply(Some(Scale::computed(&mut nine).with_strides(together))), "overlap");
    assert!(codes.iter().all(|&c| c == 99), "a refused call has written");

    let mut x = q.clone();
    let in_place = ViewMut::bshd(&mut x, 2).with_scale(Scale::given(1.0));
    says(refused(rope().apply(&step(), in_place, ())), "q has a scale, which is for an output");
    let out = ViewMut::bshd(&mut x, 2).with_scale(Scale::given(1.0));
    says(refused(rope().apply(&step(), (View::bshd(&q, 2), out), ())), "q_out.scale");
}

/// Shapes of a call that has everything: q is absorbed into a latent, k and v go to a cache of codes.
const LATENT: usize = 48;
const PLACES: [i32; TOKENS] = [3, 0, 7, -1, 4];

fn slots<'a>() -> Slots<'a> {
    Slots::mapped(&PLACES)
}

struct Everything {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    rest: Vec<f32>,
    q_out: Vec<F8E4M3>,
    q_scales: Vec<f32>,
    rest_out: Vec<bf16>,
    v_out: Vec<bf16>,
    keys: Vec<i8>,
    key_scales: Vec<f32>,
    values: Vec<i8>,
}

impl Everything {
    fn new(seed: u64) -> Everything {
        let mut random = Random(seed);
        Everything {
            q: random.vec(TOKENS * 4 * DIM),
            k: random.vec(TOKENS * DIM),
            v: random.vec(TOKENS * LATENT),
            rest: random.vec(TOKENS * 4 * LATENT),
            q_out: vec![F8E4M3(0); TOKENS * 4 * DIM],
            q_scales: vec![0.0; TOKENS * 4],
            rest_out: vec![bf16::ZERO; TOKENS * 4 * LATENT],
            v_out: vec![bf16::ZERO; TOKENS * LATENT],
            keys: vec![99; 8 * DIM],
            key_scales: vec![0.0; 8],
            values: vec![99; 8 * LATENT],
        }
    }

    /// In one call.
    fn apply(&mut self, step: &Step<'_>, value_scale: f32) {
        let mut cache = KvCache::new(2, 4)
            .with_k(Pages::nhd(&mut self.keys, 1).with_scale(Scale::computed(&mut self.key_scales)))
            .with_v(Pages::nhd(&mut self.values, 1).with_scale(Scale::given(value_scale)))
            .with_v_head_dim(LATENT);
        let q_out =
            ViewMut::bshd(&mut self.q_out, 4).with_scale(Scale::computed(&mut self.q_scales));
        let call = Call::new()
            .with_q((View::bshd(&self.q, 4), q_out))
            .with_k(View::bshd(&self.k, 1))
            .with_v((View::bshd(&self.v, 1), ViewMut::bshd(&mut self.v_out, 1)))
            .with_rest((View::bshd(&self.rest, 4), ViewMut::bshd(&mut self.rest_out, 4)))
            .with_rest_head_dim(LATENT)
            .with_cache(&mut cache);
        rope().apply_call(step, call).unwrap();
    }

    fn layer<'a>(&'a mut self, value_scale: &'a [f32]) -> Layer<'a> {
        Layer::new()
            .with_q(&self.q)
            .with_q_out(&mut self.q_out[..])
            .with_q_out_scales(&mut self.q_scales)
            .with_k(&self.k)
            .with_v(&self.v)
            .with_v_out(&mut self.v_out)
            .with_rest(&self.rest)
            .with_rest_out(&mut self.rest_out)
            .with_cache_k(&mut self.keys)
            .with_cache_k_scales(&mut self.key_scales)
            .with_cache_v(&mut self.values)
            .with_cache_v_scales(value_scale)
    }
}

#[test]
fn a_call_may_have_everything() {
    let mut all = Everything::new(4);
    all.apply(&step().with_slots(slots()), 0.015);
    let (q, k) = (turned(&all.q, 4), turned(&all.k, 1));
    // E4M3 is checked by its bound alone: half of the last of 3 bits, or of the least code.
    for (i, (&F8E4M3(bits), &x)) in all.q_out.iter().zip(&q).enumerate() {
        let scale = all.q_scales[i / DIM];
        let (sign, e, m) = (bits >> 7, i32::from(bits >> 3 & 15), f32::from(bits & 7));
        let size = if e == 0 { m / 512.0 } else { (1.0 + m / 8.0) * 2f32.powi(e - 7) } * scale;
        let value = if sign == 1 { -size } else { size };
        assert!((value - x).abs() <= x.abs() / 16.0 + scale / 1024.0, "{i}: {value} {x}");
    }
    let narrow = |x: &f32| bf16::from_f32(*x);
    assert!(all.rest.iter().map(narrow).eq(all.rest_out.iter().copied()));
    assert!(all.v.iter().map(narrow).eq(all.v_out.iter().copied()));
    let (mut keys, mut values) = (vec![99i8; 8 * DIM], vec![99i8; 8 * LATENT]);
    for (token, &slot) in PLACES.iter().enumerate() {
        let Ok(slot) = usize::try_from(slot) else { continue };
        let head = &k[token * DIM..][..DIM];
        assert_eq!(all.key_scales[slot], computed(head));
        let coded = head.iter().map(|&x| code(x, computed(head)));
        keys.splice(slot * DIM..(slot + 1) * DIM, coded);
        let value = all.v[token * LATENT..][..LATENT].iter().map(|&x| code(x, 0.015));
        values.splice(slot * LATENT..(slot + 1) * LATENT, value);
    }
    assert!(all.keys == keys && all.values == values);
}

/// The description of `Everything`.
fn described(rope: &Context) -> Result<librope::PreparedCall<'_>> {
    let given = Scale::given_array(&[]).with_strides(Strides::default());
    let mut cache = KvCache::new(2, 4)
        .with_k(Pages::<i8>::nhd(&mut [], 1).with_scale(Scale::computed(&mut [])))
        .with_v(Pages::<i8>::nhd(&mut [], 1).with_scale(given))
        .with_v_head_dim(LATENT);
    let q_out = ViewMut::<F8E4M3>::bshd(&mut [], 4).with_scale(Scale::computed(&mut []));
    let call = Call::new()
        .with_q((View::<f32>::bshd(&[], 4), q_out))
        .with_k(View::<f32>::bshd(&[], 1))
        .with_v((View::<f32>::bshd(&[], 1), ViewMut::<bf16>::bshd(&mut [], 1)))
        .with_rest((View::<f32>::bshd(&[], 4), ViewMut::<bf16>::bshd(&mut [], 4)))
        .with_rest_head_dim(LATENT)
        .with_cache(&mut cache);
    rope.prepare_call(&step().with_slots(slots()), call)
}

#[test]
fn a_prepared_call_has_the_bits_of_one_call() {
    let rope = rope();
    let call = described(&rope).unwrap();
    for layer in 0..3 {
        let scale = [0.015 + 0.01 * layer as f32];
        let (mut once, mut prepared) = (Everything::new(9 + layer), Everything::new(9 + layer));
        once.apply(&step().with_slots(slots()), scale[0]);
        call.apply(prepared.layer(&scale)).unwrap();
        assert!(once.q_out == prepared.q_out && once.q_scales == prepared.q_scales);
        assert!(once.rest_out == prepared.rest_out && once.v_out == prepared.v_out);
        assert!(once.keys == prepared.keys && once.key_scales == prepared.key_scales);
        assert!(once.values == prepared.values);
    }
}

#[test]
fn slices_that_a_prepared_call_did_not_describe_are_refused() {
    let rope = rope();
    let call = described(&rope).unwrap();
    let mut all = Everything::new(5);
    let says = |message: String, words: &str| assert!(message.contains(words), "{message}");
    let scale = [0.01f32];
    let (mut two, mut short) = ([0.0f32; 2], vec![0.0f32; 3]);
    says(refused(call.apply(Layer::new())), "needs q: Layer has none");
    says(refused(call.apply(all.layer(&scale).with_k_out(&mut two[..]))), "no slice for k_out");
    says(refused(call.apply(all.layer(&[]))), "the scales of the cache's v has 0 elements");
    says(
        refused(call.apply(all.layer(&scale).with_cache_k_scales(&mut short))),
        "the scales of the cache's k has 3 elements, and the prepared call needs 8",
    );
    says(
        refused(call.apply(all.layer(&scale).with_cache_k_scales(&[0.0f32; 8][..]))),
        "the scales of the cache's k is written, and Layer has a slice to read",
    );
    says(
        refused(call.apply(all.layer(&scale).with_cache_k_scales(&mut [0u8; 8][..]))),
        "is a slice of E8M0, and the prepared call needs one of F32",
    );
    says(
        refused(call.apply(all.layer(&scale).with_q(&[bf16::ONE; TOKENS * 4 * DIM][..]))),
        "q is a slice of Bf16, and the prepared call needs one of F32",
    );
    assert!(all.keys.iter().all(|&c| c == 99) && all.q_scales.iter().all(|&s| s == 0.0));

    let filled = vec![1.0f32; TOKENS * DIM];
    let own = Call::new().with_k((View::bshd(&filled, 1), ViewMut::<f32>::bshd(&mut [], 1)));
    says(refused(rope.prepare_call(&step(), own)), "k has 160 elements, and must be empty");
}

#[test]
fn what_turns_in_place_is_lent_exclusively() {
    let rope = rope();
    let x: Vec<f32> = Random(6).vec(TOKENS * DIM);
    let want = turned(&x, 1);
    let mut cache = KvCache::new(1, 8).with_k(Pages::<f32>::nhd(&mut [], 1));
    let call = Call::new()
        .with_q(ViewMut::<f32>::bshd(&mut [], 1))
        .with_k(ViewMut::<f32>::bshd(&mut [], 1)) // in place and to the cache
        .with_cache(&mut cache);
    let call = rope.prepare_call(&step().with_slots(Slots::linear(&[2])), call).unwrap();
    let (mut q, mut k, mut keys) = (x.clone(), x.clone(), vec![0.0f32; 8 * DIM]);
    call.apply(Layer::new().with_q(&mut q).with_k(&mut k).with_cache_k(&mut keys)).unwrap();
    assert!(q == want && k == want && keys[2 * DIM..7 * DIM] == want);
    let lent = Layer::new().with_q(&x).with_k(&mut k).with_cache_k(&mut keys);
    assert!(refused(call.apply(lent)).contains("q is written"));
    let lent = Layer::new().with_q(&mut q).with_k(&x).with_cache_k(&mut keys);
    assert!(refused(call.apply(lent)).contains("k is written"));
}

#[test]
fn what_has_no_place_to_go_is_refused() {
    let x = vec![1.0f32; TOKENS * DIM];
    let mut y = x.clone();
    let says = |result: Result<()>, words: &str| {
        let message = refused(result);
        assert!(message.contains(words), "{message}");
    };
    let view = || View::bshd(&x, 1);
    let apply = |call: Call<'_>| rope().apply_call(&step(), call);
    says(apply(Call::new().with_k(view())), "k has no place to go");
    says(
        apply(Call::new().with_q(ViewMut::bshd(&mut y, 1)).with_v(view())),
        "Context::apply_call: v is set, but neither v_out nor the cache's v is",
    );
    says(apply(Call::new()), "q");
    let call = Call::new().with_q(ViewMut::bshd(&mut y, 1)).with_rest_head_dim(DIM);
    says(apply(call), "with_rest_head_dim is for a call with rest");
    let call = Call::new().with_q(ViewMut::bshd(&mut y, 1)).with_v_head_dim(DIM);
    says(apply(call), "with_v_head_dim is for a call with v");
    let mut keys = x.clone();
    let mut cache = KvCache::new(1, TOKENS).with_k(Pages::nhd(&mut keys, 1));
    says(apply(Call::new().with_k(view()).with_cache(&mut cache)), "Step::with_slots");
    let sloted = step().with_slots(Slots::linear(&[0]));
    let call = Call::new().with_q(ViewMut::bshd(&mut y, 1));
    says(rope().apply_call(&sloted, call), "this step has slots of a cache");
    let mut cache = cache.with_v_head_dim(DIM);
    says(
        rope().apply_call(&sloted, Call::new().with_k(view()).with_cache(&mut cache)),
        "with_v_head_dim is for a cache or a call with v",
    );
    // The width of a v that goes past the cache.
    let (v, mut v_out) = (vec![2.0f32; TOKENS * 16], vec![0.0f32; TOKENS * 16]);
    cache = cache.with_v_head_dim(16);
    let v_to = (View::bshd(&v, 1), ViewMut::bshd(&mut v_out, 1));
    rope().append(&sloted, (), view(), v_to, &mut cache).unwrap();
    assert!(v_out == v);
    assert!(y == x);
}
