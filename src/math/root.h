// The square root of a float, correctly rounded: the bits of the CPU's, as quotient.h has those of
// its division.
#ifndef LIBROPE_SRC_MATH_ROOT_H_
#define LIBROPE_SRC_MATH_ROOT_H_

#include <cstdint>

#include "math/element.h"
#include "math/host_device.h"
#include "math/quotient.h"

namespace rope {

// About 1 / sqrt(x), within some 2^-23 of it. x is between 2^47 and 2^51.
ROPE_HD float NearInverseRoot(float x) {
  float r = BitsFloat(0x5f3759dfu - FloatBits(x) / 2);
  ROPE_UNROLL
  for (int step = 0; step < 3; ++step) r = r * (1.5f - 0.5f * x * r * r);
  return r;
}

ROPE_HD float ExactSquareRoot(float value) {
  const uint32_t bits = FloatBits(value);
  if ((bits & 0x7fffffffu) == 0 || bits == 0x7f800000u) return value;
  if (bits > 0x7f800000u) return BitsFloat(0x7fc00000u);  // negative, or no number

  const Binary32 number = Normalized(bits);
  // As significand * 2^shift * 2^(2 n), whose root has 25 digits, one to round by, and 2^n.
  const int exponent = number.exponent - 150, shift = (exponent & 1) != 0 ? 25 : 26;
  const int64_t square = static_cast<int64_t>(number.significand) << shift;
  const float near_square =
      static_cast<float>(number.significand) * (shift == 25 ? 0x1p25f : 0x1p26f);
  const float inverse = NearInverseRoot(near_square);
  auto digits = static_cast<int64_t>(static_cast<uint32_t>(near_square * inverse));
  const auto left = static_cast<float>(square - digits * digits);
  digits += static_cast<int32_t>(left * inverse * 0.5f);
  const int64_t rest = square - digits * digits;
  if (rest < 0) {
    --digits;
  } else if (rest > 2 * digits) {
    ++digits;
  }
  // No root is halfway between two floats: its square would have more digits than a float.
  const auto field = static_cast<uint32_t>((exponent - shift) / 2 + 150) << 23;
  return BitsFloat(field + static_cast<uint32_t>((digits >> 1) + (digits & 1)));
}

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_ROOT_H_
