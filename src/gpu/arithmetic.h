// Quotients, roots and 8-bit codes of a GPU, with the bits of math/: where a loop over digits would
// take longer than all else that a thread does. Each begins with an approximation by the hardware
// and ends with what rounds it correctly; numbers at the ends of the range go the long way.
// cuda_arithmetic_test holds them to the definition. On the host they are those of math/.
#ifndef LIBROPE_SRC_GPU_ARITHMETIC_H_
#define LIBROPE_SRC_GPU_ARITHMETIC_H_

#include <cstdint>

#include "math/code.h"
#include "math/element.h"
#include "math/host_device.h"
#include "math/norm.h"
#include "math/sincos.h"

namespace rope::gpu {

// Whether a float is normal, and so far from both ends of the range that no step over- or
// underflows.
ROPE_HD bool IsInMiddle(float value) {
  const uint32_t exponent = FloatBits(value) >> 23 & 0xffu;
  return exponent - 80u < 94u;  // from 2^-47 to below 2^47
}

ROPE_HD float QuickDivide(float a, float b) {
#if defined(__CUDA_ARCH__)
  if (IsInMiddle(a) && IsInMiddle(b)) {
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(b));
    inverse = Fma(inverse, Fma(-b, inverse, 1.0f), inverse);
    float quotient = Multiply(a, inverse);
    quotient = Fma(Fma(-b, quotient, a), inverse, quotient);
    return Fma(Fma(-b, quotient, a), inverse, quotient);
  }
#endif
  return Divide(a, b);
}

ROPE_HD float QuickRoot(float value) {
#if defined(__CUDA_ARCH__)
  if (IsInMiddle(value) && value > 0) {
    float inverse;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(value));
    const float root = Multiply(value, inverse);
    return Fma(Fma(-root, root, value), Multiply(inverse, 0.5f), root);
  }
#endif
  return SquareRoot(value);
}

// As InverseRoot of math/norm.h.
ROPE_HD float QuickInverseRoot(float sum, float n, float eps) {
  return QuickDivide(1.0f, QuickRoot(Add(QuickDivide(sum, n), eps)));
}

// Two codes of a type, the first in the lower 8 bits.
template <Code kCode>
ROPE_HD uint32_t TwoCodes(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (kCode != Code::kInt8) {
    uint16_t codes;
    if constexpr (kCode == Code::kE4m3) {
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
    } else {
      asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
    }
    return codes;
  }
#endif
  return CodeFromFloat(kCode, first) | uint32_t{CodeFromFloat(kCode, second)} << 8;
}

}  // namespace rope::gpu

#endif  // LIBROPE_SRC_GPU_ARITHMETIC_H_
