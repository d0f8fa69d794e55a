// Sizes that the API promises and that buffers rely on: each number stands here once. What follows
// from one says so in a static_assert beside the buffer.
#ifndef LIBROPE_SRC_BASE_LIMITS_H_
#define LIBROPE_SRC_BASE_LIMITS_H_

#include <cstdint>

#include "librope/rope.h"

namespace rope {

inline constexpr int kMaxHeadDim = 1024;  // channels of a head
inline constexpr int kMaxPairs = kMaxHeadDim / 2;
inline constexpr int kMaxAxes = 8;  // ids of a token
// Axes that mrope_section can describe.
inline constexpr int kMaxSections = sizeof(rope_config::mrope_section) / sizeof(int32_t);
inline constexpr int kMaxPageSize = 1 << 30;  // slots of a page of a cache
inline constexpr int kMaxFrequencySets = 256;
inline constexpr int kMaxFrequencyHeads = 1024;
inline constexpr int kMaxPoolThreads = 4096;
inline constexpr double kMaxInvFreq = 0x1p32;  // whole turns of float coordinates fit into 64 bits

static_assert(kMaxHeadDim % 2 == 0 && kMaxSections <= kMaxAxes);
static_assert(kMaxAxes <= UINT8_MAX + 1, "pair_axis is made of bytes");

// Kernels read whole vectors: rows and the tables of a FrequencySet have space for a multiple of
// this.
inline constexpr int kTablePadding = 16;
constexpr int PaddedPairs(int pairs) {
  return (pairs + kTablePadding - 1) / kTablePadding * kTablePadding;
}

}  // namespace rope

#endif  // LIBROPE_SRC_BASE_LIMITS_H_
