// What a call on the CPU is wherever its tensors lie: which kernels turn them, and how many bytes
// it reads.
#ifndef LIBROPE_SRC_CPU_COURSE_H_
#define LIBROPE_SRC_CPU_COURSE_H_

#include <cstdint>

#include "call/plan.h"
#include "cpu/caches.h"
#include "cpu/cos_sin_rows.h"
#include "cpu/kernels.h"
#include "cpu/stage.h"
#include "math/element.h"
#include "math/pairing.h"
#include "math/rounding.h"
#include "math/tensor.h"

namespace rope::cpu {

inline int SpanBytes(const rope_context& context, const Tensor& tensor) {
  return context.rotary_dim * ElementSize(tensor.dtype);
}

// Of a call whose q and k fit into memory singly.
inline int64_t ProductOrMost(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

// Of a token, that is read.
inline int64_t CopiedBytes(const Copies& copies) {
  int64_t bytes = 0;
  for (int n = 0; n < copies.count; ++n) bytes += copies.of[n].width * copies.of[n].heads;
  return bytes;
}

// A prepared call keeps it.
struct Course {
  explicit Course(const Plan& plan);

  const Kernels& kernels;
  ChannelOrder order;
  Arithmetic arithmetic;
  int64_t tokens;       // of all batch rows
  int64_t token_bytes;  // that are read
  int64_t bytes;        // of all tokens
  int block_tokens;     // that one RowBuffer has rows for
  bool prefetch;        // more data than the inner caches hold
  // Of each tensor.
  int64_t tensor_bytes[3];  // of a token
  const Kernels::Rotation* rotations[3];
  // Of tensors in stages: whether that writes the output, from the tensor or from what it has been
  // decoded to, or reads the tensor, so that nothing is loaded before.
  bool codes[3] = {}, recodes[3] = {}, reads[3] = {};
};

inline const Kernels& KernelsOf(const rope_context& context) {
  return *static_cast<const Kernels*>(context.backend_data);
}

inline Course::Course(const Plan& plan)
    : kernels(KernelsOf(*plan.context)),
      order(ChannelOrderOf(plan.context->pairing, plan.operation)),
      arithmetic(plan.context->rounding.arithmetic),
      tokens(plan.batch * plan.tokens),
      token_bytes(0),
      block_tokens(RowBuffer::Capacity(*plan.context)) {
  const bool rare_ties =
      !plan.context->rounding.rounds_rows && (!plan.has_rows || plan.rows.dtype == ROPE_DTYPE_F32);
  for (int n = 0; n < plan.tensor_count; ++n) {
    const Tensor& t = plan.tensors[n];
    tensor_bytes[n] = static_cast<int64_t>(t.heads) * SpanBytes(*plan.context, t);
    if (plan.fused != nullptr) {
      tensor_bytes[n] *= plan.fused->outputs[n].sums;
      if (plan.fused->Decodes(n)) tensor_bytes[n] /= ElementSize(t.dtype);
    }
    token_bytes += tensor_bytes[n];
    rotations[n] = &kernels.RotationOf(TurnedIn(plan, n), order, arithmetic, rare_ties);
  }
  if (plan.fused != nullptr) {
    for (int n = 0; n < plan.tensor_count; ++n) {
      reads[n] = TurnsAsItIs(plan, n) && StageOf(plan, n).turned == plan.tensors[n].dtype;
      const Kernels::Rotation* const coding = CodingOf(plan, n, kernels, order);
      recodes[n] = coding != nullptr && plan.fused->Decodes(n);
      codes[n] = coding != nullptr && !recodes[n];
      const auto* const turning = coding != nullptr ? coding : WideningOf(plan, n, kernels, order);
      if (turning == nullptr) continue;
      reads[n] = !recodes[n];
      rotations[n] = turning;
    }
    token_bytes += CopiedBytes(plan.fused->copies);
  }
  bytes = ProductOrMost(tokens, token_bytes);
  prefetch = bytes > plan.context->caches->inner;
}

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_COURSE_H_
