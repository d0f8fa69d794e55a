#include "cpu/one_token.h"

#include <hwy/base.h>

#include <cstdint>

#include "base/limits.h"
#include "cpu/append.h"
#include "cpu/caches.h"
#include "cpu/cos_sin_rows.h"
#include "cpu/course.h"
#include "cpu/norm_tiles.h"
#include "cpu/position_rows.h"
#include "cpu/stage.h"
#include "cpu/staged_rotation.h"
#include "math/element.h"
#include "math/operation.h"
#include "math/slots.h"

namespace rope::cpu {
namespace {

// Apart: what its loops need of registers is not for calls that do nothing besides.
HWY_NOINLINE bool OnlyMoves(const FusedPlan& fused) { return fused.only_moves(); }

bool OnlyMoves(const Plan& plan) { return plan.fused == nullptr || OnlyMoves(*plan.fused); }

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

// A tensor whose output is a slot that exists. Only such a one is copied.
inline const Tensor& InSlot(const Tensor& tensor, const Slot& slot, Tensor* placed) {
  *placed = tensor;
  placed->out += TokenOffset(tensor.out_strides, slot.page, slot.index);
  return *placed;
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
      Tensor k;
      rotation.rotate_token(&InSlot(tensors[fused->cached], slot, &k), 1, segment, cos, sin);
    }
    rotation.rotate_token(tensors + behind, count - behind, segment, cos, sin);
  }
  if (fused != nullptr) CopyBeside(*fused, slot);
}

// The same where outputs may have another dtype. `row_of(n)`: that of tensor n.
template <class RowOf>
HWY_NOINLINE void TurnAndConvert(const Course& course, const Plan& plan, const Tensor* tensors,
                                 const FusedPlan& fused, const Slot& slot, const RowOf& row_of) {
  const Segment& segment = plan.context->segments[0];
  for (int n = 0; n < plan.tensor_count; ++n) {
    const bool to_slot = n == fused.cached;
    if (to_slot && slot.page < 0) continue;
    Tensor placed;
    const Tensor& t = to_slot ? InSlot(tensors[n], slot, &placed) : tensors[n];
    const Place place = to_slot ? Place{slot.page, slot.index} : Place{};
    const OrderedRows row = row_of(n);
    if (IsStaged(fused, n, t.dtype)) {
      RotateTokenInStages(course, plan, n, t, fused.outputs[n], place, row);
    } else {
      course.rotations[n]->rotate_token(&t, 1, segment, row.cos, row.sin);
    }
  }
  ConvertBeside(plan, course.kernels, fused, slot);
}

// The row of the only token in an order of kernels, rounded for heads of a dtype. False where it is
// made in another way: nothing has been written then. Inlined: all calls on one token make one.
HWY_INLINE bool MakeRow(const Plan& plan, const Kernels& kernels, RowOrder order, rope_dtype dtype,
                        float* row) {
  const rope_context& context = *plan.context;
  if (!kernels.Makes(order, context.pairs)) return false;
  if (!(kOperations[plan.operation].has_from()
            ? MakeRowOfMove(plan, kernels, order, row)
            : MakeRowsOfPositions<1>(plan, kernels, order, 0, 0, 1, row))) {
    return false;
  }
  if (RoundedTo(context, dtype) != 0) RoundRows(kernels, dtype, order, context.pairs, 1, row);
  return true;
}

// Whether all tensors of a call are turned by rows in one order.
bool HaveOneOrder(const Plan& plan, const Kernels::Rotation* const rotations[3]) {
  for (int n = 1; n < plan.tensor_count; ++n) {
    if (rotations[n]->order != rotations[0]->order) return false;
  }
  return true;
}

// Norms and turns a tensor of a call on one token.
void NormAndTurn(const NormedTurns& turns, const Plan& plan, int n, const Tensor& t,
                 const Norm* norm, const OrderedRows& row) {
  const rope_context& context = *plan.context;
  const WrittenRun run = {0, 1, t.out};
  if (turns.one_pass[n]) {
    Block block = {};
    block.tensor = &t;
    block.in = t.in + t.in_span;
    block.cos = row.cos;
    block.sin = row.sin;
    block.row_stride = row.stride;
    block.segments = context.segments.data();
    block.segment_count = block.tokens = 1;
    block.in_cache = true;
    const Kernels::Rotation& rotation = *turns.rotations[n];
    NormAndRotate({turns.kernels, context, *norm, t},
                  {turns.order, rotation.order, rotation.rotate, WritesRest(context, *norm, t)},
                  block, {&run, 1}, 0);
    return;
  }
  const auto turn = [&](const Tensor& tensor) {
    turns.rotations[n]->rotate_token(&tensor, 1, context.segments[0], row.cos, row.sin);
  };
  if (norm == nullptr) return turn(t);
  NormTokens({turns.kernels, context, *norm, t}, NormedPart(context, *norm, t), t.in, {&run, 1}, 0);
  Tensor normed = t;
  normed.in = t.out;
  normed.in_strides = t.out_strides;
  normed.in_span = t.out_span;
  turn(normed);
}

// All that such a call is. `row_of(n)`: that of tensor n.
template <class RowOf>
HWY_NOINLINE void NormTurnAndCopy(const NormedTurns& turns, const Plan& plan, const Tensor* tensors,
                                  const FusedPlan& fused, const Slot& slot, const RowOf& row_of) {
  for (int n = 0; n < plan.tensor_count; ++n) {
    const bool to_slot = n == fused.cached;
    if (to_slot && slot.page < 0) continue;
    Tensor placed;
    const Tensor& t = to_slot ? InSlot(tensors[n], slot, &placed) : tensors[n];
    NormAndTurn(turns, plan, n, t, fused.norms[n], row_of(n));
  }
  NormBeside(plan, turns.kernels, fused, slot);
}

// A call on one token with its slot, if it has one, some of whose heads are normed. Apart, here and
// below: what it needs of the stack and of registers is not for every call.
HWY_NOINLINE bool NormOneToken(const Plan& plan) {
  const rope_context& context = *plan.context;
  if (context.nope || plan.row_heads != 1 || kOperations[plan.operation].has_from()) return false;
  NormedTurns turns(plan);
  if (!turns.Choose(plan) || !HaveOneOrder(plan, turns.rotations)) return false;
  const RowOrder order = turns.rotations[0]->order;
  alignas(64) float row[4 * kMaxPairs];
  if (!MakeRow(plan, turns.kernels, order, plan.tensors[0].dtype, row)) return false;
  const FusedPlan& fused = *plan.fused;
  const Slot slot = fused.slots.kind != 0 ? SlotOfToken(plan, nullptr, 0, 0) : Slot{};
  const int width = RowWidth(order, context.pairs);
  NormTurnAndCopy(turns, plan, plan.tensors, fused, slot, [&](int) {
    return OrderedRows{row, row + width, 2 * width};
  });
  return true;
}

// A call on one token with its slot, if it has one, whose outputs may have another dtype.
HWY_NOINLINE bool ConvertOneToken(const Plan& plan) {
  const rope_context& context = *plan.context;
  if (context.nope || plan.row_heads != 1 || kOperations[plan.operation].has_from() ||
      !TurnAtOnce(plan)) {
    return false;
  }
  const Course course(plan);
  if (!OnlyConverts(course, plan) || !HaveOneOrder(plan, course.rotations)) return false;
  const RowOrder order = course.rotations[0]->order;
  alignas(64) float row[4 * kMaxPairs];
  if (!MakeRow(plan, course.kernels, order, plan.tensors[0].dtype, row)) return false;
  const FusedPlan& fused = *plan.fused;
  const Slot slot = fused.slots.kind != 0 ? SlotOfToken(plan, nullptr, 0, 0) : Slot{};
  const int width = RowWidth(order, context.pairs);
  TurnAndConvert(course, plan, plan.tensors, fused, slot, [&](int) {
    return OrderedRows{row, row + width, 2 * width};
  });
  return true;
}

}  // namespace

NormedTurns::NormedTurns(const Plan& plan)
    : kernels(KernelsOf(*plan.context)),
      order(ChannelOrderOf(plan.context->pairing, plan.operation)) {}

bool NormedTurns::Choose(const Plan& plan) {
  const rope_context& context = *plan.context;
  const FusedPlan& fused = *plan.fused;
  if (fused.converts || fused.source.kind != 0 || context.segments.size() != 1) return false;
  if (kOperations[plan.operation].is_gradient()) return false;
  int64_t bytes = 0;
  for (int n = 0; n < plan.tensor_count; ++n) {
    const Tensor& t = plan.tensors[n];
    const Norm* const norm = fused.norms[n];
    if (t.dtype != plan.tensors[0].dtype || IsStaged(fused, n, t.dtype)) return false;
    one_pass[n] = norm != nullptr && TakesOnePass(kernels, order, context, *norm, t.dtype);
    if (norm != nullptr ? norm->after : t.copies_rest) return false;
    rotations[n] = one_pass[n]
                       ? &kernels.normed_rotations[t.dtype - 1][RoundingOf(*norm, t.dtype)][order]
                       : &kernels.RotationOf(t.dtype, order, context.rounding.arithmetic,
                                             !context.rounding.rounds_rows);
    if (!one_pass[n] && rotations[n]->rotate_token == nullptr) return false;
    bytes += int64_t{t.heads} * SpanBytes(context, t);
  }
  return bytes <= context.caches->inner;
}

bool ApplyToOneToken(const Plan& plan) {
  const rope_context& context = *plan.context;
  const FusedPlan* const fused = plan.fused;
  if (plan.batch != 1 || plan.tokens != 1 || plan.has_rows) return false;
  if (!OnlyMoves(plan)) return fused->converts ? ConvertOneToken(plan) : NormOneToken(plan);
  const bool has_slots = fused != nullptr && fused->slots.kind != 0;
  if (context.nope) {
    if (has_slots || !StayInPlace(plan)) return false;
    if (fused != nullptr) CopyBeside(*fused, {});
    return true;
  }
  if (plan.row_heads != 1 || !TurnAtOnce(plan)) return false;
  const Kernels& kernels = KernelsOf(context);
  const rope_dtype dtype = plan.tensors[0].dtype;
  const Kernels::Rotation& rotation =
      kernels.RotationOf(dtype, ChannelOrderOf(context.pairing, plan.operation),
                         context.rounding.arithmetic, !context.rounding.rounds_rows);
  if (rotation.rotate_token == nullptr) return false;
  alignas(64) float row[4 * kMaxPairs];
  if (!MakeRow(plan, kernels, rotation.order, dtype, row)) return false;
  const Slot slot = has_slots ? SlotOfToken(plan, nullptr, 0, 0) : Slot{};
  TurnAndCopy(rotation, plan, plan.tensors, fused, slot, row,
              row + RowWidth(rotation.order, context.pairs));
  return true;
}

bool IsOneToken(const Course& course, const KeptRows& kept, const Plan& plan,
                std::optional<NormedTurns>* normed) {
  if (course.tokens != 1 || plan.row_heads != 1 || kept.IsPerChannel(0) != nullptr) return false;
  if (!OnlyMoves(plan)) {
    if (OnlyConverts(course, plan) && TurnAtOnce(plan)) return true;
    if (normed->emplace(plan).Choose(plan)) return true;
    normed->reset();
    return false;
  }
  return course.rotations[0]->rotate_token != nullptr && TurnAtOnce(plan);
}

void ApplyToOneToken(const Course& course, const KeptRows& kept, const KeptSlots* slots,
                     const std::optional<NormedTurns>& normed, const Plan& plan,
                     const Tensor* tensors, const FusedPlan* fused) {
  const Slot slot = slots != nullptr ? slots->SlotOf(0) : Slot{};
  if (fused != nullptr && fused->converts) {
    TurnAndConvert(course, plan, tensors, *fused, slot, [&](int n) { return kept.From(n, 0); });
    return;
  }
  if (normed) {
    NormTurnAndCopy(*normed, plan, tensors, *fused, slot, [&](int n) { return kept.From(n, 0); });
    return;
  }
  const OrderedRows row = kept.From(0, 0);
  TurnAndCopy(*course.rotations[0], plan, tensors, fused, slot, row.cos, row.sin);
}

}  // namespace rope::cpu
