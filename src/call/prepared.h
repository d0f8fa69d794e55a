// A call whose checks and rows are made once, and which is then applied to tensors that lie
// elsewhere each time.
#ifndef LIBROPE_SRC_CALL_PREPARED_H_
#define LIBROPE_SRC_CALL_PREPARED_H_

#include <memory>

#include "call/check_tensors.h"
#include "call/plan.h"
#include "context/backend.h"
#include "librope/rope.h"

namespace rope {

struct PreparedFused {
  FusedPlan plan;  // without addresses and slots
  FusedShapes shapes;
};

}  // namespace rope

struct rope_prepared {
  rope::Plan plan;  // without addresses, positions and slots: `call` has what follows from them
  rope::Shapes shapes;
  unsigned fields;                             // of rope_qk_data that must be given
  std::unique_ptr<rope::PreparedFused> fused;  // null: plan.fused is
  rope_runner runner;
  std::unique_ptr<rope::PreparedCall> call;  // null if there is nothing to do
};

namespace rope {

// May throw std::bad_alloc.
rope_status Prepare(const char* function, const rope_context* context, const rope_qk_args* args,
                    std::unique_ptr<rope_prepared>* out);

rope_status ApplyPrepared(const rope_prepared* prepared, const rope_qk_data* data);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_PREPARED_H_
