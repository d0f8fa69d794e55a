// What a device must offer. The edge validates and plans; a backend only executes.
#ifndef LIBROPE_SRC_BACKEND_H_
#define LIBROPE_SRC_BACKEND_H_

#include "librope/rope.h"

namespace rope {

struct Plan;
struct FillPlan;

struct Backend {
  // Completes a new context for its device (backend_data, backend_name), or says why it cannot.
  rope_status (*attach)(const char* function, rope_context* context);
  rope_status (*apply)(const Plan& plan);
  rope_status (*fill)(const FillPlan& plan);
};

extern const Backend kCpuBackend;
extern const Backend kCudaBackend;  // in a library built without CUDA, attach is UNAVAILABLE

}  // namespace rope

#endif  // LIBROPE_SRC_BACKEND_H_
