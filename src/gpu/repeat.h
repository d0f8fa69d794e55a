// Batch rows that share a row of positions (rope_positions.batch_repeat). A kernel finds a token's
// position by its batch row, and is not made slower for such calls: they are cut into parts in each
// of which all batch rows have one row of positions, or each has its own. Most are one part,
// because what their positions are made of does not depend on the batch row.
#ifndef LIBROPE_SRC_GPU_REPEAT_H_
#define LIBROPE_SRC_GPU_REPEAT_H_

#include <cstdint>

#include "call/fused_plan.h"
#include "call/plan.h"
#include "math/operation.h"

namespace rope::gpu {

// Which of a call's batch rows a part has.
struct BatchPart {
  int64_t first, step, count;
  int64_t position_row;  // of all of them; -1: they have one after the other
};

class RepeatedBatch {
 public:
  // `from`: the positions before, of REROTATE; else null.
  RepeatedBatch(const FillPlan& plan, const PositionSource* from);

  int64_t parts() const { return parts_; }
  BatchPart At(int64_t part) const;

 private:
  int64_t rows_, repeat_, parts_;
  bool by_row_;
};

// A part of a plan, whose FusedPlan, if there is one, is `fused`. FillPlan::batch_repeat becomes
// the step from one of its batch rows to the next.
Plan PlanOfPart(const Plan& plan, const BatchPart& part, FusedPlan* fused);
FillPlan PlanOfPart(const FillPlan& plan, const BatchPart& part);

// Calls visit(plan) for each part of a plan.
template <class Visit>
rope_status ForEachRepeat(const Plan& plan, Visit visit) {
  if (plan.batch_repeat <= 1) return visit(plan);
  const bool moves = plan.fused != nullptr && kOperations[plan.operation].has_from();
  const RepeatedBatch batch(plan, moves ? &plan.fused->from : nullptr);
  for (int64_t n = 0; n < batch.parts(); ++n) {
    FusedPlan fused;
    if (rope_status s = visit(PlanOfPart(plan, batch.At(n), &fused))) return s;
  }
  return ROPE_OK;
}

template <class Visit>
rope_status ForEachRepeat(const FillPlan& plan, Visit visit) {
  if (plan.batch_repeat <= 1) return visit(plan);
  const RepeatedBatch batch(plan, nullptr);
  for (int64_t n = 0; n < batch.parts(); ++n) {
    if (rope_status s = visit(PlanOfPart(plan, batch.At(n)))) return s;
  }
  return ROPE_OK;
}

}  // namespace rope::gpu

#endif  // LIBROPE_SRC_GPU_REPEAT_H_
