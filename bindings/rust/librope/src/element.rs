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
}

/// A code of [`DType::F8E4M3`], as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct F8E4M3(pub u8);

/// A code of [`DType::F8E5M2`], as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct F8E5M2(pub u8);

/// What an output, or the memory of a cache, holds: an [`Element`], or codes of 8 bits, [`F8E4M3`],
/// [`F8E5M2`] or [`i8`], which have a [`Scale`](crate::Scale).
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

    /// A dtype that the header has got has its element here, or is that of scales, or of blocks.
    #[test]
    fn every_dtype_is_that_of_an_element() {
        let (e4m3, e5m2) = (F8E4M3::STORED_AS, F8E5M2::STORED_AS);
        let codes = [e4m3, e5m2, i8::STORED_AS, DType::E8M0, DType::Q80];
        let elements = [[f32::DTYPE, f16::DTYPE, bf16::DTYPE].as_slice(), &codes].concat();
        let dtypes: Vec<DType> = (-1..100).filter_map(DType::of).collect();
        assert_eq!(dtypes, elements);
    }
}
