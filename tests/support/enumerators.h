// The dtypes, pairings, roundings, scalings, operations, kinds of positions and formats of rows
// that the library knows, for tests that go through all of them: a new one fails there until the
// reference has it, too.
#ifndef LIBROPE_TESTS_SUPPORT_ENUMERATORS_H_
#define LIBROPE_TESTS_SUPPORT_ENUMERATORS_H_

#include <iterator>
#include <vector>

#include "context/scaling_rules.h"
#include "librope/rope.h"
#include "math/element.h"
#include "math/operation.h"
#include "math/pairing.h"
#include "math/rounding.h"

namespace rope::testing {

// The numbers from 1 to these.
inline constexpr rope_dtype kLastDtype = kDtypes;
inline constexpr rope_pairing kLastPairing = std::size(kPairings) - 1;
inline constexpr rope_scaling kLastScaling = std::size(kScalingRules) - 1;
inline constexpr rope_rounding kLastRounding = std::size(kRoundings) - 1;
inline constexpr rope_position_kind kLastPositionKind = ROPE_POSITIONS_IDS_STRIDED;

// Dtypes of which a test can go through all values.
inline std::vector<rope_dtype> SixteenBitDtypes() {
  std::vector<rope_dtype> dtypes;
  for (rope_dtype d = 1; d <= kLastDtype; ++d) {
    if (ElementSize(d) == 2) dtypes.push_back(d);
  }
  return dtypes;
}

// The dtypes of tensors that contexts with this rounding rotate.
inline std::vector<rope_dtype> DtypesOf(rope_rounding rounding) {
  std::vector<rope_dtype> dtypes;
  for (rope_dtype d = 1; d <= kLastDtype; ++d) {
    if (rounding != ROPE_ROUNDING_NATIVE || d == ROPE_DTYPE_F16) dtypes.push_back(d);
  }
  return dtypes;
}

// The operations that rows of cos and sin, or positions of some kind, allow. Not those that need
// two positions of each token.
inline std::vector<rope_operation> OperationsOf(bool rows, bool distances) {
  std::vector<rope_operation> operations;
  for (rope_operation o = 0; IsOperation(o); ++o) {
    const OperationRule& rule = kOperations[o];
    if (rows ? rule.takes_rows : !rule.has_from() && (distances || !rule.by_distance())) {
      operations.push_back(o);
    }
  }
  return operations;
}

// The formats of rows of cos and sin that the library knows.
inline std::vector<rope_cos_sin_format> Formats() {
  std::vector<rope_cos_sin_format> formats;
  for (rope_cos_sin_format f = 1; rope_cos_sin_tensors(f) != 0; ++f) formats.push_back(f);
  return formats;
}

inline bool HoldsAngles(rope_cos_sin_format format) {
  return format == ROPE_COS_SIN_ANGLES || format == ROPE_COS_SIN_ANGLES_FULL;
}

// Whether rope_apply_qk reads it: all but those that the header calls "written only, never read".
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
