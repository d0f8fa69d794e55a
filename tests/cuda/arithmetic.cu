// What cuda_arithmetic_test counts on a device: numbers for which gpu/arithmetic.h differs from
// IEEE 754, as the hardware has it and, where that begins with the same approximation, as integers
// have it, and from the codes of math/code.h.
#include "gpu/arithmetic.h"

namespace {

using rope::BitsFloat;
using rope::FloatBits;

__device__ bool IsSame(float a, float b) {
  return FloatBits(a) == FloatBits(b) || (a != a && b != b);
}

// A number whose bits are mixed from two others.
__device__ uint32_t Mixed(uint32_t n, uint32_t seed) {
  uint32_t x = n * 2654435761u + seed * 2246822519u;
  x = (x ^ x >> 15) * 2246822519u;
  x = (x ^ x >> 13) * 3266489917u;
  return x ^ x >> 16;
}

// Each n is all 32 bits of a number, or the significand of one beside a divisor.
__global__ void Count(uint32_t round, unsigned long long* different) {
  const uint32_t n = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned count = 0;
  // Bits of all kinds, then significands of one divisor alone.
  const float a = BitsFloat(Mixed(n, round)), b = BitsFloat(Mixed(n, round + 1000));
  count += !IsSame(rope::gpu::QuickDivide(a, b), __fdiv_rn(a, b));
  const float dividend = BitsFloat(0x3f800000u | (n & 0x7fffffu)),
              divisor = BitsFloat(0x3f800000u | (Mixed(round, n >> 23) & 0x7fffffu));
  count += !IsSame(rope::gpu::QuickDivide(dividend, divisor), __fdiv_rn(dividend, divisor));
  if (round == 0) {
    const float x = BitsFloat(n), y = BitsFloat(Mixed(n, 7));
    count += !IsSame(rope::gpu::QuickRoot(x), __fsqrt_rn(x));
    count += !IsSame(rope::gpu::QuickRoot(x), rope::SquareRootByDigits(x));
    // A quotient is that of IEEE 754 where the divisor's inverse is. 1 by a significand of ones is
    // the only one that an approximation within one unit of its last place would leave wrong.
    const float ones = BitsFloat(0x3fffffffu);
    count += !IsSame(rope::gpu::QuickDivide(1.0f, x), rope::Quotient(1.0f, x));
    count += !IsSame(rope::gpu::QuickDivide(x, ones), rope::Quotient(x, ones));
    using rope::Code;
    count += rope::gpu::TwoCodes<Code::kE4m3>(x, y) !=
             (CodeFromFloat(Code::kE4m3, x) | uint32_t{CodeFromFloat(Code::kE4m3, y)} << 8);
    count += rope::gpu::TwoCodes<Code::kE5m2>(x, y) !=
             (CodeFromFloat(Code::kE5m2, x) | uint32_t{CodeFromFloat(Code::kE5m2, y)} << 8);
  }
  if (count != 0) atomicAdd(different, count);
}

}  // namespace

// One round of 2^32 numbers; the first has all floats.
extern "C" void CountDifferent(uint32_t round, unsigned long long* different) {
  Count<<<1u << 24, 256>>>(round, different);
}
