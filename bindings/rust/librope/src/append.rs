//! The calls that store k and v in a cache, in the pass that rotates k.

use librope_sys as sys;

use crate::cache::{KvCache, Stored};
use crate::call::{Beside, has_place};
use crate::context::Context;
use crate::element::Element;
use crate::error::{Result, named};
use crate::slot_runner::SlotRunner;
use crate::step::Step;
use crate::tensor::{Operand, Pair, Part};

impl Context {
    /// Rotates q and k as [`apply`](Context::apply) does, and stores the rotated k, and v, in the slots
    /// of a cache that [`Step::with_slots`] names. They need not be written anywhere else: k and v are
    /// each `()` for none, a [`View`](crate::View) to read, or what [`Stored`] lists beside it (q and k are not both
    /// `()`). What reaches the slots has the bits that `apply` would write. A context of [`Config::nope`](crate::Config::nope)
    /// stores k as it is.
    ///
    /// ```
    /// use librope::half::bf16;
    /// use librope::{Config, KvCache, Pages, Pairing, Positions, Slots, Step, View, ViewMut};
    ///
    /// let rope = Config::new(128, 500_000.0, Pairing::Halves).build()?;
    /// let (q_heads, heads, pages, page_size) = (32, 8, 10, 16);
    /// let mut keys = vec![bf16::ZERO; pages * page_size * heads * 128];
    /// let mut values = keys.clone();
    ///
    /// // One token of each of two sequences, which have 5 and 17 tokens in their pages.
    /// let (table, lengths) = ([3, -1, 7, 2], [5, 17]);
    /// let step = Step::new(2, 1, Positions::seq_offsets(&lengths))
    ///     .with_slots(Slots::paged(&table, 2, &lengths));
    /// let mut q = vec![bf16::ONE; 2 * q_heads * 128];
    /// let (k, v) = (vec![bf16::ONE; 2 * heads * 128], vec![bf16::ONE; 2 * heads * 128]);
    /// let mut cache = KvCache::new(pages, page_size)
    ///     .with_k(Pages::nhd(&mut keys, heads))
    ///     .with_v(Pages::nhd(&mut values, heads));
    /// rope.append(
    ///     &step,
    ///     ViewMut::bshd(&mut q, q_heads),
    ///     View::bshd(&k, heads),
    ///     View::bshd(&v, heads),
    ///     &mut cache,
    /// )?;
    /// assert_eq!(values[(3 * page_size + 5) * heads * 128], bf16::ONE); // page 3, slot 5
    /// assert_eq!(values[(2 * page_size + 1) * heads * 128], bf16::ONE); // page 2, slot 17 - 16
    /// # Ok::<(), librope::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`apply`](Context::apply); [`Error::InvalidArgument`](crate::Error::InvalidArgument)
    /// also if the memory of the cache, or an array of [`Slots`](crate::Slots), does not have its length, or if a slot
    /// or a page does not exist; [`Error::Unsupported`](crate::Error::Unsupported) for
    /// [`Operation::Backward`](crate::Operation::Backward). Nothing has been written then.
    ///
    /// # Panics
    /// As [`apply`](Context::apply).
    pub fn append<'q, 'k, 'v>(
        &self,
        step: &Step<'_>,
        q: impl Into<Operand<'q>>,
        k: impl Into<Stored<'k>>,
        v: impl Into<Stored<'v>>,
        cache: &mut KvCache<'_>,
    ) -> Result<()> {
        named("Context::append", || {
            let (q, k, v) = (q.into().pair, k.into().pair, v.into().pair);
            let pairs = [&q, &k, &v, &Pair::default()];
            SlotRunner::around(step, cache.page_size, |step| {
                self.with_stored(step, pairs, cache, |args| {
                    // SAFETY: views and cache hold slices that do not alias.
                    unsafe { sys::rope_apply_qk(self.as_raw(), args) }
                })
            })
        })
    }

    /// [`append`](Context::append) of q, k and v inside one buffer, as a fused projection writes it: q
    /// turns in place, k and v are only read. That q does not overlap them is proved by the library. Each is
    /// a [`Part`], so all three are needed; without v, or with an output beside the buffer, `append` takes
    /// strided views.
    ///
    /// ```
    /// use librope::{Config, KvCache, Pages, Pairing, Part, Positions, Slots, Step, Strides};
    ///
    /// let rope = Config::new(64, 10000.0, Pairing::Halves).build()?;
    /// let (tokens, q_heads, heads) = (9, 6, 2);
    /// let row = (q_heads + 2 * heads) * 64; // q, k, v of one token
    /// let mut qkv = vec![1.0f32; tokens * row];
    /// let mut cached = [vec![0.0f32; 100 * heads * 64], vec![0.0f32; 100 * heads * 64]];
    ///
    /// let strides = Strides { token: row, head: 64, batch: 0 };
    /// let step = Step::new(1, tokens, Positions::Offset(7)).with_slots(Slots::linear(&[7]));
    /// let [keys, values] = &mut cached;
    /// rope.append_packed(
    ///     &step,
    ///     &mut qkv,
    ///     Part::new(0, q_heads, strides),
    ///     Part::new(q_heads * 64, heads, strides),
    ///     Part::new((q_heads + heads) * 64, heads, strides),
    ///     &mut KvCache::new(1, 100)
    ///         .with_k(Pages::nhd(keys, heads))
    ///         .with_v(Pages::nhd(values, heads)),
    /// )?;
    /// # Ok::<(), librope::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`append`](Context::append), and
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if q overlaps k or v.
    ///
    /// # Panics
    /// As [`apply`](Context::apply).
    pub fn append_packed<T: Element>(
        &self,
        step: &Step<'_>,
        data: &mut [T],
        q: Part,
        k: Part,
        v: Part,
        cache: &mut KvCache<'_>,
    ) -> Result<()> {
        named("Context::append_packed", || {
            let (pointer, len) = (data.as_mut_ptr(), data.len());
            let part = |name, part: Part| {
                Ok(Pair { input: Some(part.of(name, pointer, len)?), ..Pair::default() })
            };
            let pairs = [&part("q", q)?, &part("k", k)?, &part("v", v)?, &Pair::default()];
            SlotRunner::around(step, cache.page_size, |step| {
                self.with_stored(step, pairs, cache, |args| {
                    // SAFETY: the parts lie inside one exclusive slice, and the library refuses overlap of
                    // what it writes; the cache's slices are others.
                    unsafe { sys::rope_apply_qk(self.as_raw(), args) }
                })
            })
        })
    }

    /// Makes a C call that stores in a cache: see [`with_call`](Context::with_call).
    pub(crate) fn with_stored(
        &self,
        step: &Step<'_>,
        pairs: [&Pair; 4],
        cache: &KvCache<'_>,
        call: impl FnOnce(*const sys::rope_qk_args) -> sys::rope_status,
    ) -> Result<()> {
        has_place(pairs[1], Some(cache))?;
        let beside = Beside { cache: Some(cache.again()), ..Beside::default() };
        self.with_call(step, pairs, &beside, None, call)
    }
}
