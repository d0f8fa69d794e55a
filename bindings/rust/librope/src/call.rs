//! Calls that do more than rotate: with outputs in 8 bits, values, a rest, a cache, norms and their
//! gradients. They are apart, so that those that only rotate do not pay for them.

use librope_sys::{self as sys, Init as _};

use crate::cache::{KvCache, Stored, set_values};
use crate::context::Context;
use crate::enums::Operation;
use crate::error::{Result, invalid, named};
use crate::gradient::Gradients;
use crate::norm::LentByNorms;
use crate::size::product;
use crate::slot_runner::SlotRunner;
use crate::step::Step;
use crate::tensor::{Operand, Pair, Raw};

/// Everything that a call may have, by name: what [`apply`](Context::apply) and
/// [`append`](Context::append) take, and what only some models and kernels need. Each part may be left
/// out, but not both q and k.
///
/// The absorbed query of MLA, 512 channels that do not turn beside 64 that do, in 8 bits, in one row:
///
/// ```
/// use librope::{Call, Config, F8E4M3, Pairing, Positions, Scale, Step, Strides, View, ViewMut};
///
/// let rope = Config::new(64, 10000.0, Pairing::Interleaved).build()?;
/// let (tokens, heads, latent) = (3, 16, 512);
/// let (nope, pe) = (vec![1.0f32; tokens * heads * latent], vec![1.0f32; tokens * heads * 64]);
/// let (mut nope_out, mut pe_out) = (vec![F8E4M3(0); nope.len()], vec![F8E4M3(0); pe.len()]);
/// let scale = || Scale::given(0.02);
/// let call = Call::new()
///     .with_q((View::bshd(&pe, heads), ViewMut::bshd(&mut pe_out, heads).with_scale(scale())))
///     .with_rest((View::bshd(&nope, heads), ViewMut::bshd(&mut nope_out, heads).with_scale(scale())))
///     .with_rest_head_dim(latent);
/// rope.apply_call(&Step::new(1, tokens, Positions::Offset(7)), call)?;
/// # Ok::<(), librope::Error>(())
/// ```
#[derive(Debug, Default)]
#[must_use]
pub struct Call<'a> {
    pub(crate) pairs: [Pair; 4], // q, k, v, rest
    pub(crate) beside: Beside<'a>,
}

/// What a call has but for its tensors.
#[derive(Debug, Default)]
pub(crate) struct Beside<'a> {
    pub cache: Option<KvCache<'a>>,
    pub v_head_dim: Option<usize>,
    pub rest_head_dim: Option<usize>,
    pub gradients: Option<Gradients<'a>>,
}

impl<'a> Call<'a> {
    /// A call without anything yet.
    #[inline]
    pub fn new() -> Self {
        Call::default()
    }

    /// Sets q: what [`Operand`] lists.
    #[inline]
    pub fn with_q(mut self, q: impl Into<Operand<'a>>) -> Self {
        self.pairs[0] = q.into().pair;
        self
    }

    /// Sets k: what [`Stored`] lists. Without a cache a [`View`](crate::View) alone has no place to go.
    #[inline]
    pub fn with_k(mut self, k: impl Into<Stored<'a>>) -> Self {
        self.pairs[1] = k.into().pair;
        self
    }

    /// Sets v, which does not turn: it is copied to its output, to the cache, or to both.
    #[inline]
    pub fn with_v(mut self, v: impl Into<Stored<'a>>) -> Self {
        self.pairs[2] = v.into().pair;
        self
    }

    /// Sets how many channels a head of v has: 1 to 1024. Default: those of the cache, or of the context.
    #[inline]
    pub fn with_v_head_dim(mut self, channels: usize) -> Self {
        self.beside.v_head_dim = Some(channels);
        self
    }

    /// Sets a second such tensor as v, which is copied to its output: the channels of MLA's q or k that do
    /// not turn.
    #[inline]
    pub fn with_rest(mut self, rest: impl Into<Operand<'a>>) -> Self {
        self.pairs[3] = rest.into().pair;
        self
    }

    /// Sets how many channels a head of the rest has: 1 to 1024. Default: those of the context.
    #[inline]
    pub fn with_rest_head_dim(mut self, channels: usize) -> Self {
        self.beside.rest_head_dim = Some(channels);
        self
    }

    /// Sets the cache, in whose slots, those of [`Step::with_slots`], k and v are stored.
    #[inline]
    pub fn with_cache(mut self, cache: &'a mut KvCache<'_>) -> Self {
        self.beside.cache = Some(cache.again());
        self
    }

    /// Sets what [`Operation::Backward`] needs of the norms of the step, and where the gradients of their
    /// weights go.
    #[inline]
    pub fn with_gradients(mut self, gradients: Gradients<'a>) -> Self {
        self.beside.gradients = Some(gradients);
        self
    }
}

/// How messages call tensors and outputs.
pub(crate) const NAMES: [[&str; 2]; 4] =
    [["q", "q_out"], ["k", "k_out"], ["v", "v_out"], ["rest", "rest_out"]];

impl Context {
    /// Makes a call with all that [`Call`] may have, in one pass.
    ///
    /// # Errors
    /// Those of [`append`](Context::append).
    ///
    /// # Panics
    /// As [`apply`](Context::apply).
    #[allow(clippy::needless_pass_by_value, reason = "slices are borrowed exclusively")]
    pub fn apply_call(&self, step: &Step<'_>, call: Call<'_>) -> Result<()> {
        named("Context::apply_call", || {
            let [q, k, v, rest] = &call.pairs;
            has_place(k, call.beside.cache.as_ref())?;
            let page_size = call.beside.cache.as_ref().map_or(1, |cache| cache.page_size);
            SlotRunner::around(step, page_size, |step| {
                self.with_call(step, [q, k, v, rest], &call.beside, None, |args| {
                    // SAFETY: views, cache, scales and gradients hold slices that do not alias.
                    unsafe { sys::rope_apply_qk(self.as_raw(), args) }
                })
            })
        })
    }

    /// # Safety
    /// This call may read and write the tensors, which may only alias where the library refuses it.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn apply_beside(&self, step: &Step<'_>, [q, k]: [&Pair; 2]) -> Result<()> {
        let none = Pair::default();
        self.with_call(step, [q, k, &none, &none], &Beside::default(), None, |args| {
            // SAFETY: as this function's.
            unsafe { sys::rope_apply_qk(self.as_raw(), args) }
        })
    }

    /// Makes a C call after checking that all that the arguments lead to lies inside its slice; slots
    /// outside of the cache's memory are refused by the library. It reads the inputs and writes the
    /// outputs, the cache, scales that it computes, gradients, and a q or k without an output.
    pub(crate) fn with_call(
        &self,
        step: &Step<'_>,
        pairs: [&Pair; 4],
        beside: &Beside<'_>,
        lent: Option<&mut LentByNorms>, // of a prepared call
        call: impl FnOnce(*const sys::rope_qk_args) -> sys::rope_status,
    ) -> Result<()> {
        if step.source.is_some() {
            return invalid(format_args!(
                "append stores the k and v that it is given: Step::with_source is for move_slots"
            ));
        }
        if step.slots.is_some() != beside.cache.is_some() {
            return Step { norms: None, ..*step }.misplaced();
        }
        let [_, _, v, rest] = pairs;
        let [has_v, has_rest] =
            [v, rest].map(|tensor| tensor.input.is_some() || tensor.output.is_some());
        if let Some(cache) = &beside.cache {
            cache.check_v_head_dim(has_v)?;
        }
        for (present, name, dim) in
            [(has_v, "v", beside.v_head_dim), (has_rest, "rest", beside.rest_head_dim)]
        {
            if dim.is_some() && !present {
                return invalid(format_args!(
                    "with_{name}_head_dim is for a call with {name}, and there is none"
                ));
            }
        }
        let of_cache = beside.cache.as_ref().and_then(|cache| cache.v_head_dim);
        let dims = self.dims(beside);
        let mut fused = sys::rope_fused::init();
        let counts = [step.batch, step.tokens];
        let [v_out, rest_out] = [v.written(), rest.written()];
        let others = [
            (&v.input, NAMES[2][0], dims[2], &mut fused.v),
            (&v_out, NAMES[2][1], dims[2], &mut fused.v_out),
            (&rest.input, NAMES[3][0], dims[3], &mut fused.rest),
            (&rest_out, NAMES[3][1], dims[3], &mut fused.rest_out),
        ];
        for (tensor, name, dim, field) in others {
            if let Some(tensor) = tensor {
                set_values(tensor, name, counts, dim, field)?;
            }
        }
        let mut scales = [None; 4];
        for (((scale, pair), names), dim) in scales.iter_mut().zip(pairs).zip(NAMES).zip(dims) {
            *scale = self.output_scale(pair, names, counts, dim)?;
        }
        let pointer = |scale: &Option<sys::rope_scale>| {
            scale.as_ref().map_or(std::ptr::null(), std::ptr::from_ref)
        };
        fused.v_out.scale = pointer(&scales[2]);
        fused.rest_out.scale = pointer(&scales[3]);
        let mut norms = [sys::rope_norm::init(); 3];
        self.set_norms(step, [pairs[0], pairs[1], v], dims[2], lent, &mut norms, &mut fused)?;
        let mut before = [None; 3];
        if let Some(gradients) = &beside.gradients {
            gradients.check(self, step, dims[2], &mut before, &mut norms, &fused)?;
            for (norm, field) in
                norms.iter().zip([&mut fused.q_norm, &mut fused.k_norm, &mut fused.v_norm])
            {
                if !field.is_null() {
                    *field = norm; // written since
                }
            }
        }
        let (mut raw, of_pages);
        if let (Some(slots), Some(cache)) = (&step.slots, &beside.cache) {
            if of_cache.is_some_and(|dim| dim != dims[2]) {
                return invalid(format_args!(
                    "the call's v and its cache differ in their head_dim"
                ));
            }
            let widths = [self.head_dim(), self.span_dim, dims[2]];
            (raw, of_pages) = cache.check(widths, slots, step)?;
            raw.k.scale = pointer(&of_pages[0]);
            raw.v.scale = pointer(&of_pages[1]);
            fused.cache = &raw const raw;
        }
        let [q, k, ..] = pairs;
        let k_out = k.written();
        let tensors = [&q.input, &k.input, &q.output, &k_out];
        self.with_args(step, tensors, &raw const fused, |args| {
            args.q_out.scale = pointer(&scales[0]);
            args.k_out.scale = pointer(&scales[1]);
            call(args)
        })
    }

    /// The channels of a head of q, k, v and rest, as far as they have no span.
    pub(crate) fn dims(&self, beside: &Beside<'_>) -> [usize; 4] {
        let dim = self.head_dim();
        let of_cache = beside.cache.as_ref().and_then(|cache| cache.v_head_dim);
        let v = beside.v_head_dim.or(of_cache).unwrap_or(dim);
        [dim, dim, v, beside.rest_head_dim.unwrap_or(dim)]
    }

    /// The C scale of an output.
    fn output_scale(
        &self,
        pair: &Pair,
        [name, out]: [&str; 2],
        counts: [usize; 2],
        dim: usize,
    ) -> Result<Option<sys::rope_scale>> {
        let Some(scale) = pair.scale else { return Ok(None) };
        let Some(output) = &pair.output else {
            return invalid(format_args!("{name} has a scale, which is for an output in 8 bits"));
        };
        let dim = if output.span { self.span_dim } else { dim };
        scale.check(out, counts, output.layout, output.heads, dim).map(Some)
    }

    /// Fills the norms of the step, if it has any, for q, k and v. Under BACKWARD they are of what comes
    /// out.
    fn set_norms(
        &self,
        step: &Step<'_>,
        [q, k, v]: [&Pair; 3],
        v_dim: usize,
        lent: Option<&mut LentByNorms>,
        norms: &mut [sys::rope_norm; 3],
        fused: &mut sys::rope_fused,
    ) -> Result<()> {
        let Some(given) = step.norms else { return Ok(()) };
        let normed = |pair: &Pair| match step.operation() {
            Operation::Backward => pair.output.or(pair.input),
            _ => pair.input,
        };
        let dim = |raw: &Raw| if raw.span { self.span_dim } else { self.head_dim() };
        let turned = |pair: &Pair| normed(pair).map(|raw| [raw.heads, dim(&raw)]);
        let values = normed(v).map(|raw| [raw.heads, v_dim]);
        let tokens = product([step.batch, step.tokens]);
        given.check([turned(q), turned(k), values], tokens, lent, norms, fused)
    }
}

/// The library would turn a k without an output in place, and it may be shared.
pub(crate) fn has_place(k: &Pair, cache: Option<&KvCache<'_>>) -> Result<()> {
    if k.input.is_some() && k.written().is_none() && cache.is_none_or(|cache| cache.k.is_none()) {
        return invalid(format_args!(
            "k has no place to go: KvCache::with_k, or a view of an output"
        ));
    }
    Ok(())
}
