// A batch of rows with one token each, as engines decode many sequences, becomes one row whose
// tokens are sequences of their own: the CPU cuts rows into blocks, whose tokens share what a block
// costs.
#ifndef LIBROPE_SRC_CALL_JOIN_BATCH_H_
#define LIBROPE_SRC_CALL_JOIN_BATCH_H_

#include "call/plan.h"

namespace rope {

// `plan` is complete, `fused` what plan->fused points to. Other plans stay as they are.
void JoinBatch(Plan* plan, FusedPlan* fused);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_JOIN_BATCH_H_
