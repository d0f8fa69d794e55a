// Kinds of positions and formats of rows, for tests that go through all of them.
#ifndef LIBROPE_TESTS_SUPPORT_ENUMERATORS_H_
#define LIBROPE_TESTS_SUPPORT_ENUMERATORS_H_

#include <vector>

#include "librope/rope.h"

namespace rope::testing {

// Kinds of positions are the numbers from 1 to this.
inline constexpr rope_position_kind kLastPositionKind = ROPE_POSITIONS_IDS_STRIDED;

// The formats of rows of cos and sin that the library knows.
inline std::vector<rope_cos_sin_format> Formats() {
  std::vector<rope_cos_sin_format> formats;
  for (rope_cos_sin_format f = 1; rope_cos_sin_tensors(f) != 0; ++f) formats.push_back(f);
  return formats;
}

inline bool HoldsAngles(rope_cos_sin_format format) {
  return format == ROPE_COS_SIN_ANGLES || format == ROPE_COS_SIN_ANGLES_FULL;
}

// Whether rope_apply_qk reads it: all but those that the header calls "output only".
inline bool IsRead(rope_cos_sin_format format) {
  return format != ROPE_COS_SIN_SINUSOIDAL && !HoldsAngles(format);
}

inline std::vector<rope_cos_sin_format> ReadableFormats() {
  std::vector<rope_cos_sin_format> formats;
  for (rope_cos_sin_format f : Formats()) {
    if (IsRead(f)) formats.push_back(f);
  }
  return formats;
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_ENUMERATORS_H_
