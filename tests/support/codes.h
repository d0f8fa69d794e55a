// 8-bit codes by their definition, in double arithmetic: the value of each, and the nearest one to
// a value, found among all by halving. Slow, and unlike anything in src/.
#ifndef LIBROPE_TESTS_SUPPORT_CODES_H_
#define LIBROPE_TESTS_SUPPORT_CODES_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "math/code.h"
#include "support/elements.h"

namespace rope::testing {

inline double ValueOfCode(Code code, uint8_t bits) {
  if (code == Code::kInt8) return bits < 128 ? bits : bits - 256;
  const int mantissa_bits = code == Code::kE4m3 ? 3 : 2, bias = code == Code::kE4m3 ? 7 : 15;
  const int exponent = (bits & 0x7f) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits < 128 ? 1.0 : -1.0;
  if (code == Code::kE4m3 && (bits & 0x7f) == 0x7f) return std::nan("");
  if (code == Code::kE5m2 && exponent == 31) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

// Finite codes of one sign, from 0 on: their values grow with them.
inline int CodesOfSign(Code code) {
  return code == Code::kE4m3 ? 0x7f : code == Code::kE5m2 ? 0x7c : 0x80;
}

inline uint8_t NearestCode(Code code, double value) {
  if (std::isnan(value)) return code == Code::kInt8 ? 0 : 0x7f;
  if (code == Code::kInt8) {
    const double whole = std::nearbyint(std::fmin(std::fmax(value, -128.0), 127.0));
    return static_cast<uint8_t>(static_cast<int>(whole));
  }
  static const auto kValues = [] {
    std::array<std::array<double, 128>, 2> values;
    for (Code c : {Code::kE4m3, Code::kE5m2}) {
      for (int bits = 0; bits < 128; ++bits) {
        values[static_cast<size_t>(c)][static_cast<size_t>(bits)] =
            ValueOfCode(c, static_cast<uint8_t>(bits));
      }
    }
    return values;
  }();
  const auto& values = kValues[static_cast<size_t>(code)];
  // No larger than the largest: from far away all codes look the same in double.
  const double size =
      std::fmin(std::fabs(value), values[static_cast<size_t>(CodesOfSign(code) - 1)]);
  // Codes of one sign grow with their values: it is the first one that is not below, or the last
  // one that is.
  const int above = static_cast<int>(
      std::lower_bound(values.begin(), values.begin() + CodesOfSign(code), size) - values.begin());
  int nearest = above;
  if (above > 0) {
    const double over = values[static_cast<size_t>(above)] - size,
                 under = size - values[static_cast<size_t>(above - 1)];
    if (under < over || (under == over && above % 2 == 1)) nearest = above - 1;
  }
  return static_cast<uint8_t>(nearest | (std::signbit(value) ? 0x80 : 0));
}

// What rounding may get wrong: codes, midpoints between two, and their neighbours in f32, also
// behind the largest; and all values of f16 and bf16.
inline std::vector<float> ValuesToCode(Code code) {
  std::set<float> sizes;
  const auto add_around = [&](double at) {
    const auto value = static_cast<float>(at);
    for (float to : {0.0f, value, std::numeric_limits<float>::infinity()}) {
      sizes.insert(std::nextafter(value, to));
    }
  };
  const int count = CodesOfSign(code);
  for (int bits = 0; bits < count; ++bits) {
    const double value = ValueOfCode(code, static_cast<uint8_t>(bits));
    const double next =
        bits + 1 < count ? ValueOfCode(code, static_cast<uint8_t>(bits + 1)) : value * 17 / 16;
    add_around(value);
    add_around((value + next) / 2);
    add_around(next);
  }
  add_around(128.0);
  add_around(128.5);
  std::vector<float> values;
  for (float size : sizes) {
    values.push_back(size);
    values.push_back(-size);
  }
  for (Format16 format : {kHalf, kBrain}) {
    for (int bits = 0; bits < 65536; ++bits) {
      values.push_back(static_cast<float>(ValueOf(format, static_cast<uint16_t>(bits))));
    }
  }
  return values;
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_CODES_H_
