//! Calls with all that one may have, checked once and then made for the memory of every layer.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use librope_sys::{self as sys, Init as _};

use crate::call::{Call, NAMES, has_place};
use crate::context::Context;
use crate::element::OutputElement;
use crate::enums::DType;
use crate::error::{Result, invalid, named};
use crate::norm::{self, Lent, LentByNorms};
use crate::prepared::{Handle, Length};
use crate::scale::RawScale;
use crate::slot_runner::SlotRunner;
use crate::step::Step;
use crate::tensor::Raw;

/// A slice that a layer lends to a [`PreparedCall`]: shared where it is only read, exclusive where it is
/// written.
#[derive(Debug)]
pub struct Slice<'a> {
    data: *mut c_void,
    len: usize,
    dtype: DType,
    exclusive: bool,
    of: PhantomData<&'a mut [u8]>,
}

/// What a [`Slice`] may be of: any element, and `u8`, of the scales that are exponents.
pub trait SliceElement: sealed::Sealed {}

mod sealed {
    use super::{DType, OutputElement};

    pub trait Sealed {
        const LENT_AS: DType;
    }

    impl<T: OutputElement> Sealed for T {
        const LENT_AS: DType = T::STORED_AS;
    }

    impl Sealed for u8 {
        const LENT_AS: DType = DType::E8M0;
    }
}

impl<T: sealed::Sealed> SliceElement for T {}

impl<'a, T: SliceElement> From<&'a [T]> for Slice<'a> {
    #[inline]
    fn from(slice: &'a [T]) -> Self {
        let data = slice.as_ptr().cast_mut().cast();
        Slice { data, len: slice.len(), dtype: T::LENT_AS, exclusive: false, of: PhantomData }
    }
}

impl<'a, T: SliceElement> From<&'a mut [T]> for Slice<'a> {
    #[inline]
    fn from(slice: &'a mut [T]) -> Self {
        let (data, len) = (slice.as_mut_ptr().cast(), slice.len());
        Slice { data, len, dtype: T::LENT_AS, exclusive: true, of: PhantomData }
    }
}

impl<'a, T: SliceElement> From<&'a Vec<T>> for Slice<'a> {
    #[inline]
    fn from(vec: &'a Vec<T>) -> Self {
        vec.as_slice().into()
    }
}

impl<'a, T: SliceElement> From<&'a mut Vec<T>> for Slice<'a> {
    #[inline]
    fn from(vec: &'a mut Vec<T>) -> Self {
        vec.as_mut_slice().into()
    }
}

/// How many slices a layer may have.
const PLACES: usize = 25;

/// The memory of one layer, for [`PreparedCall::apply`]: a slice for each tensor that the call describes,
/// for each cache, and for each array of scales. `&[T]` and `&mut [T]` convert, and so do vectors.
#[derive(Debug, Default)]
#[must_use]
pub struct Layer<'a> {
    slices: [Option<Slice<'a>>; PLACES],
}

macro_rules! places {
    ($($number:literal $name:ident $what:literal)*) => {$(
        #[doc = concat!("Lends ", $what, ".")]
        #[inline]
        pub fn $name(mut self, slice: impl Into<Slice<'a>>) -> Self {
            self.slices[$number] = Some(slice.into());
            self
        }
    )*};
}

impl<'a> Layer<'a> {
    /// Without any memory yet.
    #[inline]
    pub fn new() -> Self {
        Layer::default()
    }

    // The first eight: input and output of q, k, v and rest; the next four: scales of these outputs.
    places! {
        0 with_q "q, exclusively where it turns in place"
        1 with_q_out "q's output"
        2 with_k "k, exclusively where it turns in place"
        3 with_k_out "k's output"
        4 with_v "v"
        5 with_v_out "v's output"
        6 with_rest "the rest"
        7 with_rest_out "the output of the rest"
        8 with_q_out_scales "the scales of q's output"
        9 with_k_out_scales "the scales of k's output"
        10 with_v_out_scales "the scales of v's output"
        11 with_rest_out_scales "the scales of the output of the rest"
        12 with_cache_k "the cache's keys"
        13 with_cache_v "the cache's values"
        14 with_cache_k_scales "the scales of the cache's keys"
        15 with_cache_v_scales "the scales of the cache's values"
        16 with_q_norm_weight "the weight of q's norm"
        17 with_q_norm_bias "the bias of q's norm"
        18 with_q_norm_rstd "the rstd of q's norm"
        19 with_k_norm_weight "the weight of k's norm"
        20 with_k_norm_bias "the bias of k's norm"
        21 with_k_norm_rstd "the rstd of k's norm"
        22 with_v_norm_weight "the weight of v's norm"
        23 with_v_norm_bias "the bias of v's norm"
        24 with_v_norm_rstd "the rstd of v's norm"
    }
}

/// How messages call the first of them; behind these are those of norms.
const PLACE_NAMES: [&str; FIRST_OF_NORMS] = [
    "q",
    "q_out",
    "k",
    "k_out",
    "v",
    "v_out",
    "rest",
    "rest_out",
    "the scales of q_out",
    "the scales of k_out",
    "the scales of v_out",
    "the scales of rest_out",
    "the cache's k",
    "the cache's v",
    "the scales of the cache's k",
    "the scales of the cache's v",
];

const FIRST_OF_NORMS: usize = 16;

fn place_name(place: usize) -> &'static str {
    match place.checked_sub(FIRST_OF_NORMS) {
        Some(of_norms) => norm::NAMES[of_norms / 3][of_norms % 3],
        None => PLACE_NAMES[place],
    }
}

/// What the slice of one place has to be.
#[derive(Clone, Copy)]
struct Place {
    length: Length,
    dtype: DType,
    is_written: bool,
}

/// A [`Call`] that has been checked, with its cos and sin and the slots of its tokens, for the memory of
/// every layer. Made by [`Context::prepare_call`]; any number of threads may use it at the same time. What
/// it borrows is what a [`Prepared`](crate::Prepared) does.
#[must_use]
pub struct PreparedCall<'a> {
    handle: Handle,
    _runner: Option<Arc<SlotRunner<'a>>>, // of the handle
    places: [Option<Place>; PLACES],
    in_place: [bool; 2], // k and v, which are their own outputs
    context: PhantomData<&'a Context>,
}

impl Context {
    /// Prepares the [`apply_call`](Context::apply_call) that a forward pass makes for every layer.
    /// [`prepare`](Context::prepare) and [`prepare_append`](Context::prepare_append) are its forms for
    /// tensors and caches of f32, f16 and bf16, in which the compiler checks what `apply` is given; here
    /// the call does. An append to keys in 8 bits, and to values in blocks of [`Q80`](crate::Q80):
    ///
    /// ```
    /// use librope::half::bf16;
    /// use librope::{Call, Config, F8E4M3, KvCache, Layer, Pages, Pairing, Positions, Q80, Scale, Slots};
    /// use librope::{Step, Strides, View, ViewMut};
    ///
    /// let rope = Config::new(128, 500_000.0, Pairing::Halves).build()?;
    /// let (q_heads, heads, pages, page_size) = (32, 8, 10, 16);
    /// let of_layer = Scale::given_array(&[]).with_strides(Strides::default());
    /// let mut cache = KvCache::new(pages, page_size)
    ///     .with_k(Pages::<F8E4M3>::nhd(&mut [], heads).with_scale(of_layer))
    ///     .with_v(Pages::<Q80>::nhd(&mut [], heads));
    /// let call = Call::new()
    ///     .with_q(ViewMut::<bf16>::bshd(&mut [], q_heads))
    ///     .with_k(View::<bf16>::bshd(&[], heads))
    ///     .with_v(View::<bf16>::bshd(&[], heads))
    ///     .with_cache(&mut cache);
    /// let step = Step::new(1, 2, Positions::Offset(7)).with_slots(Slots::mapped(&[17, 18]));
    /// let call = rope.prepare_call(&step, call)?;
    ///
    /// let slots = pages * page_size;
    /// for scale in [[0.02f32], [0.01]] {
    ///     let mut keys = vec![F8E4M3(0); slots * heads * 128];
    ///     let mut values = vec![Q80::default(); slots * heads * 128 / Q80::CHANNELS];
    ///     let mut q = vec![bf16::ONE; 2 * q_heads * 128];
    ///     let kv = vec![bf16::ONE; 2 * heads * 128];
    ///     let layer = Layer::new().with_q(&mut q).with_k(&kv).with_v(&kv);
    ///     let layer = layer.with_cache_k(&mut keys).with_cache_k_scales(&scale[..]);
    ///     call.apply(layer.with_cache_v(&mut values))?;
    ///     assert_ne!(keys[17 * heads * 128], F8E4M3(0));
    ///     assert_eq!(values[17 * heads * 4].codes[0], 127);
    /// }
    /// # Ok::<(), librope::Error>(())
    /// ```
    ///
    /// Of a packed QKV, q, k and v are lent as shared slices of one buffer, so q is only read and needs an
    /// output elsewhere:
    ///
    /// ```
    /// use librope::{Call, Config, Layer, Pairing, Positions, Step, Strides, View, ViewMut};
    ///
    /// let rope = Config::new(64, 10000.0, Pairing::Halves).build()?;
    /// let (tokens, q_heads, heads) = (9, 6, 2);
    /// let row = (q_heads + 2 * heads) * 64; // q, k, v of one token
    /// let part = |heads| View::<f32>::strided(&[], heads, Strides { token: row, head: 64, batch: 0 });
    /// let out = |heads| ViewMut::<f32>::bshd(&mut [], heads);
    /// let call = Call::new()
    ///     .with_q((part(q_heads), out(q_heads)))
    ///     .with_k((part(heads), out(heads))); // or a cache, with k and v as parts alone
    /// let call = rope.prepare_call(&Step::new(1, tokens, Positions::Offset(7)), call)?;
    ///
    /// let packed = vec![1.0f32; tokens * row];
    /// let (mut q, mut k) = (vec![0.0f32; tokens * q_heads * 64], vec![0.0f32; tokens * heads * 64]);
    /// let layer = Layer::new().with_q(&packed).with_q_out(&mut q);
    /// call.apply(layer.with_k(&packed[q_heads * 64..]).with_k_out(&mut k))?;
    /// # Ok::<(), librope::Error>(())
    /// ```
    ///
    /// Views, pages, scales and norms are described with empty slices, because each layer lends its own.
    /// One scale of each layer is an array of one, with strides of 0. The norms of Qwen3, for all layers
    /// of a step:
    ///
    /// ```
    /// use librope::half::bf16;
    /// use librope::{Call, Config, Layer, Norm, Norms, Pairing, Positions, Step, ViewMut};
    ///
    /// let rope = Config::new(128, 1e6, Pairing::Halves).build()?;
    /// let norm = Norm::rms::<bf16>(&[], 1e-6);
    /// let norms = Norms::new().with_q(norm).with_k(norm);
    /// let step = Step::new(1, 2, Positions::Offset(7)).with_norms(&norms);
    /// let call = Call::new()
    ///     .with_q(ViewMut::<bf16>::bshd(&mut [], 32))
    ///     .with_k(ViewMut::<bf16>::bshd(&mut [], 8));
    /// let call = rope.prepare_call(&step, call)?;
    /// for _layer in 0..2 {
    ///     let (q_weight, k_weight) = (vec![bf16::ONE; 128], vec![bf16::ONE; 128]);
    ///     let (mut q, mut k) = (vec![bf16::ONE; 2 * 32 * 128], vec![bf16::ONE; 2 * 8 * 128]);
    ///     let layer = Layer::new().with_q(&mut q).with_k(&mut k);
    ///     call.apply(layer.with_q_norm_weight(&q_weight).with_k_norm_weight(&k_weight))?;
    /// }
    /// # Ok::<(), librope::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`apply_call`](Context::apply_call) that do not depend on slices;
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if a slice is not empty; and
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn prepare_call<'a>(&'a self, step: &Step<'a>, call: Call<'_>) -> Result<PreparedCall<'a>> {
        named("Context::prepare_call", || {
            step.is_no_move()?;
            let Call { mut pairs, mut beside } = call;
            let dims = self.dims(&beside);
            let counts = [step.batch, step.tokens];
            has_place(&pairs[1], beside.cache.as_ref())?;
            let mut places = [None; PLACES];
            for (i, pair) in pairs.iter_mut().enumerate() {
                let in_place = pair.in_place || i == 0 && pair.output.is_none();
                for (j, raw) in [&mut pair.input, &mut pair.output].into_iter().enumerate() {
                    let Some(raw) = raw else { continue };
                    let length = describe(NAMES[i][j], raw, counts, [dims[i], self.span(i, dims)])?;
                    let is_written = j == 1 || in_place;
                    places[2 * i + j] = Some(Place { length, dtype: raw.dtype, is_written });
                }
                if let (Some(scale), Some(output)) = (&mut pair.scale, &pair.output) {
                    let dim = if output.span { self.span_dim } else { dims[i] };
                    places[8 + i] = scale_place(PLACE_NAMES[8 + i], scale, counts, output, dim)?;
                }
            }
            if let Some(cache) = &mut beside.cache {
                let counts = [cache.pages, cache.page_size];
                for (i, memory) in [&mut cache.k, &mut cache.v].into_iter().enumerate() {
                    let Some((raw, scale)) = memory else { continue };
                    let (name, dim) = (PLACE_NAMES[12 + i], dims[1 + i]);
                    let length = describe(name, raw, counts, [dim, self.span(1 + i, dims)])?;
                    places[12 + i] = Some(Place { length, dtype: raw.dtype, is_written: true });
                    if let Some(scale) = scale {
                        let dim = if raw.span { self.span_dim } else { dim };
                        let name = PLACE_NAMES[14 + i];
                        places[14 + i] = scale_place(name, scale, counts, raw, dim)?;
                    }
                }
            }
            let mut made = ptr::null_mut();
            let in_place = [&pairs[1], &pairs[2]].map(|pair| pair.in_place);
            let [q, k, v, rest] = &pairs;
            let mut lent = LentByNorms::default();
            let page_size = beside.cache.as_ref().map_or(1, |cache| cache.page_size);
            let (result, runner) = SlotRunner::kept(step, page_size, |step| {
                self.with_call(step, [q, k, v, rest], &beside, Some(&mut lent), |args| {
                    // SAFETY: ids, rows and slots lie inside their slices, there are no tensors yet, and
                    // `made` is writable. Of what the arguments lead to, the context and the runner's pool
                    // are kept: they live for 'a, or are kept here.
                    unsafe { sys::rope_prepared_create(self.as_raw(), args, &raw mut made) }
                })
            });
            result?;
            let handle = Handle::of(made)?;
            for (i, lent) in lent.as_flattened().iter().enumerate() {
                let place = FIRST_OF_NORMS + i;
                places[place] = lent.map(|lent| Place::of(place_name(place), lent)).transpose()?;
            }
            Ok(PreparedCall { handle, _runner: runner, places, in_place, context: PhantomData })
        })
    }

    /// The width of a span of q or k; v and rest have none.
    fn span(&self, pair: usize, dims: [usize; 4]) -> usize {
        if pair < 2 { self.span_dim } else { dims[pair] }
    }
}

/// Takes the description of a tensor, and returns what it asks of each layer's slice.
fn describe(name: &str, raw: &mut Raw, counts: [usize; 2], widths: [usize; 2]) -> Result<Length> {
    is_empty(name, raw.len)?;
    raw.data = ptr::null_mut();
    Length::of(name, raw, counts, widths)
}

/// The same of an array of scales of these codes; none for one scale that is given.
fn scale_place(
    name: &str,
    scale: &mut RawScale,
    counts: [usize; 2],
    codes: &Raw,
    dim: usize,
) -> Result<Option<Place>> {
    is_empty(name, scale.len())?;
    let place = scale.describe(name, counts, codes.layout, codes.heads, dim)?;
    Ok(place.map(|(need, exact, dtype, is_written)| {
        let length = Length::new(need, exact);
        Place { length, dtype, is_written }
    }))
}

/// Refuses a slice where a call is prepared.
fn is_empty(name: &str, len: usize) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    invalid(format_args!(
        "{name} has {len} elements, and must be empty: each layer lends its slices to the prepared call"
    ))
}

impl PreparedCall<'_> {
    /// Makes the call for the memory of one layer.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if a slice is missing, too many, only lent
    /// for reading where it is written, or has another length or element type than its description asks
    /// for. Nothing has been written then. [`Error::Runner`](crate::Error::Runner) if the runner failed:
    /// outputs and slots are unspecified.
    ///
    /// # Panics
    /// As [`Prepared::apply`](crate::Prepared::apply).
    #[allow(clippy::needless_pass_by_value, reason = "slices are borrowed exclusively")]
    pub fn apply(&self, layer: Layer<'_>) -> Result<()> {
        named("PreparedCall::apply", || {
            let mut at = [ptr::null_mut(); PLACES];
            let places = self.places.iter().zip(&layer.slices);
            for (i, (at, (place, slice))) in at.iter_mut().zip(places).enumerate() {
                let name = place_name(i);
                *at = match (place, slice) {
                    (None, None) => ptr::null_mut(),
                    (Some(place), Some(slice)) => place.check(name, slice)?,
                    (Some(_), None) => {
                        return invalid(format_args!(
                            "the prepared call needs {name}: Layer has none"
                        ));
                    }
                    (None, Some(_)) => {
                        return invalid(format_args!(
                            "the prepared call describes no slice for {name}"
                        ));
                    }
                };
            }
            let [q, q_out, k, k_out, v, v_out, rest, rest_out, ..] = at;
            let data = sys::rope_qk_data {
                q,
                k,
                q_out,
                k_out: if self.in_place[0] { k } else { k_out },
                v,
                v_out: if self.in_place[1] { v } else { v_out },
                rest,
                rest_out,
                q_out_scales: at[8],
                k_out_scales: at[9],
                v_out_scales: at[10],
                rest_out_scales: at[11],
                cache_k: at[12],
                cache_v: at[13],
                cache_k_scales: at[14],
                cache_v_scales: at[15],
                q_norm_weight: at[16],
                q_norm_bias: at[17],
                q_norm_rstd: at[18].cast(),
                k_norm_weight: at[19],
                k_norm_bias: at[20],
                k_norm_rstd: at[21].cast(),
                v_norm_weight: at[22],
                v_norm_bias: at[23],
                v_norm_rstd: at[24].cast(),
                ..sys::rope_qk_data::init()
            };
            // SAFETY: each pointer leads to as many elements as the library was told, exclusively where it
            // writes; the slices do not alias.
            unsafe { self.handle.apply(&data) }
        })
    }
}

impl Place {
    /// Of a slice that norms read.
    fn of(name: &str, lent: Lent) -> Result<Place> {
        is_empty(name, lent.len)?;
        let Some(need) = lent.need else {
            return invalid(format_args!("the call's sizes are beyond the address space"));
        };
        Ok(Place { length: Length::new(need, true), dtype: lent.dtype, is_written: false })
    }

    /// The pointer of a slice that fits.
    fn check(&self, name: &str, slice: &Slice<'_>) -> Result<*mut c_void> {
        if slice.dtype != self.dtype {
            return invalid(format_args!(
                "{name} is a slice of {:?}, and the prepared call needs one of {:?}",
                slice.dtype, self.dtype
            ));
        }
        if self.is_written && !slice.exclusive {
            return invalid(format_args!(
                "{name} is written, and Layer has a slice to read: lend &mut"
            ));
        }
        self.length.check(name, Some((slice.data, slice.len)))
    }
}

impl fmt::Debug for PreparedCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedCall").finish_non_exhaustive()
    }
}
