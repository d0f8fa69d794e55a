// From a plan to kernel launches: which kernel, the shape of its grid, its parameters. Pure host
// functions without CUDA: tests walk the launches they make.
#ifndef LIBROPE_SRC_GPU_LAUNCH_H_
#define LIBROPE_SRC_GPU_LAUNCH_H_

#include <cstdint>

#include "call/plan.h"
#include "gpu/params.h"

namespace rope::gpu {

struct Shape {
  uint32_t x, y, z;         // threads of a block
  uint32_t grid_x, grid_y;  // blocks
  uint32_t heads_per_thread;
};

// What decides the shape of a launch.
struct Work {
  uint32_t lanes;    // threads for one head
  int32_t heads[2];  // of q and k; 0: absent
  int64_t tokens;
  uint32_t row_bytes;  // shared memory for cos and sin of one token
  int32_t multiprocessors;
};

// Many tokens: two heads for each thread and whole tokens in a block of 128 to 320 threads. Few:
// one head for each thread, small blocks, several for a token. grid_y may be more than a grid can
// have.
Shape ShapeOf(const Work& work);

struct Launch {
  Variant variant;
  Shape shape;
  uint32_t shared_bytes;
  bool few_tokens;  // may start while the kernel before it drains
  Params params;
};

using LaunchFn = rope_status (*)(const Launch& launch, void* data);

// Calls `launch` for every launch of the call, in order, and stops at the first that fails. One for
// most calls; more if q and k differ in dtype, if frequencies do not fit into one (more than 128
// pairs under EXACT, 256 under FLOAT32, or several sets), with rows per head, or beyond 2^31
// tokens.
rope_status ForEachLaunch(const Plan& plan, int32_t multiprocessors, LaunchFn launch, void* data);

struct FillLaunch {
  bool with_angles;
  uint32_t grid_x;
  CosSinSource source;
};
// Threads of a block of the fill kernel: pairs (each thread takes every kFillPairs-th), tokens.
inline constexpr uint32_t kFillPairs = 32, kFillTokens = 8;

using FillLaunchFn = rope_status (*)(const FillLaunch& launch, void* data);
rope_status ForEachFillLaunch(const FillPlan& plan, FillLaunchFn launch, void* data);

}  // namespace rope::gpu

#endif  // LIBROPE_SRC_GPU_LAUNCH_H_
