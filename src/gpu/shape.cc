#include "gpu/shape.h"

#include <algorithm>

namespace rope::gpu {
namespace {

constexpr uint32_t kRowBytesPerBlock = 16384;  // shared memory that several tokens may take
constexpr uint32_t kMaxSizeZ = 64;

// Tokens of one block: enough for 128 threads, in whole warps where 320 threads allow it.
uint32_t TokensPerBlock(uint32_t threads_per_token, const Work& work) {
  const int64_t limit = std::min<int64_t>(
      {kMaxSizeZ, work.tokens, std::max(1u, kRowBytesPerBlock / std::max(1u, work.row_bytes))});
  uint32_t best = 1, best_idle = UINT32_MAX;  // idle lanes, in 1/1000 of the threads
  for (uint32_t z = 1; z <= limit && z * threads_per_token <= 320; ++z) {
    const uint32_t threads = z * threads_per_token;
    const uint32_t idle = (DivideUp(threads, 32u) * 32 - threads) * 1000 / threads;
    if (threads < 128) {
      best = z;
    } else if (idle < best_idle) {
      best = z;
      best_idle = idle;
    }
  }
  return best;
}

}  // namespace

Shape ShapeOf(const Work& work) {
  Shape shape{};
  const bool few = work.tokens < 4 * int64_t{work.multiprocessors};
  shape.heads_per_thread = few ? 1 : 2;
  const auto per_thread = static_cast<int64_t>(shape.heads_per_thread);
  int64_t groups = 0;
  for (const uint32_t heads : work.heads) groups += DivideUp<int64_t>(heads, per_thread);
  const int64_t most_groups = kMaxThreads / work.lanes;
  int64_t y;
  if (few) {
    y = std::max<int64_t>(DivideUp(64u, work.lanes),
                          groups * work.tokens / (8 * int64_t{work.multiprocessors}));
    y = std::min({y, most_groups, groups});
  } else {
    y = DivideUp(groups, DivideUp(groups, most_groups));
  }
  shape.x = work.lanes;
  shape.y = static_cast<uint32_t>(y);
  shape.z = few ? 1 : TokensPerBlock(shape.x * shape.y, work);
  shape.grid_x = static_cast<uint32_t>(DivideUp<int64_t>(work.tokens, shape.z));
  shape.grid_y = static_cast<uint32_t>(DivideUp(groups, y));
  return shape;
}

}  // namespace rope::gpu
