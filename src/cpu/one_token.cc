#include "cpu/one_token.h"

#include <cstdint>

#include "base/limits.h"
#include "cpu/caches.h"
#include "cpu/course.h"
#include "math/angle.h"
#include "math/element.h"
#include "math/operation.h"
#include "math/token_position.h"

namespace rope::cpu {
namespace {

// The row of the token, whose positions have one row each; false where another function makes it.
bool MakeRow(const Plan& plan, const Kernels& kernels, const Row& row) {
  const rope_context& context = *plan.context;
  const FrequencySet& set = context.sets[0];
  const Token token = LocateToken(plan.positions, 0, 0);
  const AngleRule rule = AngleRuleOf(context.angle, plan.positions.type);
  if (rule == AngleRule::kExact) {
    const int64_t position = IntegerPosition(plan.positions, token, 0);
    kernels.phase_rows(set, &position, 1, row);
    return true;
  }
  if (rule != AngleRule::kFloat32 && rule != AngleRule::kDivide) return false;
  const float position = PositionAsFloat(plan.positions, token, 0);
  (rule == AngleRule::kDivide ? kernels.divided_rows : kernels.angle_rows)(set, &position, 1, row);
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

}  // namespace

bool RotateOneToken(const Plan& plan) {
  const rope_context& context = *plan.context;
  if (plan.batch != 1 || plan.tokens != 1 || plan.has_rows) return false;
  if (context.nope) return StayInPlace(plan);
  if (!context.has_one_row || context.sums || kOperations[plan.operation].has_from()) return false;
  if (!TurnAtOnce(plan)) return false;
  const Kernels& kernels = KernelsOf(context);
  const rope_dtype dtype = plan.tensors[0].dtype;
  const Kernels::Rotation& rotation =
      kernels.RotationOf(dtype, ChannelOrderOf(context.pairing, plan.operation),
                         context.rounding.arithmetic, !context.rounding.rounds_rows);
  if (rotation.rotate_token == nullptr || !kernels.Makes(rotation.order, context.pairs)) {
    return false;
  }
  alignas(64) float cos[4 * kMaxPairs];  // and behind it sin
  const int width = RowWidth(rotation.order, context.pairs);
  float* const sin = cos + width;
  const Scales scales = ScalesOf(plan.operation, context.sets[0].attention_factor);
  if (!MakeRow(plan, kernels, {cos, sin, context.pairs, scales.cos, scales.sin, rotation.order})) {
    return false;
  }
  if (RoundedTo(context, dtype) != 0) {
    const int values = rotation.order == RowOrder::kPerChannel ? 2 * context.pairs : context.pairs;
    kernels.round_row[dtype - 1](cos, values);
    kernels.round_row[dtype - 1](sin, values);
  }
  rotation.rotate_token(plan.tensors, plan.tensor_count, context.segments[0], cos, sin);
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
