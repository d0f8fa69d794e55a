// The quotient of two floats, correctly rounded, by integers alone: the bits of the CPU's division,
// on devices whose division needs a function, a stack and instructions that are not exact.
#ifndef LIBROPE_SRC_MATH_QUOTIENT_H_
#define LIBROPE_SRC_MATH_QUOTIENT_H_

#include <cstdint>

#include "math/element.h"
#include "math/host_device.h"

namespace rope {

// |value| = significand * 2^(exponent - 150) with 24 bits of significand. Neither zero nor
// infinite.
struct Binary32 {
  uint32_t significand;
  int exponent;
};

ROPE_HD Binary32 Normalized(uint32_t magnitude) {
  Binary32 value = {magnitude & 0x7fffffu, static_cast<int>(magnitude >> 23)};
  if (value.exponent != 0) return {value.significand | 0x800000u, value.exponent};
  for (value.exponent = 1; value.significand < 0x800000u; --value.exponent) value.significand *= 2;
  return value;
}

ROPE_HD float Quotient(float a, float b) {
  constexpr uint32_t kInfinity = 0x7f800000u;
  const uint32_t sign = (FloatBits(a) ^ FloatBits(b)) & 0x80000000u;
  const uint32_t above = FloatBits(a) & 0x7fffffffu, below = FloatBits(b) & 0x7fffffffu;
  if (above > kInfinity || below > kInfinity ||
      (above == below && (above == 0 || above == kInfinity))) {
    return BitsFloat(0x7fc00000u);
  }
  if (above == kInfinity || below == 0) return BitsFloat(sign | kInfinity);
  if (above == 0 || below == kInfinity) return BitsFloat(sign);

  const Binary32 dividend = Normalized(above), divisor = Normalized(below);
  // The quotient's significand is made to begin with a 1: 25 bits, one to round by.
  const bool borrow = dividend.significand < divisor.significand;
  const int exponent = dividend.exponent - divisor.exponent + 127 - (borrow ? 1 : 0);
  uint32_t rest = dividend.significand << (borrow ? 1 : 0), digits = 0;
  ROPE_LOOP
  for (int bit = 24; bit >= 0; --bit) {
    if (rest >= divisor.significand) {
      rest -= divisor.significand;
      digits |= 1u << bit;
    }
    rest *= 2;
  }
  if (exponent >= 255) return BitsFloat(sign | kInfinity);
  // Bits that do not fit are rounded to nearest, ties to even; subnormal quotients lose more.
  const int lost = exponent >= 1 ? 1 : exponent > -24 ? 2 - exponent : 26;
  const uint32_t kept = digits >> lost, half = 1u << (lost - 1), cut = digits & (2 * half - 1);
  const bool up = cut > half || (cut == half && (rest != 0 || (kept & 1) != 0));
  // `kept` begins with the bit that raises the exponent field by one; so does a carry.
  const uint32_t field = exponent >= 1 ? static_cast<uint32_t>(exponent - 1) << 23 : 0;
  return BitsFloat(sign | (field + kept + (up ? 1 : 0)));
}

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_QUOTIENT_H_
