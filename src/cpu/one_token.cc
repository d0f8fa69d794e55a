#include "cpu/one_token.h"

#include <cstdint>

#include "base/limits.h"
#include "cpu/caches.h"
#include "cpu/cos_sin_rows.h"
#include "cpu/course.h"
#include "cpu/position_rows.h"
#include "math/element.h"
#include "math/operation.h"

namespace rope::cpu {
namespace {

bool StayInPlace(const Plan& plan) {
  for (int n = 0; n < plan.tensor_count; ++n) {
    if (plan.tensors[n].in != plan.tensors[n].out) return false;
  }
  return true;
}

// Whether the heads of all tensors turn by one row in one pass.
bool TurnAtOnce(const Plan& plan) {
  const rope_context& context = *plan.context;
  if (context.segments.size() != 1) return false;
  const Tensor& q = plan.tensors[0];
  int64_t heads = 0;
  for (int n = 0; n < plan.tensor_count; ++n) {
    const Tensor& t = plan.tensors[n];
    if (t.dtype != q.dtype || t.copies_rest) return false;
    heads += t.heads;
  }
  return heads * SpanBytes(context, q) <= context.caches->inner;
}

}  // namespace

bool RotateOneToken(const Plan& plan) {
  const rope_context& context = *plan.context;
  if (plan.batch != 1 || plan.tokens != 1 || plan.has_rows) return false;
  if (context.nope) return StayInPlace(plan);
  if (plan.row_heads != 1 || kOperations[plan.operation].has_from()) return false;
  if (!TurnAtOnce(plan)) return false;
  const Kernels& kernels = KernelsOf(context);
  const rope_dtype dtype = plan.tensors[0].dtype;
  const Kernels::Rotation& rotation =
      kernels.RotationOf(dtype, ChannelOrderOf(context.pairing, plan.operation),
                         context.rounding.arithmetic, !context.rounding.rounds_rows);
  if (rotation.rotate_token == nullptr || !kernels.Makes(rotation.order, context.pairs)) {
    return false;
  }
  alignas(64) float row[4 * kMaxPairs];
  if (!MakeRowsOfPositions<1>(plan, kernels, rotation.order, 0, 0, 1, row)) return false;
  if (RoundedTo(context, dtype) != 0) {
    RoundRows(kernels, dtype, rotation.order, context.pairs, 1, row);
  }
  rotation.rotate_token(plan.tensors, plan.tensor_count, context.segments[0], row,
                        row + RowWidth(rotation.order, context.pairs));
  return true;
}

bool IsOneToken(const Course& course, const KeptRows& kept, const Plan& plan) {
  return course.tokens == 1 && plan.fused == nullptr && plan.row_heads == 1 &&
         kept.IsPerChannel(0) == nullptr && course.rotations[0]->rotate_token != nullptr &&
         TurnAtOnce(plan);
}

void RotateOneToken(const Course& course, const KeptRows& kept, const Plan& plan,
                    const Tensor* tensors) {
  const OrderedRows row = kept.From(0, 0);
  course.rotations[0]->rotate_token(tensors, plan.tensor_count, plan.context->segments[0], row.cos,
                                    row.sin);
}

}  // namespace rope::cpu
