// cos and sin of an angle, of a phase in turns, and of a position: the reference for every backend.
// Host and device. The vector code of the CPU does the same operations in the same order, so that
// targets with fused multiply-add give the same bits (tests/math/sincos_test.cc holds them to it).
#ifndef LIBROPE_SRC_MATH_SINCOS_H_
#define LIBROPE_SRC_MATH_SINCOS_H_

#include <cmath>
#include <cstdint>

#include "math/element.h"
#include "math/host_device.h"
#include "math/quotient.h"
#include "math/sincos_constants.h"
#include "math/strict_math.h"

namespace rope {

struct CosSin {
  float cos, sin;
};

// Single operations that no compiler may merge or split.
ROPE_HD float Fma(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}
ROPE_HD float Multiply(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
ROPE_HD float Divide(float a, float b) {
#if defined(__CUDA_ARCH__)
  return Quotient(a, b);
#else
  return a / b;
#endif
}
ROPE_HD float Add(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

// cos and sin of what is not finite. Rows hold no other NaN than this one, whose lower half is
// zero: narrowing to bf16 relies on it.
ROPE_HD float QuietNan() { return BitsFloat(0x7fc00000u); }

// cos and sin of (quadrant + u) quarter turns, |u| <= 1/2; only the low two bits of quadrant count.
ROPE_HD CosSin CosSinOfQuarters(uint32_t quadrant, float u) {
  const float z = Multiply(u, u);
  float s = Fma(z, kSin3, kSin2);
  s = Fma(z, s, kSin1);
  s = Fma(z, s, kSin0);
  s = Multiply(u, s);
  float c = Fma(z, kCos4, kCos3);
  c = Fma(z, c, kCos2);
  c = Fma(z, c, kCos1);
  c = Fma(z, c, 1.0f);
  const bool swap = (quadrant & 1u) != 0;
  const uint32_t cos_sign = ((quadrant + 1u) & 2u) << 30;
  const uint32_t sin_sign = (quadrant & 2u) << 30;
  return {BitsFloat(FloatBits(swap ? s : c) ^ cos_sign),
          BitsFloat(FloatBits(swap ? c : s) ^ sin_sign)};
}

// cos and sin of a phase in units of 2^-64 turns.
ROPE_HD CosSin CosSinOfPhase(uint64_t phase) {
  const auto high = static_cast<uint32_t>(phase >> 32);
  const auto low = static_cast<uint32_t>(phase);
  // The rest in quarter turns: bits 61..32 as a signed fraction, then the low word, so that small
  // angles keep all their digits.
  const float upper = Multiply(static_cast<float>(static_cast<int32_t>(high << 2)), 0x1p-32f);
  const float u = Fma(static_cast<float>(static_cast<int32_t>(low >> 1)), 0x1p-61f, upper);
  return CosSinOfQuarters((high + 0x20000000u) >> 30, u);
}

// ROPE_ANGLE_EXACT, integer position: the product is exact modulo whole turns. Opposite positions
// give exactly opposite sines.
ROPE_HD CosSin CosSinOfPosition(uint64_t turns_fraction, int64_t position) {
  const auto magnitude =
      position < 0 ? 0 - static_cast<uint64_t>(position) : static_cast<uint64_t>(position);
  CosSin value = CosSinOfPhase(turns_fraction * magnitude);
  if (position < 0) value.sin = -value.sin;
  return value;
}

// The high 64 bits of a 64 x 32 bit product, and the low 32.
ROPE_HD uint64_t MultiplyWide(uint64_t a, uint32_t b, uint32_t* low) {
  const uint64_t lower = (a & 0xffffffffu) * b;
  const uint64_t upper = (a >> 32) * b + (lower >> 32);
  *low = static_cast<uint32_t>(lower);
  return upper;
}

ROPE_HD bool IsFinite(float value) { return (FloatBits(value) >> 23 & 0xffu) != 255; }

// ROPE_ANGLE_EXACT: the phase of a finite coordinate's size, without its sign. position = m * 2^e
// with integers, so the product with the fixed-point turns is exact before it is cut to 64 fraction
// bits.
ROPE_HD uint64_t PhaseOfCoordinate(int64_t turns_whole, uint64_t turns_fraction, float position) {
  const uint32_t bits = FloatBits(position);
  const int field = static_cast<int>(bits >> 23 & 0xffu);
  const uint32_t mantissa = (bits & 0x7fffffu) | (field != 0 ? 0x800000u : 0u);
  const int exponent = (field != 0 ? field : 1) - 150;
  // mantissa * (whole, fraction) as 128 bits: `high` whole turns, `low` the fraction.
  uint32_t product_low;
  const uint64_t product_high = MultiplyWide(turns_fraction, mantissa, &product_low);
  uint64_t high = static_cast<uint64_t>(turns_whole) * mantissa + (product_high >> 32);
  uint64_t low = product_high << 32 | product_low;
  if (exponent >= 0) {
    low = exponent < 64 ? low << exponent : 0;
  } else {
    const int shift = -exponent;
    const auto sign = static_cast<uint64_t>(static_cast<int64_t>(high) >> 63);
    if (shift < 64) {
      low = low >> shift | high << (64 - shift);
    } else if (shift < 128) {
      low = shift == 64 ? high : static_cast<uint64_t>(static_cast<int64_t>(high) >> (shift - 64));
    } else {
      low = sign;
    }
  }
  return low;
}

ROPE_HD CosSin CosSinOfCoordinate(int64_t turns_whole, uint64_t turns_fraction, float position) {
  if (!IsFinite(position)) return {QuietNan(), QuietNan()};
  CosSin value = CosSinOfPhase(PhaseOfCoordinate(turns_whole, turns_fraction, position));
  if (FloatBits(position) >> 31 != 0) value.sin = -value.sin;
  return value;
}

// 64 bits of 1 / (2 pi), beginning behind fraction bit `first`, below 128. Words are selected: an
// array indexed by a variable would lie on the stack of a device.
ROPE_HD uint64_t InverseTwoPiBits(int first) {
  constexpr uint32_t k0 = kInverseTwoPi[0], k1 = kInverseTwoPi[1], k2 = kInverseTwoPi[2],
                     k3 = kInverseTwoPi[3], k4 = kInverseTwoPi[4], k5 = kInverseTwoPi[5];
  const bool far = first >= 64, odd = (first & 32) != 0;
  const uint32_t word = far ? (odd ? k3 : k2) : (odd ? k1 : k0),
                 next = far ? (odd ? k4 : k3) : (odd ? k2 : k1),
                 last = far ? (odd ? k5 : k4) : (odd ? k3 : k2);
  const int bit = first % 32;
  const uint64_t upper = static_cast<uint64_t>(word) << 32 | next;
  return bit == 0 ? upper : upper << bit | last >> (32 - bit);
}

// ROPE_ANGLE_FLOAT32: cos and sin of an f32 angle in radians, any size.
ROPE_HD CosSin CosSinOfAngle(float angle) {
  const float size = std::fabs(angle);
  if (size < kMaxFastAngle) {
    const float quarters = Multiply(angle, kQuartersPerRadian);
    const float error = Fma(angle, kQuartersPerRadian, -quarters);  // exact
    const float low = Fma(angle, kQuartersPerRadianLow, error);
    // The error of a large product reaches 1/4, so the nearest whole number is found in two steps.
    const float whole = std::nearbyint(quarters);  // ties to even
    const float rest = Add(quarters, -whole);
    const float carry = std::nearbyint(Add(rest, low));
    const float u = Add(Add(rest, -carry), low);
    return CosSinOfQuarters(static_cast<uint32_t>(static_cast<int32_t>(Add(whole, carry))), u);
  }
  const uint32_t bits = FloatBits(size);
  if (bits >= 0x7f800000u) return {QuietNan(), QuietNan()};
  // size = m * 2^e with e >= 0: the bits of 1 / (2 pi) before fraction bit e give whole turns.
  const uint64_t mantissa = (bits & 0x7fffffu) | 0x800000u;
  const int exponent = static_cast<int>(bits >> 23) - 150;
  CosSin value = CosSinOfPhase(mantissa * InverseTwoPiBits(exponent));
  if (angle < 0) value.sin = -value.sin;
  return value;
}

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_SINCOS_H_
