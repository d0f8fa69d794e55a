// The scales of tensors in 8 bits by their definition in the header: what stands in memory, and
// what is computed from the numbers of a group. Unlike anything in src/.
#ifndef LIBROPE_TESTS_SUPPORT_SCALES_H_
#define LIBROPE_TESTS_SUPPORT_SCALES_H_

#include <cmath>
#include <cstdint>
#include <limits>

#include "librope/rope.h"
#include "support/elements.h"

namespace rope::testing {

inline int64_t SizeOfScale(const rope_scale& s) { return s.dtype == ROPE_DTYPE_E8M0 ? 1 : 4; }

inline float ReadScale(const rope_scale& s, const char* at) {
  if (s.dtype == ROPE_DTYPE_E8M0) return std::ldexp(1.0f, static_cast<uint8_t>(*at) - 127);
  return static_cast<float>(ReadElement(ROPE_DTYPE_F32, at));
}

inline void WriteScale(const rope_scale& s, char* at, float scale) {
  if (s.dtype == ROPE_DTYPE_E8M0) {
    *at = static_cast<char>(std::ilogb(scale) + 127);
  } else {
    WriteElement(ROPE_DTYPE_F32, at, scale);
  }
}

// Of a group of numbers that are stored as codes of a dtype.
inline float ComputedScale(const rope_scale& s, rope_dtype dtype, const float* x, int64_t count) {
  float largest = 0;
  for (int64_t c = 0; c < count; ++c) {
    if (std::isnan(x[c])) continue;
    largest = std::fmax(largest, std::fmin(std::fabs(x[c]), std::numeric_limits<float>::max()));
  }
  const float most = dtype == ROPE_DTYPE_F8_E4M3   ? 448.0f
                     : dtype == ROPE_DTYPE_F8_E5M2 ? 57344.0f
                                                   : 127.0f;
  const float least = s.min_scale == 0 ? 0x1p-126f : static_cast<float>(s.min_scale);
  const float scale = std::fmax(largest / most, least);
  if (s.power_of_two == 0) return scale;
  int exponent;
  const float mantissa = std::frexp(scale, &exponent);
  return std::ldexp(1.0f, mantissa == 0.5f ? exponent - 1 : exponent);
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_SCALES_H_
