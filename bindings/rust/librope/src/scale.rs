//! What the codes of a cache in 8 bits stand for.

use std::ffi::c_void;
use std::marker::PhantomData;

use librope_sys::{self as sys, Init as _};

use crate::enums::DType;
use crate::error::{Result, invalid};

/// The scales of [`Pages`](crate::Pages) in 8 bits, where value = code * scale: one that is given, or an array
/// `[pages, page_size, heads, groups]` to which a call writes those that it computes, of the slots that
/// it fills:
///
/// ```text
/// scale = max(largest size in the group / MAX, min_scale), up to a power of two if asked for
/// ```
///
/// MAX is 448 (E4M3), 57344 (E5M2) or 127 (i8).
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
}

impl<'a> Scale<'a> {
    /// One for all: 2^-126 to 2^126.
    #[inline]
    pub fn given(value: f32) -> Self {
        let mut scale = sys::rope_scale::init();
        scale.value = value;
        Scale { raw: RawScale { scale, len: 0 }, of: PhantomData }
    }

    /// One for each head, or group of its channels.
    #[inline]
    pub fn computed(data: &'a mut [f32]) -> Self {
        Self::array(data.as_mut_ptr().cast(), data.len(), DType::F32)
    }

    /// The same as powers of two, of which the exponent is kept: 2^(byte - 127).
    #[inline]
    pub fn computed_e8m0(data: &'a mut [u8]) -> Self {
        Self::array(data.as_mut_ptr().cast(), data.len(), DType::E8M0).with_power_of_two()
    }

    #[inline]
    fn array(data: *mut c_void, len: usize, dtype: DType) -> Self {
        let mut scale = sys::rope_scale::init();
        scale.computed = 1;
        scale.dtype = dtype as i32;
        scale.data = data;
        Scale { raw: RawScale { scale, len }, of: PhantomData }
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
        heads: usize,
        dim: usize,
    ) -> Result<sys::rope_scale> {
        if self.scale.data.is_null() {
            return Ok(self.scale);
        }
        let group = usize::try_from(self.scale.group).unwrap_or(0);
        let groups = dim.checked_div(group).unwrap_or(1);
        let shape = [counts[0], counts[1], heads, groups];
        let needed = shape.iter().try_fold(1, |n: usize, &count| n.checked_mul(count));
        if needed != Some(self.len) {
            return invalid(format_args!(
                "the scales of {name} are {} and must be [pages, page_size, heads, groups] = {shape:?}",
                self.len
            ));
        }
        self.scale.stride_head = groups as i64; // all at most `len`
        self.scale.stride_token = (heads * groups) as i64;
        self.scale.stride_batch = (counts[1] * heads * groups) as i64;
        Ok(self.scale)
    }
}
