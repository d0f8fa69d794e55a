// The CUDA kernels without a GPU: every block and thread of a launch, with the very functions that
// the kernels consist of, on memory that knows its bounds and counts what is written. What has the
// kernels in it is compiled once for all tests: walk.cc, staged_walk.cc, gradient_walk.cc.
#ifndef LIBROPE_TESTS_GPU_WALK_H_
#define LIBROPE_TESTS_GPU_WALK_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <type_traits>
#include <vector>

#include "gpu/launch.h"

namespace rope::gpu {

// Device memory as the test sees it: ranges that may be read or written, and how often each byte
// of an output was. With `content` null nothing is dereferenced: bytes follow from addresses, and
// stores are kept.
struct Arena {
  struct Range {
    const char* begin;
    const char* end;
    std::vector<uint8_t>* writes;  // null: read only
  };
  std::vector<Range> ranges;
  bool is_virtual = false;
  std::map<uint64_t, std::vector<uint32_t>> stores;
  int64_t loads = 0, bytes_written = 0;
  bool failed = false;

  const Range* Find(const char* at, int bytes, bool write) {
    for (const Range& r : ranges) {
      if (at >= r.begin && at + bytes <= r.end && (!write || r.writes != nullptr)) return &r;
    }
    return nullptr;
  }
};
inline Arena* arena;

// Variants, by number; those of plain.h behind the others.
inline std::set<int> walked, walked_fused;

// Every thread of a block.
void WalkBlock(const LaunchOf<Params>& l, uint32_t x, uint32_t y);
void WalkBlock(const LaunchOf<FusedParams>& l, uint32_t x, uint32_t y);

template <class P>
struct WalkedOf {
  int launches = 0;
  std::vector<LaunchOf<P>> kept;  // if asked for
  bool walk = true, keep = false;
};
using Walked = WalkedOf<Params>;
using WalkedFused = WalkedOf<FusedParams>;

// A LaunchFn; `data` is a WalkedOf<P>.
template <class P>
rope_status WalkLaunch(const LaunchOf<P>& l, void* data) {
  auto* w = static_cast<WalkedOf<P>*>(data);
  ++w->launches;
  (std::is_same_v<P, FusedParams> ? walked_fused : walked)
      .insert(IndexOf(l.variant) + (l.plain ? kVariants : 0));
  EXPECT_LE(l.shape.x * l.shape.y * l.shape.z, static_cast<uint32_t>(kMaxThreads));
  EXPECT_LE(l.shape.z, 64u);
  EXPECT_LE(l.shape.grid_y, 65535u);
  EXPECT_LE(l.shape.grid_x, static_cast<uint32_t>(INT32_MAX));
  EXPECT_LE(l.shared_bytes, 48u << 10);
  if (w->keep) w->kept.push_back(l);
  for (uint32_t y = 0; w->walk && y < l.shape.grid_y; ++y) {
    for (uint32_t x = 0; x < l.shape.grid_x; ++x) WalkBlock(l, x, y);
  }
  return ROPE_OK;
}
inline constexpr LaunchFn Walk = &WalkLaunch<Params>;
inline constexpr FusedLaunchFn WalkFused = &WalkLaunch<FusedParams>;

}  // namespace rope::gpu

#endif  // LIBROPE_TESTS_GPU_WALK_H_
