use std::ffi::CStr;
use std::fmt;
use std::ptr::{self, NonNull};

use librope_sys::{self as sys, Init as _};

use crate::config::Config;
use crate::element::Element;
use crate::enums::Operation;
use crate::error::{Error, Result, check, invalid, made, named, narrow, require_library};
use crate::info::Info;
use crate::runner;
use crate::shard_ids::own_cu_seqlens;
use crate::size::{length, product};
use crate::step::{Angles, Step};
use crate::strides::Layout;
use crate::tensor::{Operand, Pair, Part, Raw, View, ViewMut};

/// A model's rotation: immutable, a few hundred bytes, valid for every position, shared by all
/// threads and all layers of one kind.
///
/// ```
/// use librope::{Config, Pairing};
///
/// let rope = Config::new(128, 500_000.0, Pairing::Halves).build()?;
/// let (tokens, q_heads, k_heads) = (3, 32, 8);
/// let mut q = vec![1.0f32; tokens * q_heads * 128];
/// let mut k = vec![1.0f32; tokens * k_heads * 128];
/// rope.apply_thd(&[10, 11, 12], &mut q, q_heads, &mut k, k_heads)?;
/// # Ok::<(), librope::Error>(())
/// ```
pub struct Context {
    raw: NonNull<sys::rope_context>,
    // What checks need, so that they cost no call.
    head_dim: usize,
    pub(crate) span_dim: usize,
    pub(crate) pairs: usize,
    pub(crate) axes: usize,
    freq_sets: usize,
    valid_from: i64,
    valid_below: i64,
    pub(crate) takes_slices: bool,
    pub(crate) is_nope: bool,
}

// SAFETY: a const rope_context may be used by any number of threads at once; it has no owner thread.
unsafe impl Send for Context {}
// SAFETY: as above; nothing here takes it non-const but Drop.
unsafe impl Sync for Context {}

impl Context {
    /// [`Config::build`].
    ///
    /// # Errors
    /// Those of [`Config::build`].
    pub fn new(config: &Config) -> Result<Context> {
        named("Context::new", || {
            require_library()?;
            let mut raw = ptr::null_mut();
            config.with_raw(|config| {
                // SAFETY: the struct is complete, its tables live during the call, `raw` is writable.
                check(unsafe { sys::rope_context_create(config, &raw mut raw) })
            })?;
            Context::own(raw, config)
        })
    }

    /// One context with several sets of frequencies, for batches whose sequences differ in them:
    /// LongRoPE on both sides of its switch, lengths of dynamic NTK. Calls then name the set of
    /// every sequence: [`Step::with_freq_sets`].
    ///
    /// # Errors
    /// Those of [`Config::build`], and [`Error::InvalidArgument`] if there are none or more than 256,
    /// or they differ in more than frequencies and attention factor.
    pub fn with_sets(configs: &[Config]) -> Result<Context> {
        named("Context::with_sets", || {
            fn create(
                rest: &[Config],
                done: &mut Vec<sys::rope_config>,
                out: &mut *mut sys::rope_context,
            ) -> Result<()> {
                if let [first, rest @ ..] = rest {
                    return first.with_raw(|raw| {
                        done.push(*raw);
                        create(rest, done, out)
                    });
                }
                let pointers: Vec<*const sys::rope_config> =
                    done.iter().map(ptr::from_ref).collect();
                let count = i32::try_from(pointers.len()).unwrap_or(i32::MAX);
                // SAFETY: `count` complete structs, whose tables live in the caller's configs.
                check(unsafe { sys::rope_context_create_sets(pointers.as_ptr(), count, out) })
            }

            require_library()?;
            if configs.len() > 256 {
                return invalid(format_args!("{} sets are more than 256", configs.len()));
            }
            let mut raw = ptr::null_mut();
            create(configs, &mut Vec::with_capacity(configs.len()), &mut raw)?;
            Context::own(raw, &configs[0])
        })
    }

    fn own(raw: *mut sys::rope_context, config: &Config) -> Result<Context> {
        let mut context = Context {
            raw: made(raw)?,
            head_dim: 0,
            span_dim: 0,
            pairs: 0,
            axes: 1,
            freq_sets: 1,
            valid_from: 0,
            valid_below: 0,
            takes_slices: config.takes_slices(),
            is_nope: config.is_nope(),
        };
        let info = context.info(0)?;
        context.head_dim = info.head_dim;
        context.span_dim = info.rotary_dim;
        context.pairs = info.pairs;
        context.axes = info.axes.max(1);
        context.freq_sets = info.freq_sets;
        (context.valid_from, context.valid_below) = (info.valid_from, info.valid_below);
        Ok(context)
    }

    /// Resolved values of one frequency set, which is 0 when there is one.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such set.
    pub fn info(&self, freq_set: usize) -> Result<Info> {
        named("Context::info", || Ok(Info::of(&self.raw_info(freq_set)?)))
    }

    fn raw_info(&self, freq_set: usize) -> Result<sys::rope_info> {
        let mut info = sys::rope_info::init();
        let set = narrow("freq_set", freq_set)?;
        // SAFETY: the handle is alive, the struct has the size that it says.
        check(unsafe { sys::rope_context_info(self.as_raw(), set, &raw mut info) })?;
        Ok(info)
    }

    /// The frequencies of one set, one per pair; of [`Config::from_frequency`] the whole table.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such set.
    pub fn inv_freq(&self, freq_set: usize) -> Result<Vec<f64>> {
        named("Context::inv_freq", || {
            let set = narrow("freq_set", freq_set)?;
            let count = self.raw_info(freq_set)?.inv_freq_count;
            let mut out = vec![0.0; usize::try_from(count).unwrap_or(0)];
            // SAFETY: the handle is alive, `out` has `count` entries.
            check(unsafe {
                sys::rope_context_inv_freq(self.as_raw(), set, out.as_mut_ptr(), count)
            })?;
            Ok(out)
        })
    }

    /// For logs: `cpu AVX3`, `cuda:0 sm_90`.
    #[must_use]
    pub fn backend(&self) -> &str {
        // SAFETY: never NULL, and lives as long as the context.
        unsafe { CStr::from_ptr(sys::rope_context_backend(self.as_raw())) }.to_str().unwrap_or("")
    }

    /// Channels of a head.
    #[inline]
    #[must_use]
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Pairs of a head, the width of half a row of cos and sin.
    #[inline]
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.pairs
    }

    /// Ids per token.
    #[inline]
    #[must_use]
    pub fn axes(&self) -> usize {
        self.axes
    }

    /// The frequencies are right for sequences shorter than this: `i64::MAX`, any length, unless the
    /// scaling depends on it (LongRoPE, dynamic NTK). Of frequency set 0, which most contexts have
    /// alone; [`Info::valid_below`] is that of each.
    #[inline]
    #[must_use]
    pub fn valid_below(&self) -> i64 {
        self.valid_below
    }

    /// The least length of a sequence that the frequencies are right for: 0 unless the scaling depends
    /// on it. A sequence that is shorter (a new one, the first part of a long prompt) is not to be seen
    /// by calls, which refuse positions from [`valid_below`](Context::valid_below) on only. Of frequency
    /// set 0, as above.
    #[inline]
    #[must_use]
    pub fn valid_from(&self) -> i64 {
        self.valid_from
    }

    /// The handle, for calls of [`librope-sys`](librope_sys). It stays owned by the context.
    #[inline]
    #[must_use]
    pub fn as_raw(&self) -> *const sys::rope_context {
        self.raw.as_ptr()
    }

    /// Rotates contiguous `q[tokens, q_heads, head_dim]` and `k[tokens, k_heads, head_dim]` in place
    /// on the calling thread, token `t` by `positions[t]`: any `i64`. Either may be empty with 0
    /// heads. For contexts with one axis and one frequency set; [`apply`](Context::apply) takes all
    /// others.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a slice does not have the length of its tensor, or the context
    /// has several axes or sets, or another device. Nothing has been written then.
    #[inline]
    pub fn apply_thd<T: Element>(
        &self,
        positions: &[i64],
        q: &mut [T],
        q_heads: usize,
        k: &mut [T],
        k_heads: usize,
    ) -> Result<()> {
        named("Context::apply_thd", || {
            let tokens = positions.len();
            let fits = |len, heads| product([tokens, heads, self.head_dim]) == Some(len);
            let (Ok(q_count), Ok(k_count), true, true) = (
                i32::try_from(q_heads),
                i32::try_from(k_heads),
                fits(q.len(), q_heads),
                fits(k.len(), k_heads),
            ) else {
                return self.wrong_thd(tokens, q.len(), q_heads, k.len(), k_heads);
            };
            // The C call takes no tensor as NULL with 0 heads; an empty slice is not NULL.
            let pointer =
                |data: *mut T, heads| if heads == 0 { ptr::null_mut() } else { data.cast() };
            // SAFETY: the handle is alive; q and k hold tokens * heads * head_dim elements each and,
            // being exclusive, do not overlap; positions holds `tokens` ids. A CUDA context is refused
            // by the library.
            check(unsafe {
                sys::rope_apply_thd(
                    self.as_raw(),
                    T::DTYPE as i32,
                    tokens as i64,
                    positions.as_ptr(),
                    pointer(q.as_mut_ptr(), q_heads),
                    q_count,
                    pointer(k.as_mut_ptr(), k_heads),
                    k_count,
                )
            })
        })
    }

    #[cold]
    #[inline(never)]
    fn wrong_thd(
        &self,
        tokens: usize,
        q: usize,
        q_heads: usize,
        k: usize,
        k_heads: usize,
    ) -> Result<()> {
        let dim = self.head_dim;
        for (name, len, heads) in [("q", q, q_heads), ("k", k, k_heads)] {
            narrow(&format!("{name}_heads"), heads)?;
            let what = format!("{name} with tokens {tokens}, heads {heads} and channels {dim}");
            match product([tokens, heads, dim]) {
                None => return invalid(format_args!("{what} is beyond the address space")),
                Some(need) if need != len => {
                    return invalid(format_args!(
                        "{what} needs {need} elements, and its slice has {len}"
                    ));
                }
                Some(_) => {}
            }
        }
        Ok(()) // it is called where one of them is wrong
    }

    /// Rotates q and k: each is `()` for none, a [`ViewMut`](crate::ViewMut) in place, or
    /// `(View, ViewMut)` out of place. The names are only names: any tensor will do.
    ///
    /// ```
    /// use librope::{Config, Pairing, Positions, Step, View, ViewMut};
    ///
    /// let rope = Config::new(64, 10000.0, Pairing::Halves).build()?;
    /// let (batch, tokens) = (2, 5);
    /// let q = vec![1.0f32; batch * 4 * tokens * 64]; // [batch, heads, tokens, head_dim]
    /// let mut q_out = vec![0.0f32; q.len()];
    /// let mut k = vec![1.0f32; batch * 2 * tokens * 64];
    /// let position_ids: [i64; 10] = [0, 1, 2, 3, 4, 7, 8, 9, 10, 11];
    ///
    /// let step = Step::new(batch, tokens, Positions::batch_tokens(&position_ids));
    /// rope.apply(&step, (View::bhsd(&q, 4), ViewMut::bhsd(&mut q_out, 4)), ViewMut::bhsd(&mut k, 2))?;
    /// # Ok::<(), librope::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] names what breaks a rule: a tensor, array or rows that do not lie in
    /// their slice, overlapping heads of an output, positions that do not fit. Nothing has been
    /// written then. [`Error::Runner`] if the runner failed: outputs are unspecified.
    ///
    /// # Panics
    /// With the payload of a [`ParallelFor`](crate::ParallelFor) that panicked, and then only.
    #[inline]
    pub fn apply<'q, 'k>(
        &self,
        step: &Step<'_>,
        q: impl Into<Operand<'q>>,
        k: impl Into<Operand<'k>>,
    ) -> Result<()> {
        named("Context::apply", || {
            let (q, k) = (q.into().pair, k.into().pair);
            if step.norms.is_some() || q.scale.is_some() || k.scale.is_some() {
                // SAFETY: operands hold slices that do not alias.
                return unsafe { self.apply_beside(step, [&q, &k]) };
            }
            let tensors = [&q.input, &k.input, &q.output, &k.output];
            self.with_args(step, tensors, ptr::null(), |args| {
                // SAFETY: operands hold slices that do not alias.
                unsafe { sys::rope_apply_qk(self.as_raw(), args) }
            })
        })
    }

    /// Rotates a tensor into a new vector, contiguous in the order of `layout`: out of place without
    /// a buffer to fill first. A view of [`span`](View::span)s gives spans.
    ///
    /// ```
    /// use librope::{Config, Layout, Pairing, Positions, Step, Strides, View};
    ///
    /// let rope = Config::new(64, 10000.0, Pairing::Halves).build()?;
    /// let (tokens, row) = (5, 10 * 64); // the first 6 of 10 heads of each row
    /// let qkv = vec![1.0f32; tokens * row];
    /// let q = View::strided(&qkv, 6, Strides { token: row, head: 64, batch: 0 });
    /// let q = rope.apply_to_vec(&Step::new(1, tokens, Positions::Offset(7)), q, Layout::Bhsd)?;
    /// assert_eq!(q.len(), 6 * tokens * 64); // [batch, heads, tokens, head_dim]
    /// # Ok::<(), librope::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`apply`](Context::apply), [`Error::InvalidArgument`] for a strided `layout`, and
    /// [`Error::OutOfMemory`].
    pub fn apply_to_vec<T: Element>(
        &self,
        step: &Step<'_>,
        x: View<'_, T>,
        layout: Layout,
    ) -> Result<Vec<T>> {
        named("Context::apply_to_vec", || {
            if let Layout::Strided(_) = layout {
                return invalid(format_args!(
                    "apply_to_vec writes contiguous layouts, not {layout:?}"
                ));
            }
            let counts = [step.batch, step.tokens];
            let widths = [self.head_dim, self.span_dim];
            // Before memory is asked for: sizes that the input does not have come from a mistake.
            // SAFETY: integers and pointers: zeros are valid.
            x.raw.check("x", counts, widths, &mut unsafe { std::mem::zeroed() })?;
            let dim = if x.raw.span { self.span_dim } else { self.head_dim };
            let Some(len) = product([step.batch, step.tokens, x.raw.heads, dim]) else {
                return invalid(format_args!("the result is beyond the address space"));
            };
            let mut out: Vec<T> = Vec::new();
            if out.try_reserve_exact(len).is_err() {
                return Err(Error::OutOfMemory(format!("librope: no memory for {len} elements")));
            }
            let raw = Raw { data: out.as_mut_ptr().cast(), len, layout, shape: None, ..x.raw };
            self.apply(step, (x, ViewMut::<T>::of(raw)), ())?;
            // SAFETY: the call has written every element: the layout is contiguous, and input and output
            // both hold whole heads, whose other channels are copied, or spans, which turn.
            unsafe { out.set_len(len) };
            Ok(out)
        })
    }

    /// Rotates q and k in place inside one buffer, as a fused projection writes it. That they do
    /// not overlap is proved by the library.
    ///
    /// ```
    /// use librope::{Config, Pairing, Part, Positions, Step, Strides};
    ///
    /// let rope = Config::new(64, 10000.0, Pairing::Halves).build()?;
    /// let (tokens, q_heads, kv_heads) = (9, 6, 2);
    /// let row = (q_heads + 2 * kv_heads) * 64; // q, k, v of one token
    /// let mut qkv = vec![1.0f32; tokens * row];
    ///
    /// let strides = Strides { token: row, head: 64, batch: 0 };
    /// rope.apply_packed(
    ///     &Step::new(1, tokens, Positions::Offset(100)),
    ///     &mut qkv,
    ///     Part::new(0, q_heads, strides),
    ///     Part::new(q_heads * 64, kv_heads, strides),
    /// )?;
    /// # Ok::<(), librope::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`apply`](Context::apply), and [`Error::InvalidArgument`] if q and k overlap.
    pub fn apply_packed<T: Element>(
        &self,
        step: &Step<'_>,
        data: &mut [T],
        q: Part,
        k: Part,
    ) -> Result<()> {
        named("Context::apply_packed", || {
            let (pointer, len) = (data.as_mut_ptr(), data.len());
            let (q, k) = (Some(q.of("q", pointer, len)?), Some(k.of("k", pointer, len)?));
            if step.norms.is_some() {
                let [q, k] = [q, k].map(|input| Pair { input, ..Pair::default() });
                // SAFETY: both lie inside one exclusive slice, and the library refuses overlap.
                return unsafe { self.apply_beside(step, [&q, &k]) };
            }
            self.with_args(step, [&q, &k, &None, &None], ptr::null(), |args| {
                // SAFETY: both lie inside one exclusive slice, and the library refuses overlap.
                unsafe { sys::rope_apply_qk(self.as_raw(), args) }
            })
        })
    }

    /// Makes a C call of a step and its tensors, after checking that every element, id and row that
    /// the arguments lead to lies inside its slice. What `fused` leads to has been checked; it is NULL
    /// for calls that only rotate.
    #[inline(always)]
    pub(crate) fn with_args(
        &self,
        step: &Step<'_>,
        tensors: [&Option<Raw>; 4],
        fused: *const sys::rope_fused,
        call: impl FnOnce(&mut sys::rope_qk_args) -> sys::rope_status,
    ) -> Result<()> {
        const NAMES: [&str; 4] = ["q", "k", "q_out", "k_out"];
        if !self.takes_slices {
            return self.on_device();
        }
        let does_more = step.slots.is_some() || step.source.is_some() || step.norms.is_some();
        if does_more && fused.is_null() {
            return step.misplaced();
        }
        let (mut moved, mut before): (sys::rope_fused, sys::rope_positions);
        let own: Vec<i32>; // until the call
        let mut args = sys::rope_qk_args::init();
        args.fused = fused;
        if let Some(from) = &step.from {
            // SAFETY: integers and pointers: zeros are valid. `fused` is NULL or leads to a struct.
            (before, moved) = unsafe {
                (std::mem::zeroed(), fused.as_ref().copied().unwrap_or(sys::rope_fused::init()))
            };
            let freq_sets = step.from_freq_sets.or(step.freq_sets);
            let counts = [step.position_rows(), step.tokens, self.axes];
            let mut cu_seqlens = step.cu_seqlens;
            match (&step.shard, cu_seqlens) {
                (Some(shard), _) if from.moves_on() => before.shard = shard.as_raw()?,
                // They are those of all ranks, and a position of each token needs them for its set alone.
                (Some(_), Some(_)) if freq_sets.is_none() => cu_seqlens = None,
                (Some(_), Some(of_all)) => {
                    own = own_cu_seqlens(step, of_all)?;
                    cu_seqlens = Some(&own);
                }
                _ => {}
            }
            from.check(counts, cu_seqlens, freq_sets, &mut before)
                .map_err(|error| error.of_positions_before(step.from_freq_sets.is_some()))?;
            before.batch_repeat = length(step.batch_repeat)?;
            moved.from_positions = &raw const before;
            args.fused = &raw const moved;
        } else if step.from_freq_sets.is_some() {
            return invalid(format_args!("from_freq_sets belongs to rerotating"));
        }
        args.operation = step.operation() as i32;
        args.batch = length(step.batch)?;
        args.tokens = length(step.tokens)?;
        let (counts, widths) = ([step.batch, step.tokens], [self.head_dim, self.span_dim]);
        let fields = [&mut args.q, &mut args.k, &mut args.q_out, &mut args.k_out];
        for ((field, tensor), name) in fields.into_iter().zip(tensors).zip(NAMES) {
            if let Some(tensor) = tensor {
                tensor.check(name, counts, widths, field)?;
            }
        }
        if let Some(runner) = &step.runner {
            args.runner = runner.as_raw();
        }
        match &step.angles {
            Angles::Positions(positions) => {
                if step.operation() == Operation::Shift && positions.moves_on() {
                    return Self::no_distance();
                }
                positions.check(
                    [step.position_rows(), step.tokens, self.axes],
                    step.cu_seqlens,
                    step.freq_sets,
                    &mut args.positions,
                )?;
                if step.batch_repeat != 1 {
                    args.positions.batch_repeat = length(step.batch_repeat)?;
                }
                if let Some(shard) = &step.shard {
                    args.positions.shard = shard.as_raw()?;
                }
                finish(call(&mut args))
            }
            Angles::Rows(rows) => {
                let has_sequences = step.cu_seqlens.is_some() || step.freq_sets.is_some();
                if has_sequences || step.shard.is_some() || step.batch_repeat != 1 {
                    return invalid(format_args!(
                        "cu_seqlens, freq_sets, shard and batch_repeat belong to positions, not to rows \
                         of cos and sin"
                    ));
                }
                let rows = rows.check(step.batch, step.tokens, self.pairs)?;
                args.cos_sin = &raw const rows;
                finish(call(&mut args))
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn no_distance() -> Result<()> {
        invalid(format_args!(
            "Offset and SeqOffsets are no positions for SHIFT, which would move token i by offset + i: \
             Positions::Same moves all tokens by one distance, Positions::Tokens each by its own"
        ))
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn on_device(&self) -> Result<()> {
        invalid(format_args!("this context lives on {}: use apply_cuda", self.backend()))
    }
}

/// The end of a call that may have run a [`ParallelFor`](crate::ParallelFor).
#[inline(always)]
pub(crate) fn finish(status: sys::rope_status) -> Result<()> {
    if status == sys::ROPE_ERROR_RUNNER {
        runner::resume();
    }
    check(status)
}

impl Config {
    /// Creates the context. Takes microseconds: one per kind of layer at load time, not one per
    /// call.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] names the field, its value and the
    /// rule that it breaks; [`Error::Unsupported`] what this version does
    /// not offer; [`Error::Unavailable`] a device that is not there.
    pub fn build(&self) -> Result<Context> {
        named("Config::build", || Context::new(self))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: made by rope_context_create, and nobody holds it any more.
        unsafe { sys::rope_context_destroy(self.raw.as_ptr()) }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("backend", &self.backend())
            .field("head_dim", &self.head_dim)
            .field("pairs", &self.pairs)
            .field("axes", &self.axes)
            .field("freq_sets", &self.freq_sets)
            .finish_non_exhaustive()
    }
}
