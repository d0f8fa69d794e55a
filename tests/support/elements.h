// f16 and bf16 by their definition, in double arithmetic: the value of a bit pattern, and the
// pattern whose value is nearest (ties to even). Slow, and unlike anything in src/.
#ifndef LIBROPE_TESTS_SUPPORT_ELEMENTS_H_
#define LIBROPE_TESTS_SUPPORT_ELEMENTS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "librope/rope.h"

namespace rope::testing {

struct Format16 {
  int mantissa_bits, bias, top_exponent;
};
inline constexpr Format16 kHalf{10, 15, 31};
inline constexpr Format16 kBrain{7, 127, 255};
inline Format16 FormatOf(rope_dtype dtype) {
  switch (dtype) {
    case ROPE_DTYPE_F16: return kHalf;
    case ROPE_DTYPE_BF16: return kBrain;
    default: std::abort();  // a dtype that is not described here
  }
}

// As exact as std::ldexp, for exponents of normal doubles, and several times as fast.
inline double PowerOfTwo(int exponent) {
  const uint64_t bits = static_cast<uint64_t>(exponent + 1023) << 52;
  double power;
  std::memcpy(&power, &bits, sizeof(power));
  return power;
}

inline double ValueOf(Format16 f, uint16_t bits) {
  const int exponent = (bits & 0x7fff) >> f.mantissa_bits;
  const int mantissa = bits & ((1 << f.mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == f.top_exponent) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * mantissa * PowerOfTwo(1 - f.bias - f.mantissa_bits);
  return sign * ((1 << f.mantissa_bits) + mantissa) *
         PowerOfTwo(exponent - f.bias - f.mantissa_bits);
}

// Not for NaN.
inline uint16_t NearestOf(Format16 f, double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double size = std::fabs(value);
  const auto infinity = static_cast<uint16_t>(f.top_exponent << f.mantissa_bits);
  if (std::isinf(size)) return static_cast<uint16_t>(sign | infinity);
  if (size == 0) return sign;
  const int exponent = std::max(std::ilogb(size), 1 - f.bias);
  // A whole number of units in the last place; the default rounding mode ties to even.
  const double units = std::nearbyint(size * PowerOfTwo(f.mantissa_bits - exponent));
  // Patterns are consecutive across exponents, so that a carry ends where it should.
  const double pattern = (exponent - (1 - f.bias)) * PowerOfTwo(f.mantissa_bits) + units;
  return static_cast<uint16_t>(sign | (pattern >= infinity ? infinity : static_cast<int>(pattern)));
}

inline bool IsNan16(Format16 f, uint16_t bits) {
  return (bits & 0x7fff) > f.top_exponent << f.mantissa_bits;
}

inline int SizeOf(rope_dtype dtype) {
  switch (dtype) {
    case ROPE_DTYPE_F32: return 4;
    case ROPE_DTYPE_F16:
    case ROPE_DTYPE_BF16: return 2;
    default: std::abort();  // a dtype that is not described here
  }
}

inline double ReadElement(rope_dtype dtype, const void* at) {
  if (dtype == ROPE_DTYPE_F32) {
    float value;
    std::memcpy(&value, at, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  return ValueOf(FormatOf(dtype), bits);
}

// `value` rounded once to dtype.
inline double Rounded(rope_dtype dtype, double value) {
  if (std::isnan(value)) return value;
  if (dtype == ROPE_DTYPE_F32) return static_cast<float>(value);
  return ValueOf(FormatOf(dtype), NearestOf(FormatOf(dtype), value));
}

inline void WriteElement(rope_dtype dtype, void* at, double value) {
  if (dtype == ROPE_DTYPE_F32) {
    const auto single = static_cast<float>(value);
    std::memcpy(at, &single, 4);
  } else {
    const uint16_t bits = std::isnan(value) ? 0x7fff : NearestOf(FormatOf(dtype), value);
    std::memcpy(at, &bits, 2);
  }
}

// Equal bits, or NaN in both.
inline bool IsSame(rope_dtype dtype, const void* a, const void* b, int64_t index) {
  const auto at = index * SizeOf(dtype);
  const char* const x = static_cast<const char*>(a) + at;
  const char* const y = static_cast<const char*>(b) + at;
  if (std::memcmp(x, y, static_cast<size_t>(SizeOf(dtype))) == 0) return true;
  return std::isnan(ReadElement(dtype, x)) && std::isnan(ReadElement(dtype, y));
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_ELEMENTS_H_
