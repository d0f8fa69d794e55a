use std::ffi::c_void;
use std::marker::PhantomData;

use librope_sys as sys;

use crate::element::{Element, OutputElement};
use crate::enums::DType;
use crate::error::{Result, invalid, narrow};
use crate::scale::{RawScale, Scale};
use crate::size::{self, product};
use crate::strides::{Layout, Strides, counted, not_forgotten};

/// What views have in common: a pointer, and how far it may be followed.
#[derive(Clone, Copy, Debug)]
pub struct Raw {
    pub data: *mut c_void,
    /// Channels that may be touched from `data` on.
    pub len: usize,
    pub dtype: DType,
    pub layout: Layout,
    pub heads: usize,
    pub span: bool,
    /// `[batch, tokens, channels]`, if the view came from an array that has a shape.
    pub shape: Option<[usize; 3]>,
}

impl Raw {
    /// Of so many elements.
    #[inline]
    pub(crate) fn of<T: OutputElement>(
        data: *mut T,
        len: usize,
        layout: Layout,
        heads: usize,
    ) -> Raw {
        let (dtype, data) = (T::STORED_AS, data.cast());
        let len = len * dtype.channels(); // fewer than bytes
        Raw { data, len, dtype, layout, heads, span: false, shape: None }
    }

    /// Fills the zeroed C tensor, after checking that every element of it lies inside the slice.
    /// Field by field: copying a struct that was just written stalls the CPU. For memory of a cache,
    /// batch and tokens are its pages and slots.
    #[inline(always)]
    pub(crate) fn check(
        &self,
        name: &str,
        [batch, tokens]: [usize; 2],
        [head_dim, span_dim]: [usize; 2],
        tensor: &mut sys::rope_tensor,
    ) -> Result<()> {
        let dim = if self.span { span_dim } else { head_dim };
        if let Some(shape) = self.shape {
            if shape != [batch, tokens, dim] {
                return wrong_shape(name, shape, [batch, tokens, dim]);
            }
        }
        let (layout, fits) = match &self.layout {
            // A head count that is off by one would still fit, so contiguous slices must be exact.
            Layout::Bshd => (sys::ROPE_LAYOUT_BSHD, self.is_full(batch, tokens, dim)),
            Layout::Bhsd => (sys::ROPE_LAYOUT_BHSD, self.is_full(batch, tokens, dim)),
            Layout::Sbhd => (sys::ROPE_LAYOUT_SBHD, self.is_full(batch, tokens, dim)),
            Layout::Nhd => (sys::ROPE_LAYOUT_NHD, self.is_full(batch, tokens, dim)),
            Layout::Hnd => (sys::ROPE_LAYOUT_HND, self.is_full(batch, tokens, dim)),
            Layout::Strided(s) => {
                // A stride is never taken where its dimension is 1, and else is at most `len`.
                size::not_negative([s.batch, s.token, s.head])?;
                tensor.stride_batch = s.batch as i64;
                tensor.stride_token = s.token as i64;
                tensor.stride_head = s.head as i64;
                let empty = batch == 0 || tokens == 0 || self.heads == 0;
                let reach = || s.reach([batch, tokens, self.heads], dim);
                (sys::ROPE_LAYOUT_STRIDED, empty || reach().is_some_and(|r| r <= self.len))
            }
        };
        if !fits || self.heads > i32::MAX as usize {
            return wrong_length(name, self, batch, tokens, dim);
        }
        // No data is how C is told that an empty batch is meant.
        tensor.data = if batch == 0 { std::ptr::null_mut() } else { self.data };
        tensor.dtype = self.dtype as i32;
        tensor.layout = layout;
        tensor.heads = self.heads as i32;
        if self.span {
            tensor.head_dim = span_dim as i32; // came from an i32
        }
        Ok(())
    }

    #[inline(always)]
    fn is_full(&self, batch: usize, tokens: usize, dim: usize) -> bool {
        product([batch, tokens, self.heads, dim]) == Some(self.len)
    }
}

#[cold]
#[inline(never)]
fn wrong_shape<T>(name: &str, shape: [usize; 3], want: [usize; 3]) -> Result<T> {
    invalid(format_args!(
        "{name} is an array of {} batch rows, {} tokens and {} channels, and the call's are {}, {} \
         and {}",
        shape[0], shape[1], shape[2], want[0], want[1], want[2]
    ))
}

#[cold]
#[inline(never)]
fn wrong_length<T>(name: &str, raw: &Raw, batch: usize, tokens: usize, dim: usize) -> Result<T> {
    narrow("heads", raw.heads)?;
    not_forgotten(name, [batch, tokens])?;
    let what = described(name, raw, [batch, tokens], dim);
    let (need, or_more) = match raw.layout {
        Layout::Strided(strides) => (strides.reach([batch, tokens, raw.heads], dim), " or more"),
        _ => (product([batch, tokens, raw.heads, dim]), ""),
    };
    let Some(need) = need else {
        return invalid(format_args!("{what} is beyond the address space"));
    };
    let each = raw.dtype.channels();
    let unit = if each == 1 { "elements" } else { "blocks of 32 channels" };
    invalid(format_args!(
        "{what} needs {} {unit}{or_more}, and its slice has {}",
        need.div_ceil(each),
        raw.len / each
    ))
}

/// A tensor in words; of memory of a cache, batch and tokens are its pages and slots.
pub(crate) fn described(name: &str, raw: &Raw, counts: [usize; 2], dim: usize) -> String {
    let ([outer, inner], [batch, tokens]) = (counted(name), counts);
    let (heads, layout) = (raw.heads, raw.layout);
    format!(
        "{name} with {outer} {batch}, {inner} {tokens}, heads {heads}, channels {dim} and layout {layout:?}"
    )
}

macro_rules! layouts {
    ($slice:ty, $pointer:ident) => {
        /// Contiguous `[batch, tokens, heads, channels]`; with batch 1 also `[tokens, heads,
        /// channels]`.
        #[inline]
        pub fn bshd(data: $slice, heads: usize) -> Self {
            Self::new(data, Layout::Bshd, heads)
        }

        /// Contiguous `[batch, heads, tokens, channels]`.
        #[inline]
        pub fn bhsd(data: $slice, heads: usize) -> Self {
            Self::new(data, Layout::Bhsd, heads)
        }

        /// Contiguous `[tokens, batch, heads, channels]`.
        #[inline]
        pub fn sbhd(data: $slice, heads: usize) -> Self {
            Self::new(data, Layout::Sbhd, heads)
        }

        /// Strides of one's own, from the first element of `data`.
        #[inline]
        pub fn strided(data: $slice, heads: usize, strides: Strides) -> Self {
            Self::new(data, Layout::Strided(strides), heads)
        }

        /// Any layout. A contiguous one must fill `data` exactly.
        #[inline]
        pub fn new(data: $slice, layout: Layout, heads: usize) -> Self {
            let raw = Raw::of(data.$pointer().cast::<T>().cast_mut(), data.len(), layout, heads);
            Self::of(raw)
        }

        /// Each "head" of the view is the rotated span alone: DeepSeek's `k_pe`, or a slice of a
        /// wider row.
        #[inline]
        pub fn span(mut self) -> Self {
            self.raw.span = true;
            self
        }
    };
}

/// q or k to read: a slice, its layout and its heads. Batch and tokens belong to the
/// [`Step`](crate::Step).
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct View<'a, T> {
    pub(crate) raw: Raw,
    pub(crate) of: PhantomData<&'a [T]>,
}

// SAFETY: a `&[T]` with numbers beside it.
unsafe impl<T: Sync> Send for View<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for View<'_, T> {}

impl<'a, T: Element> View<'a, T> {
    layouts!(&'a [T], as_ptr);

    pub(crate) fn of(raw: Raw) -> Self {
        View { raw, of: PhantomData }
    }
}

/// q or k to write, or to turn in place: a slice, its layout and its heads. As an output it may hold
/// any [`OutputElement`]: results are rounded to it once.
#[derive(Debug)]
#[must_use]
pub struct ViewMut<'a, T> {
    pub(crate) raw: Raw,
    pub(crate) scale: Option<RawScale>,
    of: PhantomData<&'a mut [T]>,
}

// SAFETY: a `&mut [T]` with numbers beside it.
unsafe impl<T: Send> Send for ViewMut<'_, T> {}
// SAFETY: as above; a shared reference to it allows nothing.
unsafe impl<T: Sync> Sync for ViewMut<'_, T> {}

impl<'a, T: OutputElement> ViewMut<'a, T> {
    layouts!(&'a mut [T], pointer);

    pub(crate) fn of(raw: Raw) -> Self {
        ViewMut { raw, scale: None, of: PhantomData }
    }

    /// Sets the scales of codes. An output of codes has one, and no other view. An array of them has the
    /// layout of the output: see [`Scale`].
    #[allow(clippy::needless_pass_by_value, reason = "an array is borrowed exclusively")]
    #[inline]
    pub fn with_scale(mut self, scale: Scale<'a>) -> Self {
        self.scale = Some(scale.raw());
        self
    }
}

/// `as_mut_ptr` in the form that `layouts!` expects.
trait Pointer<T> {
    fn pointer(self) -> *const T;
}

impl<T> Pointer<T> for &mut [T] {
    #[inline]
    fn pointer(self) -> *const T {
        self.as_mut_ptr()
    }
}

/// An input, its output, which may be it, and the scales of the one that is written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pair {
    pub input: Option<Raw>,
    pub output: Option<Raw>,
    pub scale: Option<RawScale>,
    /// The input is its own output, beside what else is done with it.
    pub in_place: bool,
}

impl Pair {
    #[inline]
    pub(crate) fn of(input: Raw, output: Raw, scale: Option<RawScale>) -> Pair {
        Pair { input: Some(input), output: Some(output), scale, in_place: false }
    }

    pub(crate) fn written(&self) -> Option<Raw> {
        if self.in_place { self.input } else { self.output }
    }
}

/// One of the two tensors of a call: `()` for none, a [`ViewMut`] to turn in place, or
/// `(View, ViewMut)` to read the one and write the other, of the same or another element type, with
/// as many heads or m times as many: each is then written m times in a row. These cannot alias, so a
/// mistake in strides cannot turn into values rotated twice.
#[derive(Debug)]
#[must_use]
pub struct Operand<'a> {
    pub(crate) pair: Pair,
    of: PhantomData<&'a mut [u8]>,
}

impl From<()> for Operand<'_> {
    #[inline]
    fn from((): ()) -> Self {
        Operand { pair: Pair::default(), of: PhantomData }
    }
}

impl<'a, T: Element> From<ViewMut<'a, T>> for Operand<'a> {
    #[inline]
    fn from(view: ViewMut<'a, T>) -> Self {
        let pair = Pair { input: Some(view.raw), scale: view.scale, ..Pair::default() };
        Operand { pair, of: PhantomData }
    }
}

impl<'a, T: Element, U: OutputElement> From<(View<'a, T>, ViewMut<'a, U>)> for Operand<'a> {
    #[inline]
    fn from((input, output): (View<'a, T>, ViewMut<'a, U>)) -> Self {
        Operand { pair: Pair::of(input.raw, output.raw, output.scale), of: PhantomData }
    }
}

/// Where q, k or v lies inside one packed buffer: see
/// [`apply_packed`](crate::Context::apply_packed) and [`KvCache::packed`](crate::KvCache::packed).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Part {
    /// Its first element in the buffer.
    pub offset: usize,
    /// Its heads.
    pub heads: usize,
    /// Its strides.
    pub strides: Strides,
    /// Each of its heads is the rotated span alone.
    pub span: bool,
}

impl Part {
    /// `heads` heads with these strides, from element `offset` of the buffer on.
    pub fn new(offset: usize, heads: usize, strides: Strides) -> Part {
        Part { offset, heads, strides, span: false }
    }

    /// Each of its heads is the rotated span alone, as in [`View::span`].
    pub fn span(mut self) -> Part {
        self.span = true;
        self
    }

    /// The part as a view; none if it begins beyond the buffer.
    pub(crate) fn of<T: Element>(&self, name: &str, data: *mut T, len: usize) -> Result<Raw> {
        if self.offset > len {
            return invalid(format_args!(
                "{name} begins at element {} of a buffer of {len}",
                self.offset
            ));
        }
        let layout = Layout::Strided(self.strides);
        // The pointer stays inside the buffer or at its end.
        let raw = Raw::of(data.wrapping_add(self.offset), len - self.offset, layout, self.heads);
        Ok(Raw { span: self.span, ..raw })
    }
}
