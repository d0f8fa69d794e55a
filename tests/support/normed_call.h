// A call with a norm of q, in f32, on memory of its own, to be spoilt by tests of errors.
#ifndef LIBROPE_TESTS_SUPPORT_NORMED_CALL_H_
#define LIBROPE_TESTS_SUPPORT_NORMED_CALL_H_

#include <algorithm>
#include <cstddef>

#include "librope/rope.h"
#include "support/handles.h"

namespace rope::testing {

struct NormedCall {
  static constexpr int kDim = 64, kHeads = 4, kTokens = 2;
  static constexpr size_t kFloats = kDim * kHeads * kTokens;

  float q[kFloats], v[kFloats], weight[kDim * kHeads], bias[kDim * kHeads], rstd[kTokens];
  rope_config config = Config(kDim);
  rope_norm norm = ROPE_INIT(rope_norm);
  rope_fused fused = ROPE_INIT(rope_fused);
  rope_qk_args args = Args(1, kTokens);

  NormedCall() {
    for (float* values : {q, v}) std::fill_n(values, kFloats, 1.5f);
    for (float* values : {weight, bias}) std::fill_n(values, kDim * kHeads, 1.0f);
    std::fill_n(rstd, kTokens, 1.0f);
    norm.kind = ROPE_NORM_KIND_RMS;
    norm.eps = 1e-6;
    norm.weight = weight;
    norm.weight_dtype = ROPE_DTYPE_F32;
    fused.q_norm = &norm;
    args.fused = &fused;
    args.q = Tensor(q, ROPE_DTYPE_F32, kHeads);
    args.positions = Offset(3);
  }
  NormedCall(const NormedCall&) = delete;

  void Given() {
    norm.span = ROPE_NORM_SPAN_GIVEN;
    norm.eps = 0;
    norm.rstd = rstd;
    norm.weight_stride_head = kDim;
  }
  // v, which is copied to itself.
  void V() {
    fused.v = Tensor(v, ROPE_DTYPE_F32, kHeads);
    fused.v.head_dim = kDim;
    fused.v_out = fused.v;
  }
};

// An address that is not aligned.
inline const void* Odd(const void* data) { return static_cast<const char*>(data) + 1; }

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_NORMED_CALL_H_
