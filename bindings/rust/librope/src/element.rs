use half::{bf16, f16};

use crate::enums::DType;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
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

    /// A dtype that the header has got has its element here.
    #[test]
    fn every_dtype_is_that_of_an_element() {
        let elements = [f32::DTYPE, f16::DTYPE, bf16::DTYPE];
        let dtypes: Vec<DType> = (-1..100).filter_map(DType::of).collect();
        assert_eq!(dtypes, elements);
    }
}
