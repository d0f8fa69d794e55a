// What the words of the API mean, once for all backends: which channels a pairing joins, what an
// operation does to cos and sin. Host and device.
#ifndef LIBROPE_SRC_SEMANTICS_H_
#define LIBROPE_SRC_SEMANTICS_H_

#include <cstdint>

#include "host_device.h"
#include "librope/rope.h"

namespace rope {

// Which members of a pair a rotation reads and writes.
enum Direction : int { kHalves, kInterleaved, kInterleavedToHalves, kHalvesToInterleaved };
inline constexpr int kDirections = 4;

inline Direction DirectionOf(rope_pairing pairing, rope_operation operation) {
  switch (pairing) {
    case ROPE_PAIRING_INTERLEAVED:
      return kInterleaved;
    case ROPE_PAIRING_INTERLEAVED_TO_HALVES:
      if (operation == ROPE_SHIFT) return kHalves;  // works on what FORWARD wrote
      return operation == ROPE_FORWARD ? kInterleavedToHalves : kHalvesToInterleaved;
    default:
      return kHalves;
  }
}

constexpr bool ReadsInterleaved(Direction d) {
  return d == kInterleaved || d == kInterleavedToHalves;
}
constexpr bool WritesInterleaved(Direction d) {
  return d == kInterleaved || d == kHalvesToInterleaved;
}

// Channels of pair i within a segment of n pairs.
struct PairIndex {
  int first, second;
};

ROPE_HD PairIndex ChannelsOf(bool interleaved, int i, int n) {
  return interleaved ? PairIndex{2 * i, 2 * i + 1} : PairIndex{i, i + n};
}

// What multiplies cos and sin in an operation: R(p) is the rotation, a the attention factor.
struct Scales {
  float cos, sin;
};

inline Scales ScalesOf(rope_operation operation, double attention_factor) {
  const auto a = static_cast<float>(attention_factor);
  const auto inverse = static_cast<float>(1 / attention_factor);
  switch (operation) {
    case ROPE_BACKWARD: return {a, -a};             //   a R(-p)
    case ROPE_INVERSE: return {inverse, -inverse};  // 1/a R(-p)
    case ROPE_SHIFT: return {1, 1};                 //     R(p)
    default: return {a, a};                         //   a R(p)
  }
}

}  // namespace rope

#endif  // LIBROPE_SRC_SEMANTICS_H_
