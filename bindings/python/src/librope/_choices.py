"""The names of choices as types. Written by bindings/enums.py from librope/rope.h."""

from typing import Literal

Pairing = Literal["halves", "interleaved", "interleaved_to_halves", "halves_per_axis"]
"""
- "halves": i and i + D/2: rotate_half, NeoX, transformers, ggml's NEOX
- "interleaved": 2i and 2i + 1: GPT-J, Meta's complex form, ggml's NORM (GGUF)
- "interleaved_to_halves": Reads 2i and 2i + 1, writes i and i + D/2: rope_interleave of
  DeepSeek-V3. "backward" and "inverse" go the other way; "shift" works on what "forward" has
  written.
- "halves_per_axis": Each axis of mrope_section has its own block of channels, with halves inside
  it: the vision tower of Gemma 4.
"""

Scaling = Literal[
    "default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional", "nope",
    "dynamic_steps",
]
"""
- "default": inv_freq[i] = theta^(-2i / D)
- "linear": factor
- "dynamic": NTK: factor, max_position_embeddings, seq_len
- "yarn": factor, original_max_position_embeddings, beta_*, mscale*
- "longrope": short_factor, long_factor, original_max_position_embeddings, seq_len, factor (0:
  max_position_embeddings / original_...)
- "llama3": factor, *_freq_factor, original_max_position_embeddings
- "proportional": Gemma 4: rotary_dim channels rotate, D is head_dim; factor
- "nope": a layer without RoPE: values are left alone, or copied to the output
- "dynamic_steps": Qwen 1: "dynamic" for the next larger of max_position_embeddings times 1, 2, 4,
  .. tokens.
"""

Angle = Literal["float32", "exact", "ggml", "divide"]
"""
- "float32": float32(position) * float32(inv_freq), rounded to f32: what transformers, vLLM and
  Meta's code compute and what models were trained with. At position 131072 this angle is off the
  true one by up to 9e-3. The cosine and sine are within 1.5e-7 of those of this angle. inv_freq,
  which Rope.inv_freq returns, has the bits that transformers computes on a CPU with AVX-512: 1 /
  float32(theta^(2i / D)), with the power of PyTorch, which is within 1 ulp. AVX2 gives the same
  where a multiple of 64 channels rotates; elsewhere some may differ in the last bit.
- "exact": The angle as a 64-bit fixed-point fraction of a turn, from frequencies of more than
  double precision. The cosine and sine are within 1.5e-7 of the true ones up to position 2^38, and
  within 1.5e-7 of those of the 64-bit frequency at any int64. They have the same bits on every
  device and on every CPU with fused multiply-add, and angles add as positions do. Keys that will be
  moved by "shift" need it: under "float32" a shift would be off by 4e-3 at position 65536.
- "ggml": For parity with llama.cpp: ggml's recurrence in f32, angle[i + 1] = angle[i] * theta^(-2 /
  D), whose error grows with i (0.16 at position 1,000,000), then freq_factors and scaling applied
  to the angle. It works with "default", "linear" and "yarn", without inv_freq, and on the CPU only.
  Rope.inv_freq returns the nominal frequencies.
- "divide": float32(position) / timescale, rounded to f32: how JAX code is written (MaxText, Praxis,
  Gemma) and what XLA compiles it to for TPUs. timescale = powf(theta, 2i * (1 / D)), times factor
  with "linear"; for "llama3" by MaxText's steps. Its error is at most (4 + 2 ln theta) 2^-24 of the
  angle up to position 2^24, without "llama3"; at position 131072, up to 9e-3. The cosine and sine
  are within 1.5e-7 of those of this angle. It works with "default", "linear", "llama3" and
  "proportional", without freq_factors and inv_freq_dtype. With inv_freq, timescale = float32(1 /
  inv_freq): to divide by timescales that were recorded on a TPU, whose powf is not published, give
  their inverses in f64. Rope.inv_freq returns such inverses. docs/guides/precision.md says where
  XLA multiplies instead.
"""

Rounding = Literal["float32", "eager", "cos_sin", "native"]
"""
- "float32": only on store: OLMo, ERNIE, vision towers, most fused kernels
- "eager": cos, sin, both products and the sum: eager PyTorch, bit for bit
- "cos_sin": cos and sin, and on store: Cohere, ESM, ModernBERT
- "native": cos, sin, one product, and its sum with the exact other one: what instructions that
  multiply f16 do (AVX-512 FP16, NEON fp16), for tensors of "float16" only. CPUs without them, and
  GPUs, compute the same bits in f32.
"""

DType = Literal["float32", "float16", "bfloat16"]
"""
- "float32": IEEE 754 binary32
- "float16": IEEE 754 binary16
- "bfloat16": bfloat16: the upper 16 bits of binary32
"""

Operation = Literal["forward", "backward", "inverse", "shift"]
"""
- "forward": a R(p) x: rotates
- "backward": a R(-p) x: the gradient of "forward", which is its transpose
- "inverse": 1/a R(-p) x: undoes "forward"
- "shift": R(p) x: moves rotated keys by p, which may be negative
"""

CosSinFormat = Literal[
    "packed", "packed_sin_first", "split", "full_halves", "full_interleaved", "complex",
    "sinusoidal", "angles", "angles_full",
]
"""
- "packed": c s: cos_sin_cache of vLLM, SGLang, FlashInfer
- "packed_sin_first": s c: GPT-J, IPEX
- "split": data c, sin s: flash-attn, ONNX, candle, gpt-oss
- "full_halves": data c c, sin s s: transformers
- "full_interleaved": data c0 c0 c1 c1 .., sin likewise: Cohere, BLT
- "complex": c0 s0 c1 s1 ..: freqs_cis, torchtune, TensorRT-LLM
- "sinusoidal": s0 c0 s1 c1 ..: the absolute encoding of 2017
- "angles": a: the outer product of positions and inv_freq
- "angles_full": a a: TransformerEngine, Apex
"""

Digest = Literal["rotation", "angles", "bits"]
"""
- "rotation": The same channels turn by the same angles, with the same factors on cos, sin and the
  softmax, at every position and every length.
- "angles": Pair i turns by the same angles with the same factors, wherever in the head its channels
  are: a config.json and the GGUF file of one model, whose q and k are permuted for some
  architectures.
- "bits": As "rotation", and values are rounded in the same places (dialects differ in them): the
  same bits.
"""

ShardScheme = Literal["contiguous", "zigzag", "striped", "heads"]
"""
- "contiguous": r T + i. Ulysses before its all-to-all, plain ring attention, a DTensor of PyTorch
  or an array of JAX that is sharded along its tokens
- "zigzag": The row is cut into 2 n chunks of c = T / 2 tokens. Rank r has two of them, r and 2 n -
  1 - r: r c + i for i < c, otherwise (2 n - 1 - r) c + i - c. Under a causal mask the ranks then
  have equal work. Megatron-LM (get_batch_on_this_cp_rank), TransformerEngine, the head-tail load
  balancer of PyTorch's context_parallel, MaxText (reorder_sequence), zigzag of
  ring-flash-attention. Megatron's a2a+p2p counts the ranks of both groups as one n.
- "striped": In turn a stripe of b = block tokens for each rank: (i / b n + r) b + i % b, with i / b
  rounded down. For b = 1, i n + r: token t is on rank t % n. Striped attention (arXiv 2311.09431),
  stripe of ring-flash-attention
- "heads": i: each rank has all tokens, and heads of its own. Ulysses behind its all-to-all, tensor
  parallelism. world and rank change nothing. It is ROPE_ERROR_UNSUPPORTED where heads have
  frequencies of their own (config.freq_heads)
"""

NormKind = Literal["rms", "rms_one_plus", "rms_plain", "layer", "layer_bias"]
"""
- "rms": x / rms(x) * weight: Qwen3, OLMo 2, GLM-4.5
- "rms_one_plus": x / rms(x) * (1 + weight): Gemma 3, Qwen3-Next
- "rms_plain": x / rms(x), without weights: L2 norms, v of Gemma 4
- "layer": (x - mean) / std * weight: Command R+, StableLM 2
- "layer_bias": (x - mean) / std * weight + bias: Phi, Persimmon
"""

NormSpan = Literal["head", "all_heads", "given"]
"""
- "head": each head on its own
- "all_heads": all heads of a token together: OLMo 2, MiniMax-M2
- "given": The same, with r from the caller, who has added up the squares of all ranks (tensor
  parallel). "rms" kinds only.
"""

NormOrder = Literal["before", "after"]
"""
- "before": norm, then rotation: Qwen3, Gemma 3, OLMo 2
- "after": rotation, then norm: Hunyuan, Llama 4
"""

NormRounding = Literal["float32", "rounded", "eager"]
"""
- "float32": Nothing between norm and rotation: most fused kernels. For q and k of 16 bits this is
  for contexts of "float32" or "cos_sin" (or without rotation), and with "all_heads" for "rms"
  kinds, "before"; else ROPE_ERROR_UNSUPPORTED.
- "rounded": The results of the norm, and those of the rotation: a norm that has a kernel of its
  own; Gemma, OLMo 2, Command R+ in transformers. The bits are those of two calls, of which one has
  a "nope" context and the norm.
- "eager": Also x * r, and then the product with the weight: Llama's norm in transformers, which
  Qwen3 and many others have.
"""
