// Calls through kernels of every kind, without a GPU.
#ifndef LIBROPE_TESTS_GPU_CALL_WALK_H_
#define LIBROPE_TESTS_GPU_CALL_WALK_H_

#include <set>

#include "gpu/launch.h"
#include "librope/rope.h"
#include "staged_walk.h"
#include "walk.h"

namespace rope::gpu {

inline std::set<rope_dtype> walked_gradients;  // kernels, by dtype

// All threads of a block.
void WalkGradientBlock(const GradientLaunch& l, const HostBlock& block);

inline void WalkGradients(const GradientLaunch& l, bool backwards) {
  WalkBlocks(l.shape, backwards, [&](const HostBlock& block) { WalkGradientBlock(l, block); });
}

// A GradientLaunchFn; `data` is a WalkedStaged.
inline rope_status WalkGradient(const GradientLaunch& l, void* data) {
  auto* const w = static_cast<WalkedStaged*>(data);
  ++w->launches;
  ++w->gradients;
  walked_gradients.insert(l.dtype);
  ExpectLimits(l.shape, l.shared_bytes);
  if (!w->walk) return ROPE_OK;
  WalkGradients(l, w->backwards);
  return ROPE_OK;
}

// A LaunchFnOf<P>; `data` is a WalkedStaged.
template <class P>
rope_status WalkBeside(const LaunchOf<P>& l, void* data) {
  auto* const w = static_cast<WalkedStaged*>(data);
  WalkedOf<P> walked;
  walked.walk = w->walk;
  const rope_status s = WalkLaunch<P>(l, &walked);
  w->launches += walked.launches;
  return s;
}
inline constexpr LaunchFns kWalks = {&WalkBeside<Params>, &WalkBeside<FusedParams>, &WalkStaged,
                                     &WalkGradient};

}  // namespace rope::gpu

#endif  // LIBROPE_TESTS_GPU_CALL_WALK_H_
