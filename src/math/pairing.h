// Which channels a pairing joins, and in which order an operation reads and writes them. Host and
// device.
#ifndef LIBROPE_SRC_MATH_PAIRING_H_
#define LIBROPE_SRC_MATH_PAIRING_H_

#include <cstdint>
#include <iterator>

#include "librope/rope.h"
#include "math/host_device.h"
#include "math/operation.h"

namespace rope {

// Where the members of a pair are read and written.
enum ChannelOrder : int { kHalves, kInterleaved, kInterleavedToHalves, kHalvesToInterleaved };
inline constexpr int kChannelOrders = kHalvesToInterleaved + 1;

constexpr bool ReadsInterleaved(ChannelOrder order) {
  return order == kInterleaved || order == kInterleavedToHalves;
}
constexpr bool WritesInterleaved(ChannelOrder order) {
  return order == kInterleaved || order == kHalvesToInterleaved;
}
constexpr bool MovesChannels(ChannelOrder order) {
  return ReadsInterleaved(order) != WritesInterleaved(order);
}

struct PairingRule {
  ChannelOrder forward, back, after;  // of an operation with this Way
  bool block_per_axis;                // each axis has a block of channels of its own
};

// By number; 0 only with NOPE.
inline constexpr PairingRule kPairings[] = {
    {kHalves, kHalves, kHalves, false},
    {kHalves, kHalves, kHalves, false},                            // HALVES
    {kInterleaved, kInterleaved, kInterleaved, false},             // INTERLEAVED
    {kInterleavedToHalves, kHalvesToInterleaved, kHalves, false},  // INTERLEAVED_TO_HALVES
    {kHalves, kHalves, kHalves, true},                             // HALVES_PER_AXIS
};
static_assert(std::size(kPairings) == ROPE_PAIRING_HALVES_PER_AXIS + 1);

// For whoever asks of pairs what does not depend on their channels.
inline constexpr rope_pairing kAnyPairing = ROPE_PAIRING_HALVES;

inline ChannelOrder ChannelOrderOf(rope_pairing pairing, rope_operation operation) {
  const PairingRule& rule = kPairings[pairing];
  switch (kOperations[operation].way) {
    case Way::kBack: return rule.back;
    case Way::kAfter: return rule.after;
    default: return rule.forward;
  }
}

// Pairs whose members are adjacent or half a segment apart. A span is one segment, but for
// block_per_axis, where each axis has its own.
struct Segment {
  int32_t first_channel;  // in the span
  int32_t first_pair;
  int32_t pairs;
};

// Channels of pair i within a segment of n pairs.
struct PairIndex {
  int first, second;
};

ROPE_HD PairIndex ChannelsOf(bool interleaved, int i, int n) {
  return interleaved ? PairIndex{2 * i, 2 * i + 1} : PairIndex{i, i + n};
}

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_PAIRING_H_
