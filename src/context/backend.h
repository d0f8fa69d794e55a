// What a device must offer, and what it is like. The edge validates and plans by these facts; a
// backend only executes.
#ifndef LIBROPE_SRC_CONTEXT_BACKEND_H_
#define LIBROPE_SRC_CONTEXT_BACKEND_H_

#include <memory>

#include "librope/rope.h"

namespace rope {

struct FusedPlan;
struct Plan;
struct FillPlan;
struct Tensor;

// What a backend keeps of a prepared call: all that does not depend on where its tensors lie.
class PreparedCall {
 public:
  virtual ~PreparedCall() = default;
  // `plan` is that of the preparation; `tensors` and `fused` (null: none) are its own with their
  // addresses.
  virtual rope_status Apply(const Plan& plan, const Tensor* tensors,
                            const FusedPlan* fused) const = 0;
};

// Filled by name. What a backend does not set, it does not offer.
struct Backend {
  const char* name = nullptr;  // as messages say it
  // The arrays of a call can be read by its checks, and rope_apply_thd serves it.
  bool host_memory = false;
  bool has_streams = false;
  bool has_runner = false;
  bool is_numbered = false;    // there may be several: config.device_index
  bool has_ggml = false;       // offers ROPE_ANGLE_GGML
  bool has_moves = false;      // serves REROTATE and rope_fused.source
  bool has_gradients = false;  // of norms, and of repeated heads

  // Completes a new context for its device (backend_data, backend_name), or says why it cannot.
  rope_status (*attach)(const char* function, rope_context* context) = nullptr;
  rope_status (*apply)(const Plan& plan) = nullptr;
  rope_status (*fill)(const FillPlan& plan) = nullptr;
  // Null: offers no prepared calls. `plan` has no addresses of tensors. May throw std::bad_alloc.
  std::unique_ptr<PreparedCall> (*prepare)(const Plan& plan) = nullptr;
};

// For a static_assert of each backend: what is missing would be a crash at the first call.
constexpr bool IsComplete(const Backend& backend) {
  return backend.name != nullptr && backend.attach != nullptr && backend.apply != nullptr &&
         backend.fill != nullptr;
}

// The backend of a device (0 is the CPU), or null for a number that this version does not know. In
// a library built without it, attach is UNAVAILABLE.
const Backend* FindBackend(rope_device device);

}  // namespace rope

#endif  // LIBROPE_SRC_CONTEXT_BACKEND_H_
