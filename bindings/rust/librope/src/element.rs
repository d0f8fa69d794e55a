use half::{bf16, f16};

use crate::enums::DType;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
    impl Sealed for super::F8E4M3 {}
    impl Sealed for super::F8E5M2 {}
    impl Sealed for i8 {}
    impl Sealed for super::Q80 {}
}

/// A code of [`DType::F8E4M3`], as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct F8E4M3(pub u8);

/// A code of [`DType::F8E5M2`], as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct F8E5M2(pub u8);

/// A block of [`DType::Q80`], ggml's `Q8_0`: 32 adjacent channels of a head, each `codes[i] * d`.
///
/// Slices of blocks have an element for each 32 channels; widths of heads and [`Strides`](crate::Strides)
/// count channels, as everywhere, and are multiples of 32.
///
/// ```
/// use librope::{Config, Pairing, Positions, Q80, Step, View, ViewMut};
///
/// let rope = Config::new(64, 10000.0, Pairing::Halves).build()?;
/// let (tokens, heads) = (5, 4);
/// let q = vec![1.0f32; tokens * heads * 64];
/// let mut blocks = vec![Q80::default(); q.len() / Q80::CHANNELS];
/// let out = ViewMut::bshd(&mut blocks, heads);
/// rope.apply(&Step::new(1, tokens, Positions::Offset(0)), (View::bshd(&q, heads), out), ())?;
/// let first = f32::from(blocks[0].codes[0]) * blocks[0].d.to_f32();
/// assert!((first - q[0]).abs() < 0.01);
/// # Ok::<(), librope::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Q80 {
    /// What the codes are multiplied by.
    pub d: f16,
    /// -127 to 127.
    pub codes: [i8; Q80::CHANNELS],
}

impl Q80 {
    /// How many channels a block holds.
    pub const CHANNELS: usize = 32;
}

// As C has it.
const _: () = assert!(size_of::<Q80>() == 34 && align_of::<Q80>() == 2);

impl DType {
    /// How many channels an element of a slice holds.
    #[inline]
    pub(crate) const fn channels(self) -> usize {
        if matches!(self, DType::Q80) { Q80::CHANNELS } else { 1 }
    }
}

/// What an output, or the memory of a cache, holds: an [`Element`]; codes of 8 bits, [`F8E4M3`],
/// [`F8E5M2`] or [`i8`], which have a [`Scale`](crate::Scale); or blocks, [`Q80`], which have their own.
pub trait OutputElement: sealed::Sealed + Copy + Send + Sync + 'static {
    /// The type as a value.
    const STORED_AS: DType;
}

impl<T: Element> OutputElement for T {
    const STORED_AS: DType = T::DTYPE;
}

impl OutputElement for F8E4M3 {
    const STORED_AS: DType = DType::F8E4M3;
}

impl OutputElement for F8E5M2 {
    const STORED_AS: DType = DType::F8E5M2;
}

impl OutputElement for i8 {
    const STORED_AS: DType = DType::I8;
}

impl OutputElement for Q80 {
    const STORED_AS: DType = DType::Q80;
}

/// The element types of tensors: [`f32`], [`half::f16`] and [`half::bf16`].
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {
    /// The type as a value.
    const DTYPE: DType;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}

impl Element for f16 {
    const DTYPE: DType = DType::F16;
}

impl Element for bf16 {
    const DTYPE: DType = DType::Bf16;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enums::Numbered as _;

    /// A dtype that the header has got has its element here, or is that of scales.
    #[test]
    fn every_dtype_is_that_of_an_element() {
        let (e4m3, e5m2) = (F8E4M3::STORED_AS, F8E5M2::STORED_AS);
        let codes = [e4m3, e5m2, i8::STORED_AS, DType::E8M0, Q80::STORED_AS];
        let elements = [[f32::DTYPE, f16::DTYPE, bf16::DTYPE].as_slice(), &codes].concat();
        let dtypes: Vec<DType> = (-1..100).filter_map(DType::of).collect();
        assert_eq!(dtypes, elements);
    }
}
