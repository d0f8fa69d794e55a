// What the words of the API mean, once for all backends: which channels a pairing joins, what an
// operation does to cos and sin, where a row of cos and sin has its values. Host and device.
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

// Where a row in the caller's format has the cos and sin of a pair. FULL formats: see IsFull.
struct Place {
  bool in_sin;  // in the second tensor
  int64_t index;
};

ROPE_HD Place CosPlace(rope_cos_sin_format format, int pair, int pairs) {
  switch (format) {
    case ROPE_COS_SIN_PACKED_SIN_FIRST: return {false, pairs + pair};
    case ROPE_COS_SIN_COMPLEX: return {false, 2 * pair};
    case ROPE_COS_SIN_SINUSOIDAL: return {false, 2 * pair + 1};
    default: return {false, pair};
  }
}

ROPE_HD Place SinPlace(rope_cos_sin_format format, int pair, int pairs) {
  switch (format) {
    case ROPE_COS_SIN_PACKED: return {false, pairs + pair};
    case ROPE_COS_SIN_COMPLEX: return {false, 2 * pair + 1};
    case ROPE_COS_SIN_SINUSOIDAL: return {false, 2 * pair};
    case ROPE_COS_SIN_SPLIT: return {true, pair};
    default: return {false, pair};
  }
}

// A value of its own for each channel, in both tensors.
ROPE_HD bool IsFull(rope_cos_sin_format format) {
  return format == ROPE_COS_SIN_FULL_HALVES || format == ROPE_COS_SIN_FULL_INTERLEAVED;
}

ROPE_HD bool IsAngles(rope_cos_sin_format format) {
  return format == ROPE_COS_SIN_ANGLES || format == ROPE_COS_SIN_ANGLES_FULL;
}

}  // namespace rope

#endif  // LIBROPE_SRC_SEMANTICS_H_
