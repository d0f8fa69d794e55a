// Calls through kernels of every kind, without a GPU.
#ifndef LIBROPE_TESTS_GPU_CALL_WALK_H_
#define LIBROPE_TESTS_GPU_CALL_WALK_H_

#include <cstdint>
#include <set>
#include <tuple>
#include <utility>

#include "gpu/launch.h"
#include "librope/rope.h"
#include "staged_walk.h"
#include "walk.h"

namespace rope::gpu {

// Kernels, by dtype and whether heads are cut into columns.
inline std::set<std::pair<rope_dtype, bool>> walked_gradients;

// How heads in columns lay: dtype, their channels, how many pairs turn, whether these are side by
// side, and whether a block has several tensors.
using GradientColumnsOf = std::tuple<rope_dtype, int, int, bool, bool>;
inline std::set<GradientColumnsOf> walked_gradient_columns;
inline void NoteColumns(const GradientLaunch& l) {
  for (int32_t s = 0; s < l.params.side_count; ++s) {
    const GradientSide& side = l.params.sides[s];
    walked_gradient_columns.insert({l.dtype, static_cast<int>(side.norm.channels),
                                    static_cast<int>(side.span / 2), l.params.reads_interleaved,
                                    l.params.columns.together});
  }
}

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
  walked_gradients.insert({l.dtype, l.columns});
  if (l.columns) NoteColumns(l);
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
