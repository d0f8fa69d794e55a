//! A decode step of an engine whose cache has 8 bits, for every layer: q and k are normed as Qwen3 norms them,
//! turned, and k and v are coded on their way into the pages, with a scale for each token and head. What the
//! pages hold, decoded, is what a norm, a rotation and a rounding of their own give.

use librope::half::bf16;
use librope::{
    Config, Context, F8E4M3, KvCache, Norm, NormRounding, Norms, Pages, Pairing, Positions, Result,
    Rounding, Scale, Slots, Step, View, ViewMut,
};

const DIM: usize = 128;
const Q_HEADS: usize = 16;
const HEADS: usize = 8; // of k and v
const PAGES: usize = 6;
const PAGE_SIZE: usize = 16;
const LAYERS: usize = 2;

/// The codes of a tensor, and a scale for each slot and head.
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

struct Layer {
    q_norm: Vec<bf16>,
    k_norm: Vec<bf16>,
    keys: Codes,
    values: Codes,
}

/// The step that this is about, of one layer.
fn decode(rope: &Context, step: &Step<'_>, layer: &mut Layer, qkv: [&mut [bf16]; 3]) -> Result<()> {
    let norm = |weight| Norm::rms(weight, 1e-6).with_rounding(NormRounding::Eager);
    let norms = Norms::new().with_q(norm(&layer.q_norm)).with_k(norm(&layer.k_norm));
    let mut cache =
        KvCache::new(PAGES, PAGE_SIZE).with_k(layer.keys.pages()).with_v(layer.values.pages());
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
    let new_layer = |n: usize| Layer {
        q_norm: numbers(100 + n, DIM),
        k_norm: numbers(200 + n, DIM),
        keys: Codes::new(),
        values: Codes::new(),
    };
    let mut layers: Vec<Layer> = (0..LAYERS).map(new_layer).collect();

    // One token of each of three sequences, which have 5, 17 and 40 tokens in their pages.
    let lengths = [5, 17, 40];
    let table = [3, -1, -1, 0, 4, -1, 1, 5, 2];
    let plain = Step::new(3, 1, Positions::seq_offsets(&lengths));
    let step = plain.with_slots(Slots::paged(&table, 3, &lengths));
    let slots = [3 * PAGE_SIZE + 5, 4 * PAGE_SIZE + 1, 2 * PAGE_SIZE + 8];

    let mut worst = 0.0f32;
    for (n, layer) in layers.iter_mut().enumerate() {
        let [mut q, mut k, mut v] = [(0, Q_HEADS), (1, HEADS), (2, HEADS)]
            .map(|(what, heads)| numbers(10 * n + what, 3 * heads * DIM));
        let mut want = k.clone();
        decode(&rope, &step, layer, [&mut q, &mut k, &mut v])?;

        let norms =
            Norms::new().with_k(Norm::rms(&layer.k_norm, 1e-6).with_rounding(NormRounding::Eager));
        rope.apply(&plain.with_norms(&norms), (), ViewMut::bshd(&mut want, HEADS))?;
        for (memory, want) in [(&layer.keys, &want), (&layer.values, &v)] {
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
