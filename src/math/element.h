// Elements of tensors: f32, f16 and bf16, one value at a time, in integer arithmetic that gives the
// same bits everywhere. Narrowing rounds once, to nearest even; overflow becomes infinity; a NaN
// stays a (quiet) NaN. The vector code of the backends is tested against these functions. On a GPU
// its own conversions take their place: the same bits, but for the payload and sign of a NaN.
#ifndef LIBROPE_SRC_MATH_ELEMENT_H_
#define LIBROPE_SRC_MATH_ELEMENT_H_

#include <cstdint>
#include <cstring>

#include "librope/rope.h"
#include "math/host_device.h"

namespace rope {

// Dtypes that are computed with. Those behind them are only stored: codes, E8M0, which only scales
// have, and Q8_0.
inline constexpr int kDtypes = 3;
constexpr bool IsDtype(rope_dtype dtype) { return dtype >= ROPE_DTYPE_F32 && dtype <= kDtypes; }
static_assert(ROPE_DTYPE_F32 == 1 && ROPE_DTYPE_BF16 == kDtypes);
constexpr bool IsCode(rope_dtype dtype) {
  return dtype >= ROPE_DTYPE_F8_E4M3 && dtype <= ROPE_DTYPE_I8;
}
// What is only stored, and counts as f32 where it is read.
constexpr bool IsInEightBits(rope_dtype dtype) { return IsCode(dtype) || dtype == ROPE_DTYPE_Q8_0; }

ROPE_HD constexpr int ElementSize(rope_dtype dtype) {
  return dtype == ROPE_DTYPE_F32 ? 4 : dtype <= kDtypes ? 2 : 1;
}
// Q8_0 has no elements, but channels in blocks, which share a scale and are aligned to it.
inline constexpr int kQ8Channels = 32, kQ8Bytes = 34;
ROPE_HD constexpr int64_t BytesOf(rope_dtype dtype, int64_t channels) {
  return dtype == ROPE_DTYPE_Q8_0 ? channels / kQ8Channels * kQ8Bytes
                                  : channels * ElementSize(dtype);
}
ROPE_HD constexpr int64_t ChannelsOf(rope_dtype dtype, int64_t bytes) {
  return dtype == ROPE_DTYPE_Q8_0 ? bytes / kQ8Bytes * kQ8Channels : bytes / ElementSize(dtype);
}
inline constexpr int kMaxElementSize = [] {
  int size = 0;
  for (rope_dtype dtype = 1; dtype <= kDtypes; ++dtype) {
    if (ElementSize(dtype) > size) size = ElementSize(dtype);
  }
  return size;
}();

// Whether storing rounds: everything is computed in f32.
constexpr bool IsNarrow(rope_dtype dtype) { return ElementSize(dtype) < int{sizeof(float)}; }

ROPE_HD uint32_t FloatBits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

ROPE_HD float BitsFloat(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

ROPE_HD float FloatFromBf16(uint16_t bits) { return BitsFloat(static_cast<uint32_t>(bits) << 16); }

ROPE_HD uint16_t Bf16FromFloat(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t pair;  // the packed form is faster than the single one
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(value), "f"(0.0f));
  return static_cast<uint16_t>(pair >> 16);
#else
  const uint32_t bits = FloatBits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
#endif
}

ROPE_HD float FloatFromF16(uint16_t half) {
#if defined(__CUDA_ARCH__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
#else
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return BitsFloat(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x400u) return BitsFloat(sign | ((magnitude << 13) + (112u << 23)));
  // Subnormal: magnitude * 2^-24, exact.
  return BitsFloat(sign | FloatBits(static_cast<float>(magnitude) * 0x1p-24f));
#endif
}

ROPE_HD uint16_t F16FromFloat(float value) {
#if defined(__CUDA_ARCH__)
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
#else
  const uint32_t bits = FloatBits(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return static_cast<uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x1ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to 65536
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 lets the float adder round at 2^-24, the unit of subnormals.
    const float shifted = BitsFloat(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (FloatBits(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
#endif
}

ROPE_HD float LoadElement(rope_dtype dtype, const void* data, int64_t index) {
  if (dtype == ROPE_DTYPE_F32) return static_cast<const float*>(data)[index];
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  return dtype == ROPE_DTYPE_F16 ? FloatFromF16(bits) : FloatFromBf16(bits);
}

ROPE_HD void StoreElement(rope_dtype dtype, void* data, int64_t index, float value) {
  if (dtype == ROPE_DTYPE_F32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<uint16_t*>(data)[index] =
        dtype == ROPE_DTYPE_F16 ? F16FromFloat(value) : Bf16FromFloat(value);
  }
}

// The value that storing as dtype and loading again gives.
ROPE_HD float RoundTo(rope_dtype dtype, float value) {
  if (dtype == ROPE_DTYPE_F32) return value;
  return dtype == ROPE_DTYPE_F16 ? FloatFromF16(F16FromFloat(value))
                                 : FloatFromBf16(Bf16FromFloat(value));
}

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_ELEMENT_H_
