//! Appends that are checked once and then made for the tensors and the pages of every layer.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use librope_sys::{self as sys, Init as _};

use crate::cache::{self, KvCache};
use crate::context::Context;
use crate::element::Element;
use crate::error::{Result, named};
use crate::prepared::sealed::{Part as Slice, Parts, Shapes};
use crate::prepared::{Described, Handle, Length, Shape};
use crate::slot_runner::SlotRunner;
use crate::step::Step;
use crate::strides::Layout;
use crate::tensor::{Pair, Part, Raw};

/// What stands for k or v when an append is prepared, and what [`PreparedAppend::apply`] then takes for it:
///
/// | prepared with | applied to | |
/// |---|---|---|
/// | `Shape<T>` | `&[T]` | is only read |
/// | `(Shape<T>, Shape<T>)` | `(&[T], &mut [T])` | reads the one and also writes the other |
/// | `()` | `()` | no tensor |
pub trait StoredShape: Shapes {
    /// What [`PreparedAppend::apply`] takes.
    type Slices<'d>: Parts;
}

impl StoredShape for () {
    type Slices<'d> = ();
}

impl<T: Element> StoredShape for Shape<T> {
    type Slices<'d> = &'d [T];
}

impl<T: Element> StoredShape for (Shape<T>, Shape<T>) {
    type Slices<'d> = (&'d [T], &'d mut [T]);
}

impl<T: Element> Parts for &[T] {
    #[inline]
    fn parts(self) -> [Option<Slice>; 2] {
        [Some((self.as_ptr().cast_mut().cast(), self.len())), None]
    }
}

/// The memory of a [`CacheShape`], and what [`PreparedAppend::apply`] takes for it of each layer:
///
/// | prepared with | applied to |
/// |---|---|
/// | `(Shape<K>, Shape<V>)` | `(&mut [K], &mut [V])` |
/// | `(Shape<K>, ())` | `(&mut [K], ())`: keys alone |
/// | `((), Shape<V>)` | `((), &mut [V])`: values alone |
/// | [`PackedPages<T>`] | `&mut [T]` |
pub trait CacheMemory: sealed::Pages {}

impl<K: sealed::Half, V: sealed::Half> CacheMemory for (K, V) {}
impl<T: Element> CacheMemory for PackedPages<T> {}

/// Keys and values inside one buffer, as in [`KvCache::packed`]: made by [`CacheShape::packed`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct PackedPages<T> {
    k: Part,
    v: Part,
    of: PhantomData<T>,
}

mod sealed {
    use super::{Element, Length, PackedPages, Raw, Result, Shape, Slice, c_void, cache, packed};

    /// The memory of keys and values, of which one may be absent.
    pub trait Pages {
        type Slices<'d>;
        fn raws(&self) -> [Option<Raw>; 2];
        /// Where keys and values begin in one buffer.
        fn offsets(&self) -> [usize; 2];
        /// Where they lie, after checking that they do inside their slices.
        fn addresses(
            slices: Self::Slices<'_>,
            lengths: &[Length; 2],
            offsets: [usize; 2],
        ) -> Result<[*mut c_void; 2]>;
    }

    /// One of the two.
    pub trait Half {
        type Slice<'d>;
        fn raw(&self) -> Option<Raw>;
        fn part(slice: Self::Slice<'_>) -> Option<Slice>;
    }

    impl Half for () {
        type Slice<'d> = ();
        fn raw(&self) -> Option<Raw> {
            None
        }
        #[inline]
        fn part((): ()) -> Option<Slice> {
            None
        }
    }

    impl<T: Element> Half for Shape<T> {
        type Slice<'d> = &'d mut [T];
        fn raw(&self) -> Option<Raw> {
            Some(Shape::raw(self))
        }
        #[inline]
        fn part(slice: &mut [T]) -> Option<Slice> {
            Some((slice.as_mut_ptr().cast(), slice.len()))
        }
    }

    impl<K: Half, V: Half> Pages for (K, V) {
        type Slices<'d> = (K::Slice<'d>, V::Slice<'d>);
        fn raws(&self) -> [Option<Raw>; 2] {
            [self.0.raw(), self.1.raw()]
        }
        fn offsets(&self) -> [usize; 2] {
            [0, 0]
        }
        #[inline]
        fn addresses(
            (keys, values): Self::Slices<'_>,
            [k, v]: &[Length; 2],
            _: [usize; 2],
        ) -> Result<[*mut c_void; 2]> {
            Ok([k.check(cache::K, K::part(keys))?, v.check(cache::V, V::part(values))?])
        }
    }

    impl<T: Element> Pages for PackedPages<T> {
        type Slices<'d> = &'d mut [T];
        fn raws(&self) -> [Option<Raw>; 2] {
            [Some(packed::<T>(self.k)), Some(packed::<T>(self.v))]
        }
        fn offsets(&self) -> [usize; 2] {
            [self.k.offset, self.v.offset]
        }
        #[inline]
        fn addresses(
            data: &mut [T],
            [k, v]: &[Length; 2],
            [from_k, from_v]: [usize; 2],
        ) -> Result<[*mut c_void; 2]> {
            let keys = k.inside(cache::K, data, from_k)?;
            let values = v.inside(cache::V, data, from_v)?;
            Ok([k.check(cache::K, Some(keys))?, v.check(cache::V, Some(values))?])
        }
    }
}

/// A part of a buffer that is not known yet.
fn packed<T: Element>(part: Part) -> Raw {
    let raw = Raw::of(ptr::null_mut::<T>(), 0, Layout::Strided(part.strides), part.heads);
    Raw { span: part.span, ..raw }
}

/// The caches of all layers: how many pages of how many slots they have, and what their memory is. The
/// slices are those of each layer: see [`CacheMemory`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct CacheShape<M> {
    pages: usize,
    page_size: usize,
    memory: M,
    v_head_dim: Option<usize>,
}

impl<K: sealed::Half, V: sealed::Half> CacheShape<(K, V)> {
    /// Keys and values in slices of their own: [`Shape::nhd`], [`Shape::hnd`] or [`Shape::strided`], or
    /// `()` for one of the two.
    pub fn new(pages: usize, page_size: usize, k: K, v: V) -> Self {
        CacheShape { pages, page_size, memory: (k, v), v_head_dim: None }
    }
}

impl<T: Element> CacheShape<PackedPages<T>> {
    /// Keys and values inside one buffer, as [`KvCache::packed`] has them.
    pub fn packed(pages: usize, page_size: usize, k: Part, v: Part) -> Self {
        CacheShape {
            pages,
            page_size,
            memory: PackedPages { k, v, of: PhantomData },
            v_head_dim: None,
        }
    }
}

impl<M> CacheShape<M> {
    /// Sets how many channels a head of v has, as [`KvCache::with_v_head_dim`] does.
    pub fn with_v_head_dim(mut self, channels: usize) -> Self {
        self.v_head_dim = Some(channels);
        self
    }
}

/// An [`append`](Context::append) that has been checked, with its cos and sin and the slots of its tokens,
/// to be applied to the tensors and the pages of every layer. Made by [`Context::prepare_append`]; any
/// number of threads may use it at the same time. What it borrows is what a
/// [`Prepared`](crate::Prepared) does.
#[must_use]
pub struct PreparedAppend<'a, Q, K, V, M> {
    handle: Handle,
    _runner: Option<Arc<SlotRunner<'a>>>, // of the handle
    /// Of q, k and v, each with its output.
    lengths: [[Length; 2]; 3],
    memory: [Length; 2],
    offsets: [usize; 2],
    context: PhantomData<&'a Context>,
    of: PhantomData<fn(Q, K, V, M)>, // there is no value of these
}

const NAMES: [[&str; 2]; 3] = [["q", "q_out"], ["k", "k_out"], ["v", "v_out"]];

impl Context {
    /// Prepares the [`append`](Context::append) that a decode step makes for every layer: positions, slots
    /// and shapes are the same, and only the slices are others. It is checked once, and keeps its rows of
    /// cos and sin, and where its tokens go. The results are those of `append`, bit for bit.
    ///
    /// ```
    /// use librope::half::bf16;
    /// use librope::{CacheShape, Config, Pairing, Positions, Shape, Slots, Step};
    ///
    /// let rope = Config::new(128, 500_000.0, Pairing::Halves).build()?;
    /// let (q_heads, heads, pages, page_size) = (32, 8, 10, 16);
    /// let memory = || vec![bf16::ZERO; pages * page_size * heads * 128];
    /// let mut layers = [(memory(), memory()), (memory(), memory())]; // keys and values
    ///
    /// // One token of each of two sequences, which have 5 and 17 tokens in their pages.
    /// let (table, lengths) = ([3, -1, 7, 2], [5, 17]);
    /// let step = Step::new(2, 1, Positions::seq_offsets(&lengths))
    ///     .with_slots(Slots::paged(&table, 2, &lengths));
    /// let kv = Shape::<bf16>::bshd(heads);
    /// let pages_of = Shape::<bf16>::nhd(heads);
    /// let cache = CacheShape::new(pages, page_size, pages_of, pages_of);
    /// let call = rope.prepare_append(&step, Shape::<bf16>::bshd(q_heads), kv, kv, cache)?;
    /// for (keys, values) in &mut layers {
    ///     let mut q = vec![bf16::ONE; 2 * q_heads * 128];
    ///     let (k, v) = (vec![bf16::ONE; 2 * heads * 128], vec![bf16::ONE; 2 * heads * 128]);
    ///     call.apply(&mut q, &k, &v, (keys, values))?;
    ///     assert_eq!(values[(3 * page_size + 5) * heads * 128], bf16::ONE); // page 3, slot 5
    /// }
    /// # Ok::<(), librope::Error>(())
    /// ```
    ///
    /// q is [`Described`] as for [`prepare`](Context::prepare), k and v are [`StoredShape`]s, and the memory of
    /// the cache is a [`CacheMemory`]. Besides what `prepare` says, a call takes 24 bytes per token.
    /// Steps with norms are for [`prepare_call`](Context::prepare_call), and so are pages in 8 bits, with scales
    /// or in blocks of [`Q80`](crate::Q80).
    ///
    /// # Errors
    /// Those of [`append`](Context::append) that do not depend on slices, and
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    #[allow(clippy::needless_pass_by_value, reason = "shapes are small, and look as views do")]
    pub fn prepare_append<'a, Q: Described, K: StoredShape, V: StoredShape, M: CacheMemory>(
        &'a self,
        step: &Step<'a>,
        q: Q,
        k: K,
        v: V,
        cache: CacheShape<M>,
    ) -> Result<PreparedAppend<'a, Q, K, V, M>> {
        named("Context::prepare_append", || {
            step.is_no_move()?;
            if step.norms.is_some() {
                return Step { slots: None, source: None, ..*step }.misplaced();
            }
            let v_dim = cache.v_head_dim.unwrap_or(self.head_dim());
            let widths = [[self.head_dim(), self.span_dim], [v_dim, v_dim]];
            let mut tensors = [q.shapes(), k.shapes(), v.shapes()];
            let mut lengths = [[Length::default(); 2]; 3];
            for (i, operand) in tensors.iter_mut().enumerate() {
                for (j, tensor) in operand.iter_mut().enumerate() {
                    if let Some(raw) = tensor {
                        let counts = [step.batch, step.tokens];
                        lengths[i][j] = Length::of(NAMES[i][j], raw, counts, widths[i / 2])?;
                    }
                }
            }
            let mut raws = cache.memory.raws();
            let mut memory = [Length::default(); 2];
            for (i, raw) in raws.iter_mut().enumerate() {
                if let Some(raw) = raw {
                    let counts = [cache.pages, cache.page_size];
                    memory[i] = Length::of([cache::K, cache::V][i], raw, counts, widths[i])?;
                }
            }
            let offsets = cache.memory.offsets();
            let cache = KvCache::of(cache.pages, cache.page_size, raws, cache.v_head_dim);
            let mut raw = ptr::null_mut();
            let pair =
                |[input, output]: [Option<Raw>; 2]| Pair { input, output, ..Pair::default() };
            let [q, k, v] = tensors.map(pair);
            let (made, runner) = SlotRunner::kept(step, cache.page_size, |step| {
                self.with_stored(step, [&q, &k, &v, &Pair::default()], &cache, |args| {
                    // SAFETY: ids, rows and slots lie inside their slices, there are no tensors yet, and
                    // `raw` is writable. Of what the arguments lead to, the context and the runner's pool
                    // are kept: they live for 'a, or are kept here.
                    unsafe { sys::rope_prepared_create(self.as_raw(), args, &raw mut raw) }
                })
            });
            made?;
            Ok(PreparedAppend {
                handle: Handle::of(raw)?,
                _runner: runner,
                lengths,
                memory,
                offsets,
                context: PhantomData,
                of: PhantomData,
            })
        })
    }
}

impl<Q: Described, K: StoredShape, V: StoredShape, M: CacheMemory> PreparedAppend<'_, Q, K, V, M> {
    /// Rotates q, and stores the rotated k, and v, in the pages of one layer.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if a slice does not have the length
    /// of its tensor or of its memory. Nothing has been written then.
    /// [`Error::Runner`](crate::Error::Runner) if the runner failed: outputs and slots are unspecified.
    ///
    /// # Panics
    /// As [`Prepared::apply`](crate::Prepared::apply).
    #[inline]
    pub fn apply(
        &self,
        q: Q::Slices<'_>,
        k: K::Slices<'_>,
        v: V::Slices<'_>,
        cache: M::Slices<'_>,
    ) -> Result<()> {
        named("PreparedAppend::apply", || {
            // SAFETY: the slices do not alias.
            unsafe { self.call([q.parts(), k.parts(), v.parts()], cache) }
        })
    }
}

impl<T: Element, M: CacheMemory> PreparedAppend<'_, Shape<T>, Shape<T>, Shape<T>, M> {
    /// [`apply`](PreparedAppend::apply) of q, k and v inside one buffer, in which they begin at these
    /// elements. That q does not overlap the others is proved by the library.
    ///
    /// ```
    /// use librope::{CacheShape, Config, Pairing, Positions, Shape, Slots, Step, Strides};
    ///
    /// let rope = Config::new(64, 10000.0, Pairing::Halves).build()?;
    /// let (q_heads, heads, length) = (6, 2, 100);
    /// let row = (q_heads + 2 * heads) * 64; // q, k, v of one token
    /// let shape = |heads| Shape::<f32>::strided(heads, Strides { token: row, head: 64, batch: 0 });
    /// let step = Step::new(1, 9, Positions::Offset(7)).with_slots(Slots::linear(&[7]));
    /// let pages = Shape::<f32>::nhd(heads);
    /// let cache = CacheShape::new(1, length, pages, pages);
    /// let call = rope.prepare_append(&step, shape(q_heads), shape(heads), shape(heads), cache)?;
    ///
    /// let mut qkv = vec![1.0; 9 * row];
    /// let (mut keys, mut values) = (vec![0.0; length * heads * 64], vec![0.0; length * heads * 64]);
    /// let begins = [0, q_heads * 64, (q_heads + heads) * 64];
    /// call.apply_packed(&mut qkv, begins, (&mut keys, &mut values))?;
    /// # Ok::<(), librope::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`apply`](PreparedAppend::apply), and
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if a part reaches beyond the buffer, or q
    /// overlaps k or v.
    ///
    /// # Panics
    /// As [`apply`](PreparedAppend::apply).
    pub fn apply_packed(
        &self,
        data: &mut [T],
        begins: [usize; 3],
        cache: M::Slices<'_>,
    ) -> Result<()> {
        named("PreparedAppend::apply_packed", || {
            let mut parts = [[None; 2]; 3];
            for (i, from) in begins.into_iter().enumerate() {
                parts[i][0] = Some(self.lengths[i][0].inside(NAMES[i][0], data, from)?);
            }
            // SAFETY: the parts lie inside one exclusive slice, and the library refuses overlap of what it
            // writes; the cache's slices are others.
            unsafe { self.call(parts, cache) }
        })
    }
}

impl<Q, K, V, M: CacheMemory> PreparedAppend<'_, Q, K, V, M> {
    /// # Safety
    /// The slices are those that the call was prepared for, and this call may use them, outputs and a q
    /// without one exclusively; q, k and v may share a slice.
    #[inline]
    unsafe fn call(&self, tensors: [[Option<Slice>; 2]; 3], cache: M::Slices<'_>) -> Result<()> {
        let [cache_k, cache_v] = M::addresses(cache, &self.memory, self.offsets)?;
        let place = |i: usize, j: usize| self.lengths[i][j].check(NAMES[i][j], tensors[i][j]);
        let data = sys::rope_qk_data {
            q: place(0, 0)?,
            k: place(1, 0)?,
            q_out: place(0, 1)?,
            k_out: place(1, 1)?,
            v: place(2, 0)?,
            v_out: place(2, 1)?,
            cache_k,
            cache_v,
            ..sys::rope_qk_data::init()
        };
        // SAFETY: as this function's, and each pointer leads to as many elements as the library was told.
        unsafe { self.handle.apply(&data) }
    }
}

impl<Q, K, V, M> fmt::Debug for PreparedAppend<'_, Q, K, V, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedAppend").finish_non_exhaustive()
    }
}

/// The compiler sees what does not fit the prepared call:
///
/// ```compile_fail
/// # use librope::*;
/// # let rope = Config::new(64, 10000.0, Pairing::Halves).build().unwrap();
/// # let step = Step::new(1, 1, Positions::Offset(0)).with_slots(Slots::mapped(&[0]));
/// let (one, none) = (Shape::<f32>::nhd(1), ());
/// let call = rope.prepare_append(&step, (), Shape::<f32>::bshd(1), (), CacheShape::new(1, 1, one, none)).unwrap();
/// let keys = [0f32; 64];
/// call.apply((), &[1.0; 64], (), (&keys, ())).unwrap(); // keys that cannot be written
/// ```
///
/// ```compile_fail
/// # use librope::*;
/// # let rope = Config::new(64, 10000.0, Pairing::Halves).build().unwrap();
/// # let step = Step::new(1, 1, Positions::Offset(0)).with_slots(Slots::mapped(&[0]));
/// let (one, none) = (Shape::<f32>::nhd(1), ());
/// let call = rope.prepare_append(&step, (), Shape::<f32>::bshd(1), (), CacheShape::new(1, 1, one, none)).unwrap();
/// let mut keys = [0f32; 64];
/// call.apply((), &keys, (), (&mut keys, ())).unwrap(); // k is the cache
/// ```
///
/// ```compile_fail
/// # use librope::*;
/// # let rope = Config::new(64, 10000.0, Pairing::Halves).build().unwrap();
/// # let step = Step::new(1, 1, Positions::Offset(0)).with_slots(Slots::mapped(&[0]));
/// let (one, none) = (Shape::<f32>::nhd(1), ());
/// let call = rope.prepare_append(&step, (), Shape::<f32>::bshd(1), (), CacheShape::new(1, 1, one, none)).unwrap();
/// call.apply((), &[1.0; 64], (), (&mut [0f32; 64], &mut [0f32; 64])).unwrap(); // values
/// ```
///
/// ```compile_fail
/// # use librope::*;
/// # let rope = Config::new(64, 10000.0, Pairing::Halves).build().unwrap();
/// # let step = Step::new(1, 1, Positions::Offset(0)).with_slots(Slots::mapped(&[0]));
/// let (one, none) = (Shape::<f32>::nhd(1), ());
/// let call = rope.prepare_append(&step, (), Shape::<f32>::bshd(1), (), CacheShape::new(1, 1, one, none)).unwrap();
/// drop(rope);
/// call.apply((), &[1.0; 64], (), (&mut [0f32; 64], ())).unwrap();
/// ```
///
/// These are errors for no other reason:
///
/// ```
/// # use librope::*;
/// # let rope = Config::new(64, 10000.0, Pairing::Halves).build().unwrap();
/// # let step = Step::new(1, 1, Positions::Offset(0)).with_slots(Slots::mapped(&[0]));
/// let (one, none) = (Shape::<f32>::nhd(1), ());
/// let call = rope.prepare_append(&step, (), Shape::<f32>::bshd(1), (), CacheShape::new(1, 1, one, none)).unwrap();
/// let mut keys = [0f32; 64];
/// call.apply((), &[1.0; 64], (), (&mut keys, ())).unwrap();
/// drop(call);
/// drop(rope);
/// ```
#[cfg(doctest)]
struct Misfits;
