//! Written by bindings/enums.py from librope/rope.h, whose comments these are: not by hand.
#![allow(clippy::doc_markdown, reason = "names of models and programs")]

use librope_sys as sys;

/// An enum with the numbers of the C API.
pub(crate) trait Numbered: Copy {
    /// The variant with this number.
    fn of(number: i32) -> Option<Self>;
}

/// Which channels form pair i of a rotated span of D channels. The same weights are published in
/// both orders, and with the wrong one a model produces fluent nonsense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Pairing {
    /// i and i + D/2: `rotate_half`, NeoX, transformers, ggml's NEOX
    Halves = sys::ROPE_PAIRING_HALVES,
    /// 2i and 2i + 1: GPT-J, Meta's complex form, ggml's NORM (GGUF)
    Interleaved = sys::ROPE_PAIRING_INTERLEAVED,
    /// Reads 2i and 2i + 1, writes i and i + D/2: `rope_interleave` of DeepSeek-V3.
    /// [`Operation::Backward`] and [`Operation::Inverse`] go the other way; [`Operation::Shift`]
    /// works on what [`Operation::Forward`] has written.
    InterleavedToHalves = sys::ROPE_PAIRING_INTERLEAVED_TO_HALVES,
    /// Each axis of `mrope_section` has its own block of channels, with halves inside it: the
    /// vision tower of Gemma 4.
    HalvesPerAxis = sys::ROPE_PAIRING_HALVES_PER_AXIS,
}

impl Numbered for Pairing {
    fn of(number: i32) -> Option<Pairing> {
        match number {
            sys::ROPE_PAIRING_HALVES => Some(Pairing::Halves),
            sys::ROPE_PAIRING_INTERLEAVED => Some(Pairing::Interleaved),
            sys::ROPE_PAIRING_INTERLEAVED_TO_HALVES => Some(Pairing::InterleavedToHalves),
            sys::ROPE_PAIRING_HALVES_PER_AXIS => Some(Pairing::HalvesPerAxis),
            _ => None,
        }
    }
}

/// How precisely the angle is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Angle {
    /// float32(position) \* `float32(inv_freq)`, rounded to f32: what transformers, vLLM and Meta's
    /// code compute and what models were trained with. At position 131072 this angle is off the
    /// true one by up to 9e-3. The cosine and sine are within 1.5e-7 of those of this angle.
    /// `inv_freq`, which [`Context::inv_freq`](crate::Context::inv_freq) returns, has the bits that
    /// transformers computes on a CPU with AVX-512: 1 / float32(theta^(2i / D)), with the power of
    /// PyTorch, which is within 1 ulp. AVX2 gives the same where a multiple of 64 channels rotates;
    /// elsewhere some may differ in the last bit.
    #[default]
    Float32 = sys::ROPE_ANGLE_FLOAT32,
    /// The angle as a 64-bit fixed-point fraction of a turn, from frequencies of more than double
    /// precision. The cosine and sine are within 1.5e-7 of the true ones up to position 2^38, and
    /// within 1.5e-7 of those of the 64-bit frequency at any int64. They have the same bits on
    /// every device and on every CPU with fused multiply-add, and angles add as positions do. Keys
    /// that will be moved by [`Operation::Shift`] need it: under [`Angle::Float32`] a shift would
    /// be off by 4e-3 at position 65536.
    Exact = sys::ROPE_ANGLE_EXACT,
    /// For parity with llama.cpp: ggml's recurrence in f32, angle\[i + 1\] = angle\[i\] \*
    /// theta^(-2 / D), whose error grows with i (0.16 at position 1,000,000), then `freq_factors`
    /// and scaling applied to the angle. It works with
    /// [`Scaling::Default`](crate::Scaling::Default), [`Scaling::Linear`](crate::Scaling::Linear)
    /// and [`Scaling::Yarn`](crate::Scaling::Yarn), without `inv_freq`, and on the CPU only.
    /// [`Context::inv_freq`](crate::Context::inv_freq) returns the nominal frequencies.
    Ggml = sys::ROPE_ANGLE_GGML,
    /// float32(position) / timescale, rounded to f32: how JAX code is written (MaxText, Praxis,
    /// Gemma) and what XLA compiles it to for TPUs. timescale = powf(theta, 2i \* (1 / D)), times
    /// factor with [`Scaling::Linear`](crate::Scaling::Linear); for
    /// [`Scaling::Llama3`](crate::Scaling::Llama3) by MaxText's steps. Its error is at most (4 + 2
    /// ln theta) 2^-24 of the angle up to position 2^24, without
    /// [`Scaling::Llama3`](crate::Scaling::Llama3); at position 131072, up to 9e-3. The cosine and
    /// sine are within 1.5e-7 of those of this angle. It works with
    /// [`Scaling::Default`](crate::Scaling::Default), [`Scaling::Linear`](crate::Scaling::Linear),
    /// [`Scaling::Llama3`](crate::Scaling::Llama3) and
    /// [`Scaling::Proportional`](crate::Scaling::Proportional), without `freq_factors` and
    /// `inv_freq_dtype`. With `inv_freq`, timescale = float32(1 / `inv_freq`): to divide by
    /// timescales that were recorded on a TPU, whose powf is not published, give their inverses in
    /// f64. [`Context::inv_freq`](crate::Context::inv_freq) returns such inverses.
    /// docs/guides/precision.md says where XLA multiplies instead.
    Divide = sys::ROPE_ANGLE_DIVIDE,
}

impl Numbered for Angle {
    fn of(number: i32) -> Option<Angle> {
        match number {
            sys::ROPE_ANGLE_FLOAT32 => Some(Angle::Float32),
            sys::ROPE_ANGLE_EXACT => Some(Angle::Exact),
            sys::ROPE_ANGLE_GGML => Some(Angle::Ggml),
            sys::ROPE_ANGLE_DIVIDE => Some(Angle::Divide),
            _ => None,
        }
    }
}

/// Where values are rounded to the dtype of the tensor: of the input, where its output has another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Rounding {
    /// only on store: OLMo, ERNIE, vision towers, most fused kernels
    #[default]
    Float32 = sys::ROPE_ROUNDING_FLOAT32,
    /// cos, sin, both products and the sum: eager PyTorch, bit for bit
    Eager = sys::ROPE_ROUNDING_EAGER,
    /// cos and sin, and on store: Cohere, ESM, ModernBERT
    CosSin = sys::ROPE_ROUNDING_COS_SIN,
    /// cos, sin, one product, and its sum with the exact other one: what instructions that multiply
    /// f16 do (AVX-512 FP16, NEON fp16), for tensors of [`DType::F16`] only. CPUs without them, and
    /// GPUs, compute the same bits in f32.
    Native = sys::ROPE_ROUNDING_NATIVE,
}

impl Numbered for Rounding {
    fn of(number: i32) -> Option<Rounding> {
        match number {
            sys::ROPE_ROUNDING_FLOAT32 => Some(Rounding::Float32),
            sys::ROPE_ROUNDING_EAGER => Some(Rounding::Eager),
            sys::ROPE_ROUNDING_COS_SIN => Some(Rounding::CosSin),
            sys::ROPE_ROUNDING_NATIVE => Some(Rounding::Native),
            _ => None,
        }
    }
}

/// The type of the elements of a tensor, in the byte order of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum DType {
    /// IEEE 754 binary32
    F32 = sys::ROPE_DTYPE_F32,
    /// IEEE 754 binary16
    F16 = sys::ROPE_DTYPE_F16,
    /// bfloat16: the upper 16 bits of binary32
    Bf16 = sys::ROPE_DTYPE_BF16,
    /// e4m3fn: up to 448, without infinity
    F8E4M3 = sys::ROPE_DTYPE_F8_E4M3,
    /// up to 57344; infinity is never written
    F8E5M2 = sys::ROPE_DTYPE_F8_E5M2,
    /// -128 to 127; computed scales use -127 to 127, and -128 for -infinity
    I8 = sys::ROPE_DTYPE_I8,
    /// of scales alone: 2^(byte - 127)
    E8M0 = sys::ROPE_DTYPE_E8M0,
    /// Of outputs and caches alone: ggml's blocks of 34 bytes, an f16 and 32 int8 (section 15)
    Q80 = sys::ROPE_DTYPE_Q8_0,
}

impl Numbered for DType {
    fn of(number: i32) -> Option<DType> {
        match number {
            sys::ROPE_DTYPE_F32 => Some(DType::F32),
            sys::ROPE_DTYPE_F16 => Some(DType::F16),
            sys::ROPE_DTYPE_BF16 => Some(DType::Bf16),
            sys::ROPE_DTYPE_F8_E4M3 => Some(DType::F8E4M3),
            sys::ROPE_DTYPE_F8_E5M2 => Some(DType::F8E5M2),
            sys::ROPE_DTYPE_I8 => Some(DType::I8),
            sys::ROPE_DTYPE_E8M0 => Some(DType::E8M0),
            sys::ROPE_DTYPE_Q8_0 => Some(DType::Q80),
            _ => None,
        }
    }
}

/// What a call does. R(p) is the rotation by position p, and a the attention factor.
/// [`Operation::Forward`] and [`Operation::Shift`], and [`Operation::Backward`] and
/// [`Operation::Inverse`], differ unless a is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Operation {
    /// a R(p) x: rotates
    #[default]
    Forward = sys::ROPE_OPERATION_FORWARD,
    /// a R(-p) x: the gradient of [`Operation::Forward`], which is its transpose
    Backward = sys::ROPE_OPERATION_BACKWARD,
    /// 1/a R(-p) x: undoes [`Operation::Forward`]
    Inverse = sys::ROPE_OPERATION_INVERSE,
    /// R(p) x: moves rotated keys by p, which may be negative
    Shift = sys::ROPE_OPERATION_SHIFT,
    /// a/a' R(p) R'(-p') x: moves keys that were rotated by p'
    Rerotate = sys::ROPE_OPERATION_REROTATE,
}

impl Numbered for Operation {
    fn of(number: i32) -> Option<Operation> {
        match number {
            sys::ROPE_OPERATION_FORWARD => Some(Operation::Forward),
            sys::ROPE_OPERATION_BACKWARD => Some(Operation::Backward),
            sys::ROPE_OPERATION_INVERSE => Some(Operation::Inverse),
            sys::ROPE_OPERATION_SHIFT => Some(Operation::Shift),
            sys::ROPE_OPERATION_REROTATE => Some(Operation::Rerotate),
            _ => None,
        }
    }
}

/// What two descriptions have in common if their digests are equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Digest {
    /// The same channels turn by the same angles, with the same factors on cos, sin and the
    /// softmax, at every position and every length.
    #[default]
    Rotation = sys::ROPE_DIGEST_ROTATION,
    /// Pair i turns by the same angles with the same factors, wherever in the head its channels
    /// are: a config.json and the GGUF file of one model, whose q and k are permuted for some
    /// architectures.
    Angles = sys::ROPE_DIGEST_ANGLES,
    /// As [`Digest::Rotation`], and values are rounded in the same places (dialects differ in
    /// them): the same bits.
    Bits = sys::ROPE_DIGEST_BITS,
}

impl Numbered for Digest {
    fn of(number: i32) -> Option<Digest> {
        match number {
            sys::ROPE_DIGEST_ROTATION => Some(Digest::Rotation),
            sys::ROPE_DIGEST_ANGLES => Some(Digest::Angles),
            sys::ROPE_DIGEST_BITS => Some(Digest::Bits),
            _ => None,
        }
    }
}

/// What a norm divides by, and what comes after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum NormKind {
    /// x / rms(x) \* weight: Qwen3, OLMo 2, GLM-4.5
    Rms = sys::ROPE_NORM_KIND_RMS,
    /// x / rms(x) \* (1 + weight): Gemma 3, Qwen3-Next
    RmsOnePlus = sys::ROPE_NORM_KIND_RMS_ONE_PLUS,
    /// x / rms(x), without weights: L2 norms, v of Gemma 4
    RmsPlain = sys::ROPE_NORM_KIND_RMS_PLAIN,
    /// (x - mean) / std \* weight: Command R+, StableLM 2
    Layer = sys::ROPE_NORM_KIND_LAYER,
    /// (x - mean) / std \* weight + bias: Phi, Persimmon
    LayerBias = sys::ROPE_NORM_KIND_LAYER_BIAS,
}

impl Numbered for NormKind {
    fn of(number: i32) -> Option<NormKind> {
        match number {
            sys::ROPE_NORM_KIND_RMS => Some(NormKind::Rms),
            sys::ROPE_NORM_KIND_RMS_ONE_PLUS => Some(NormKind::RmsOnePlus),
            sys::ROPE_NORM_KIND_RMS_PLAIN => Some(NormKind::RmsPlain),
            sys::ROPE_NORM_KIND_LAYER => Some(NormKind::Layer),
            sys::ROPE_NORM_KIND_LAYER_BIAS => Some(NormKind::LayerBias),
            _ => None,
        }
    }
}

/// Which channels are normed together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum NormSpan {
    /// each head on its own
    #[default]
    Head = sys::ROPE_NORM_SPAN_HEAD,
    /// all heads of a token together: OLMo 2, MiniMax-M2
    AllHeads = sys::ROPE_NORM_SPAN_ALL_HEADS,
    /// The same, with r from the caller, who has added up the squares of all ranks (tensor
    /// parallel). [`NormKind::Rms`] kinds only.
    Given = sys::ROPE_NORM_SPAN_GIVEN,
}

impl Numbered for NormSpan {
    fn of(number: i32) -> Option<NormSpan> {
        match number {
            sys::ROPE_NORM_SPAN_HEAD => Some(NormSpan::Head),
            sys::ROPE_NORM_SPAN_ALL_HEADS => Some(NormSpan::AllHeads),
            sys::ROPE_NORM_SPAN_GIVEN => Some(NormSpan::Given),
            _ => None,
        }
    }
}

/// Whether a norm comes before the rotation or after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum NormOrder {
    /// norm, then rotation: Qwen3, Gemma 3, OLMo 2
    #[default]
    Before = sys::ROPE_NORM_ORDER_BEFORE,
    /// rotation, then norm: Hunyuan, Llama 4
    After = sys::ROPE_NORM_ORDER_AFTER,
}

impl Numbered for NormOrder {
    fn of(number: i32) -> Option<NormOrder> {
        match number {
            sys::ROPE_NORM_ORDER_BEFORE => Some(NormOrder::Before),
            sys::ROPE_NORM_ORDER_AFTER => Some(NormOrder::After),
            _ => None,
        }
    }
}

/// Where a norm rounds to the dtype of the tensor. For [`DType::F32`] they are all the same.
/// Contexts that are made from a config.json mostly round [`NormRounding::Eager`], and take
/// [`NormRounding::Rounded`] and [`NormRounding::Eager`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum NormRounding {
    /// Nothing between norm and rotation: most fused kernels. For q and k of 16 bits this is for
    /// contexts of [`Rounding::Float32`] or [`Rounding::CosSin`] (or without rotation), and with
    /// [`NormSpan::AllHeads`] for [`NormKind::Rms`] kinds, [`NormOrder::Before`]; else
    /// `ROPE_ERROR_UNSUPPORTED`.
    #[default]
    Float32 = sys::ROPE_NORM_ROUNDING_FLOAT32,
    /// The results of the norm, and those of the rotation: a norm that has a kernel of its own;
    /// Gemma, OLMo 2, Command R+ in transformers. The bits are those of two calls, of which one has
    /// a [`Scaling::Nope`](crate::Scaling::Nope) context and the norm.
    Rounded = sys::ROPE_NORM_ROUNDING_ROUNDED,
    /// Also x \* r, and then the product with the weight: Llama's norm in transformers, which Qwen3
    /// and many others have.
    Eager = sys::ROPE_NORM_ROUNDING_EAGER,
}

impl Numbered for NormRounding {
    fn of(number: i32) -> Option<NormRounding> {
        match number {
            sys::ROPE_NORM_ROUNDING_FLOAT32 => Some(NormRounding::Float32),
            sys::ROPE_NORM_ROUNDING_ROUNDED => Some(NormRounding::Rounded),
            sys::ROPE_NORM_ROUNDING_EAGER => Some(NormRounding::Eager),
            _ => None,
        }
    }
}
