//! Declarations of librope's C API, one to one. The C headers, `librope/rope.h` and
//! `librope/model.h`, are the manual; the safe crate is [`librope`](https://docs.rs/librope).
//!
//! ```
//! // SAFETY: takes nothing, returns a number.
//! let version = unsafe { librope_sys::rope_version() };
//! assert_eq!(version / 100, 1); // 0.1.x
//! ```
//!
//! Structs that begin with `struct_size` are started with [`Init`]; all others are zeroed:
//!
//! ```
//! use librope_sys::{Init as _, rope_config};
//! let config = rope_config { head_dim: 128, theta: 500000.0, ..rope_config::init() };
//! assert_eq!(config.struct_size as usize, size_of::<rope_config>());
//! ```
#![no_std]
#![warn(clippy::pedantic)]

#[allow(non_camel_case_types, clippy::doc_markdown, reason = "they are those of C")]
mod bindings {
    #[cfg(not(feature = "bindgen"))]
    include!("bindings.rs");
    #[cfg(feature = "bindgen")]
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub use bindings::*;

/// `ROPE_INIT` of the header.
pub trait Init {
    /// The struct with `struct_size` set and zeros after it.
    fn init() -> Self;
}

#[allow(clippy::cast_possible_truncation, reason = "structs of a few hundred bytes")]
const fn size<T>() -> u32 {
    size_of::<T>() as u32
}

macro_rules! init {
    ($($name:ident)*) => {$(
        impl Init for $name {
            #[inline]
            fn init() -> Self {
                // SAFETY: integers, doubles, raw pointers and options of functions: zeros are valid.
                let zeroed: Self = unsafe { core::mem::zeroed() };
                Self { struct_size: size::<Self>(), ..zeroed }
            }
        }
    )*};
}
init!(
    rope_config rope_info rope_qk_args rope_cos_sin rope_qk_data rope_kv_cache rope_norm rope_fused rope_scale
    rope_latent_args
);
