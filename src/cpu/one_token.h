// A call on one token, which may go to a cache: what it costs beside its heads counts as much as
// they do, so nothing is prepared here that only more tokens need.
#ifndef LIBROPE_SRC_CPU_ONE_TOKEN_H_
#define LIBROPE_SRC_CPU_ONE_TOKEN_H_

#include "call/fused_plan.h"
#include "call/plan.h"
#include "cpu/course.h"
#include "cpu/kept_rows.h"
#include "cpu/kept_slots.h"
#include "math/tensor.h"

namespace rope::cpu {

// Makes the row of the only token of a call and does all that the call is, or returns false and
// leaves it to the backend, where something is not as usual.
bool ApplyToOneToken(const Plan& plan);

// Whether a prepared call is on one token, whose heads turn by the row that was kept.
bool IsOneToken(const Course& course, const KeptRows& kept, const Plan& plan);
// Does all that it is. `slots` and `fused`: null where it has none.
void ApplyToOneToken(const Course& course, const KeptRows& kept, const KeptSlots* slots,
                     const Plan& plan, const Tensor* tensors, const FusedPlan* fused);

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_ONE_TOKEN_H_
