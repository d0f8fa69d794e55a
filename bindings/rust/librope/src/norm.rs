//! Norms of q, k and v, in the pass that rotates q and k.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;

use librope_sys::{self as sys, Init as _};

use crate::element::Element;
use crate::enums::{DType, NormKind, NormOrder, NormRounding, NormSpan};
use crate::error::{Result, invalid};
use crate::positions::expect;
use crate::size::product;

/// A norm of one tensor of a call, with the weights of its layer. It covers all channels that the
/// tensor has: whole heads, or the span alone. Norm and context round alike here, as transformers does.
///
/// ```
/// use librope::half::bf16;
/// use librope::{Config, Norm, NormRounding, Norms, Pairing, Positions, Rounding, Step, ViewMut};
///
/// let config = Config::new(128, 1e6, Pairing::Halves).with_rounding(Rounding::Eager); // Qwen3
/// let rope = config.build()?;
/// let (q_weight, k_weight) = (vec![bf16::ONE; 128], vec![bf16::ONE; 128]); // of a layer
/// let norm = |weight| Norm::rms(weight, 1e-6).with_rounding(NormRounding::Eager);
/// let layer = Norms::new().with_q(norm(&q_weight)).with_k(norm(&k_weight));
///
/// let (mut q, mut k) = (vec![bf16::ONE; 3 * 32 * 128], vec![bf16::ONE; 3 * 8 * 128]);
/// let step = Step::new(1, 3, Positions::Offset(0));
/// rope.apply(&step.with_norms(&layer), ViewMut::bshd(&mut q, 32), ViewMut::bshd(&mut k, 8))?;
/// # Ok::<(), librope::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Norm<'a> {
    kind: NormKind,
    eps: f64,
    weight: *const c_void, // null: none
    bias: *const c_void,
    lengths: [usize; 2], // of weight and bias
    dtype: Option<DType>,
    per_head: bool,
    span: NormSpan,
    order: NormOrder,
    rounding: NormRounding,
    rstd: Option<&'a [f32]>,
    of: PhantomData<&'a [u8]>,
}

// SAFETY: shared slices of `Element`s, which are Sync, with numbers beside them.
unsafe impl Send for Norm<'_> {}
// SAFETY: as above.
unsafe impl Sync for Norm<'_> {}

impl<'a> Norm<'a> {
    /// [`NormKind::Rms`], with a weight for each channel.
    #[inline]
    pub fn rms<T: Element>(weight: &'a [T], eps: f64) -> Self {
        Self::plain(NormKind::Rms, eps).weighted(weight)
    }

    /// [`NormKind::RmsOnePlus`], with a weight for each channel.
    #[inline]
    pub fn rms_one_plus<T: Element>(weight: &'a [T], eps: f64) -> Self {
        Self::plain(NormKind::RmsOnePlus, eps).weighted(weight)
    }

    /// [`NormKind::RmsPlain`].
    #[inline]
    pub fn rms_plain(eps: f64) -> Self {
        Self::plain(NormKind::RmsPlain, eps)
    }

    /// [`NormKind::Layer`], with a weight for each channel.
    #[inline]
    pub fn layer<T: Element>(weight: &'a [T], eps: f64) -> Self {
        Self::plain(NormKind::Layer, eps).weighted(weight)
    }

    /// [`NormKind::LayerBias`], with a weight and a bias for each channel.
    #[inline]
    pub fn layer_bias<T: Element>(weight: &'a [T], bias: &'a [T], eps: f64) -> Self {
        let mut norm = Self::plain(NormKind::LayerBias, eps).weighted(weight);
        norm.bias = bias.as_ptr().cast();
        norm.lengths[1] = bias.len();
        norm
    }

    fn plain(kind: NormKind, eps: f64) -> Self {
        Norm {
            kind,
            eps,
            weight: ptr::null(),
            bias: ptr::null(),
            lengths: [0; 2],
            dtype: None,
            per_head: false,
            span: NormSpan::Head,
            order: NormOrder::Before,
            rounding: NormRounding::Float32,
            rstd: None,
            of: PhantomData,
        }
    }

    fn weighted<T: Element>(mut self, weight: &'a [T]) -> Self {
        self.weight = weight.as_ptr().cast();
        self.lengths[0] = weight.len();
        self.dtype = Some(T::DTYPE);
        self
    }

    /// Weights, and biases, are `[heads, channels]`: each head has its own. Where all heads are normed
    /// together they are so without a word.
    #[inline]
    pub fn per_head(mut self) -> Self {
        self.per_head = true;
        self
    }

    /// [`NormSpan::AllHeads`]: the heads of a token are normed together, with weights `[heads, channels]`.
    #[inline]
    pub fn over_all_heads(mut self) -> Self {
        self.span = NormSpan::AllHeads;
        self
    }

    /// [`NormSpan::Given`]: the inverse root of each token, `[batch, tokens]`, in which eps is already.
    /// For RMS norms, under tensor parallelism; weights are those of the rank's heads, `[heads, channels]`.
    #[inline]
    pub fn with_rstd(mut self, rstd: &'a [f32]) -> Self {
        self.span = NormSpan::Given;
        self.eps = 0.0;
        self.rstd = Some(rstd);
        self
    }

    /// Sets whether the norm comes before the rotation, which is the default, or after it.
    #[inline]
    pub fn with_order(mut self, order: NormOrder) -> Self {
        self.order = order;
        self
    }

    /// Sets where the norm rounds to the tensor's type. Default: [`NormRounding::Float32`].
    #[inline]
    pub fn with_rounding(mut self, rounding: NormRounding) -> Self {
        self.rounding = rounding;
        self
    }

    /// The C struct without its slices, and how many weights it has.
    fn describe(&self, [heads, channels]: [usize; 2]) -> (sys::rope_norm, Option<usize>) {
        let mut raw = sys::rope_norm::init();
        raw.kind = self.kind as i32;
        raw.eps = self.eps;
        raw.span = self.span as i32;
        raw.order = self.order as i32;
        raw.rounding = self.rounding as i32;
        let per_head = self.per_head || self.span != NormSpan::Head;
        if let Some(dtype) = self.dtype {
            raw.weight_dtype = dtype as i32;
            raw.weight_stride_head = if per_head { channels as i64 } else { 0 }; // of a slice
        }
        (raw, product([if per_head { heads } else { 1 }, channels]))
    }

    /// The C struct, after checking that weights, biases and roots have the lengths of their tensor.
    fn check(
        &self,
        [weight, bias, rstd_name]: [&str; 3],
        tensor: [usize; 2],
        tokens: Option<usize>, // of all batch rows
    ) -> Result<sys::rope_norm> {
        let (mut raw, weights) = self.describe(tensor);
        if self.dtype.is_some() {
            expect(weight, self.lengths[0], weights)?;
            if !self.bias.is_null() {
                expect(bias, self.lengths[1], weights)?;
            }
            raw.weight = self.weight;
            raw.bias = self.bias;
        }
        if let Some(rstd) = self.rstd {
            expect(rstd_name, rstd.len(), tokens)?;
            raw.rstd = rstd.as_ptr();
        }
        Ok(raw)
    }

    /// What each layer of a prepared call lends in place of weight, bias and rstd.
    fn lent(&self, weights: Option<usize>, tokens: Option<usize>) -> [Option<Lent>; 3] {
        let of = |len, dtype: Option<DType>| dtype.map(|dtype| Lent { len, need: weights, dtype });
        let bias = if self.bias.is_null() { None } else { self.dtype };
        let rstd = self.rstd.map(|rstd| Lent { len: rstd.len(), need: tokens, dtype: DType::F32 });
        [of(self.lengths[0], self.dtype), of(self.lengths[1], bias), rstd]
    }
}

/// The norms of a layer: those that its calls need, for [`Step::with_norms`](crate::Step::with_norms).
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct Norms<'a> {
    pub(crate) of: [Option<Norm<'a>>; 3], // q, k, v
}

impl<'a> Norms<'a> {
    /// None yet.
    #[inline]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets that of q.
    #[inline]
    pub fn with_q(mut self, norm: Norm<'a>) -> Self {
        self.of[0] = Some(norm);
        self
    }

    /// Sets that of k.
    #[inline]
    pub fn with_k(mut self, norm: Norm<'a>) -> Self {
        self.of[1] = Some(norm);
        self
    }

    /// Sets that of v, which [`append`](crate::Context::append) stores.
    #[inline]
    pub fn with_v(mut self, norm: Norm<'a>) -> Self {
        self.of[2] = Some(norm);
        self
    }
}

/// How messages call what a norm has.
pub(crate) const NAMES: [[&str; 3]; 3] = [
    ["the weight of q's norm", "the bias of q's norm", "the rstd of q's norm"],
    ["the weight of k's norm", "the bias of k's norm", "the rstd of k's norm"],
    ["the weight of v's norm", "the bias of v's norm", "the rstd of v's norm"],
];

/// A slice that a norm reads: how many elements it has, how many are needed (`None`: more than there can
/// be), and of which type.
#[derive(Clone, Copy)]
pub(crate) struct Lent {
    pub len: usize,
    pub need: Option<usize>,
    pub dtype: DType,
}

/// Weight, bias and rstd of each norm, as far as it reads them.
pub(crate) type LentByNorms = [[Option<Lent>; 3]; 3];

impl Norms<'_> {
    /// Fills those of a C call. `tensors` are heads and channels of q, k and v, if it has them; a norm
    /// without its tensor is refused by the library, which reads no weights then. Of a prepared call
    /// slices are not read, and `lent` gets what they are.
    pub(crate) fn check(
        &self,
        tensors: [Option<[usize; 2]>; 3],
        tokens: Option<usize>,
        mut lent: Option<&mut LentByNorms>,
        raw: &mut [sys::rope_norm; 3],
        fused: &mut sys::rope_fused,
    ) -> Result<()> {
        let fields = [&mut fused.q_norm, &mut fused.k_norm, &mut fused.v_norm];
        for ((i, raw), field) in raw.iter_mut().enumerate().zip(fields) {
            let Some(norm) = &self.of[i] else { continue };
            if norm.per_head && norm.dtype.is_none() {
                let name = ["q", "k", "v"][i];
                return invalid(format_args!(
                    "per_head of {name}'s norm is for weights, which {:?} has not",
                    norm.kind
                ));
            }
            *raw = match (tensors[i], &mut lent) {
                (None, _) => *raw,
                (Some(tensor), None) => norm.check(NAMES[i], tensor, tokens)?,
                (Some(tensor), Some(lent)) => {
                    let (raw, weights) = norm.describe(tensor);
                    lent[i] = norm.lent(weights, tokens);
                    raw
                }
            };
            *field = raw;
        }
        Ok(())
    }
}
