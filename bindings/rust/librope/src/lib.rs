#![doc = include_str!("../README.md")]
#![deny(missing_docs, unsafe_op_in_unsafe_fn)]
#![warn(clippy::undocumented_unsafe_blocks, clippy::pedantic)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "`as` stands where a check has been made, or where a number that wraps is refused by the \
              library; a decode call takes less than 100 ns, and each conversion would add to it"
)]
#![allow(clippy::inline_always, reason = "measured: benches/overhead.rs")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod append;
mod byte_part;
mod cache;
mod call;
mod config;
mod context;
pub mod cuda;
mod element;
mod enums;
mod error;
mod fill;
mod gradient;
mod info;
mod latent;
mod messages;
mod model;
#[cfg(feature = "ndarray")]
mod ndarray;
mod norm;
mod positions;
mod prepared;
mod prepared_append;
mod prepared_call;
mod prompt;
mod rows;
mod runner;
mod scale;
mod scaling;
mod shard;
mod shard_ids;
mod size;
mod slot_runner;
mod slots;
mod step;
mod strides;
mod tensor;

pub use byte_part::{BytePart, bytes_of};
pub use cache::{KvCache, Pages, Stored};
pub use call::Call;
pub use config::{Config, Device};
pub use context::Context;
pub use element::{Element, F8E4M3, F8E5M2, OutputElement, Q80};
pub use enums::{
    Angle, DType, Digest, NormKind, NormOrder, NormRounding, NormSpan, Operation, Pairing, Rounding,
};
pub use error::{Error, Result};
pub use gradient::{Gradient, Gradients};
pub use half;
pub use info::Info;
pub use latent::{LatentGrid, Latents};
pub use librope_sys as sys;
pub use model::{GgufValue, Model};
pub use norm::{Norm, Norms};
pub use positions::{Ids, Offsets, Positions};
pub use prepared::{Described, Prepared, Shape};
pub use prepared_append::{CacheMemory, CacheShape, PackedPages, PreparedAppend, StoredShape};
pub use prepared_call::{Layer, PreparedCall, Slice, SliceElement};
pub use prompt::{PromptPart, prompt_ids, prompt_ids_timed};
pub use rows::{CosSin, CosSinMut};
pub use runner::{ParallelFor, Pool, Runner};
pub use scale::Scale;
pub use scaling::{LongRope, Scaling, Yarn};
pub use shard::Shard;
pub use shard_ids::shard_ids;
pub use slots::{SlotNumbers, Slots};
pub use step::Step;
pub use strides::{Layout, Strides};
pub use tensor::{Operand, Part, View, ViewMut};

/// The version of this crate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The version of the loaded library: major, minor, patch.
///
/// ```
/// let (major, minor, patch) = librope::library_version();
/// println!("librope {major}.{minor}.{patch}, crate {}", librope::VERSION);
/// ```
#[must_use]
pub fn library_version() -> (i32, i32, i32) {
    // SAFETY: takes nothing, returns a number.
    let version = unsafe { sys::rope_version() };
    (version / 10000, version / 100 % 100, version % 100)
}

/// What a builder returns and nobody takes is an error where warnings are: its change is lost.
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// let step = librope::Step::new(1, 2, librope::Positions::Offset(0));
/// step.with_operation(librope::Operation::Backward);
/// ```
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// let view = librope::View::bshd(&[0f32; 64], 1);
/// view.span();
/// ```
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// let rows = librope::CosSin::packed(&[0f32; 64]);
/// rows.shared();
/// ```
///
/// These are errors for no other reason:
///
/// ```
/// #![deny(unused_must_use)]
/// let step = librope::Step::new(1, 2, librope::Positions::Offset(0));
/// let _ = step.with_operation(librope::Operation::Backward);
/// let view = librope::View::bshd(&[0f32; 64], 1);
/// let _ = view.span();
/// let rows = librope::CosSin::packed(&[0f32; 64]);
/// let _ = rows.shared();
/// ```
#[cfg(doctest)]
struct DroppedBuilders;
