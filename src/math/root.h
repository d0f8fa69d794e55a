// The square root of a float, correctly rounded, by integers alone: the bits of the CPU's, as
// quotient.h has those of its division.
#ifndef LIBROPE_SRC_MATH_ROOT_H_
#define LIBROPE_SRC_MATH_ROOT_H_

#include <cstdint>

#include "math/element.h"
#include "math/host_device.h"
#include "math/quotient.h"

namespace rope {

ROPE_HD float SquareRootByDigits(float value) {
  const uint32_t bits = FloatBits(value);
  if ((bits & 0x7fffffffu) == 0 || bits == 0x7f800000u) return value;
  if (bits > 0x7f800000u) return BitsFloat(0x7fc00000u);  // negative, or no number

  const Binary32 number = Normalized(bits);
  // As significand * 2^shift * 2^(2 n), whose root has 25 digits, one to round by, and 2^n.
  const int exponent = number.exponent - 150, shift = (exponent & 1) != 0 ? 25 : 26;
  const uint64_t square = static_cast<uint64_t>(number.significand) << shift;
  uint32_t rest = 0, digits = 0;
  ROPE_LOOP
  for (int pair = 24; pair >= 0; --pair) {
    rest = rest << 2 | (static_cast<uint32_t>(square >> 2 * pair) & 3u);
    const uint32_t next = digits << 2 | 1u;
    digits *= 2;
    if (rest >= next) {
      rest -= next;
      ++digits;
    }
  }
  // No root is halfway between two floats: its square would have more digits than a float.
  const auto field = static_cast<uint32_t>((exponent - shift) / 2 + 150) << 23;
  return BitsFloat(field + (digits >> 1) + (digits & 1u));
}

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_ROOT_H_
