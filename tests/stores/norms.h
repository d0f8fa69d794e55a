// Norms of the works, and which of them store heads twice.
#ifndef LIBROPE_TESTS_STORES_NORMS_H_
#define LIBROPE_TESTS_STORES_NORMS_H_

#include <string>

#include "stores/work.h"

namespace rope::testing::stores {

// The heads that a norm is for.
struct NormedHeads {
  rope_dtype dtype;
  int heads, width;
  bool turn;  // v does not
  const rope_config& config;
};

// A norm that rope_apply_qk takes: of any kind, span, order and rounding, as far as an output of
// another dtype or with other heads (`converted`) has them.
inline rope_norm RandomNorm(Work* work, Random* r, const NormedHeads& of, bool converted) {
  const bool narrow = of.dtype != ROPE_DTYPE_F32;
  const bool rounds = of.config.rounding == ROPE_ROUNDING_EAGER;
  rope_norm norm = ROPE_INIT(rope_norm);
  norm.kind = r->Pick(ROPE_NORM_KIND_RMS, ROPE_NORM_KIND_LAYER_BIAS);
  norm.eps = 1e-6;
  norm.rounding =
      r->Pick(narrow && of.turn && rounds ? ROPE_NORM_ROUNDING_ROUNDED : ROPE_NORM_ROUNDING_FLOAT32,
              ROPE_NORM_ROUNDING_EAGER);
  if (of.turn && r->Sometimes(3)) norm.order = ROPE_NORM_ORDER_AFTER;
  const bool plain = norm.kind < ROPE_NORM_KIND_LAYER && norm.order == ROPE_NORM_ORDER_BEFORE;
  const bool in_f32 = narrow && norm.rounding == ROPE_NORM_ROUNDING_FLOAT32;
  const bool all_heads = norm.kind != ROPE_NORM_KIND_RMS_PLAIN && r->Sometimes(3) &&
                         (plain || (!converted && !in_f32));
  if (all_heads) norm.span = ROPE_NORM_SPAN_ALL_HEADS;
  if (norm.kind == ROPE_NORM_KIND_RMS_PLAIN) return norm;
  const bool of_each = all_heads || r->Sometimes(4);
  norm.weight_dtype = of.dtype;
  const int64_t weights = of_each ? of.heads * of.width : of.width;
  if (of_each) norm.weight_stride_head = of.width;
  norm.weight = work->Numbers("weight", of.dtype, weights);
  if (norm.kind == ROPE_NORM_KIND_LAYER_BIAS) norm.bias = work->Numbers("bias", of.dtype, weights);
  return norm;
}

// Outputs of the dtype and heads of their input wait for their turn, or for their norm, where they
// lie, if no kernel does both in one pass (docs/serving.md, step 3): their span then is stored by
// both, behind the rotation all of the head.
inline constexpr Times kTwoPasses = {1, 2, "a norm that has a pass of its own over the output"};

// Kernels that round between norm and rotation, those of bf16, are in vectors alone.
inline bool HaveVectors(const Context& context) {
  return std::string(rope_context_backend(context.get())) != "cpu SCALAR";
}

inline Times TimesOf(const rope_norm& norm, const NormedHeads& of, bool converted) {
  if (converted || !of.turn) return kOnce;
  const bool narrow = of.dtype != ROPE_DTYPE_F32;
  // Of 16 bits, where nothing is rounded between, what no kernel does in one pass waits in a
  // buffer.
  if (narrow && norm.rounding == ROPE_NORM_ROUNDING_FLOAT32) return kOnce;
  const bool plain = norm.kind < ROPE_NORM_KIND_LAYER && norm.order == ROPE_NORM_ORDER_BEFORE &&
                     of.config.rounding == ROPE_ROUNDING_FLOAT32;
  // Weights of each head are in the order of f32's rows where heads turn whole, without padding.
  const bool whole = (of.config.rotary_dim == 0 || of.config.rotary_dim == of.width) &&
                     of.width % 32 == 0 && of.config.pairing <= ROPE_PAIRING_INTERLEAVED;
  const bool one_pass = narrow ? of.dtype == ROPE_DTYPE_BF16 && HaveVectors(ContextOf(of.config))
                               : norm.weight_stride_head == 0 || whole;
  return plain && one_pass ? kOnce : kTwoPasses;
}

inline std::string NameOf(const rope_norm& norm) {
  constexpr const char* kKinds[] = {"", "rms", "rms+1", "rms plain", "layer", "layer bias"};
  constexpr const char* kRoundings[] = {" f32", " rounded", " eager"};
  return std::string(kKinds[norm.kind]) + kRoundings[norm.rounding] +
         (norm.span == ROPE_NORM_SPAN_ALL_HEADS ? " all heads" : "") +
         (norm.weight_stride_head != 0 ? " weights of each" : "") +
         (norm.order == ROPE_NORM_ORDER_AFTER ? " after" : "");
}

}  // namespace rope::testing::stores

#endif  // LIBROPE_TESTS_STORES_NORMS_H_
