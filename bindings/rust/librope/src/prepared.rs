//! Calls that are checked once and then made for the tensors of every layer.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use librope_sys::{self as sys, Init as _};

use crate::context::{Context, finish};
use crate::element::Element;
use crate::error::{Result, invalid, made, named, narrow};
use crate::size::product;
use crate::step::Step;
use crate::strides::{Layout, Strides, no_batch};
use crate::tensor::{Raw, described};

/// A tensor of a [`Prepared`] call, whose slice is not known yet: its element type, its layout and its
/// heads. Batch and tokens belong to the [`Step`]. In a [`CacheShape`](crate::CacheShape) it is the memory
/// of keys, or of values, and pages and slots stand in their place.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Shape<T> {
    layout: Layout,
    heads: usize,
    span: bool,
    of: PhantomData<T>,
}

impl<T: Element> Shape<T> {
    /// Contiguous `[batch, tokens, heads, channels]`; with batch 1 also `[tokens, heads, channels]`.
    pub fn bshd(heads: usize) -> Self {
        Self::new(Layout::Bshd, heads)
    }

    /// Contiguous `[batch, heads, tokens, channels]`.
    pub fn bhsd(heads: usize) -> Self {
        Self::new(Layout::Bhsd, heads)
    }

    /// Contiguous `[tokens, batch, heads, channels]`.
    pub fn sbhd(heads: usize) -> Self {
        Self::new(Layout::Sbhd, heads)
    }

    /// Of a cache: contiguous `[pages, page_size, heads, channels]`.
    pub fn nhd(heads: usize) -> Self {
        Self::new(Layout::Nhd, heads)
    }

    /// Of a cache: contiguous `[pages, heads, page_size, channels]`.
    pub fn hnd(heads: usize) -> Self {
        Self::new(Layout::Hnd, heads)
    }

    /// Strides of one's own, from the first element of each slice.
    pub fn strided(heads: usize, strides: Strides) -> Self {
        Self::new(Layout::Strided(strides), heads)
    }

    /// Any layout. Slices must have exactly the length of a contiguous one.
    pub fn new(layout: Layout, heads: usize) -> Self {
        Shape { layout, heads, span: false, of: PhantomData }
    }

    /// Each "head" of the tensor is the rotated span alone, as in
    /// [`View::span`](crate::View::span).
    pub fn span(mut self) -> Self {
        self.span = true;
        self
    }

    pub(crate) fn raw(&self) -> Raw {
        let (layout, heads, span) = (self.layout, self.heads, self.span);
        Raw { data: ptr::null_mut(), len: 0, dtype: T::DTYPE, layout, heads, span, shape: None }
    }
}

/// What stands for q or k when a call is prepared, and what [`Prepared::apply`] then takes for it:
///
/// | prepared with | applied to | |
/// |---|---|---|
/// | `Shape<T>` | `&mut [T]` | turns in place |
/// | `(Shape<T>, Shape<T>)` | `(&[T], &mut [T])` | reads the one and writes the other |
/// | `()` | `()` | no tensor |
///
/// The compiler therefore refuses a tensor that is missing, too many, or of another element type.
pub trait Described: sealed::Shapes {
    /// What [`Prepared::apply`] takes.
    type Slices<'d>: sealed::Parts;
}

impl Described for () {
    type Slices<'d> = ();
}

impl<T: Element> Described for Shape<T> {
    type Slices<'d> = &'d mut [T];
}

impl<T: Element> Described for (Shape<T>, Shape<T>) {
    type Slices<'d> = (&'d [T], &'d mut [T]);
}

pub(crate) mod sealed {
    use super::{Element, Raw, Shape, c_void};

    /// Input and output, as far as there are such.
    pub trait Shapes {
        fn shapes(&self) -> [Option<Raw>; 2];
    }

    impl Shapes for () {
        fn shapes(&self) -> [Option<Raw>; 2] {
            [None, None]
        }
    }

    impl<T: Element> Shapes for Shape<T> {
        fn shapes(&self) -> [Option<Raw>; 2] {
            [Some(self.raw()), None]
        }
    }

    impl<T: Element> Shapes for (Shape<T>, Shape<T>) {
        fn shapes(&self) -> [Option<Raw>; 2] {
            [Some(self.0.raw()), Some(self.1.raw())]
        }
    }

    /// A slice without its type.
    pub type Part = (*mut c_void, usize);

    /// The same for slices: there are as many as shapes.
    pub trait Parts {
        fn parts(self) -> [Option<Part>; 2];
    }

    impl Parts for () {
        #[inline]
        fn parts(self) -> [Option<Part>; 2] {
            [None, None]
        }
    }

    impl<T: Element> Parts for &mut [T] {
        #[inline]
        fn parts(self) -> [Option<Part>; 2] {
            [Some((self.as_mut_ptr().cast(), self.len())), None]
        }
    }

    impl<T: Element> Parts for (&[T], &mut [T]) {
        #[inline]
        fn parts(self) -> [Option<Part>; 2] {
            let (input, output) = self;
            let read = (input.as_ptr().cast_mut().cast(), input.len());
            [Some(read), Some((output.as_mut_ptr().cast(), output.len()))]
        }
    }
}

/// How long the slice of a tensor has to be.
#[derive(Clone, Copy, Default)]
pub struct Length {
    need: usize,
    /// A longer one is refused: the layout is contiguous.
    exact: bool,
    /// There are tokens, and no batch rows that have them.
    no_batch: bool,
}

impl Length {
    pub(crate) fn new(need: usize, exact: bool) -> Length {
        Length { need, exact, no_batch: false }
    }

    /// Sets how many elements the tensor has, and returns what that asks of its slices. For memory of a
    /// cache, batch and tokens are its pages and slots.
    pub(crate) fn of(
        name: &str,
        raw: &mut Raw,
        [batch, tokens]: [usize; 2],
        [head_dim, span_dim]: [usize; 2],
    ) -> Result<Length> {
        let (heads, dim) = (raw.heads, if raw.span { span_dim } else { head_dim });
        narrow("heads", heads)?;
        let (need, exact) = match raw.layout {
            Layout::Strided(_) if batch == 0 || tokens == 0 || heads == 0 => (Some(0), false),
            Layout::Strided(strides) => (strides.reach([batch, tokens, heads], dim), false),
            _ => (product([batch, tokens, heads, dim]), true),
        };
        let Some(need) = need else {
            let what = described(name, raw, [batch, tokens], dim);
            return invalid(format_args!("{what} is beyond the address space"));
        };
        raw.len = need;
        let no_batch = batch == 0 && tokens > 0;
        Ok(Length { need: need.div_ceil(raw.dtype.channels()), exact, no_batch })
    }

    /// The pointer of a slice that has this length; NULL where there is none, and where nothing is in
    /// it, which is how C is told that an empty batch is meant.
    #[inline]
    pub(crate) fn check(&self, name: &str, part: Option<sealed::Part>) -> Result<*mut c_void> {
        match part {
            None => Ok(ptr::null_mut()),
            Some((data, len)) if len == self.need || len > self.need && !self.exact => {
                Ok(if self.need == 0 { ptr::null_mut() } else { data })
            }
            Some((_, len)) => self.other(name, len),
        }
    }

    /// A slice of this length inside a buffer, from one of its elements on.
    pub(crate) fn inside<T>(
        &self,
        name: &str,
        data: &mut [T],
        from: usize,
    ) -> Result<sealed::Part> {
        match data.len().checked_sub(from) {
            // The pointer stays inside the buffer or at its end.
            Some(rest) if rest >= self.need => {
                Ok((data.as_mut_ptr().wrapping_add(from).cast(), self.need))
            }
            _ => invalid(format_args!(
                "{name} needs {} elements from {from} on, and the buffer has {}",
                self.need,
                data.len()
            )),
        }
    }

    #[cold]
    #[inline(never)]
    fn other<T>(&self, name: &str, len: usize) -> Result<T> {
        if self.no_batch {
            return no_batch();
        }
        let need = self.need;
        let more = if self.exact { "" } else { " or more" };
        invalid(format_args!("{name} has {len} elements, and the prepared call needs {need}{more}"))
    }
}

/// A prepared call of C.
pub struct Handle(NonNull<sys::rope_prepared>);

// SAFETY: a const rope_prepared may be used by any number of threads at once, and destroyed by any;
// the context and the runner that it uses are Sync.
unsafe impl Send for Handle {}
// SAFETY: as above; nothing here takes it non-const but Drop.
unsafe impl Sync for Handle {}

impl Handle {
    /// Takes over what `rope_prepared_create` has made.
    pub(crate) fn of(raw: *mut sys::rope_prepared) -> Result<Handle> {
        Ok(Handle(made(raw)?))
    }

    /// # Safety
    /// Each pointer is NULL, or leads to as many elements as the library was told, which this call may
    /// use, outputs exclusively. Tensors may only alias where the library refuses overlap.
    #[inline]
    pub(crate) unsafe fn apply(&self, data: &sys::rope_qk_data) -> Result<()> {
        // SAFETY: as this function's, and the handle is alive.
        finish(unsafe { sys::rope_prepared_apply(self.0.as_ptr(), data) })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by rope_prepared_create, and nobody holds it any more.
        unsafe { sys::rope_prepared_destroy(self.0.as_ptr()) }
    }
}

/// A call that has been checked and whose cos and sin have been made, to be applied to the tensors of
/// every layer. Made by [`Context::prepare`]; any number of threads may use it at the same time.
///
/// `Q` and `K` say how q and k were [`Described`]: `Prepared<'_, Shape<bf16>>` turns both in place,
/// `Prepared<'_, Shape<bf16>, ()>` q alone.
///
/// It borrows the context, and what the step borrows. Of that it needs the runner alone, and beside one the
/// slots of a cache; positions and rows have been read, but a program that is about to change them drops the
/// call first.
///
/// ```compile_fail
/// # use librope::{Config, Pairing, Pool, Positions, Shape, Step};
/// # let rope = Config::new(64, 10000.0, Pairing::Halves).build()?;
/// # let pool = Pool::new(1)?;
/// let step = Step::new(1, 2, Positions::Offset(0)).with_runner(pool.runner());
/// let call = rope.prepare(&step, Shape::<f32>::bshd(1), ())?;
/// drop(pool);
/// call.apply(&mut [1.0; 2 * 64], ())?;
/// # Ok::<(), librope::Error>(())
/// ```
#[must_use]
pub struct Prepared<'a, Q, K = Q> {
    handle: Handle,
    /// Of q, k, the output of q, that of k.
    lengths: [Length; 4],
    context: PhantomData<&'a Context>,
    of: PhantomData<fn(Q, K)>, // there is no value of Q or K
}

const NAMES: [&str; 4] = ["q", "k", "q_out", "k_out"];

impl Context {
    /// Prepares the call that a forward pass makes for every layer: shapes and positions are the same,
    /// and only the slices are others. It is checked once, and keeps its rows of cos and sin; what is
    /// left to each layer is the rotation. The results are those of [`apply`](Context::apply), bit for
    /// bit.
    ///
    /// ```
    /// use librope::half::bf16;
    /// use librope::{Config, Pairing, Positions, Shape, Step};
    ///
    /// let rope = Config::new(64, 10000.0, Pairing::Halves).build()?;
    /// let (tokens, heads) = (5, 4);
    /// let step = Step::new(1, tokens, Positions::Offset(100));
    /// let k = (Shape::<bf16>::bshd(heads), Shape::bhsd(heads)); // from the projection to the cache
    /// let call = rope.prepare(&step, Shape::<bf16>::bshd(heads), k)?;
    /// for _layer in 0..2 {
    ///     let mut q = vec![bf16::ONE; tokens * heads * 64];
    ///     let (k, mut cached) = (q.clone(), q.clone());
    ///     call.apply(&mut q, (&k, &mut cached))?;
    /// }
    /// # Ok::<(), librope::Error>(())
    /// ```
    ///
    /// q and k are each a [`Shape`] in place, two of them out of place, or `()` for none: see
    /// [`Described`]. A call takes 8 bytes per token and pair, up to four times that where channels
    /// are interleaved, or q and k differ in element type, and more for rows that differ from head to
    /// head or between the channels of a pair; `librope/rope.h` has the details.
    ///
    /// # Errors
    /// Those of [`apply`](Context::apply) that do not depend on slices, and
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    #[allow(clippy::needless_pass_by_value, reason = "shapes are small, and look as views do")]
    pub fn prepare<'a, Q: Described, K: Described>(
        &'a self,
        step: &Step<'a>,
        q: Q,
        k: K,
    ) -> Result<Prepared<'a, Q, K>> {
        named("Context::prepare", || {
            step.is_no_move()?;
            let ([q, q_out], [k, k_out]) = (q.shapes(), k.shapes());
            let (mut tensors, mut lengths) = ([q, k, q_out, k_out], [Length::default(); 4]);
            let (counts, widths) = ([step.batch, step.tokens], [self.head_dim(), self.span_dim]);
            for ((length, tensor), name) in lengths.iter_mut().zip(&mut tensors).zip(NAMES) {
                if let Some(raw) = tensor {
                    *length = Length::of(name, raw, counts, widths)?;
                }
            }
            let mut raw = ptr::null_mut();
            self.with_args(step, tensors.each_ref(), ptr::null(), |args| {
                // SAFETY: ids and rows lie inside their slices, there are no tensors yet, and `raw` is
                // writable. Of what the arguments lead to, the context and the runner's pool are kept,
                // which live for 'a.
                unsafe { sys::rope_prepared_create(self.as_raw(), args, &raw mut raw) }
            })?;
            Ok(Prepared {
                handle: Handle::of(raw)?,
                lengths,
                context: PhantomData,
                of: PhantomData,
            })
        })
    }
}

impl<Q: Described, K: Described> Prepared<'_, Q, K> {
    /// Rotates the tensors of one layer.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if a slice does not have the length
    /// of its tensor. Nothing has been written then. [`Error::Runner`](crate::Error::Runner) if the
    /// runner failed: outputs are unspecified.
    ///
    /// # Panics
    /// With the payload of a [`ParallelFor`](crate::ParallelFor) that panicked, and then only.
    #[inline]
    pub fn apply(&self, q: Q::Slices<'_>, k: K::Slices<'_>) -> Result<()> {
        named("Prepared::apply", || {
            use sealed::Parts as _;

            let ([q, q_out], [k, k_out]) = (q.parts(), k.parts());
            // SAFETY: the slices do not alias.
            unsafe { self.call([q, k, q_out, k_out]) }
        })
    }
}

impl<T: Element> Prepared<'_, Shape<T>> {
    /// Rotates q and k in place inside one buffer, in which they begin at the elements `q` and `k`.
    /// That they do not overlap is proved by the library.
    ///
    /// ```
    /// use librope::{Config, Pairing, Positions, Shape, Step, Strides};
    ///
    /// let rope = Config::new(64, 10000.0, Pairing::Halves).build()?;
    /// let (tokens, q_heads, kv_heads) = (9, 6, 2);
    /// let row = (q_heads + 2 * kv_heads) * 64; // q, k, v of one token
    /// let strides = Strides { token: row, head: 64, batch: 0 };
    /// let shape = |heads| Shape::<f32>::strided(heads, strides);
    /// let step = Step::new(1, tokens, Positions::Offset(100));
    /// let call = rope.prepare(&step, shape(q_heads), shape(kv_heads))?;
    ///
    /// let mut qkv = vec![1.0; tokens * row];
    /// call.apply_packed(&mut qkv, 0, q_heads * 64)?;
    /// # Ok::<(), librope::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if q or k reaches beyond the buffer,
    /// or they overlap; [`Error::Runner`](crate::Error::Runner) as of [`apply`](Prepared::apply).
    ///
    /// # Panics
    /// As [`apply`](Prepared::apply).
    pub fn apply_packed(&self, data: &mut [T], q: usize, k: usize) -> Result<()> {
        named("Prepared::apply_packed", || {
            let q = self.lengths[0].inside("q", data, q)?;
            let k = self.lengths[1].inside("k", data, k)?;
            // SAFETY: both lie inside one exclusive slice, and the library refuses overlap.
            unsafe { self.call([Some(q), Some(k), None, None]) }
        })
    }
}

impl<Q, K> Prepared<'_, Q, K> {
    /// # Safety
    /// The slices are those that the call was prepared for, and this call may use them, outputs
    /// exclusively; q and k may share a slice.
    #[inline]
    unsafe fn call(&self, [q, k, q_out, k_out]: [Option<sealed::Part>; 4]) -> Result<()> {
        let data = sys::rope_qk_data {
            q: self.lengths[0].check(NAMES[0], q)?,
            k: self.lengths[1].check(NAMES[1], k)?,
            q_out: self.lengths[2].check(NAMES[2], q_out)?,
            k_out: self.lengths[3].check(NAMES[3], k_out)?,
            ..sys::rope_qk_data::init()
        };
        // SAFETY: as this function's, and each pointer leads to as many elements as the library was told.
        unsafe { self.handle.apply(&data) }
    }
}

impl<Q, K> fmt::Debug for Prepared<'_, Q, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").finish_non_exhaustive()
    }
}

/// The compiler sees what does not fit the prepared call:
///
/// ```compile_fail
/// # use librope::*;
/// # let rope = Config::new(64, 10000.0, Pairing::Halves).build().unwrap();
/// # let step = Step::new(1, 2, Positions::Offset(0));
/// let call = rope.prepare(&step, Shape::<f32>::bshd(1), Shape::<f32>::bshd(1)).unwrap();
/// call.apply(&mut [1.0; 128], ()).unwrap(); // no k
/// ```
///
/// ```compile_fail
/// # use librope::*;
/// # let rope = Config::new(64, 10000.0, Pairing::Halves).build().unwrap();
/// # let step = Step::new(1, 2, Positions::Offset(0));
/// let call = rope.prepare(&step, Shape::<f32>::bshd(1), ()).unwrap();
/// call.apply(&mut [1.0; 128], &mut [1.0; 128]).unwrap(); // a k
/// ```
///
/// ```compile_fail
/// # use librope::*;
/// # let rope = Config::new(64, 10000.0, Pairing::Halves).build().unwrap();
/// # let step = Step::new(1, 2, Positions::Offset(0));
/// let call = rope.prepare(&step, Shape::<f32>::bshd(1), ()).unwrap();
/// call.apply(&mut [half::bf16::ONE; 128], ()).unwrap(); // another element type
/// ```
///
/// ```compile_fail
/// # use librope::*;
/// # let rope = Config::new(64, 10000.0, Pairing::Halves).build().unwrap();
/// # let step = Step::new(1, 2, Positions::Offset(0));
/// let shape = Shape::<f32>::bshd(1);
/// let call = rope.prepare(&step, (shape, shape), ()).unwrap();
/// call.apply(&mut [1.0; 128], ()).unwrap(); // in place
/// ```
///
/// and that the context is gone:
///
/// ```compile_fail
/// # use librope::*;
/// # let rope = Config::new(64, 10000.0, Pairing::Halves).build().unwrap();
/// # let step = Step::new(1, 2, Positions::Offset(0));
/// let call = rope.prepare(&step, Shape::<f32>::bshd(1), ()).unwrap();
/// drop(rope);
/// call.apply(&mut [1.0; 128], ()).unwrap();
/// ```
///
/// These are errors for no other reason:
///
/// ```
/// # use librope::*;
/// # let rope = Config::new(64, 10000.0, Pairing::Halves).build().unwrap();
/// # let pool = Pool::new(1).unwrap();
/// # let step = Step::new(1, 2, Positions::Offset(0)).with_runner(pool.runner());
/// let (one, other) = (Shape::<f32>::bshd(1), Shape::<half::bf16>::bshd(1));
/// rope.prepare(&step, one, one).unwrap().apply(&mut [1.0; 128], &mut [1.0; 128]).unwrap();
/// rope.prepare(&step, one, ()).unwrap().apply(&mut [1.0; 128], ()).unwrap();
/// rope.prepare(&step, other, ()).unwrap().apply(&mut [half::bf16::ONE; 128], ()).unwrap();
/// let call = rope.prepare(&step, (one, one), ()).unwrap();
/// call.apply((&[1.0; 128], &mut [1.0; 128]), ()).unwrap();
/// drop(call);
/// drop(pool);
/// drop(rope);
/// ```
#[cfg(doctest)]
struct Misfits;
