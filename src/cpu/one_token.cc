#include "cpu/one_token.h"

#include <cstdint>

#include "base/limits.h"
#include "cpu/append.h"
#include "cpu/caches.h"
#include "cpu/cos_sin_rows.h"
#include "cpu/course.h"
#include "cpu/position_rows.h"
#include "cpu/stage.h"
#include "cpu/staged_rotation.h"
#include "math/element.h"
#include "math/operation.h"
#include "math/slots.h"

namespace rope::cpu {
namespace {

bool OnlyMoves(const Plan& plan) { return plan.fused == nullptr || plan.fused->only_moves(); }

// Whether heads turn and are copied, and some outputs have another dtype than their input: each is
// read by the kernel that turns it.
bool OnlyConverts(const Course& course, const Plan& plan) {
  const FusedPlan* const fused = plan.fused;
  if (fused == nullptr || !fused->converts || fused->adds || fused->has_norms()) return false;
  if (fused->source.kind != 0) return false;
  for (int n = 0; n < plan.tensor_count; ++n) {
    const Kernels::Rotation& rotation = *course.rotations[n];
    if (IsStaged(*fused, n, plan.tensors[n].dtype)) {
      if (!course.reads[n] || rotation.rotate == nullptr) return false;
    } else if (rotation.rotate_token == nullptr) {
      return false;
    }
  }
  return true;
}

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

// The same where outputs may have another dtype. `row_of(n)`: that of tensor n.
template <class RowOf>
void TurnAndConvert(const Course& course, const Plan& plan, const Tensor* tensors,
                    const FusedPlan& fused, const Slot& slot, const RowOf& row_of) {
  const Segment& segment = plan.context->segments[0];
  for (int n = 0; n < plan.tensor_count; ++n) {
    Tensor t = tensors[n];
    Place place{};
    if (n == fused.cached) {
      if (slot.page < 0) continue;
      t.out += TokenOffset(t.out_strides, slot.page, slot.index);
      place = {slot.page, slot.index};
    }
    const OrderedRows row = row_of(n);
    if (IsStaged(fused, n, t.dtype)) {
      RotateTokenInStages(course, plan, n, t, fused.outputs[n], place, row);
    } else {
      course.rotations[n]->rotate_token(&t, 1, segment, row.cos, row.sin);
    }
  }
  ConvertBeside(plan, course.kernels, fused, slot);
}

// A call on one token with its slot, if it has one, whose outputs may have another dtype.
bool ConvertOneToken(const Plan& plan) {
  const rope_context& context = *plan.context;
  if (context.nope || context.rounding.rounds_rows || plan.row_heads != 1 ||
      kOperations[plan.operation].has_from() || !TurnAtOnce(plan)) {
    return false;
  }
  const Course course(plan);
  if (!OnlyConverts(course, plan)) return false;
  const RowOrder order = course.rotations[0]->order;
  for (int n = 1; n < plan.tensor_count; ++n) {
    if (course.rotations[n]->order != order) return false;
  }
  if (!course.kernels.Makes(order, context.pairs)) return false;
  alignas(64) float row[4 * kMaxPairs];
  if (!MakeRowsOfPositions<1>(plan, course.kernels, order, 0, 0, 1, row)) return false;
  const FusedPlan& fused = *plan.fused;
  const Slot slot = fused.slots.kind != 0 ? SlotOfToken(plan, nullptr, 0, 0) : Slot{};
  const int width = RowWidth(order, context.pairs);
  TurnAndConvert(course, plan, plan.tensors, fused, slot, [&](int) {
    return OrderedRows{row, row + width, 2 * width};
  });
  return true;
}

}  // namespace

bool ApplyToOneToken(const Plan& plan) {
  const rope_context& context = *plan.context;
  const FusedPlan* const fused = plan.fused;
  if (plan.batch != 1 || plan.tokens != 1 || plan.has_rows) return false;
  if (!OnlyMoves(plan)) return fused->converts && ConvertOneToken(plan);
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
  if (course.tokens != 1 || plan.row_heads != 1 || kept.IsPerChannel(0) != nullptr) return false;
  if (!OnlyMoves(plan)) return OnlyConverts(course, plan) && TurnAtOnce(plan);
  return course.rotations[0]->rotate_token != nullptr && TurnAtOnce(plan);
}

void ApplyToOneToken(const Course& course, const KeptRows& kept, const KeptSlots* slots,
                     const Plan& plan, const Tensor* tensors, const FusedPlan* fused) {
  const Slot slot = slots != nullptr ? slots->SlotOf(0) : Slot{};
  if (fused != nullptr && fused->converts) {
    TurnAndConvert(course, plan, tensors, *fused, slot, [&](int n) { return kept.From(n, 0); });
    return;
  }
  const OrderedRows row = kept.From(0, 0);
  TurnAndCopy(*course.rotations[0], plan, tensors, fused, slot, row.cos, row.sin);
}

}  // namespace rope::cpu
