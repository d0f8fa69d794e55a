//! What BACKWARD needs of norms, and where the gradients of their weights go.

use std::marker::PhantomData;

use librope_sys as sys;

use crate::cache::set_values;
use crate::context::Context;
use crate::element::Element;
use crate::error::{Result, invalid, narrow};
use crate::positions::expect;
use crate::size::product;
use crate::step::Step;
use crate::tensor::{Raw, View};

/// What [`Operation::Backward`](crate::Operation::Backward) needs of one norm: the tensor that the norm
/// was given in the forward pass. It has the element type and the heads of the output.
#[derive(Debug)]
#[must_use]
pub struct Gradient<'a> {
    x: Raw,
    weight: Option<(*mut f32, usize)>,
    bias: Option<(*mut f32, usize)>,
    of: PhantomData<&'a mut [f32]>,
}

// SAFETY: slices of `Element`s and `f32`, which are Send and Sync, with numbers beside them.
unsafe impl Send for Gradient<'_> {}
// SAFETY: as above; a shared reference to it allows nothing.
unsafe impl Sync for Gradient<'_> {}

impl<'a> Gradient<'a> {
    /// What the norm was given. The gradient that goes in becomes that of it.
    #[inline]
    pub fn through<T: Element>(x: View<'a, T>) -> Self {
        Gradient { x: x.raw, weight: None, bias: None, of: PhantomData }
    }

    /// Writes the gradient of the weight in parts: `[parts, channels]`, or `[parts, heads, channels]` where
    /// each head has weights of its own.
    #[inline]
    pub fn with_weight(mut self, parts: &'a mut [f32]) -> Self {
        self.weight = Some((parts.as_mut_ptr(), parts.len()));
        self
    }

    /// The same of the bias.
    #[inline]
    pub fn with_bias(mut self, parts: &'a mut [f32]) -> Self {
        self.bias = Some((parts.as_mut_ptr(), parts.len()));
        self
    }
}

/// The gradients of a layer's norms, for [`Call::with_gradients`](crate::Call::with_gradients). Those of
/// weights and biases are sums over all tokens, which are written in parts for the caller to add: part `i`
/// adds equal runs of tokens in their order. The result depends on the number of parts alone, and each is
/// work for one thread: a few times as many as there are threads.
///
/// ```
/// use librope::{Call, Config, Gradient, Gradients, Norm, Norms, Operation, Pairing, Positions, Step};
/// use librope::{View, ViewMut};
///
/// let rope = Config::new(128, 1e6, Pairing::Halves).build()?;
/// let (tokens, heads, parts) = (16, 4, 8);
/// let (weight, x) = (vec![1.0f32; 128], vec![0.5f32; tokens * heads * 128]); // what q was
/// let layer = Norms::new().with_q(Norm::rms(&weight, 1e-6));
/// let step = Step::new(1, tokens, Positions::Offset(0)).with_norms(&layer);
///
/// let (mut grad, mut sums) = (vec![1.0f32; x.len()], vec![0.0f32; parts * 128]);
/// let of_q = Gradient::through(View::bshd(&x, heads)).with_weight(&mut sums);
/// let call = Call::new()
///     .with_q(ViewMut::bshd(&mut grad, heads)) // becomes that of x
///     .with_gradients(Gradients::in_parts(parts).with_q(of_q));
/// rope.apply_call(&step.with_operation(Operation::Backward), call)?;
/// let of_weight: Vec<f32> = (0..128).map(|c| sums.iter().skip(c).step_by(128).sum()).collect();
/// # drop(of_weight);
/// # Ok::<(), librope::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct Gradients<'a> {
    parts: usize,
    of: [Option<Gradient<'a>>; 3], // q, k, v
}

impl<'a> Gradients<'a> {
    /// None yet; those of weights and biases in so many parts. Without one of [`with_q`](Self::with_q),
    /// [`with_k`](Self::with_k) and [`with_v`](Self::with_v) the call that they are given to is an error.
    #[inline]
    pub fn in_parts(parts: usize) -> Self {
        Gradients { parts, of: [None, None, None] }
    }

    /// Sets that of q's norm.
    #[inline]
    pub fn with_q(mut self, gradient: Gradient<'a>) -> Self {
        self.of[0] = Some(gradient);
        self
    }

    /// Sets that of k's norm.
    #[inline]
    pub fn with_k(mut self, gradient: Gradient<'a>) -> Self {
        self.of[1] = Some(gradient);
        self
    }

    /// Sets that of v's norm.
    #[inline]
    pub fn with_v(mut self, gradient: Gradient<'a>) -> Self {
        self.of[2] = Some(gradient);
        self
    }

    /// Fills what the norms of a call have of gradients. `before` is the memory of what they point to.
    pub(crate) fn check(
        &self,
        context: &Context,
        step: &Step<'_>,
        v_dim: usize,
        before: &mut [Option<sys::rope_tensor>; 3],
        norms: &mut [sys::rope_norm; 3],
        fused: &sys::rope_fused,
    ) -> Result<()> {
        const NAMES: [[&str; 4]; 3] = [
            ["q", "what q's norm was given", "the parts of q's weight", "the parts of q's bias"],
            ["k", "what k's norm was given", "the parts of k's weight", "the parts of k's bias"],
            ["v", "what v's norm was given", "the parts of v's weight", "the parts of v's bias"],
        ];
        if self.of.iter().all(Option::is_none) {
            return invalid(format_args!(
                "Gradients::in_parts ({}) needs a gradient: with_q, with_k or with_v",
                self.parts
            ));
        }
        let present = [fused.q_norm, fused.k_norm, fused.v_norm].map(|norm| !norm.is_null());
        for (i, gradient) in self.of.iter().enumerate() {
            let (Some(gradient), [tensor, x, weight, bias]) = (gradient, NAMES[i]) else {
                continue;
            };
            if !present[i] {
                return invalid(format_args!(
                    "there is a gradient of {tensor}'s norm, and no norm"
                ));
            }
            // SAFETY: integers and pointers: zeros are valid.
            let raw = before[i].insert(unsafe { std::mem::zeroed() });
            let (counts, widths) =
                ([step.batch, step.tokens], [context.head_dim(), context.span_dim]);
            let mut dim = widths[usize::from(gradient.x.span)];
            if i == 2 {
                dim = v_dim;
                set_values(&gradient.x, x, counts, dim, raw)?;
            } else {
                gradient.x.check(x, counts, widths, raw)?;
            }
            let norm = &mut norms[i];
            norm.x = raw;
            let rows = if norm.weight_stride_head == 0 { 1 } else { gradient.x.heads };
            let wanted = [(gradient.weight, weight), (gradient.bias, bias)];
            for ((given, name), field) in
                wanted.into_iter().zip([&mut norm.weight_grad, &mut norm.bias_grad])
            {
                if let Some((data, len)) = given {
                    if self.parts == 0 {
                        return invalid(format_args!("in_parts (0) must be 1 or more for {name}"));
                    }
                    expect(name, len, product([self.parts, rows, dim]))?;
                    *field = data;
                    norm.grad_parts = narrow("parts", self.parts)?;
                }
            }
        }
        Ok(())
    }
}
