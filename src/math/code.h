// 8-bit codes of a value divided by a scale, value = code * scale, one at a time, in arithmetic
// that gives the same bits everywhere. Coding rounds once, to the nearest code, ties to the even
// one, and saturates: what is beyond the largest code becomes it, infinity too. Subnormal codes are
// kept.
#ifndef LIBROPE_SRC_MATH_CODE_H_
#define LIBROPE_SRC_MATH_CODE_H_

#include <cstdint>

#include "math/element.h"
#include "math/host_device.h"
#include "math/sincos.h"

namespace rope {

enum class Code : uint8_t { kE4m3, kE5m2, kInt8 };
inline constexpr int kCodes = static_cast<int>(Code::kInt8) + 1;
ROPE_HD constexpr Code CodeOf(rope_dtype dtype) {
  return static_cast<Code>(dtype - ROPE_DTYPE_F8_E4M3);
}
static_assert(CodeOf(ROPE_DTYPE_I8) == Code::kInt8);

// A sign, an exponent and a mantissa. e4m3fn has numbers where IEEE 754 has infinity, and is no
// number with all bits set alone.
struct Float8 {
  int mantissa_bits, bias;
  float largest;

  ROPE_HD constexpr int LeastExponent() const { return 1 - bias; }  // of a normal number
  // What the bits of an f32 are shifted by.
  ROPE_HD constexpr int Shift() const { return 23 - mantissa_bits; }
};
ROPE_HD constexpr Float8 Float8Of(Code code) {
  return code == Code::kE4m3 ? Float8{3, 7, 448.0f} : Float8{2, 15, 57344.0f};
}

// What a computed scale maps to the largest size. int8 keeps -128 for what is given.
ROPE_HD constexpr float LargestOf(Code code) {
  return code == Code::kInt8 ? 127.0f : Float8Of(code).largest;
}

inline constexpr uint8_t kNanOfFloat8 = 0x7f;
inline constexpr float kLeastInt8 = -128.0f, kMostInt8 = 127.0f;
// Whose unit in the last place is 1: adding it rounds, and the lower bits are the integer.
inline constexpr float kRoundsToInteger = 0x1.8p23f;

ROPE_HD uint8_t Float8FromFloat(Float8 f, float value) {
  const uint32_t bits = FloatBits(value), size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) return kNanOfFloat8;
  const uint32_t most = FloatBits(f.largest), limited = size < most ? size : most;
  // The adder rounds at the code's last place: that of the exponent, or of subnormal codes.
  const uint32_t least = static_cast<uint32_t>(127 + f.LeastExponent()) << 23;
  const uint32_t exponent = limited & 0x7f800000u;
  const uint32_t place = (exponent > least ? exponent : least) + (uint32_t(f.Shift()) << 23);
  const uint32_t sum = FloatBits(Add(BitsFloat(limited), BitsFloat(place)));
  // Its exponent stands above 23 bits, and the units that the code has of it in the lowest ones.
  const uint32_t units = sum & ((4u << f.mantissa_bits) - 1);
  const uint32_t base = static_cast<uint32_t>(127 + f.Shift() + f.LeastExponent());
  const uint32_t code = (((sum >> 23) - base) << f.mantissa_bits) + units;
  return static_cast<uint8_t>((bits >> 24 & 0x80u) | code);
}

ROPE_HD float FloatFromFloat8(Float8 f, uint8_t code) {
  const uint32_t size = code & 0x7fu, sign = (code & 0x80u) << 24;
  const bool has_infinity = f.largest > LargestOf(Code::kE4m3);
  const uint32_t special = has_infinity ? 31u << f.mantissa_bits : kNanOfFloat8;
  if (size >= special) {
    return BitsFloat(has_infinity && size == special ? sign | 0x7f800000u : 0x7fc00000u);
  }
  if (size >> f.mantissa_bits == 0) {  // size units of subnormal codes, exact
    const auto unit = static_cast<uint32_t>(127 + f.LeastExponent() - f.mantissa_bits) << 23;
    return BitsFloat(sign | FloatBits(Multiply(static_cast<float>(size), BitsFloat(unit))));
  }
  return BitsFloat(sign | ((size << f.Shift()) + (uint32_t(127 - f.bias) << 23)));
}

ROPE_HD uint8_t Int8FromFloat(float value) {
  if ((FloatBits(value) & 0x7fffffffu) > 0x7f800000u) return 0;
  const float limited = value < kLeastInt8 ? kLeastInt8 : value > kMostInt8 ? kMostInt8 : value;
  return static_cast<uint8_t>(FloatBits(Add(limited, kRoundsToInteger)));
}

ROPE_HD uint8_t CodeFromFloat(Code code, float value) {
  return code == Code::kInt8 ? Int8FromFloat(value) : Float8FromFloat(Float8Of(code), value);
}
ROPE_HD float FloatFromCode(Code code, uint8_t bits) {
  return code == Code::kInt8 ? static_cast<float>(static_cast<int8_t>(bits))
                             : FloatFromFloat8(Float8Of(code), bits);
}

// The size of a value, for the largest one of a group: NaN counts as none, infinity as the largest
// float.
ROPE_HD uint32_t SizeForScale(float value) {
  const uint32_t size = FloatBits(value) & 0x7fffffffu;
  if (size > 0x7f800000u) return 0;
  return size < 0x7f7fffffu ? size : 0x7f7fffffu;
}

// What becomes of the quotient of a largest size and the code's.
ROPE_HD float ScaleAtLeast(float exact, float least, bool power_of_two) {
  const float scale = exact > least ? exact : least;
  if (!power_of_two) return scale;
  return BitsFloat((FloatBits(scale) + 0x7fffffu) & 0x7f800000u);
}

// The scale of a group with such a largest size, never below `least`, a normal number.
ROPE_HD float ScaleOf(Code code, float largest, float least, bool power_of_two) {
  return ScaleAtLeast(Divide(largest, LargestOf(code)), least, power_of_two);
}

// e8m0 codes are powers of two, 2^(code - 127).
ROPE_HD uint8_t E8m0FromPowerOfTwo(float scale) {
  return static_cast<uint8_t>(FloatBits(scale) >> 23);
}
ROPE_HD float FloatFromE8m0(uint8_t code) {
  if (code == 0) return 0x1p-127f;
  return BitsFloat(code == 0xff ? 0x7fc00000u : static_cast<uint32_t>(code) << 23);
}

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_CODE_H_
