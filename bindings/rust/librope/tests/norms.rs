//! Norms beside the rotation: weights, biases and roots reach the library as they were given, what a
//! call norms and turns has the bits of two calls, and arrays of another length are refused.

mod common;

use common::{Number, Random, refused};
use librope::half::{bf16, f16};
use librope::{
    CacheShape, Call, Config, Context, Element, Error, F8E4M3, KvCache, Layer, Norm, NormOrder,
    NormRounding, Norms, Operation, Pages, Pairing, Part, Positions, Result, Scale, Shape,
    SliceElement, Slots, Step, Strides, View, ViewMut,
};

const DIM: usize = 64;
const HEADS: [usize; 2] = [4, 2]; // of q, of k and v
const TOKENS: usize = 5;

fn rope(theta: Option<f64>) -> Context {
    match theta {
        Some(theta) => Config::new(DIM, theta, Pairing::Halves).build().unwrap(),
        None => Config::nope(DIM).build().unwrap(),
    }
}

/// What a norm is made of, and the same in f64.
struct Weights<W> {
    kind: usize,
    per_head: bool,
    all_heads: bool,
    weight: Vec<W>,
    bias: Vec<W>,
}

const EPS: f64 = 1e-5;

impl<W: Number> Weights<W> {
    fn new(random: &mut Random, heads: usize) -> Weights<W> {
        let (kind, per_head) = (random.below(5), random.below(2) == 1);
        let all_heads = random.below(2) == 1;
        let len = if per_head || all_heads { heads * DIM } else { DIM };
        Weights { kind, per_head, all_heads, weight: random.vec(len), bias: random.vec(len) }
    }

    fn norm(&self) -> Norm<'_> {
        self.of(&self.weight, &self.bias)
    }

    /// The same without weights, for a prepared call.
    fn described(&self) -> Norm<'_> {
        self.of(&[], &[])
    }

    fn of<'a>(&self, weight: &'a [W], bias: &'a [W]) -> Norm<'a> {
        let mut norm = match self.kind {
            0 => Norm::rms(weight, EPS),
            1 => Norm::rms_one_plus(weight, EPS),
            2 => Norm::rms_plain(EPS),
            3 => Norm::layer(weight, EPS),
            _ => Norm::layer_bias(weight, bias, EPS),
        };
        if self.per_head && self.kind != 2 {
            norm = norm.per_head();
        }
        if self.all_heads {
            norm = norm.over_all_heads();
        }
        norm.with_rounding(NormRounding::Rounded)
    }

    /// Of the heads of one token.
    fn apply(&self, token: &mut [f64]) {
        let heads = if self.all_heads { token.len() } else { DIM };
        for (n, part) in token.chunks_mut(heads).enumerate() {
            let count = part.len() as f64;
            let mean = if self.kind < 3 { 0.0 } else { part.iter().sum::<f64>() / count };
            let square = part.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
            let r = 1.0 / (square + EPS).sqrt();
            for (c, x) in part.iter_mut().enumerate() {
                let c = (n * heads + c) % self.weight.len();
                let weight = self.weight[c].to_f64();
                *x = match self.kind {
                    1 => (*x - mean) * r * (1.0 + weight),
                    2 => (*x - mean) * r,
                    4 => (*x - mean) * r * weight + self.bias[c].to_f64(),
                    _ => (*x - mean) * r * weight,
                };
            }
        }
    }
}

/// A norm alone has the values of f64; with the rotation it has the bits of two calls; and in a cache
/// stand the bits of outputs.
fn random_calls<T: Number, W: Number + SliceElement>(random: &mut Random) {
    let (turns, norms_alone) = (rope(Some(10000.0)), rope(None));
    let step = Step::new(1, TOKENS, Positions::Offset(11));
    for _ in 0..20 {
        let [q_weights, k_weights, v_weights] =
            [HEADS[0], HEADS[1], HEADS[1]].map(|heads| Weights::<W>::new(random, heads));
        let q: Vec<T> = random.vec(TOKENS * HEADS[0] * DIM);
        let k: Vec<T> = random.vec(TOKENS * HEADS[1] * DIM);
        let v: Vec<T> = random.vec(k.len());
        let layer = Norms::new().with_q(q_weights.norm()).with_k(k_weights.norm());
        let normed = step.with_norms(&layer);

        let (mut two_q, mut two_k) = (q.clone(), k.clone());
        norms_alone
            .apply(
                &normed,
                ViewMut::bshd(&mut two_q, HEADS[0]),
                ViewMut::bshd(&mut two_k, HEADS[1]),
            )
            .unwrap();
        for (x, y, heads, weights) in
            [(&q, &two_q, HEADS[0], &q_weights), (&k, &two_k, HEADS[1], &k_weights)]
        {
            let mut exact: Vec<f64> = x.iter().map(|x| x.to_f64()).collect();
            exact.chunks_mut(heads * DIM).for_each(|token| weights.apply(token));
            for (y, exact) in y.iter().zip(exact) {
                let bound = 2.0 * T::HALF_ULP * (exact.abs() + 2.0) + 1e-5;
                assert!((y.to_f64() - exact).abs() <= bound, "{} {y:?} {exact}", weights.kind);
            }
        }
        turns
            .apply(&step, ViewMut::bshd(&mut two_q, HEADS[0]), ViewMut::bshd(&mut two_k, HEADS[1]))
            .unwrap();

        let (mut one_q, mut one_k) = (q.clone(), vec![T::from_f64(0.0); k.len()]);
        turns
            .apply(
                &normed,
                ViewMut::bshd(&mut one_q, HEADS[0]),
                (View::bshd(&k, HEADS[1]), ViewMut::bshd(&mut one_k, HEADS[1])),
            )
            .unwrap();
        assert!(one_q == two_q && one_k == two_k, "kind {}", q_weights.kind);

        let mut normed_v = v.clone();
        let of_v = Norms::new().with_k(v_weights.norm());
        norms_alone
            .apply(&step.with_norms(&of_v), (), ViewMut::bshd(&mut normed_v, HEADS[1]))
            .unwrap();
        let layer = layer.with_v(v_weights.norm());
        let (mut keys, mut values) = (k.clone(), v.clone());
        let mut cached_q = q.clone();
        turns
            .append(
                &step.with_norms(&layer).with_slots(Slots::linear(&[0])),
                ViewMut::bshd(&mut cached_q, HEADS[0]),
                View::bshd(&k, HEADS[1]),
                View::bshd(&v, HEADS[1]),
                &mut KvCache::new(1, TOKENS)
                    .with_k(Pages::nhd(&mut keys, HEADS[1]))
                    .with_v(Pages::nhd(&mut values, HEADS[1])),
            )
            .unwrap();
        assert!(cached_q == two_q && keys == two_k && values == normed_v, "in a cache");

        let described = Norms::new()
            .with_q(q_weights.described())
            .with_k(k_weights.described())
            .with_v(v_weights.described());
        let (mut no_keys, mut no_values): ([T; 0], [T; 0]) = ([], []);
        let mut cache = KvCache::new(1, TOKENS)
            .with_k(Pages::nhd(&mut no_keys, HEADS[1]))
            .with_v(Pages::nhd(&mut no_values, HEADS[1]));
        let call = Call::new()
            .with_q(ViewMut::<T>::bshd(&mut [], HEADS[0]))
            .with_k(View::<T>::bshd(&[], HEADS[1]))
            .with_v(View::<T>::bshd(&[], HEADS[1]))
            .with_cache(&mut cache);
        let slots = step.with_norms(&described).with_slots(Slots::linear(&[0]));
        let call = turns.prepare_call(&slots, call).unwrap();
        let (mut keys, mut values, mut cached_q) = (k.clone(), v.clone(), q.clone());
        let mut layer = Layer::new().with_q(&mut cached_q).with_k(&k).with_v(&v);
        layer = layer.with_cache_k(&mut keys).with_cache_v(&mut values);
        if q_weights.kind != 2 {
            layer = layer.with_q_norm_weight(&q_weights.weight);
        }
        if q_weights.kind == 4 {
            layer = layer.with_q_norm_bias(&q_weights.bias);
        }
        if k_weights.kind != 2 {
            layer = layer.with_k_norm_weight(&k_weights.weight);
        }
        if k_weights.kind == 4 {
            layer = layer.with_k_norm_bias(&k_weights.bias);
        }
        if v_weights.kind != 2 {
            layer = layer.with_v_norm_weight(&v_weights.weight);
        }
        if v_weights.kind == 4 {
            layer = layer.with_v_norm_bias(&v_weights.bias);
        }
        call.apply(layer).unwrap();
        assert!(cached_q == two_q && keys == two_k && values == normed_v, "prepared");
    }
}

#[test]
fn are_two_calls_and_weights_arrive() {
    let mut random = Random(5);
    random_calls::<f32, bf16>(&mut random);
    random_calls::<bf16, bf16>(&mut random);
    random_calls::<f16, f32>(&mut random);
}

/// One call on q alone.
fn apply<T: Element>(norm: Norm<'_>, q: &mut [T], heads: usize) -> Result<()> {
    let layer = Norms::new().with_q(norm);
    let step = Step::new(1, TOKENS, Positions::Offset(11));
    rope(Some(10000.0)).apply(&step.with_norms(&layer), ViewMut::bshd(q, heads), ())
}

/// The root may be given, and order and rounding count.
#[test]
fn roots_order_and_rounding_arrive() {
    let mut random = Random(6);
    let weight: Vec<f32> = random.vec(DIM);
    let q: Vec<f32> = random.vec(TOKENS * DIM);
    let squares = |token: &[f32]| token.iter().map(|x| x * x).sum::<f32>();
    let roots: Vec<f32> = q
        .chunks(DIM)
        .map(|token| 1.0 / (squares(token) / DIM as f32 + EPS as f32).sqrt())
        .collect();
    let (mut own, mut given, mut after) = (q.clone(), q.clone(), q.clone());
    apply(Norm::rms(&weight, EPS), &mut own, 1).unwrap();
    apply(Norm::rms(&weight, EPS).with_rstd(&roots), &mut given, 1).unwrap();
    assert!(own.iter().zip(&given).all(|(a, b)| (a - b).abs() < 1e-5));
    apply(Norm::rms(&weight, EPS).with_order(NormOrder::After), &mut after, 1).unwrap();
    assert!(own.iter().zip(&after).any(|(a, b)| (a - b).abs() > 0.1));

    let narrow: Vec<bf16> = q.iter().map(|&x| bf16::from_f32(x)).collect();
    let rounded = [NormRounding::Float32, NormRounding::Rounded, NormRounding::Eager].map(|how| {
        let mut x = narrow.clone();
        apply(Norm::rms(&weight, EPS).with_rounding(how), &mut x, 1).unwrap();
        x
    });
    assert!(rounded[0] != rounded[1] && rounded[1] != rounded[2]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut q = vec![1.0f32; TOKENS * 2 * DIM];
    let weight = vec![1.0f32; 2 * DIM];
    let mut message = |norm| {
        let message = refused(apply(norm, &mut q, 2));
        assert!(q.iter().all(|&x| x == 1.0), "{message}");
        message
    };
    assert_eq!(
        message(Norm::rms(&weight, EPS)),
        "Context::apply: the weight of q's norm has 128 entries, and the call needs 64"
    );
    assert!(
        message(Norm::rms(&weight[1..], EPS).per_head())
            .contains("127 entries, and the call needs 128")
    );
    for of_one_head in [
        Norm::rms(&weight[..DIM], EPS).over_all_heads(),
        Norm::rms(&weight[..DIM], EPS).with_rstd(&weight[..TOKENS]),
    ] {
        assert!(message(of_one_head).contains("64 entries, and the call needs 128"));
    }
    assert!(
        message(Norm::layer_bias(&weight[..DIM], &weight, EPS)).contains("the bias of q's norm")
    );
    assert!(message(Norm::rms_plain(EPS).with_rstd(&weight)).contains("the rstd of q's norm"));
    let heads = message(Norm::rms_plain(EPS).per_head());
    assert!(heads.contains("per_head of q's norm"), "{heads}");
    assert!(message(Norm::rms_plain(0.0)).contains("the eps of q's norm (0) is required"));

    // Each norm with its tensor, and calls that take norms.
    let rope = rope(Some(10000.0));
    let layer = Norms::new().with_v(Norm::rms_plain(EPS));
    let step = Step::new(1, TOKENS, Positions::Offset(11)).with_norms(&layer);
    let turned = ViewMut::bshd(&mut q, 2);
    assert!(refused(rope.apply(&step, turned, ())).contains("v's norm is set, but v is absent"));
    assert!(
        refused(rope.prepare(&step, Shape::<f32>::bshd(2), ()).map(drop)).contains("has norms")
    );
    let mut cache = KvCache::new(1, TOKENS).with_k(Pages::nhd(&mut q, 2));
    let k = vec![1.0f32; TOKENS * 2 * DIM];
    assert!(
        refused(rope.append(&step, (), View::bshd(&k, 2), (), &mut cache))
            .contains("this call needs the slots")
    );
    let step = step.with_slots(Slots::linear(&[0]));
    let (tensor, page) = (Shape::<f32>::bshd(2), Shape::<f32>::nhd(2));
    let shape = CacheShape::new(1, TOKENS, page, ());
    let prepared = rope.prepare_append(&step, tensor, tensor, (), shape);
    assert!(refused(prepared.map(drop)).contains("norms: prepare_call prepares calls with them"));
    let moved = rope.move_slots(&step, &mut cache);
    assert!(matches!(&moved, Err(Error::Unsupported(_))), "{moved:?}"); // as C says
    assert!(refused(moved).contains("Context::move_slots: this step has norms: keys that move"));
    let mut turned = vec![1.0f32; TOKENS * 2 * DIM];
    let normed = refused(rope.apply(&step, ViewMut::bshd(&mut turned, 2), ()));
    assert!(normed.contains("this step has slots of a cache"));
    assert!(q.iter().all(|&x| x == 1.0));
}

/// A layer lends what its norms read, and nothing else.
#[test]
fn what_lies_in_one_buffer_is_normed_too() {
    let (rope, mut random) = (rope(Some(10000.0)), Random(17));
    let row = (HEADS[0] + 2 * HEADS[1]) * DIM;
    let qkv: Vec<f32> = random.vec(TOKENS * row);
    let weights: [Vec<f32>; 2] = [random.vec(DIM), random.vec(DIM)];
    let norms =
        Norms::new().with_q(Norm::rms(&weights[0], EPS)).with_k(Norm::rms(&weights[1], EPS));
    let step = Step::new(1, TOKENS, Positions::Offset(11)).with_norms(&norms);
    let strides = Strides { batch: 0, token: row, head: DIM };
    let at = [0, HEADS[0] * DIM, (HEADS[0] + HEADS[1]) * DIM];
    let [q, k, v] =
        [(0, HEADS[0]), (1, HEADS[1]), (2, HEADS[1])].map(|(n, h)| Part::new(at[n], h, strides));
    let heads = |data: &[f32], n: usize| -> Vec<f32> {
        let width = HEADS[n.min(1)] * DIM;
        data.chunks(row).flat_map(|token| &token[at[n]..][..width]).copied().collect()
    };

    let (mut want_q, mut want_k) = (heads(&qkv, 0), heads(&qkv, 1));
    let (to_q, to_k) = (ViewMut::bshd(&mut want_q, HEADS[0]), ViewMut::bshd(&mut want_k, HEADS[1]));
    rope.apply(&step, to_q, to_k).unwrap();

    let mut packed = qkv.clone();
    rope.apply_packed(&step, &mut packed, q, k).unwrap();
    assert!(heads(&packed, 0) == want_q && heads(&packed, 1) == want_k);
    assert!(heads(&packed, 2) == heads(&qkv, 2));

    let (mut packed, mut keys) = (qkv.clone(), vec![0.0f32; TOKENS * HEADS[1] * DIM]);
    let mut values = keys.clone();
    let mut cache = KvCache::new(1, TOKENS)
        .with_k(Pages::nhd(&mut keys, HEADS[1]))
        .with_v(Pages::nhd(&mut values, HEADS[1]));
    let stored = step.with_slots(Slots::linear(&[0]));
    rope.append_packed(&stored, &mut packed, q, k, v, &mut cache).unwrap();
    assert!(heads(&packed, 0) == want_q && keys == want_k && values == heads(&qkv, 2));
}

#[test]
fn prepared_calls_are_lent_their_weights() {
    let rope = rope(Some(10000.0));
    let (roots, weight) = (vec![0.5f32; TOKENS], vec![2.0f32; 2 * DIM]);
    let step = Step::new(1, TOKENS, Positions::Offset(11));
    let described = |q| Call::new().with_q(ViewMut::<f32>::bshd(q, 2));
    for filled in [Norm::rms(&weight, EPS), Norm::rms_plain(EPS).with_rstd(&roots)] {
        let norms = Norms::new().with_q(filled);
        let call = rope.prepare_call(&step.with_norms(&norms), described(&mut []));
        assert!(refused(call.map(drop)).contains("of q's norm has"));
    }
    let norms = Norms::new().with_q(Norm::rms::<f32>(&[], EPS).with_rstd(&[]));
    let backward = step.with_norms(&norms).with_operation(Operation::Backward);
    let message = refused(rope.prepare_call(&backward, described(&mut [])).map(drop));
    assert!(message.contains("with Operation::Backward in a prepared call"), "{message}");
    let call = rope.prepare_call(&step.with_norms(&norms), described(&mut [])).unwrap();
    let x = vec![1.0f32; TOKENS * 2 * DIM];
    let (mut prepared, mut once) = (x.clone(), x.clone());
    apply(Norm::rms(&weight, EPS).with_rstd(&roots), &mut once, 2).unwrap();
    let lent = Layer::new().with_q_norm_weight(&weight).with_q_norm_rstd(&roots);
    call.apply(lent.with_q(&mut prepared)).unwrap();
    assert!(prepared == once && once != x);

    let narrow = vec![bf16::ONE; 2 * DIM];
    let mut q = x.clone();
    for (layer, words) in [
        (Layer::new().with_q_norm_rstd(&roots), "needs the weight of q's norm"),
        (Layer::new().with_q_norm_weight(&weight), "needs the rstd of q's norm"),
        (
            Layer::new().with_q_norm_weight(&weight[1..]).with_q_norm_rstd(&roots),
            "the weight of q's norm has 127 elements, and the prepared call needs 128",
        ),
        (
            Layer::new().with_q_norm_weight(&narrow).with_q_norm_rstd(&roots),
            "the weight of q's norm is a slice of Bf16",
        ),
        (
            Layer::new()
                .with_q_norm_weight(&weight)
                .with_q_norm_rstd(&roots)
                .with_q_norm_bias(&weight),
            "describes no slice for the bias of q's norm",
        ),
    ] {
        assert!(refused(call.apply(layer.with_q(&mut q))).contains(words));
    }
    assert!(q == x);
}

/// Keys and values in 8 bits, with a scale of each group, in pages.
#[derive(Clone, PartialEq)]
struct Codes {
    keys: Vec<F8E4M3>,
    key_scales: Vec<f32>,
    values: Vec<i8>,
    value_scales: Vec<u8>,
}

const PAGES: [usize; 2] = [6, 4]; // and the slots of each

impl Codes {
    fn new() -> Codes {
        let heads = PAGES[0] * PAGES[1] * HEADS[1];
        Codes {
            keys: vec![F8E4M3(0x55); heads * DIM],
            key_scales: vec![-1.0; heads],
            values: vec![99; heads * DIM],
            value_scales: vec![9; heads * 4],
        }
    }

    /// What a prepared call describes.
    fn none() -> Codes {
        Codes { keys: vec![], key_scales: vec![], values: vec![], value_scales: vec![] }
    }

    fn cache(&mut self) -> KvCache<'_> {
        let keys = Pages::nhd(&mut self.keys, HEADS[1]);
        let values = Pages::hnd(&mut self.values, HEADS[1]);
        let of_values = Scale::computed_e8m0(&mut self.value_scales).with_group(16);
        KvCache::new(PAGES[0], PAGES[1])
            .with_k(keys.with_scale(Scale::computed(&mut self.key_scales)))
            .with_v(values.with_scale(of_values))
    }

    /// How many slots have scales of keys.
    fn filled(&self) -> usize {
        self.key_scales.chunks(HEADS[1]).filter(|heads| heads[0] >= 0.0).count()
    }
}

/// Those of Qwen3, or of OLMo 2, and one of v.
fn norms_of<'a>(over_all: bool, q: &'a [bf16], k: &'a [bf16]) -> Norms<'a> {
    let of = |weight: &'a [bf16]| {
        let norm = Norm::rms(weight, EPS).with_rounding(NormRounding::Eager);
        if over_all { norm.over_all_heads() } else { norm }
    };
    let of_v = Norm::rms_plain(EPS).with_rounding(NormRounding::Eager);
    Norms::new().with_q(of(q)).with_k(of(k)).with_v(of_v)
}

/// The step of an engine whose cache has 8 bits: sequences of different lengths, norms of q, k and v, scales that
/// are computed, and page tables, once prepared for all layers and once not.
#[test]
fn prepared_norms_fill_pages_of_codes_with_the_bits_of_append() {
    let (turns, mut random) = (rope(Some(10000.0)), Random(31));
    let (lengths, cu) = ([3, 0, 6], [0, 2, 5, 6]);
    let table = [4, 2, -1, 5, 0, 3]; // the first page of the second sequence is nowhere
    let step = Step::new(1, 6, Positions::seq_offsets(&lengths))
        .with_cu_seqlens(&cu)
        .with_slots(Slots::paged(&table, 2, &lengths));
    for over_all in [false, true] {
        let described = norms_of(over_all, &[], &[]);
        let mut none = Codes::none();
        let mut cache = none.cache();
        let call = Call::new()
            .with_q(ViewMut::<bf16>::bshd(&mut [], HEADS[0]))
            .with_k(View::<bf16>::bshd(&[], HEADS[1]))
            .with_v(View::<bf16>::bshd(&[], HEADS[1]))
            .with_cache(&mut cache);
        let call = turns.prepare_call(&step.with_norms(&described), call).unwrap();
        for _layer in 0..3 {
            let [q, k, v]: [Vec<bf16>; 3] =
                [HEADS[0], HEADS[1], HEADS[1]].map(|heads| random.vec(6 * heads * DIM));
            let [q_weight, k_weight]: [Vec<bf16>; 2] =
                HEADS.map(|heads| random.vec(if over_all { heads * DIM } else { DIM }));

            let (mut want_q, mut want) = (q.clone(), Codes::new());
            let norms = norms_of(over_all, &q_weight, &k_weight);
            turns
                .append(
                    &step.with_norms(&norms),
                    ViewMut::bshd(&mut want_q, HEADS[0]),
                    View::bshd(&k, HEADS[1]),
                    View::bshd(&v, HEADS[1]),
                    &mut want.cache(),
                )
                .unwrap();
            assert_eq!(want.filled(), 3, "those of the other sequences");

            let (mut got_q, mut got) = (q, Codes::new());
            let layer = Layer::new().with_q(&mut got_q).with_k(&k).with_v(&v);
            let layer = layer.with_q_norm_weight(&q_weight).with_k_norm_weight(&k_weight);
            let layer = layer.with_cache_k(&mut got.keys).with_cache_k_scales(&mut got.key_scales);
            let layer = layer.with_cache_v(&mut got.values);
            call.apply(layer.with_cache_v_scales(&mut got.value_scales)).unwrap();
            assert!(got_q == want_q && got == want, "a prepared call has other bits");
        }
    }
}
