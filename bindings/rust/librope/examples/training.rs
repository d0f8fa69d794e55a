//! Training with QK norm and grouped queries: one call turns the gradients of q and of repeated k, as attention
//! gives them, into those of what the projection has given, and of the norm's weights, in parts. The program
//! compares some of them with how much the loss grows where a number grows.

use librope::{
    Call, Config, Context, Gradient, Gradients, Norm, Norms, Operation, Pairing, Positions, Result,
    Step, Strides, View, ViewMut,
};

const TOKENS: usize = 5;
const Q_HEADS: usize = 4;
const K_HEADS: usize = 2;
const DIM: usize = 64;
const PACKED: usize = (Q_HEADS + K_HEADS) * DIM;
const PARTS: usize = 2; // work for two threads

/// What the projection has given, `[tokens, q heads and k heads, channels]`, and the weights of q's norm.
struct Layer {
    qk: Vec<f32>,
    weight: Vec<f32>,
}

impl Layer {
    fn q(&self) -> View<'_, f32> {
        View::strided(&self.qk, Q_HEADS, strides())
    }

    fn k(&self) -> View<'_, f32> {
        View::strided(&self.qk[Q_HEADS * DIM..], K_HEADS, strides())
    }

    fn norms(&self) -> Norms<'_> {
        Norms::new().with_q(Norm::rms(&self.weight, 1e-6))
    }
}

fn strides() -> Strides {
    Strides { batch: 0, token: PACKED, head: DIM }
}

fn numbers(seed: f32, count: usize) -> Vec<f32> {
    (0..count).map(|i| (seed + 0.37 * i as f32).sin()).collect()
}

fn step<'a>() -> Step<'a> {
    Step::new(1, TOKENS, Positions::Offset(7))
}

/// What attention reads times the gradients `up`; a head of k serves two of q.
fn loss(rope: &Context, layer: &Layer, up: &[Vec<f32>; 2]) -> Result<f64> {
    let (mut q, mut k) =
        (vec![0.0f32; TOKENS * Q_HEADS * DIM], vec![0.0f32; TOKENS * K_HEADS * DIM]);
    let norms = layer.norms();
    rope.apply(
        &step().with_norms(&norms),
        (layer.q(), ViewMut::bshd(&mut q, Q_HEADS)),
        (layer.k(), ViewMut::bshd(&mut k, K_HEADS)),
    )?;
    let repeated = k.chunks(DIM).flat_map(|head| [head; Q_HEADS / K_HEADS]).flatten();
    let product = |(x, up): (&f32, &f32)| f64::from(*x) * f64::from(*up);
    Ok(q.iter().zip(&up[0]).map(product).chain(repeated.zip(&up[1]).map(product)).sum())
}

fn main() -> Result<()> {
    let rope = Config::new(DIM, 10000.0, Pairing::Halves).build()?;
    let mut layer = Layer { qk: numbers(1.0, TOKENS * PACKED), weight: numbers(2.0, DIM) };
    let up = [numbers(3.0, TOKENS * Q_HEADS * DIM), numbers(4.0, TOKENS * Q_HEADS * DIM)];

    // Outputs are exclusive slices, so that the gradient of each tensor has one of its own.
    let mut q_grad = vec![0.0f32; TOKENS * Q_HEADS * DIM];
    let mut k_grad = vec![0.0f32; TOKENS * K_HEADS * DIM];
    let mut parts = vec![0.0f32; PARTS * DIM];
    let norms = layer.norms();
    let of_q = Gradient::through(layer.q()).with_weight(&mut parts); // what the norm was given
    let call = Call::new()
        .with_q((View::bshd(&up[0], Q_HEADS), ViewMut::bshd(&mut q_grad, Q_HEADS)))
        .with_k((View::bshd(&up[1], Q_HEADS), ViewMut::bshd(&mut k_grad, K_HEADS))) // heads are added
        .with_gradients(Gradients::in_parts(PARTS).with_q(of_q));
    rope.apply_call(&step().with_norms(&norms).with_operation(Operation::Backward), call)?;

    let mut compare = |name: &str, gradient: f32, value: fn(&mut Layer) -> &mut f32| {
        let (before, by) = (*value(&mut layer), 1.0 / 64.0);
        *value(&mut layer) = before + by;
        let above = loss(&rope, &layer, &up)?;
        *value(&mut layer) = before - by;
        let slope = (above - loss(&rope, &layer, &up)?) / f64::from(2.0 * by);
        *value(&mut layer) = before;
        println!("{name:22} {gradient:9.5}, the loss grows by {slope:9.5}");
        assert!((slope - f64::from(gradient)).abs() < 2e-3, "{name}");
        Ok(())
    };
    let q_at = 2 * Q_HEADS * DIM + 70;
    compare("q, token 2, channel 70", q_grad[q_at], |layer| &mut layer.qk[2 * PACKED + 70])?;
    let k_at = 4 * K_HEADS * DIM - 1;
    compare("k, token 3, the last", k_grad[k_at], |layer| &mut layer.qk[4 * PACKED - 1])?;
    compare("weight 5", parts[5] + parts[DIM + 5], |layer| &mut layer.weight[5])
}
