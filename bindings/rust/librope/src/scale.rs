//! What the codes of an output or a cache in 8 bits stand for.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;

use librope_sys::{self as sys, Init as _};

use crate::enums::DType;
use crate::error::{Result, invalid};
use crate::size;
use crate::strides::{Layout, Strides, counted, not_forgotten};

/// The scales of a [`ViewMut`](crate::ViewMut) or of [`Pages`](crate::Pages) in 8 bits: a value is its code
/// times its scale. There is one for all, or an array, which has the layout of its codes, with groups in
/// place of channels:
///
/// | codes | array of scales |
/// |---|---|
/// | `bshd` | `[batch, tokens, heads, groups]` |
/// | `bhsd` | `[batch, heads, tokens, groups]` |
/// | `sbhd` | `[tokens, batch, heads, groups]` |
/// | pages, `nhd` | `[pages, page_size, heads, groups]` |
/// | pages, `hnd` | `[pages, heads, page_size, groups]` |
/// | `strided`, which have no order of their own | as `bshd` or `nhd` |
///
/// [`with_strides`](Scale::with_strides) has it lie otherwise. An array is given, or a call writes to it
/// the scales that it computes of what it stores:
///
/// ```text
/// scale = max(largest size in the group / MAX, min_scale), up to a power of two if asked for
/// ```
///
/// MAX is 448 (E4M3), 57344 (E5M2) or 127 (i8).
///
/// ```
/// use librope::{Config, F8E4M3, Pairing, Positions, Scale, Step, View, ViewMut};
///
/// let rope = Config::new(64, 10000.0, Pairing::Halves).build()?;
/// let (tokens, heads) = (5, 4);
/// let q = vec![1.0f32; tokens * heads * 64];
/// let mut codes = vec![F8E4M3(0); q.len()];
/// let mut scales = vec![0.0f32; tokens * heads];
/// let out = ViewMut::bshd(&mut codes, heads).with_scale(Scale::computed(&mut scales));
/// rope.apply(&Step::new(1, tokens, Positions::Offset(7)), (View::bshd(&q, heads), out), ())?;
/// # Ok::<(), librope::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct Scale<'a> {
    raw: RawScale,
    of: PhantomData<&'a mut [u8]>,
}

// SAFETY: a `&mut [f32]` or `&mut [u8]` with numbers beside it.
unsafe impl Send for Scale<'_> {}
// SAFETY: as above; a shared reference to it allows nothing.
unsafe impl Sync for Scale<'_> {}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RawScale {
    scale: sys::rope_scale,
    len: usize,
    strides: Option<Strides>,
}

impl<'a> Scale<'a> {
    /// One for all: 2^-126 to 2^126.
    #[inline]
    pub fn given(value: f32) -> Self {
        let mut scale = sys::rope_scale::init();
        scale.value = value;
        Scale { raw: RawScale { scale, len: 0, strides: None }, of: PhantomData }
    }

    /// One for each head, or group of its channels, given; or fewer, with
    /// [`with_strides`](Scale::with_strides).
    #[inline]
    pub fn given_array(data: &'a [f32]) -> Self {
        Self::array(data.as_ptr().cast_mut().cast(), data.len(), DType::F32, 0)
    }

    /// The same as powers of two, of which the exponent is kept: 2^(byte - 127).
    #[inline]
    pub fn given_e8m0(data: &'a [u8]) -> Self {
        Self::array(data.as_ptr().cast_mut().cast(), data.len(), DType::E8M0, 0)
    }

    /// One for each head, or group of its channels, which the call writes.
    #[inline]
    pub fn computed(data: &'a mut [f32]) -> Self {
        Self::array(data.as_mut_ptr().cast(), data.len(), DType::F32, 1)
    }

    /// The same as powers of two, of which the exponent is kept: 2^(byte - 127).
    #[inline]
    pub fn computed_e8m0(data: &'a mut [u8]) -> Self {
        Self::array(data.as_mut_ptr().cast(), data.len(), DType::E8M0, 1).with_power_of_two()
    }

    #[inline]
    fn array(data: *mut c_void, len: usize, dtype: DType, computed: i32) -> Self {
        let mut scale = sys::rope_scale::init();
        scale.computed = computed;
        scale.dtype = dtype as i32;
        scale.data = data;
        Scale { raw: RawScale { scale, len, strides: None }, of: PhantomData }
    }

    /// Sets how an array lies, from its first scale on; 0 shares one that is given. The scales of a
    /// head are adjacent. Default: contiguous, in the order of its codes.
    #[inline]
    pub fn with_strides(mut self, strides: Strides) -> Self {
        self.raw.strides = Some(strides);
        self
    }

    /// Sets how many adjacent channels share a scale: a divisor of the head's. Default: all.
    #[inline]
    pub fn with_group(mut self, channels: u16) -> Self {
        self.raw.scale.group = i32::from(channels);
        self
    }

    /// Computed scales are rounded up to a power of two.
    #[inline]
    pub fn with_power_of_two(mut self) -> Self {
        self.raw.scale.power_of_two = 1;
        self
    }

    /// Computed scales are never smaller, before they are rounded: 2^-126 to 2^126.
    #[inline]
    pub fn with_min_scale(mut self, least: f64) -> Self {
        self.raw.scale.min_scale = least;
        self
    }

    pub(crate) fn raw(self) -> RawScale {
        self.raw
    }

    /// Results are rounded to the dtype of the input, then coded, as two kernels would do it.
    #[inline]
    pub fn with_round_first(mut self) -> Self {
        self.raw.scale.round_first = 1;
        self
    }
}

impl RawScale {
    /// The C struct, after checking that the array is that of these counts and heads.
    pub(crate) fn check(
        mut self,
        name: &str,
        counts: [usize; 2],
        layout: Layout,
        heads: usize,
        dim: usize,
    ) -> Result<sys::rope_scale> {
        if !self.is_array() {
            if self.strides.is_some() {
                return invalid(format_args!("the one scale of {name} has no strides"));
            }
            return Ok(self.scale);
        }
        let group = usize::try_from(self.scale.group).unwrap_or(0);
        if group != 0 && dim % group != 0 {
            return invalid(format_args!(
                "the group of the scales of {name} ({group}) must divide {dim}"
            ));
        }
        let (strides, needed, groups) = self.need(counts, layout, heads, dim);
        let fits = match needed {
            Some(needed) if self.strides.is_some() => needed <= self.len,
            needed => needed == Some(self.len),
        };
        if !fits {
            not_forgotten(name, counts)?;
            let Some(needed) = needed else {
                return invalid(format_args!("the scales of {name} are beyond the address space"));
            };
            return invalid(format_args!(
                "the scales of {name} are {} and need {needed} elements{}, and their slice has {}",
                self.shape(name, counts, layout, heads, groups),
                if self.strides.is_some() { " or more, by their strides" } else { "" },
                self.len
            ));
        }
        size::not_negative([strides.batch, strides.token, strides.head])?;
        self.scale.stride_batch = strides.batch as i64;
        self.scale.stride_token = strides.token as i64;
        self.scale.stride_head = strides.head as i64;
        Ok(self.scale)
    }

    /// The array at the beginning of these bytes, which an empty slice has described.
    pub(crate) fn inside(mut self, name: &str, data: *mut u8, len: usize) -> Result<RawScale> {
        // Of scales that are given the library does not prove that they are apart from the codes.
        if self.scale.computed == 0 || self.len != 0 {
            return invalid(format_args!(
                "{name} has a place among bytes: it must be computed, and described by an empty slice"
            ));
        }
        let size = if self.scale.dtype == DType::E8M0 as i32 { 1 } else { size_of::<f32>() };
        self.len = len / size;
        self.scale.data = data.cast();
        Ok(self)
    }

    /// Scales of the array; of a description 0.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Takes the description of an array whose slice is not known yet, and returns how many elements that
    /// asks of slices, whether of exactly so many, their type, and whether they are written.
    pub(crate) fn describe(
        &mut self,
        name: &str,
        counts: [usize; 2],
        layout: Layout,
        heads: usize,
        dim: usize,
    ) -> Result<Option<(usize, bool, DType, bool)>> {
        if !self.is_array() {
            return Ok(None);
        }
        let (_, Some(needed), _) = self.need(counts, layout, heads, dim) else {
            return invalid(format_args!("{name} are beyond the address space"));
        };
        self.len = needed;
        self.scale.data = ptr::null_mut();
        let dtype = if self.scale.dtype == DType::E8M0 as i32 { DType::E8M0 } else { DType::F32 };
        Ok(Some((needed, self.strides.is_none(), dtype, self.scale.computed != 0)))
    }

    fn is_array(&self) -> bool {
        self.scale.dtype != 0
    }

    /// How the scales lie, how many elements that takes, and how many a head has.
    fn need(
        &self,
        [outer, inner]: [usize; 2],
        layout: Layout,
        heads: usize,
        dim: usize,
    ) -> (Strides, Option<usize>, usize) {
        let group = usize::try_from(self.scale.group).unwrap_or(0);
        let groups = dim.checked_div(group).unwrap_or(1);
        let strides = self.strides.unwrap_or_else(|| {
            let times = usize::saturating_mul; // within the array, where there is something
            match Order::of(layout) {
                Order::Heads => {
                    let head = times(inner, groups);
                    Strides { batch: times(heads, head), token: groups, head }
                }
                Order::Tokens => {
                    let batch = times(heads, groups);
                    Strides { batch, token: times(outer, batch), head: groups }
                }
                Order::Rows => {
                    let token = times(heads, groups);
                    Strides { batch: times(inner, token), token, head: groups }
                }
            }
        });
        let needed = if [outer, inner, heads, groups].contains(&0) {
            Some(0)
        } else {
            strides.reach([outer, inner, heads], groups)
        };
        (strides, needed, groups)
    }

    /// The shape of the array in words; that of one with strides has the order of these.
    fn shape(
        &self,
        name: &str,
        counts: [usize; 2],
        layout: Layout,
        heads: usize,
        groups: usize,
    ) -> String {
        let ([outer, inner], [rows, tokens]) = (counted(name), counts);
        let order = if self.strides.is_some() { Order::Rows } else { Order::of(layout) };
        match order {
            Order::Heads => {
                format!("[{outer}, heads, {inner}, groups] = {:?}", [rows, heads, tokens, groups])
            }
            Order::Tokens => {
                format!("[{inner}, {outer}, heads, groups] = {:?}", [tokens, rows, heads, groups])
            }
            Order::Rows => {
                format!("[{outer}, {inner}, heads, groups] = {:?}", [rows, tokens, heads, groups])
            }
        }
    }
}

/// The order of an array of scales, which is that of its codes: batch rows (or pages), tokens (or slots),
/// heads; heads before tokens; or tokens before batch rows.
#[derive(Clone, Copy)]
enum Order {
    Rows,
    Heads,
    Tokens,
}

impl Order {
    /// Codes of strides have none of their own.
    fn of(layout: Layout) -> Order {
        match layout {
            Layout::Bhsd | Layout::Hnd => Order::Heads,
            Layout::Sbhd => Order::Tokens,
            Layout::Bshd | Layout::Nhd | Layout::Strided(_) => Order::Rows,
        }
    }
}
