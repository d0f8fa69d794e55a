use std::ffi::c_void;
use std::marker::PhantomData;

use librope_sys::{self as sys, Init as _};

use crate::element::Element;
use crate::enums::DType;
use crate::error::{Result, invalid};
use crate::size::{not_negative, product, reach};

#[derive(Clone, Copy, Debug)]
struct Raw {
    format: i32,
    dtype: DType,
    data: *mut c_void,
    sin: *mut c_void,
    /// Elements of the shorter tensor.
    len: usize,
    /// And of the longer one.
    longest: usize,
    stride: usize,
    shared: bool,
    /// 0: one row for all heads.
    heads: usize,
    /// 0: the rows of a token's heads follow each other.
    head_stride: usize,
}

impl Raw {
    fn of<T: Element>(format: i32, data: *const T, len: usize) -> Raw {
        let data = data.cast_mut().cast();
        let sin = std::ptr::null_mut();
        let (stride, shared, heads, head_stride) = (0, false, 0, 0);
        let longest = len;
        Raw { format, dtype: T::DTYPE, data, sin, len, longest, stride, shared, heads, head_stride }
    }

    fn check(
        &self,
        batch: usize,
        tokens: usize,
        pairs: usize,
        exact: bool,
    ) -> Result<sys::rope_cos_sin> {
        let Ok(pairs) = i32::try_from(pairs) else {
            return invalid(format_args!("{pairs} pairs are too many"));
        };
        // SAFETY: it takes any numbers.
        let width = unsafe { sys::rope_cos_sin_width(self.format, pairs) };
        let width = usize::try_from(width).unwrap_or(0);
        let Ok(heads) = i32::try_from(self.heads) else {
            return invalid(format_args!("rows for {} heads are too many", self.heads));
        };
        let all_heads = self.heads.max(1);
        let stride = match self.stride {
            0 => product([width, all_heads]).unwrap_or(usize::MAX),
            given => given,
        };
        let head_stride = if self.head_stride == 0 { width } else { self.head_stride };
        not_negative([stride, head_stride, 0])?;
        let batch = if self.shared { 1 } else { batch };
        // Where the next batch row begins, as the header defines it.
        let heads_end = if self.head_stride == 0 { 0 } else { all_heads };
        let next_batch = product([tokens, stride])
            .and_then(|of_tokens| Some(of_tokens.max(product([heads_end, head_stride])?)));
        let need = match batch.min(tokens) {
            0 => Some(0),
            _ => next_batch.and_then(|next| {
                reach([next, stride, head_stride], [batch, tokens, all_heads], width)
            }),
        };
        let exact = exact && self.stride == 0;
        let fits = need.is_some_and(|n| if exact { n == self.len } else { n <= self.len });
        if fits && exact && self.longest != self.len {
            return invalid(format_args!(
                "the slices of cos and sin must have the same length, not {} and {} elements",
                self.len, self.longest
            ));
        }
        if !fits {
            let each =
                if heads == 0 { String::new() } else { format!(", for each of {heads} heads,") };
            let what =
                format!("{batch} * {tokens} rows of width {width} and stride {stride}{each}");
            let Some(need) = need else {
                return invalid(format_args!("{what} are beyond the address space"));
            };
            return invalid(format_args!(
                "{what} need {need} elements{}, and the slice of cos and sin has {}",
                if exact { "" } else { " or more" },
                self.len
            ));
        }
        Ok(sys::rope_cos_sin {
            format: self.format,
            dtype: self.dtype as i32,
            pairs,
            batch: batch as i64,
            stride_token: self.stride as i64,
            heads,
            stride_head: self.head_stride as i64,
            data: self.data,
            sin: self.sin,
            ..sys::rope_cos_sin::init()
        })
    }
}

/// How many slices rows of a format are, as the library tells it.
fn slices_of(format: i32) -> i32 {
    // SAFETY: it takes any number.
    unsafe { sys::rope_cos_sin_tensors(format) }
}

macro_rules! formats {
    ($slice:ty, $pointer:ident) => {
        /// `c0 c1 .. s0 s1 ..`: `cos_sin_cache` of vLLM, SGLang, FlashInfer.
        pub fn packed<T: Element>(rows: $slice) -> Self {
            Self::one(sys::ROPE_COS_SIN_PACKED, rows)
        }

        /// `s0 s1 .. c0 c1 ..`: GPT-J.
        pub fn packed_sin_first<T: Element>(rows: $slice) -> Self {
            Self::one(sys::ROPE_COS_SIN_PACKED_SIN_FIRST, rows)
        }

        /// One value per pair in each tensor: candle, flash-attn, ONNX.
        pub fn split<T: Element>(cos: $slice, sin: $slice) -> Self {
            Self::two(sys::ROPE_COS_SIN_SPLIT, cos, sin)
        }

        /// One value per channel, `c0 c1 .. c0 c1 ..`: transformers.
        pub fn full_halves<T: Element>(cos: $slice, sin: $slice) -> Self {
            Self::two(sys::ROPE_COS_SIN_FULL_HALVES, cos, sin)
        }

        /// One value per channel, `c0 c0 c1 c1 ..`: Cohere.
        pub fn full_interleaved<T: Element>(cos: $slice, sin: $slice) -> Self {
            Self::two(sys::ROPE_COS_SIN_FULL_INTERLEAVED, cos, sin)
        }

        /// `c0 s0 c1 s1 ..`: `freqs_cis`.
        pub fn complex<T: Element>(rows: $slice) -> Self {
            Self::one(sys::ROPE_COS_SIN_COMPLEX, rows)
        }

        /// The distance from one row to the next, in elements. Default: rows follow each other.
        pub fn with_stride(mut self, stride: usize) -> Self {
            self.raw.stride = stride;
            self
        }

        /// There is a row for each of `heads` heads of every token: `[batch, tokens, heads, row]`. The
        /// heads of q and of k must be a multiple of it: each row serves as many adjacent heads. Rows
        /// that are written have those of [`Config::from_frequency`](crate::Config::from_frequency).
        /// Default: the heads of a token share one row.
        pub fn per_head(mut self, heads: usize) -> Self {
            self.raw.heads = heads;
            self
        }

        /// The distance from one head's row to the next, in elements, for rows
        /// [`per_head`](Self::per_head). It needs [`with_stride`](Self::with_stride), too, and a batch row
        /// is the larger one of tokens and heads times their strides: `[batch, heads, tokens, row]` has
        /// the width of a row and tokens times this width.
        pub fn with_head_stride(mut self, stride: usize) -> Self {
            self.raw.head_stride = stride;
            self
        }

        fn one<T: Element>(format: i32, data: $slice) -> Self {
            debug_assert_eq!(slices_of(format), 1);
            let len = data.len();
            Self { raw: Raw::of::<T>(format, data.$pointer(), len), of: PhantomData }
        }

        fn two<T: Element>(format: i32, cos: $slice, sin: $slice) -> Self {
            debug_assert_eq!(slices_of(format), 2);
            let len = cos.len().min(sin.len());
            let mut raw = Raw::of::<T>(format, cos.$pointer(), len);
            raw.longest = cos.len().max(sin.len());
            let sin: *const T = sin.$pointer();
            raw.sin = sin.cast_mut().cast();
            Self { raw, of: PhantomData }
        }
    };
}

/// Rows of cos and sin to rotate by, one per token: a framework's own, or those that
/// [`fill_cos_sin`](crate::Context::fill_cos_sin) wrote once for all layers of a step. They hold
/// the attention factor. Slices may be longer than the call's rows.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct CosSin<'a> {
    raw: Raw,
    of: PhantomData<&'a [u8]>,
}

// SAFETY: shared slices with numbers beside them.
unsafe impl Send for CosSin<'_> {}
// SAFETY: as above.
unsafe impl Sync for CosSin<'_> {}

impl<'a> CosSin<'a> {
    formats!(&'a [T], as_ptr);

    /// There are rows for one batch row, and all use them. Default: a row for every token of every
    /// batch row.
    pub fn shared(mut self) -> Self {
        self.raw.shared = true;
        self
    }

    pub(crate) fn check(
        &self,
        batch: usize,
        tokens: usize,
        pairs: usize,
    ) -> Result<sys::rope_cos_sin> {
        self.raw.check(batch, tokens, pairs, false)
    }
}

/// Where [`fill_cos_sin`](crate::Context::fill_cos_sin) writes. Slices must have the length of the
/// call's rows, unless there is a stride.
#[derive(Debug)]
#[must_use]
pub struct CosSinMut<'a> {
    raw: Raw,
    of: PhantomData<&'a mut [u8]>,
}

// SAFETY: exclusive slices with numbers beside them.
unsafe impl Send for CosSinMut<'_> {}
// SAFETY: as above; a shared reference to it allows nothing.
unsafe impl Sync for CosSinMut<'_> {}

impl<'a> CosSinMut<'a> {
    formats!(&'a mut [T], as_mut_ptr);

    /// `s0 c0 s1 c1 ..`: the absolute encoding of 2017.
    pub fn sinusoidal<T: Element>(rows: &'a mut [T]) -> Self {
        Self::one(sys::ROPE_COS_SIN_SINUSOIDAL, rows)
    }

    /// Angles, one per pair.
    pub fn angles(rows: &'a mut [f32]) -> Self {
        Self::one(sys::ROPE_COS_SIN_ANGLES, rows)
    }

    /// Angles, one per channel: `a0 a1 .. a0 a1 ..`.
    pub fn angles_full(rows: &'a mut [f32]) -> Self {
        Self::one(sys::ROPE_COS_SIN_ANGLES_FULL, rows)
    }

    pub(crate) fn check(
        &self,
        batch: usize,
        tokens: usize,
        pairs: usize,
    ) -> Result<sys::rope_cos_sin> {
        self.raw.check(batch, tokens, pairs, true)
    }
}
