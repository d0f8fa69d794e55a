//! A decode step of an engine whose cache has 8 bits, for every layer: q and k are normed as Qwen3 norms them,
//! turned, and k and v are coded on their way into the pages, with a scale for each token and head. The call is
//! prepared once for all layers, each of which lends its weights and pages. It has the bits of a call that is
//! not prepared, and what the pages hold, decoded, is what a norm, a rotation and a rounding of their own give.

use librope::half::bf16;
use librope::{
    Call, Config, Context, F8E4M3, KvCache, Layer, Norm, NormRounding, Norms, Pages, Pairing,
    Positions, PreparedCall, Result, Rounding, Scale, Slots, Step, View, ViewMut,
};

const DIM: usize = 128;
const Q_HEADS: usize = 16;
const HEADS: usize = 8; // of k and v
const PAGES: usize = 6;
const PAGE_SIZE: usize = 16;
const LAYERS: usize = 2;

/// The codes of a tensor, and a scale for each slot and head.
#[derive(Clone, PartialEq)]
struct Codes {
    codes: Vec<F8E4M3>,
    scales: Vec<f32>,
}

impl Codes {
    fn new() -> Codes {
        let heads = PAGES * PAGE_SIZE * HEADS;
        Codes { codes: vec![F8E4M3(0); heads * DIM], scales: vec![0.0; heads] }
    }

    fn pages(&mut self) -> Pages<'_, F8E4M3> {
        Pages::nhd(&mut self.codes, HEADS).with_scale(Scale::computed(&mut self.scales))
    }

    /// What attention reads.
    fn decoded(&self, slot: usize) -> Vec<f32> {
        let heads = slot * HEADS..(slot + 1) * HEADS;
        let value = |head: usize| {
            let codes = &self.codes[head * DIM..][..DIM];
            codes.iter().map(move |&F8E4M3(bits)| e4m3(bits) * self.scales[head])
        };
        heads.flat_map(value).collect()
    }
}

fn e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let size = match exponent {
        0 => mantissa / 512.0,
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if bits & 0x80 == 0 { size } else { -size }
}

/// Stands for a projection, and for weights.
fn numbers(seed: usize, count: usize) -> Vec<bf16> {
    (0..count).map(|i| bf16::from_f32((seed as f32 + i as f32 * 0.37).sin())).collect()
}

struct Weights {
    q_norm: Vec<bf16>,
    k_norm: Vec<bf16>,
}

fn norm(weight: &[bf16]) -> Norm<'_> {
    Norm::rms(weight, 1e-6).with_rounding(NormRounding::Eager)
}

/// The step that this is about, for all layers: what each lends is described by empty slices.
fn prepare<'a>(rope: &'a Context, step: &Step<'a>) -> Result<PreparedCall<'a>> {
    let pages = || Pages::<F8E4M3>::nhd(&mut [], HEADS).with_scale(Scale::computed(&mut []));
    let mut cache = KvCache::new(PAGES, PAGE_SIZE).with_k(pages()).with_v(pages());
    let call = Call::new()
        .with_q(ViewMut::<bf16>::bshd(&mut [], Q_HEADS))
        .with_k(View::<bf16>::bshd(&[], HEADS))
        .with_v(View::<bf16>::bshd(&[], HEADS))
        .with_cache(&mut cache);
    rope.prepare_call(step, call)
}

/// The same step of one layer, which is not prepared.
fn append(
    rope: &Context,
    step: &Step<'_>,
    layer: &Weights,
    qkv: [&mut [bf16]; 3],
    memory: &mut [Codes; 2],
) -> Result<()> {
    let norms = Norms::new().with_q(norm(&layer.q_norm)).with_k(norm(&layer.k_norm));
    let [keys, values] = memory;
    let mut cache = KvCache::new(PAGES, PAGE_SIZE).with_k(keys.pages()).with_v(values.pages());
    let [q, k, v] = qkv;
    rope.append(
        &step.with_norms(&norms),
        ViewMut::bshd(q, Q_HEADS),
        View::bshd(k, HEADS),
        View::bshd(v, HEADS),
        &mut cache,
    )
}

fn main() -> Result<()> {
    let config = Config::new(DIM, 1e6, Pairing::Halves).with_rounding(Rounding::Eager);
    let rope = config.build()?;
    let layers: Vec<Weights> = (0..LAYERS)
        .map(|n| Weights { q_norm: numbers(100 + n, DIM), k_norm: numbers(200 + n, DIM) })
        .collect();
    let mut memory: Vec<[Codes; 2]> = (0..LAYERS).map(|_| [Codes::new(), Codes::new()]).collect();

    // One token of each of three sequences, which have 5, 17 and 40 tokens in their pages.
    let lengths = [5, 17, 40];
    let table = [3, -1, -1, 0, 4, -1, 1, 5, 2];
    let plain = Step::new(3, 1, Positions::seq_offsets(&lengths));
    let step = plain.with_slots(Slots::paged(&table, 3, &lengths));
    let slots = [3 * PAGE_SIZE + 5, 4 * PAGE_SIZE + 1, 2 * PAGE_SIZE + 8];

    let described = Norms::new().with_q(norm(&[])).with_k(norm(&[]));
    let call = prepare(&rope, &step.with_norms(&described))?;

    let mut worst = 0.0f32;
    for (n, (layer, memory)) in layers.iter().zip(&mut memory).enumerate() {
        let [mut q, mut k, mut v] = [(0, Q_HEADS), (1, HEADS), (2, HEADS)]
            .map(|(what, heads)| numbers(10 * n + what, 3 * heads * DIM));
        let (mut q_alone, mut alone) = (q.clone(), memory.clone());
        append(&rope, &step, layer, [&mut q_alone, &mut k, &mut v], &mut alone)?;

        let [keys, values] = memory;
        let lent = Layer::new().with_q(&mut q).with_k(&k).with_v(&v);
        let lent = lent.with_cache_k(&mut keys.codes).with_cache_k_scales(&mut keys.scales);
        let lent = lent.with_cache_v(&mut values.codes).with_cache_v_scales(&mut values.scales);
        call.apply(lent.with_q_norm_weight(&layer.q_norm).with_k_norm_weight(&layer.k_norm))?;
        assert!(q == q_alone && *memory == alone, "prepared: other bits");

        let mut want = k.clone();
        let norms = Norms::new().with_k(norm(&layer.k_norm));
        rope.apply(&plain.with_norms(&norms), (), ViewMut::bshd(&mut want, HEADS))?;
        for (memory, want) in memory.iter().zip([&want, &v]) {
            for (slot, want) in slots.iter().zip(want.chunks(HEADS * DIM)) {
                for (got, want) in memory.decoded(*slot).iter().zip(want) {
                    worst = worst.max((got - want.to_f32()).abs() / (want.to_f32().abs() + 0.01));
                }
            }
        }
    }
    assert!(worst < 1.0 / 16.0 + 0.001, "codes have 3 bits behind the point: {worst}");
    println!("{} tokens of {LAYERS} layers in 8 bits, each within 1/16 of its value", slots.len());
    Ok(())
}
