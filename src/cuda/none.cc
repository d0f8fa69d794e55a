// The CUDA backend of a library built without CUDA: it says so. The exported symbols are the same.
#include "base/status.h"
#include "cuda/traits.h"

namespace rope {
namespace {

rope_status Attach(const char* function, rope_context*) {
  return Fail(ROPE_ERROR_UNAVAILABLE,
              "%s: config->device (CUDA): this librope was built without CUDA", function);
}

}  // namespace

const Backend kCudaBackend = cuda::MakeBackend(&Attach, nullptr, nullptr);

}  // namespace rope
