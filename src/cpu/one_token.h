// A call on one token, which may go to a cache: what it costs beside its heads counts as much as
// they do, so nothing is prepared here that only more tokens need.
#ifndef LIBROPE_SRC_CPU_ONE_TOKEN_H_
#define LIBROPE_SRC_CPU_ONE_TOKEN_H_

#include <optional>

#include "call/fused_plan.h"
#include "call/plan.h"
#include "cpu/course.h"
#include "cpu/kept_rows.h"
#include "cpu/kept_slots.h"
#include "cpu/kernels.h"
#include "math/tensor.h"

namespace rope::cpu {

// Makes the row of the only token of a call and does all that the call is, or returns false and
// leaves it to the backend, where something is not as usual.
bool ApplyToOneToken(const Plan& plan);

// How heads are normed, if they are, and turn: each tensor by its kernel.
struct NormedTurns {
  const Kernels& kernels;
  ChannelOrder order;
  const Kernels::Rotation* rotations[3] = {};
  bool one_pass[3];  // which norms, too

  explicit NormedTurns(const Plan& plan);
  // False where something else is done besides, or a norm comes behind the rotation.
  bool Choose(const Plan& plan);
};

// Whether a prepared call is on one token, whose heads turn by the row that was kept. `normed`: set
// where some are normed.
bool IsOneToken(const Course& course, const KeptRows& kept, const Plan& plan,
                std::optional<NormedTurns>* normed);
// Does all that it is. `slots` and `fused`: null where it has none.
void ApplyToOneToken(const Course& course, const KeptRows& kept, const KeptSlots* slots,
                     const std::optional<NormedTurns>& normed, const Plan& plan,
                     const Tensor* tensors, const FusedPlan* fused);

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_ONE_TOKEN_H_
