//! The memory of an engine's cache, and the calls that move what it holds.

use std::marker::PhantomData;

use librope_sys::{self as sys, Init as _};

use crate::context::Context;
use crate::element::{Element, OutputElement};
use crate::error::{Error, Result, invalid, named, narrow, unsupported};
use crate::scale::{RawScale, Scale};
use crate::size::{length, product};
use crate::slot_runner::SlotRunner;
use crate::slots::Slots;
use crate::step::Step;
use crate::strides::{Layout, Strides};
use crate::tensor::{Pair, Part, Raw, View, ViewMut};

/// The memory of keys, or of values, of one layer: pages of slots, each of which holds the heads of one
/// token. How many there are belongs to the [`KvCache`].
#[derive(Debug)]
#[must_use]
pub struct Pages<'a, T> {
    raw: Raw,
    scale: Option<RawScale>,
    of: PhantomData<&'a mut [T]>,
}

// SAFETY: a `&mut [T]` with numbers beside it.
unsafe impl<T: Send> Send for Pages<'_, T> {}
// SAFETY: as above; a shared reference to it allows nothing.
unsafe impl<T: Sync> Sync for Pages<'_, T> {}

impl<'a, T: OutputElement> Pages<'a, T> {
    /// Contiguous `[pages, page_size, heads, channels]`.
    #[inline]
    pub fn nhd(data: &'a mut [T], heads: usize) -> Self {
        Self::new(data, Layout::Nhd, heads)
    }

    /// Contiguous `[pages, heads, page_size, channels]`.
    #[inline]
    pub fn hnd(data: &'a mut [T], heads: usize) -> Self {
        Self::new(data, Layout::Hnd, heads)
    }

    /// Strides of one's own, from the first element of `data`: `batch` leads from page to page, `token`
    /// from slot to slot.
    #[inline]
    pub fn strided(data: &'a mut [T], heads: usize, strides: Strides) -> Self {
        Self::new(data, Layout::Strided(strides), heads)
    }

    #[inline]
    fn new(data: &'a mut [T], layout: Layout, heads: usize) -> Self {
        let raw = Raw::of(data.as_mut_ptr(), data.len(), layout, heads);
        Pages { raw, scale: None, of: PhantomData }
    }

    /// Sets the scales of codes. Pages of codes have one, and no others. An array of them has the order of
    /// the pages: see [`Scale`].
    #[allow(clippy::needless_pass_by_value, reason = "an array is borrowed exclusively")]
    #[inline]
    pub fn with_scale(mut self, scale: Scale<'a>) -> Self {
        self.scale = Some(scale.raw());
        self
    }

    /// Keys are stored as the rotated span alone.
    #[inline]
    pub fn span(mut self) -> Self {
        self.raw.span = true;
        self
    }
}

/// The cache of one layer: keys, values, or both, and how many pages of how many slots they have. Which
/// slots the tokens of a call go to belongs to the [`Step`]. Contiguous memory must have exactly
/// `pages * page_size` slots.
///
/// With one page for each sequence, as [`Slots::Linear`] has it, `nhd` is `[sequences, length, heads,
/// channels]`.
#[derive(Debug)]
#[must_use]
pub struct KvCache<'a> {
    pub(crate) pages: usize,
    pub(crate) page_size: usize,
    pub(crate) k: Option<Memory>,
    pub(crate) v: Option<Memory>,
    pub(crate) v_head_dim: Option<usize>,
    of: PhantomData<&'a mut [u8]>,
}

type Memory = (Raw, Option<RawScale>);

// SAFETY: exclusive slices of `OutputElement`s, which are Send, with numbers beside them.
unsafe impl Send for KvCache<'_> {}
// SAFETY: as above; a shared reference to it allows nothing.
unsafe impl Sync for KvCache<'_> {}

impl<'a> KvCache<'a> {
    /// A cache without memory yet.
    #[inline]
    pub fn new(pages: usize, page_size: usize) -> Self {
        KvCache { pages, page_size, k: None, v: None, v_head_dim: None, of: PhantomData }
    }

    /// Keys and values inside one buffer, whose strides lead from page to page (`batch`) and from slot
    /// to slot (`token`): `[pages, 2, page_size, heads, channels]`, or a row of latent and key for each
    /// token. That they do not overlap is proved by the library.
    ///
    /// ```
    /// use librope::{KvCache, Part, Strides};
    ///
    /// let (pages, page_size, heads, dim) = (10, 16, 8, 128);
    /// let half = page_size * heads * dim;
    /// let mut data = vec![0.0f32; pages * 2 * half];
    /// let strides = Strides { batch: 2 * half, token: heads * dim, head: dim };
    /// let (k, v) = (Part::new(0, heads, strides), Part::new(half, heads, strides));
    /// let cache = KvCache::packed(pages, page_size, &mut data, k, v)?;
    /// # drop(cache);
    /// # Ok::<(), librope::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if a part begins beyond the buffer.
    pub fn packed<T: Element>(
        pages: usize,
        page_size: usize,
        data: &'a mut [T],
        k: Part,
        v: Part,
    ) -> Result<Self> {
        named("KvCache::packed", || {
            let (pointer, len) = (data.as_mut_ptr(), data.len());
            let (k, v) = (k.of(K, pointer, len)?, v.of(V, pointer, len)?);
            Ok(KvCache { k: Some((k, None)), v: Some((v, None)), ..KvCache::new(pages, page_size) })
        })
    }

    /// Of memory that is described in any way.
    pub(crate) fn of(
        pages: usize,
        page_size: usize,
        [k, v]: [Option<Raw>; 2],
        v_head_dim: Option<usize>,
    ) -> Self {
        let memory = |of: Option<Raw>| of.map(|raw| (raw, None));
        KvCache { k: memory(k), v: memory(v), v_head_dim, ..KvCache::new(pages, page_size) }
    }

    /// The same memory, for one call.
    pub(crate) fn again<'b>(&self) -> KvCache<'b> {
        KvCache { of: PhantomData, ..*self }
    }

    /// Sets the memory of keys. They have the heads of the call's k, and any element type: the result
    /// is rounded to it once.
    #[allow(clippy::needless_pass_by_value, reason = "the slice is borrowed exclusively")]
    #[inline]
    pub fn with_k<T: OutputElement>(mut self, k: Pages<'a, T>) -> Self {
        self.k = Some((k.raw, k.scale));
        self
    }

    /// Sets the memory of values. They have the heads of the call's v, which need not be those of k, and
    /// any element type.
    #[allow(clippy::needless_pass_by_value, reason = "the slice is borrowed exclusively")]
    #[inline]
    pub fn with_v<T: OutputElement>(mut self, v: Pages<'a, T>) -> Self {
        self.v = Some((v.raw, v.scale));
        self
    }

    /// Sets how many channels a head of v has, in the cache and in the call: 1 to 1024. Default: those
    /// of the context.
    #[inline]
    pub fn with_v_head_dim(mut self, channels: usize) -> Self {
        self.v_head_dim = Some(channels);
        self
    }
}

pub(crate) const K: &str = "the cache's k";
pub(crate) const V: &str = "the cache's v";

/// k or v of a call that stores it in a cache: `()` for none, a [`View`] that is only read, a
/// [`ViewMut`] that turns in place, too (v stays as it is), or `(View, ViewMut)` to read the one and
/// also write the other, whose element type and heads may differ as in an [`Operand`](crate::Operand).
#[derive(Debug)]
#[must_use]
pub struct Stored<'a> {
    pub(crate) pair: Pair,
    of: PhantomData<&'a mut [u8]>,
}

impl From<()> for Stored<'_> {
    #[inline]
    fn from((): ()) -> Self {
        Stored { pair: Pair::default(), of: PhantomData }
    }
}

impl<'a, T: Element> From<View<'a, T>> for Stored<'a> {
    #[inline]
    fn from(view: View<'a, T>) -> Self {
        let pair = Pair { input: Some(view.raw), ..Pair::default() };
        Stored { pair, of: PhantomData }
    }
}

impl<'a, T: Element> From<ViewMut<'a, T>> for Stored<'a> {
    #[inline]
    fn from(view: ViewMut<'a, T>) -> Self {
        let pair =
            Pair { input: Some(view.raw), scale: view.scale, in_place: true, ..Pair::default() };
        Stored { pair, of: PhantomData }
    }
}

impl<'a, T: Element, U: OutputElement> From<(View<'a, T>, ViewMut<'a, U>)> for Stored<'a> {
    #[inline]
    fn from((input, output): (View<'a, T>, ViewMut<'a, U>)) -> Self {
        Stored { pair: Pair::of(input.raw, output.raw, output.scale), of: PhantomData }
    }
}

impl Context {
    /// Moves keys, and values beside them, that a cache holds already: from the slots that
    /// [`Step::with_source`] names to those of [`Step::with_slots`]. The keys turn as the operation of
    /// the step says: [`Step::rerotating`] from known positions to others, [`Operation::Shift`](crate::Operation::Shift)
    /// by distances, [`Operation::Forward`](crate::Operation::Forward) those that were stored as they came. It
    /// must be set: keys that have turned would turn once more. A context of
    /// [`Config::nope`](crate::Config::nope) moves them as they are. Without a source they turn in their
    /// slots, and values stay.
    ///
    /// A slot that is written is read by the token that goes there alone: tokens cannot be moved up one
    /// by one, or in a circle, and a page that two sequences share turns once or not at all. A token
    /// whose source is negative is skipped.
    ///
    /// Pages of codes move with their [`Scale`]: computed ones are read, and computed anew for keys that
    /// turn; values keep theirs. Those of [`Q80`](crate::Q80) do so with the scales in their blocks.
    ///
    /// ```
    /// use librope::{Config, KvCache, Pages, Pairing, Positions, Slots, Step};
    ///
    /// let rope = Config::new(64, 10000.0, Pairing::Halves).build()?;
    /// let (heads, pages, page_size) = (2, 10, 16);
    /// let mut keys = vec![1.0f32; pages * page_size * heads * 64];
    /// let mut values = keys.clone();
    /// let mut cache = KvCache::new(pages, page_size)
    ///     .with_k(Pages::nhd(&mut keys, heads))
    ///     .with_v(Pages::nhd(&mut values, heads));
    ///
    /// // The first of three pages is cut off: 20 tokens behind it turn where they are.
    /// let kept = Slots::paged(&[7, 2], 2, &[0]);
    /// let step = Step::new(1, 20, Positions::Offset(0)).rerotating(Positions::Offset(16));
    /// rope.move_slots(&step.with_slots(kept), &mut cache)?;
    ///
    /// // Another sequence has them from position 100 on, in pages of its own.
    /// let step = Step::new(1, 20, Positions::Offset(100)).rerotating(Positions::Offset(0));
    /// let step = step.with_source(kept).with_slots(Slots::paged(&[4, 5], 2, &[0]));
    /// rope.move_slots(&step, &mut cache)?;
    /// # Ok::<(), librope::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`append`](Context::append), and
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if a slot is written that another token
    /// is read in. Nothing has been written then.
    ///
    /// # Panics
    /// As [`apply`](Context::apply).
    pub fn move_slots(&self, step: &Step<'_>, cache: &mut KvCache<'_>) -> Result<()> {
        named("Context::move_slots", || {
            // SAFETY: the cache has its slices to itself; the library compares the slots.
            unsafe { self.move_any(step, cache, cache) }
        })
    }

    /// [`move_slots`](Context::move_slots) from one cache, which is only read, to another. Here tokens
    /// may go to any slots.
    ///
    /// # Errors
    /// Those of [`move_slots`](Context::move_slots).
    ///
    /// # Panics
    /// As [`apply`](Context::apply).
    pub fn move_between(
        &self,
        step: &Step<'_>,
        source: &KvCache<'_>,
        cache: &mut KvCache<'_>,
    ) -> Result<()> {
        named("Context::move_between", || {
            // SAFETY: the slices of two caches do not alias.
            unsafe { self.move_any(step, source, cache) }
        })
    }

    /// # Safety
    /// This call may read the source, and has the cache to itself. Where they alias, they are one.
    unsafe fn move_any(
        &self,
        step: &Step<'_>,
        source: &KvCache<'_>,
        cache: &KvCache<'_>,
    ) -> Result<()> {
        if step.norms.is_some() {
            return unsupported(format_args!("this step has norms: keys that move are not normed"));
        }
        if step.operation.is_none() && !self.is_nope {
            return invalid(format_args!(
                "a move needs Step::rerotating or Step::with_operation: Forward is for keys that have not \
                 turned yet"
            ));
        }
        let mut fused = sys::rope_fused::init();
        let (mut read, mut written, read_by, written_by);
        if let Some(slots) = &step.slots {
            let describe = |cache: &KvCache<'_>, slots| {
                cache.check_v_head_dim(false)?;
                let v_dim = cache.v_head_dim.unwrap_or(self.head_dim());
                cache.check([self.head_dim(), self.span_dim, v_dim], slots, step)
            };
            (written, written_by) = describe(cache, slots)?;
            let read_in = step.source.as_ref().unwrap_or(slots);
            (read, read_by) = describe(source, read_in).map_err(Error::of_source)?;
            point_to(&written_by, &mut written);
            point_to(&read_by, &mut read);
            fused.cache = &raw const written;
            fused.source = &raw const read;
        } else {
            return Step { source: None, norms: None, ..*step }.misplaced();
        }
        SlotRunner::around(step, cache.page_size, |step| {
            self.with_args(step, [&None; 4], &raw const fused, |args| {
                // SAFETY: as this function's; slots outside of memory are refused by the library.
                unsafe { sys::rope_apply_qk(self.as_raw(), args) }
            })
        })
    }
}

impl KvCache<'_> {
    /// That there is a v whose channels were given: here, or in the call.
    pub(crate) fn check_v_head_dim(&self, call_has_v: bool) -> Result<()> {
        if self.v_head_dim.is_none() || self.v.is_some() || call_has_v {
            return Ok(());
        }
        invalid(format_args!("with_v_head_dim is for a cache or a call with v, and there is none"))
    }

    /// The C struct, after checking that all of its slots lie inside their slices, and the scales of k
    /// and v, which it does not point to yet.
    pub(crate) fn check(
        &self,
        [head_dim, span_dim, v_dim]: [usize; 3],
        slots: &Slots<'_>,
        step: &Step<'_>,
    ) -> Result<(sys::rope_kv_cache, [Option<sys::rope_scale>; 2])> {
        let mut raw = sys::rope_kv_cache::init();
        raw.pages = length(self.pages)?;
        raw.page_size = narrow("the cache's page size", self.page_size)?;
        let counts = [self.pages, self.page_size];
        let mut scales = [None, None];
        if let Some((k, scale)) = &self.k {
            k.check(K, counts, [head_dim, span_dim], &mut raw.k)?;
            let dim = if k.span { span_dim } else { head_dim };
            scales[0] = scale.map(|s| s.check(K, counts, k.layout, k.heads, dim)).transpose()?;
        }
        if let Some((v, scale)) = &self.v {
            set_values(v, V, counts, v_dim, &mut raw.v)?;
            scales[1] = scale.map(|s| s.check(V, counts, v.layout, v.heads, v_dim)).transpose()?;
        }
        slots.check(step.sequences(), product([step.batch, step.tokens]), &mut raw)?;
        Ok((raw, scales))
    }
}

/// Sets the scales of k and v, which must live as long as the cache.
fn point_to([of_k, of_v]: &[Option<sys::rope_scale>; 2], cache: &mut sys::rope_kv_cache) {
    cache.k.scale = of_k.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    cache.v.scale = of_v.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
}

/// Fills the C tensor of values, whose width is their own.
pub(crate) fn set_values(
    values: &Raw,
    name: &str,
    counts: [usize; 2],
    dim: usize,
    tensor: &mut sys::rope_tensor,
) -> Result<()> {
    if values.span {
        return invalid(format_args!("{name} does not turn, so it has no span"));
    }
    values.check(name, counts, [dim, dim], tensor)?;
    tensor.head_dim = narrow("the head_dim of v", dim)?;
    Ok(())
}

/// The compiler sees that the memory of a cache has no other user while a call may write it:
///
/// ```compile_fail
/// # use librope::*;
/// # let rope = Config::new(64, 10000.0, Pairing::Halves).build().unwrap();
/// # let step = Step::new(1, 1, Positions::Offset(0)).with_slots(Slots::mapped(&[0]));
/// let mut keys = [0f32; 64];
/// let mut cache = KvCache::new(1, 1).with_k(Pages::nhd(&mut keys, 1));
/// rope.append(&step, (), View::bshd(&keys, 1), (), &mut cache).unwrap(); // k is the cache
/// ```
///
/// ```compile_fail
/// # use librope::*;
/// # let rope = Config::new(64, 10000.0, Pairing::Halves).build().unwrap();
/// # let step = Step::new(1, 1, Positions::Offset(0)).with_slots(Slots::mapped(&[0]));
/// let mut keys = [0f32; 64];
/// let mut cache = KvCache::new(1, 1).with_k(Pages::nhd(&mut keys, 1));
/// let read = keys[0]; // between two calls
/// rope.append(&step, (), View::bshd(&[read; 64], 1), (), &mut cache).unwrap();
/// ```
///
/// ```compile_fail
/// # use librope::*;
/// let mut both = [0f32; 64];
/// let k = Pages::nhd(&mut both, 1);
/// let v = Pages::nhd(&mut both, 1); // one memory for two
/// KvCache::new(1, 1).with_k(k).with_v(v);
/// ```
///
/// and that the arrays of slots are gone:
///
/// ```compile_fail
/// # use librope::*;
/// let starts = vec![0];
/// let step = Step::new(1, 1, Positions::Offset(0)).with_slots(Slots::linear(&starts));
/// drop(starts);
/// let _ = step.with_operation(Operation::Inverse);
/// ```
///
/// These are errors for no other reason:
///
/// ```
/// # use librope::*;
/// # let rope = Config::new(64, 10000.0, Pairing::Halves).build().unwrap();
/// # let step = Step::new(1, 1, Positions::Offset(0)).with_slots(Slots::mapped(&[0]));
/// let mut keys = [0f32; 64];
/// let mut cache = KvCache::new(1, 1).with_k(Pages::nhd(&mut keys, 1));
/// rope.append(&step, (), View::bshd(&[1f32; 64], 1), (), &mut cache).unwrap();
/// rope.append(&step, (), View::bshd(&[2f32; 64], 1), (), &mut cache).unwrap();
/// let read = keys[0];
/// assert_eq!(read, 2.0);
/// let (mut one, mut other) = ([0f32; 64], [0f32; 64]);
/// let (k, v) = (Pages::nhd(&mut one, 1), Pages::nhd(&mut other, 1));
/// let _ = KvCache::new(1, 1).with_k(k).with_v(v);
/// let starts = vec![0];
/// let step = Step::new(1, 1, Positions::Offset(0)).with_slots(Slots::linear(&starts));
/// let _ = step.with_operation(Operation::Inverse);
/// drop(starts);
/// ```
#[cfg(doctest)]
struct Misfits;
