// The CUDA backend of a library built without CUDA: it says so. The exported symbols are the same.
#include "base/status.h"
#include "call/plan.h"
#include "cuda/traits.h"

namespace rope {
namespace {

rope_status Unavailable(const char* function) {
  return Fail(ROPE_ERROR_UNAVAILABLE,
              "%s: config->device (CUDA): this librope was built without CUDA", function);
}

rope_status Attach(const char* function, rope_context*) { return Unavailable(function); }

// Without a context there is no call.
rope_status Apply(const Plan& plan) { return Unavailable(plan.function); }
rope_status Fill(const FillPlan& plan) { return Unavailable(plan.function); }

}  // namespace

extern constexpr Backend kCudaBackend = cuda::MakeBackend(&Attach, &Apply, &Fill);
static_assert(IsComplete(kCudaBackend));

}  // namespace rope
