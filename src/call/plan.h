// A validated call: everything a backend needs, nothing it must check. Lives on the caller's stack.
#ifndef LIBROPE_SRC_CALL_PLAN_H_
#define LIBROPE_SRC_CALL_PLAN_H_

#include <cstdint>

#include "call/call.h"
#include "call/check_fused.h"
#include "call/check_tensors.h"
#include "call/fused_plan.h"
#include "context/backend.h"
#include "context/context.h"
#include "librope/rope.h"
#include "math/cos_sin_table.h"
#include "math/tensor.h"
#include "math/token_position.h"

namespace rope {

// rope_cos_sin_fill, and what both have.
struct FillPlan {
  const char* function;  // public name, for messages
  const rope_context* context;
  int64_t batch, tokens;
  PositionSource positions;
  int64_t batch_repeat;  // batch rows, one after the other, that share a row of positions
  CosSinTable rows;      // written; in a Plan with has_rows: read instead of positions
  // Rows of cos and sin that a token has: each serves as many adjacent heads of a tensor.
  int32_t row_heads;
  void* stream;

  // That of the positions of a batch row.
  int64_t PositionRow(int64_t batch_row) const {
    return batch_repeat == 1 ? batch_row : batch_row / batch_repeat;
  }
};

// rope_apply_qk.
struct Plan : FillPlan {
  rope_operation operation;
  bool has_rows;
  int32_t tensor_count;
  Tensor tensors[3];  // q, k; with a cache: q, k to its slots, k to k_out, as far as there are any
  const rope_runner* runner;
  const FusedPlan* fused;  // null: q and k are rotated, and that is all
};

// Checks `args` and fills `plan`, but for the addresses of a call that is prepared. ROPE_OK with
// tensor_count 0: there is nothing to do, and `shapes` are not written. `fused` is where
// plan->fused lies if there is one; otherwise neither it nor `fused_shapes` are written. The latter
// may be null.
rope_status MakePlan(const char* function, const Names& names, const rope_context* context,
                     const rope_qk_args* args, DataOf data_of, Plan* plan, Shapes* shapes,
                     FusedPlan* fused, FusedShapes* fused_shapes);

// Batch and tokens; `names` stands before them.
rope_status CheckSizes(const Call& call, const char* names);

rope_status MakeFillPlan(const char* function, const rope_context* context, int64_t batch,
                         int64_t tokens, const rope_positions* positions, const rope_cos_sin* out,
                         void* stream, FillPlan* plan);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_PLAN_H_
