// Whether what a call writes stays in the caches, or can go past them.
#ifndef LIBROPE_SRC_CPU_STREAMING_H_
#define LIBROPE_SRC_CPU_STREAMING_H_

#include <cstdint>

#include "call/fused_plan.h"
#include "call/plan.h"
#include "cpu/append.h"
#include "cpu/caches.h"
#include "cpu/course.h"
#include "cpu/stage.h"
#include "math/element.h"
#include "math/tensor.h"

namespace rope::cpu {

// Whether all of tensor n goes elsewhere than where it is read. kFused: with a FusedPlan.
template <bool kFused>
bool GoesElsewhere(const Plan& plan, const Tensor& t, int n) {
  return t.in != t.out || (kFused && n == plan.fused->cached && !plan.fused->in_place);
}

// The bits of all addresses and strides of an output.
inline int64_t PlacesOf(const Tensor& t) {
  return reinterpret_cast<intptr_t>(t.out) | t.out_strides.batch | t.out_strides.token |
         t.out_strides.head | t.out_span;
}

// Whether an output can be written with non-temporal stores, which spare reading its lines before
// they are overwritten and need whole, aligned ones.
template <bool kFused>
bool CanStream(const Plan& plan, const Tensor& t, int n) {
  if (!GoesElsewhere<kFused>(plan, t, n)) return false;
  const rope_context& context = *plan.context;
  int64_t misaligned = PlacesOf(t);
  for (const Segment& segment : context.segments) {
    misaligned |= static_cast<int64_t>(segment.pairs) * ElementSize(t.dtype);
    misaligned |= static_cast<int64_t>(segment.first_channel) * ElementSize(t.dtype);
  }
  return misaligned % 64 == 0;
}

// The same of a tensor that becomes codes.
inline bool CanStreamCodes(const Plan& plan, const Tensor& t, int n) {
  if (!GoesElsewhere<true>(plan, t, n) || LoadsRest(plan, n)) return false;
  int64_t channels = 0;
  for (const Segment& segment : plan.context->segments) {
    channels |= 2 * static_cast<int64_t>(segment.pairs) | segment.first_channel;
  }
  return CodesFillLines(plan.fused->outputs[n], PlacesOf(t), channels);
}

// Whether the last cache holds all that a call reads and writes.
template <bool kFused>
bool IsInCache(const Course& course, const Plan& plan, const Tensor* tensors,
               const FusedPlan* fused) {
  const int64_t last = plan.context->caches->last;
  if (course.bytes <= last / 2) return true;  // no more is written than is read
  int64_t moved_bytes = course.token_bytes;
  for (int n = 0; n < plan.tensor_count; ++n) {
    if (GoesElsewhere<kFused>(plan, tensors[n], n)) moved_bytes += course.tensor_bytes[n];
  }
  if constexpr (kFused) moved_bytes += CopiedBytes(fused->copies);
  return ProductOrMost(course.tokens, moved_bytes) <= last;
}

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_STREAMING_H_
