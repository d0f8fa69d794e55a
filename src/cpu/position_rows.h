// Rows of tokens that have one position each, as text has: made by one call of a kernel. Inlined,
// because a call on one token would pay for the loops.
#ifndef LIBROPE_SRC_CPU_POSITION_ROWS_H_
#define LIBROPE_SRC_CPU_POSITION_ROWS_H_

#include <hwy/base.h>

#include <cstdint>

#include "call/plan.h"
#include "context/context.h"
#include "cpu/kernels.h"
#include "math/angle.h"
#include "math/operation.h"
#include "math/token_position.h"

namespace rope::cpu {

// Rows in an order in which they can be made at once, of tokens [first, first + count) of a batch
// row, at most kMost, each followed by the next. False where a token has not one position and one
// row, or another way makes it: nothing has been written then.
template <int kMost>
HWY_INLINE bool MakeRowsOfPositions(const Plan& plan, const Kernels& kernels, RowOrder order,
                                    int64_t batch, int64_t first, int count, float* rows) {
  const rope_context& context = *plan.context;
  if (context.axes != 1 || context.sums || context.sets.size() != 1) return false;
  const FrequencySet& set = context.sets[0];
  const Scales scales = ScalesOf(plan.operation, set.attention_factor);
  const int width = RowWidth(order, context.pairs);
  const Row row = {rows, rows + width, context.pairs, scales.cos, scales.sin, order, 2 * width};
  const PositionSource& source = plan.positions;
  const auto read = [&](auto* positions, auto position_of) __attribute__((always_inline)) {
    for (int i = 0; i < count; ++i) {
      positions[i] = position_of(source, LocateToken(source, batch, first + i), 0);
    }
  };
  const AngleRule rule = AngleRuleOf(context.angle, source.type);
  if (rule == AngleRule::kExact) {
    int64_t positions[kMost];
    read(positions, IntegerPosition);
    kernels.phase_rows(set, positions, count, row);
    return true;
  }
  if (rule != AngleRule::kFloat32 && rule != AngleRule::kDivide) return false;
  float positions[kMost];
  read(positions, PositionAsFloat);
  (rule == AngleRule::kDivide ? kernels.divided_rows : kernels.angle_rows)(set, positions, count,
                                                                           row);
  return true;
}

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_POSITION_ROWS_H_
