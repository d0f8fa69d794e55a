// A call on one token: what it costs beside its heads counts as much as they do, so nothing is
// prepared here that only more tokens need.
#ifndef LIBROPE_SRC_CPU_ONE_TOKEN_H_
#define LIBROPE_SRC_CPU_ONE_TOKEN_H_

#include "call/plan.h"
#include "cpu/course.h"
#include "cpu/kept_rows.h"
#include "math/tensor.h"

namespace rope::cpu {

// Makes the row of the only token of a call and turns its heads, or returns false and leaves it to
// the backend, where something is not as usual. Of a plan without slots and norms.
bool RotateOneToken(const Plan& plan);

// Whether a prepared call is on one token, whose heads turn by the row that was kept.
bool IsOneToken(const Course& course, const KeptRows& kept, const Plan& plan);
// Turns them.
void RotateOneToken(const Course& course, const KeptRows& kept, const Plan& plan,
                    const Tensor* tensors);

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_ONE_TOKEN_H_
