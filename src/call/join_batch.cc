#include "call/join_batch.h"

#include "math/operation.h"

namespace rope {
namespace {

// Where gradients of weights are added, or keys are read in slots, a batch stays one: these calls
// are rare, and long.
bool IsJoined(const Plan& plan, const FusedPlan& fused) {
  if (plan.tokens != 1 || plan.batch < 2 || plan.has_rows || plan.batch_repeat != 1) return false;
  if (plan.positions.place != WholeSource::kRows) return false;
  if (!plan.context->backend->host_memory) return false;
  if (plan.fused == nullptr) return true;
  const OperationRule& rule = kOperations[plan.operation];
  return fused.source.kind == 0 && !rule.has_from() && !rule.is_gradient();
}

// From one batch row to the next is from one token to the next.
void Join(HeadStrides* strides) { strides->token = strides->batch; }

void JoinOutput(Output* output) {
  if (output->HasScaleArray()) Join(&output->scales.strides);
}

}  // namespace

void JoinBatch(Plan* plan, FusedPlan* fused) {
  if (!IsJoined(*plan, *fused)) return;
  plan->tokens = plan->batch;
  plan->batch = 1;
  plan->positions.place = WholeSource::kEach;
  plan->positions.stride_token = plan->positions.stride_batch;
  const int32_t cached = plan->fused != nullptr ? fused->cached : -1;
  for (int32_t n = 0; n < plan->tensor_count; ++n) {
    Tensor& t = plan->tensors[n];
    Join(&t.in_strides);
    if (n == cached) continue;
    Join(&t.out_strides);
    if (plan->fused != nullptr) JoinOutput(&fused->outputs[n]);
  }
  for (int32_t n = 0; plan->fused != nullptr && n < fused->copies.count; ++n) {
    Copy& copy = fused->copies.of[n];
    Join(&copy.in_strides);
    if (copy.ToSlots()) continue;
    Join(&copy.out_strides);
    JoinOutput(&copy.output);
  }
}

}  // namespace rope
