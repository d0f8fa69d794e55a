// What a device must offer, and what it is like. The edge validates and plans by these facts; a
// backend only executes.
#ifndef LIBROPE_SRC_CONTEXT_BACKEND_H_
#define LIBROPE_SRC_CONTEXT_BACKEND_H_

#include "librope/rope.h"

namespace rope {

struct Plan;
struct FillPlan;

struct Backend {
  rope_device device;
  const char* name;  // as messages say it
  bool host_memory;  // the arrays of a call can be read by its checks, and rope_apply_thd serves it
  bool has_streams, has_runner;
  bool is_numbered;  // there may be several: config.device_index
  bool has_ggml;     // offers ROPE_ANGLE_GGML

  // Completes a new context for its device (backend_data, backend_name), or says why it cannot.
  rope_status (*attach)(const char* function, rope_context* context);
  rope_status (*apply)(const Plan& plan);
  rope_status (*fill)(const FillPlan& plan);
};

// The backend of a device (0 is the CPU), or null for a number that this version does not know. In
// a library built without it, attach is UNAVAILABLE.
const Backend* FindBackend(rope_device device);

// For the list in backends.cc alone.
extern const Backend kCpuBackend;
extern const Backend kCudaBackend;

}  // namespace rope

#endif  // LIBROPE_SRC_CONTEXT_BACKEND_H_
