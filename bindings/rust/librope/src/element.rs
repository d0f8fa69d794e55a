use half::{bf16, f16};
use librope_sys as sys;

/// A type of elements, as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum DType {
    /// [`f32`]
    F32 = sys::ROPE_DTYPE_F32,
    /// [`half::f16`]
    F16 = sys::ROPE_DTYPE_F16,
    /// [`half::bf16`]
    Bf16 = sys::ROPE_DTYPE_BF16,
}

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
