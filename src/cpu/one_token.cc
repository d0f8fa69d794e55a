#include "cpu/one_token.h"

#include <cstdint>

#include "base/limits.h"
#include "cpu/append.h"
#include "cpu/caches.h"
#include "cpu/cos_sin_rows.h"
#include "cpu/course.h"
#include "cpu/position_rows.h"
#include "math/element.h"
#include "math/operation.h"
#include "math/slots.h"

namespace rope::cpu {
namespace {

bool OnlyMoves(const Plan& plan) { return plan.fused == nullptr || plan.fused->only_moves(); }

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

// Turns the heads of tensors by a row, and copies what is beside them. `fused`: null where there is
// nothing.
void TurnAndCopy(const Kernels::Rotation& rotation, const Plan& plan, const Tensor* tensors,
                 const FusedPlan* fused, const Slot& slot, const float* cos, const float* sin) {
  const Segment& segment = plan.context->segments[0];
  const int count = plan.tensor_count;
  if (fused == nullptr || fused->cached < 0) {
    rotation.rotate_token(tensors, count, segment, cos, sin);
  } else {
    const int behind = fused->cached + 1;
    rotation.rotate_token(tensors, fused->cached, segment, cos, sin);
    if (slot.page >= 0) {
      Tensor k = tensors[fused->cached];
      k.out += TokenOffset(k.out_strides, slot.page, slot.index);
      rotation.rotate_token(&k, 1, segment, cos, sin);
    }
    rotation.rotate_token(tensors + behind, count - behind, segment, cos, sin);
  }
  if (fused != nullptr) CopyBeside(*fused, slot);
}

}  // namespace

bool ApplyToOneToken(const Plan& plan) {
  const rope_context& context = *plan.context;
  const FusedPlan* const fused = plan.fused;
  if (plan.batch != 1 || plan.tokens != 1 || plan.has_rows || !OnlyMoves(plan)) return false;
  const bool has_slots = fused != nullptr && fused->slots.kind != 0;
  if (context.nope) {
    if (has_slots || !StayInPlace(plan)) return false;
    if (fused != nullptr) CopyBeside(*fused, {});
    return true;
  }
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
  const Slot slot = has_slots ? SlotOfToken(plan, nullptr, 0, 0) : Slot{};
  TurnAndCopy(rotation, plan, plan.tensors, fused, slot, row,
              row + RowWidth(rotation.order, context.pairs));
  return true;
}

bool IsOneToken(const Course& course, const KeptRows& kept, const Plan& plan) {
  return course.tokens == 1 && OnlyMoves(plan) && plan.row_heads == 1 &&
         kept.IsPerChannel(0) == nullptr && course.rotations[0]->rotate_token != nullptr &&
         TurnAtOnce(plan);
}

void ApplyToOneToken(const Course& course, const KeptRows& kept, const KeptSlots* slots,
                     const Plan& plan, const Tensor* tensors, const FusedPlan* fused) {
  const OrderedRows row = kept.From(0, 0);
  TurnAndCopy(*course.rotations[0], plan, tensors, fused,
              slots != nullptr ? slots->SlotOf(0) : Slot{}, row.cos, row.sin);
}

}  // namespace rope::cpu
