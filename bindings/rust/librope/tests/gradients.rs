//! The gradients of a call with norms are those of differences, heads that were repeated are summed, and
//! the groups of a grouped QKV share their positions.

mod common;

use common::{Random, refused};
use librope::{
    Call, Config, Context, Gradient, Gradients, Layout, Norm, Norms, Operation, Pairing, Positions,
    Result, Step, View, ViewMut,
};

const DIM: usize = 16;
const TOKENS: usize = 6;
const HEADS: usize = 2;
const EPS: f64 = 1e-5;

fn rope() -> Context {
    Config::new(DIM, 10000.0, Pairing::Halves).build().unwrap()
}

fn step<'a>() -> Step<'a> {
    Step::new(1, TOKENS, Positions::Offset(11))
}

/// The sum of what comes out, in f64, each times its weight in the loss: a norm with bias, the rotation by
/// the context's own frequencies, and each head twice.
fn loss(rope: &Context, x: &[f64], weight: &[f64], bias: &[f64], grad: &[f32]) -> f64 {
    let inv_freq = rope.inv_freq(0).unwrap();
    let mut sum = 0.0;
    for (n, head) in x.chunks(DIM).enumerate() {
        let mean = head.iter().sum::<f64>() / DIM as f64;
        let square = head.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / DIM as f64;
        let (token, h) = (n / HEADS, n % HEADS);
        let (weight, bias) = (&weight[h * DIM..], &bias[h * DIM..]); // each head has its own
        let y = |c: usize| (head[c] - mean) / (square + EPS).sqrt() * weight[c] + bias[c];
        for (i, inv_freq) in inv_freq.iter().enumerate() {
            let (sin, cos) = ((11 + token) as f64 * inv_freq).sin_cos();
            let (a, b) = (y(i), y(i + DIM / 2));
            for again in 0..2 {
                let at = (token * 2 * HEADS + 2 * h + again) * DIM;
                sum += (a * cos - b * sin) * f64::from(grad[at + i]);
                sum += (b * cos + a * sin) * f64::from(grad[at + i + DIM / 2]);
            }
        }
    }
    sum
}

fn derivative(at: &mut [f64], i: usize, f: impl Fn(&[f64]) -> f64) -> f64 {
    let (before, h) = (at[i], 1e-6);
    at[i] = before + h;
    let above = f(at);
    at[i] = before - h;
    let below = f(at);
    at[i] = before;
    (above - below) / (2.0 * h)
}

#[test]
fn gradients_are_differences() {
    let (rope, mut random) = (rope(), Random(7));
    let x: Vec<f32> = random.vec(TOKENS * HEADS * DIM);
    let (weight, bias): (Vec<f32>, Vec<f32>) = (random.vec(HEADS * DIM), random.vec(HEADS * DIM));
    let grad: Vec<f32> = random.vec(2 * x.len());
    let layer = Norms::new().with_k(Norm::layer_bias(&weight, &bias, EPS).per_head());
    let parts = 3;
    let (mut out, mut weights, mut biases) = (
        vec![0.0f32; x.len()],
        vec![0.0f32; parts * HEADS * DIM],
        vec![0.0f32; parts * HEADS * DIM],
    );
    let of_k =
        Gradient::through(View::bshd(&x, HEADS)).with_weight(&mut weights).with_bias(&mut biases);
    let call = Call::new()
        .with_k((View::bshd(&grad, 2 * HEADS), ViewMut::bshd(&mut out, HEADS)))
        .with_gradients(Gradients::in_parts(parts).with_k(of_k));
    let backward = step().with_norms(&layer).with_operation(Operation::Backward);
    rope.apply_call(&backward, call).unwrap();

    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let [mut at_x, mut at_weight, mut at_bias] = [wide(&x), wide(&weight), wide(&bias)];
    let close = |got: f32, want: f64, what: &str, i: usize| {
        assert!(
            (f64::from(got) - want).abs() < 2e-4 * (1.0 + want.abs()),
            "{what} {i}: {got} {want}"
        );
    };
    let (w, b) = (at_weight.clone(), at_bias.clone());
    for (i, &got) in out.iter().enumerate() {
        let want = derivative(&mut at_x, i, |x| loss(&rope, x, &w, &b, &grad));
        close(got, want, "x", i);
    }
    for c in 0..HEADS * DIM {
        let sum = |parts: &[f32]| parts.iter().skip(c).step_by(HEADS * DIM).sum::<f32>();
        let want = derivative(&mut at_weight, c, |w| loss(&rope, &at_x, w, &b, &grad));
        close(sum(&weights), want, "weight", c);
        let want = derivative(&mut at_bias, c, |b| loss(&rope, &at_x, &w, b, &grad));
        close(sum(&biases), want, "bias", c);
    }
}

#[test]
fn gradients_that_do_not_fit_are_refused() {
    let rope = rope();
    let x = vec![0.5f32; TOKENS * HEADS * DIM];
    let weight = vec![1.0f32; HEADS * DIM];
    let says = |result: Result<()>, words: &str| {
        let message = refused(result);
        assert!(message.contains(words), "{message}");
    };
    let layer = Norms::new().with_q(Norm::rms(&weight, EPS).per_head());
    let backward = step().with_norms(&layer).with_operation(Operation::Backward);
    let mut grad = vec![1.0f32; x.len()];
    let mut parts = vec![7.0f32; 3 * HEADS * DIM];
    let mut apply = |step: &Step<'_>, gradients: Option<Gradients<'_>>| {
        let call = Call::new().with_q(ViewMut::bshd(&mut grad, HEADS));
        let call = match gradients {
            Some(gradients) => call.with_gradients(gradients),
            None => call,
        };
        let result = rope.apply_call(step, call);
        assert!(result.is_ok() || grad.iter().all(|&g| g.to_bits() == 1.0f32.to_bits()));
        result
    };
    static X: [f32; TOKENS * HEADS * DIM] = [0.5; TOKENS * HEADS * DIM];
    says(
        apply(&backward, None),
        "what q's norm was given (None) is required by Operation::Backward",
    );
    says(apply(&backward, two(of(&X[1..]))), "what q's norm was given with batch 1");
    says(
        apply(&backward, two(of(&X).with_weight(&mut parts))),
        "the parts of q's weight has 96 entries, and the call needs 64",
    );
    says(
        apply(&backward, Some(Gradients::in_parts(0).with_q(of(&X).with_weight(&mut parts)))),
        "in_parts (0) must be 1 or more for the parts of q's weight",
    );
    says(apply(&backward, two(of(&X).with_bias(&mut parts[..64]))), "the bias_grad of q's norm");
    for step in [backward, step(), step().with_norms(&layer)] {
        says(apply(&step, Some(Gradients::in_parts(3))), "in_parts (3) needs a gradient: with_q");
    }
    let none = Step::new(1, 0, Positions::Offset(0)).with_norms(&layer);
    let call = Call::new()
        .with_q(ViewMut::<f32>::bshd(&mut [], HEADS))
        .with_gradients(two(of(&[]).with_weight(&mut parts[..64])).unwrap());
    says(rope.apply_call(&none.with_operation(Operation::Backward), call), "without tokens");
    says(
        apply(&backward, Some(Gradients::in_parts(2).with_k(of(&X)))),
        "there is a gradient of k's norm, and no norm",
    );
    says(apply(&step().with_norms(&layer), two(of(&X))), "what q's norm was given");
    says(apply(&backward.with_batch_repeat(2), two(of(&X))), "batch_repeat (2)");
    assert!(parts.iter().all(|&p| p.to_bits() == 7.0f32.to_bits()));
    apply(&backward, two(of(&X).with_weight(&mut parts[..64]))).unwrap();
}

fn of(x: &[f32]) -> Gradient<'_> {
    Gradient::through(View::bshd(x, HEADS))
}

fn two(gradient: Gradient<'_>) -> Option<Gradients<'_>> {
    Some(Gradients::in_parts(2).with_q(gradient))
}

/// `[tokens, batch, groups, q + 2, DIM]`: each group is a batch row.
#[test]
fn groups_share_the_positions_of_their_row() {
    let (rope, groups, batch) = (rope(), 3, 2);
    let rows = batch * groups;
    let x: Vec<f32> = Random(8).vec(rows * TOKENS * HEADS * DIM);
    let ids: Vec<i64> = (0..(batch * TOKENS) as i64).map(|i| i * i).collect();
    let every: Vec<i64> = ids
        .chunks(TOKENS)
        .flat_map(|row| std::iter::repeat_n(row, groups))
        .flatten()
        .copied()
        .collect();
    let apply = |step: &Step<'_>| rope.apply_to_vec(step, View::bshd(&x, HEADS), Layout::Bshd);
    // Gradients through a norm, of heads that were repeated, and in parts of its weight.
    let grad: Vec<f32> = Random(9).vec(2 * x.len());
    let weight: Vec<f32> = Random(10).vec(DIM);
    let layer = Norms::new().with_k(Norm::rms(&weight, EPS));
    let backward = |step: &Step<'_>| {
        let (mut out, mut parts) = (vec![0.0f32; x.len()], vec![0.0f32; 4 * DIM]);
        let of_k = Gradient::through(View::bshd(&x, HEADS)).with_weight(&mut parts);
        let call = Call::new()
            .with_k((View::bshd(&grad, 2 * HEADS), ViewMut::bshd(&mut out, HEADS)))
            .with_gradients(Gradients::in_parts(4).with_k(of_k));
        let step = step.with_norms(&layer).with_operation(Operation::Backward);
        rope.apply_call(&step, call).unwrap();
        assert!(out.iter().chain(&parts).all(|&x| x != 0.0), "something was not written");
        (out, parts)
    };
    let compare = |grouped: &Step<'_>, plain: &Step<'_>| {
        assert!(apply(grouped).unwrap() == apply(plain).unwrap());
        let [grouped, plain] = [grouped, plain].map(|s| s.with_operation(Operation::Backward));
        assert!(apply(&grouped).unwrap() == apply(&plain).unwrap(), "backward");
        assert!(backward(&grouped) == backward(&plain), "backward through a norm");
    };
    let grouped = Step::new(rows, TOKENS, Positions::batch_tokens(&ids)).with_batch_repeat(groups);
    let plain = Step::new(rows, TOKENS, Positions::batch_tokens(&every));
    compare(&grouped, &plain);
    let backward_of = |step: &Step<'_>| apply(&step.with_operation(Operation::Backward)).unwrap();
    assert!(backward_of(&plain) != apply(&plain).unwrap(), "backward is not forward");
    let offsets = [5i64, 900];
    let plain_offsets: Vec<i64> = offsets.iter().flat_map(|&o| [o; 3]).collect();
    let grouped =
        Step::new(rows, TOKENS, Positions::seq_offsets(&offsets)).with_batch_repeat(groups);
    let plain = Step::new(rows, TOKENS, Positions::seq_offsets(&plain_offsets));
    compare(&grouped, &plain);
    let odd = Step::new(rows, TOKENS, Positions::Offset(0)).with_batch_repeat(4);
    assert!(refused(apply(&odd)).contains("batch_repeat (4) must be 0 or a divisor of batch (6)"));
    let rows_of =
        Step::new(rows, TOKENS, Positions::batch_tokens(&every)).with_batch_repeat(groups);
    assert!(refused(apply(&rows_of)).contains("the array of ids has 36"));
}
