// Rotation one pair at a time with rotate.h: the whole kernel where there are no vectors, and on
// every target what vectors leave of rows whose two channels of a pair have different cos and sin.
#ifndef LIBROPE_SRC_CPU_SCALAR_H_
#define LIBROPE_SRC_CPU_SCALAR_H_

#include <cstring>

#include "base/limits.h"
#include "cpu/block.h"
#include "math/element.h"
#include "math/norm.h"
#include "math/pairing.h"
#include "math/rotate.h"

namespace rope::cpu {

// A normed channel of a dtype, as it turns: the norm has no mean and no bias.
inline float RoundedChannel(rope_norm_rounding rounding, rope_dtype dtype, float x, float root,
                            float weight) {
  const auto round = [=](float value) {
    return rounding == ROPE_NORM_ROUNDING_EAGER ? RoundTo(dtype, value) : value;
  };
  const float normed = NormedChannel(x, 0, root, weight, kNoBias, round);
  return rounding == ROPE_NORM_ROUNDING_ROUNDED ? RoundTo(dtype, normed) : normed;
}

// A segment of a head from pair `i` on.
inline void RotatePairs(rope_dtype dtype, ChannelOrder order, Arithmetic arithmetic,
                        const Segment& segment, int i, const char* in, char* out,
                        const ChannelRow& row) {
  for (; i < segment.pairs; ++i) {
    const PairIndex from = ChannelsOf(ReadsInterleaved(order), i, segment.pairs);
    const PairIndex to = ChannelsOf(WritesInterleaved(order), i, segment.pairs);
    const int p = segment.first_pair + i, c = segment.first_channel;
    const Pair x = {LoadElement(dtype, in, c + from.first),
                    LoadElement(dtype, in, c + from.second)};
    const CosSin first = {row.cos0[p], row.sin0[p]}, second = {row.cos1[p], row.sin1[p]};
    const Pair y = RotateBy(arithmetic, dtype, x, first, second);
    StoreElement(dtype, out, c + to.first, y.x0);
    StoreElement(dtype, out, c + to.second, y.x1);
  }
}

// A head. `vectors` does what it can of each segment; null: nothing.
inline void RotateHead(rope_dtype dtype, ChannelOrder order, Arithmetic arithmetic,
                       const Segment* segments, int32_t segment_count, const char* in, char* out,
                       const ChannelRow& row, ChannelRotation vectors) {
  // Orders that move channels would overwrite what they have not read yet.
  alignas(8) char copy[kMaxHeadDim * kMaxElementSize];
  if (in == out && MovesChannels(order)) {
    const Segment& last = segments[segment_count - 1];
    std::memcpy(copy, in,
                static_cast<size_t>((last.first_channel + 2 * last.pairs) * ElementSize(dtype)));
    in = copy;
  }
  for (int s = 0; s < segment_count; ++s) {
    const Segment& segment = segments[s];
    const int64_t first = int64_t{segment.first_channel} * ElementSize(dtype);
    const int done = vectors == nullptr ? 0
                                        : vectors(order, in + first, out + first, segment.pairs,
                                                  row.From(segment.first_pair));
    RotatePairs(dtype, order, arithmetic, segment, done, in, out, row);
  }
}

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_SCALAR_H_
