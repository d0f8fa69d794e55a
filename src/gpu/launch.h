// From a plan to kernel launches: which kernel, the shape of its grid, its parameters. Pure host
// functions without CUDA: tests walk the launches they make.
#ifndef LIBROPE_SRC_GPU_LAUNCH_H_
#define LIBROPE_SRC_GPU_LAUNCH_H_

#include <cstdint>

#include "call/plan.h"
#include "gpu/gradient_params.h"
#include "gpu/params.h"
#include "gpu/shape.h"
#include "gpu/staged_params.h"

namespace rope::gpu {

template <class P>
struct LaunchOf {
  Variant variant;
  Shape shape;
  uint32_t shared_bytes;
  bool plain;       // a kernel of plain.h
  bool few_tokens;  // may start while the kernel before it drains
  P params;
};
using Launch = LaunchOf<Params>;
using FusedLaunch = LaunchOf<FusedParams>;
struct StagedLaunch {
  StagedVariant variant;
  Shape shape;
  uint32_t shared_bytes;
  StagedParams params;
};

struct GradientLaunch {
  rope_dtype dtype;
  bool columns;  // of gradient_columns.h
  Shape shape;
  uint32_t shared_bytes;
  GradientParams params;
};

template <class P>
using LaunchFnOf = rope_status (*)(const LaunchOf<P>& launch, void* data);
using LaunchFn = LaunchFnOf<Params>;
using FusedLaunchFn = LaunchFnOf<FusedParams>;
using StagedLaunchFn = rope_status (*)(const StagedLaunch& launch, void* data);
using GradientLaunchFn = rope_status (*)(const GradientLaunch& launch, void* data);

// One for each kind of kernels.
struct LaunchFns {
  LaunchFn plain;
  FusedLaunchFn fused;
  StagedLaunchFn staged;
  GradientLaunchFn gradient;
};

// Calls one of them for every launch of a call, in order, and stops at the first that fails.
rope_status ForEachLaunchOfCall(const Plan& plan, int32_t multiprocessors, const LaunchFns& fns,
                                void* data);

// Calls `launch` for every launch of a call without `fused`, in order, and stops at the first that
// fails. One for most calls; more if q and k differ in dtype, if frequencies do not fit into one
// (more than 128 pairs under EXACT, 256 under FLOAT32, or several sets), with rows per head, or
// beyond 2^31 tokens.
rope_status ForEachLaunch(const Plan& plan, int32_t multiprocessors, LaunchFn launch, void* data);

// The same of a call with `fused`, whose k and v share the launches of q. One more for k that turns
// in place after it was stored, and for each copy of v that is aligned to less than q and k, or
// whose heads take more threads and cannot be cut.
rope_status ForEachFusedLaunch(const Plan& plan, int32_t multiprocessors, FusedLaunchFn launch,
                               void* data);

// Whether a call with `fused` does more than store and copy, or only copies: it goes through the
// kernels of staged.h.
bool IsStaged(const Plan& plan);

// The launches of such a call: one for all that has the same dtype and alignment. One more for k
// that turns in place after it was written elsewhere, and for every set of frequencies that
// REROTATE comes from, if there are several.
rope_status ForEachStagedLaunch(const Plan& plan, int32_t multiprocessors, StagedLaunchFn launch,
                                void* data);

// Whether gradients of a call with `fused` pass norms or are added: these tensors go through the
// kernels of gradient.h, and the plan without them is one like others.
bool HasGradients(const Plan& plan);
Plan PlanWithoutGradients(const Plan& plan, FusedPlan* fused);

// What no launch can do, of all tensors, before the first launch.
rope_status CheckGradients(const Plan& plan);

// The launches of such tensors: one for those of each dtype.
rope_status ForEachGradientLaunch(const Plan& plan, int32_t multiprocessors,
                                  GradientLaunchFn launch, void* data);

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
