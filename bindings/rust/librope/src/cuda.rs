//! Calls on CUDA memory: device pointers and a stream, so everything that runs here is `unsafe`.
//!
//! The context's [`Config`](crate::Config) names the device. A call queues one kernel on the stream;
//! it allocates nothing, does not synchronise, and can be captured in a graph.
//!
//! This module only rotates q and k. Caches, norms, outputs in 8 bits, moves and gradients through norms, which the
//! C library has on CUDA as well, are calls of [`librope_sys`]: `rope_apply_qk` with [`Context::as_raw`].
//!
//! ```no_run
//! use std::ffi::c_void;
//! use librope::cuda::{self, Positions, Step, Tensor};
//! use librope::{Config, DType, Device, Layout, Pairing};
//!
//! # let (q, k, seq_lens, stream) = (std::ptr::null_mut::<c_void>(), std::ptr::null_mut::<c_void>(),
//! #     std::ptr::null::<i32>(), std::ptr::null_mut::<c_void>());
//! let rope = Config::new(128, 500_000.0, Pairing::Halves).with_device(Device::Cuda(0)).build()?;
//! // One token of each of 8 sequences; lengths are on the device, so that a graph can be replayed.
//! let step = Step::new(8, 1, Positions::SeqOffsetsI32(seq_lens)).with_stream(stream);
//! let q = Tensor::new(q, DType::Bf16, Layout::Bshd, 32);
//! let k = Tensor::new(k, DType::Bf16, Layout::Bshd, 8);
//! // SAFETY: the pointers lead to device memory of these shapes until the stream has run.
//! unsafe { rope.apply_cuda(&step, cuda::Operand::in_place(q), cuda::Operand::in_place(k)) }?;
//! # Ok::<(), librope::Error>(())
//! ```

use std::ffi::c_void;
use std::ptr;

use librope_sys::{self as sys, Init as _};

use crate::context::Context;
use crate::enums::{DType, Operation};
use crate::error::{Result, check, invalid, named, narrow};
use crate::shard::Shard;
use crate::size::length;
use crate::strides::Layout;

/// q, k or an output in device memory.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Tensor {
    raw: sys::rope_tensor,
    heads: usize,
    span: bool,
}

impl Tensor {
    /// A device pointer, aligned to its element, and what lies there.
    pub fn new(data: *mut c_void, dtype: DType, layout: Layout, heads: usize) -> Tensor {
        let (layout, s) = match layout {
            Layout::Bshd => (sys::ROPE_LAYOUT_BSHD, None),
            Layout::Bhsd => (sys::ROPE_LAYOUT_BHSD, None),
            Layout::Sbhd => (sys::ROPE_LAYOUT_SBHD, None),
            Layout::Nhd => (sys::ROPE_LAYOUT_NHD, None),
            Layout::Hnd => (sys::ROPE_LAYOUT_HND, None),
            Layout::Strided(strides) => (sys::ROPE_LAYOUT_STRIDED, Some(strides)),
        };
        let s = s.unwrap_or_default();
        // A stride beyond the C type is refused by the library like any other that is too large.
        let wide = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let raw = sys::rope_tensor {
            data,
            scale: ptr::null(),
            dtype: dtype as i32,
            layout,
            heads: 0, // known to fit when the call is made
            head_dim: 0,
            stride_batch: wide(s.batch),
            stride_token: wide(s.token),
            stride_head: wide(s.head),
            reserved: 0,
        };
        Tensor { raw, heads, span: false }
    }

    /// Each "head" is the rotated span alone.
    pub fn span(mut self) -> Tensor {
        self.span = true;
        self
    }
}

/// One of the two tensors of a call.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct Operand {
    input: Option<Tensor>,
    output: Option<Tensor>,
}

impl Operand {
    /// No tensor.
    pub fn none() -> Operand {
        Operand::default()
    }

    /// Reads and writes one tensor.
    pub fn in_place(tensor: Tensor) -> Operand {
        Operand { input: Some(tensor), output: None }
    }

    /// Reads one and writes the other; they may be the same, or do not overlap.
    pub fn out_of_place(input: Tensor, output: Tensor) -> Operand {
        Operand { input: Some(input), output: Some(output) }
    }
}

/// Where positions come from. Pointers are device pointers, with the shapes of
/// [`crate::Positions`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
#[must_use]
pub enum Positions {
    /// Token `i` of every sequence is at this offset plus `i`. A graph captures the value.
    Offset(i64),
    /// One length per sequence.
    SeqOffsetsI32(*const i32),
    /// One length per sequence.
    SeqOffsetsI64(*const i64),
    /// One id on the device for all tokens: the distance of [`Operation::Shift`].
    SameI32(*const i32),
    /// One id on the device for all tokens: the distance of [`Operation::Shift`].
    SameI64(*const i64),
    /// `ids[tokens]`
    TokensI32(*const i32),
    /// `ids[tokens]`
    TokensI64(*const i64),
    /// `ids[batch, tokens]`
    BatchTokensI32(*const i32),
    /// `ids[batch, tokens]`
    BatchTokensI64(*const i64),
    /// `ids[axes, batch, tokens]`
    AxesBatchTokensI32(*const i32),
    /// `ids[axes, batch, tokens]`
    AxesBatchTokensI64(*const i64),
    /// `ids[batch, tokens, axes]`: float coordinates.
    BatchTokensAxesF32(*const f32),
}

/// What belongs to one step. See [`crate::Step`].
#[derive(Clone, Copy, Debug)]
#[must_use]
#[non_exhaustive]
pub struct Step {
    /// 1 for packed sequences.
    pub batch: usize,
    /// Tokens of each batch row.
    pub tokens: usize,
    /// Where positions come from.
    pub positions: Positions,
    /// What the call does.
    pub operation: Operation,
    /// NULL, or `sequences + 1` entries on the device.
    pub cu_seqlens: *const i32,
    /// The sequences that `cu_seqlens` cuts.
    pub sequences: i32,
    /// NULL, or one index per sequence on the device.
    pub freq_sets: *const i32,
    /// The tokens are those that one of several ranks has.
    pub shard: Option<Shard>,
    /// `cudaStream_t` or `CUstream`; NULL is the legacy default stream.
    pub stream: *mut c_void,
}

impl Step {
    /// A forward step on the default stream.
    pub fn new(batch: usize, tokens: usize, positions: Positions) -> Step {
        Step {
            batch,
            tokens,
            positions,
            operation: Operation::Forward,
            cu_seqlens: ptr::null(),
            sequences: 0,
            freq_sets: ptr::null(),
            shard: None,
            stream: ptr::null_mut(),
        }
    }

    /// Sets what the call does.
    pub fn with_operation(mut self, operation: Operation) -> Step {
        self.operation = operation;
        self
    }

    /// Packed sequences: `sequences + 1` entries on the device, from 0 to all tokens.
    pub fn with_cu_seqlens(mut self, cu_seqlens: *const i32, sequences: i32) -> Step {
        (self.cu_seqlens, self.sequences) = (cu_seqlens, sequences);
        self
    }

    /// The frequency set of every sequence, for contexts with several: indices on the device.
    pub fn with_freq_sets(mut self, freq_sets: *const i32) -> Step {
        self.freq_sets = freq_sets;
        self
    }

    /// The tokens are those that one of several ranks has. See [`crate::Step::with_shard`].
    pub fn with_shard(mut self, shard: Shard) -> Step {
        self.shard = Some(shard);
        self
    }

    /// Sets the stream: `cudaStream_t` or `CUstream`.
    pub fn with_stream(mut self, stream: *mut c_void) -> Step {
        self.stream = stream;
        self
    }
}

impl Context {
    /// Queues the rotation of q and k on the step's stream.
    ///
    /// # Safety
    /// All pointers lead to memory of the context's device, of the shapes that the step and the
    /// tensors say, which stays valid and unused by others until the stream has run.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) as of [`Context::apply`], and
    /// [`Error::Device`](crate::Error::Device) if the driver refused.
    pub unsafe fn apply_cuda(&self, step: &Step, q: Operand, k: Operand) -> Result<()> {
        named("Context::apply_cuda", || {
            if !self.backend().starts_with("cuda") {
                return invalid(format_args!(
                    "this context lives on {}: use apply",
                    self.backend()
                ));
            }
            let span_dim = i32::try_from(2 * self.pairs()).unwrap_or(i32::MAX);
            let mut args = sys::rope_qk_args::init();
            args.operation = step.operation as i32;
            args.batch = length(step.batch)?;
            args.tokens = length(step.tokens)?;
            args.stream = step.stream;
            let fields = [&mut args.q, &mut args.k, &mut args.q_out, &mut args.k_out];
            for (field, tensor) in fields.into_iter().zip([q.input, k.input, q.output, k.output]) {
                if let Some(tensor) = tensor {
                    *field = tensor.raw;
                    field.heads = narrow("heads", tensor.heads)?;
                    if step.batch == 0 {
                        field.data = ptr::null_mut(); // how C is told that an empty batch is meant
                    }
                    field.head_dim = if tensor.span { span_dim } else { 0 };
                }
            }
            let p = &mut args.positions;
            p.cu_seqlens = step.cu_seqlens;
            p.sequences = step.sequences;
            p.freq_sets = step.freq_sets;
            if let Some(shard) = &step.shard {
                p.shard = shard.as_raw()?;
            }
            match step.positions {
                Positions::Offset(offset) => {
                    (p.kind, p.offset) = (sys::ROPE_POSITIONS_OFFSET, offset);
                }
                Positions::SeqOffsetsI32(array) => {
                    (p.kind, p.offsets_i32) = (sys::ROPE_POSITIONS_SEQ_OFFSETS, array);
                }
                Positions::SeqOffsetsI64(array) => {
                    (p.kind, p.offsets_i64) = (sys::ROPE_POSITIONS_SEQ_OFFSETS, array);
                }
                Positions::SameI32(id) => {
                    (p.kind, p.ids_i32) = (sys::ROPE_POSITIONS_IDS_STRIDED, id);
                }
                Positions::SameI64(id) => {
                    (p.kind, p.ids_i64) = (sys::ROPE_POSITIONS_IDS_STRIDED, id);
                }
                Positions::TokensI32(ids) => (p.kind, p.ids_i32) = (sys::ROPE_POSITIONS_IDS_T, ids),
                Positions::TokensI64(ids) => (p.kind, p.ids_i64) = (sys::ROPE_POSITIONS_IDS_T, ids),
                Positions::BatchTokensI32(ids) => {
                    (p.kind, p.ids_i32) = (sys::ROPE_POSITIONS_IDS_BT, ids);
                }
                Positions::BatchTokensI64(ids) => {
                    (p.kind, p.ids_i64) = (sys::ROPE_POSITIONS_IDS_BT, ids);
                }
                Positions::AxesBatchTokensI32(ids) => {
                    (p.kind, p.ids_i32) = (sys::ROPE_POSITIONS_IDS_ABT, ids);
                }
                Positions::AxesBatchTokensI64(ids) => {
                    (p.kind, p.ids_i64) = (sys::ROPE_POSITIONS_IDS_ABT, ids);
                }
                Positions::BatchTokensAxesF32(ids) => {
                    (p.kind, p.ids_f32) = (sys::ROPE_POSITIONS_IDS_BTA, ids);
                }
            }
            // SAFETY: the caller's promise; the library checks the rest.
            check(unsafe { sys::rope_apply_qk(self.as_raw(), &raw const args) })
        })
    }
}
