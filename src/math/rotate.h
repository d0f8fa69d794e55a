// The rotation of one pair. Host and device; the reference semantics of every backend. The vector
// code of the CPU does the same operations in the same order, so that targets with fused
// multiply-add give the same bits (tests/cpu/kernels_test.cc holds them to it). That these are the
// right operations is for tests/support/reference.h to say, which is written from the C header and
// on purpose shares nothing with src/.
#ifndef LIBROPE_SRC_MATH_ROTATE_H_
#define LIBROPE_SRC_MATH_ROTATE_H_

#include "librope/rope.h"
#include "math/element.h"
#include "math/host_device.h"
#include "math/rounding.h"
#include "math/sincos.h"

namespace rope {

// One rounding per result: y0 = x0 cos - x1 sin, y1 = x1 cos + x0 sin. Each result has
// its own cos and sin, because rows in the FULL formats may hold different ones.
struct Pair {
  float x0, x1;
};

ROPE_HD Pair Rotate(Pair x, CosSin first, CosSin second) {
  return {Fma(x.x0, first.cos, -Multiply(x.x1, first.sin)),
          Fma(x.x1, second.cos, Multiply(x.x0, second.sin))};
}

// Whether a pair turns by no angle, but for roundings of it. Under angles that round, REROTATE to
// the same position has a cosine that is 1 within those of two cosines and sines.
ROPE_HD bool IsNoTurn(CosSin row) {
  const float distance = Add(row.cos, -1.0f);
  return row.sin == 0 && distance <= 0x1p-20f && distance >= -0x1p-20f;
}

// EAGER: both products and the sum are rounded to the dtype, as an eager framework stores them.
ROPE_HD Pair RotateEager(rope_dtype dtype, Pair x, CosSin first, CosSin second) {
  return {
      Add(RoundTo(dtype, Multiply(x.x0, first.cos)), -RoundTo(dtype, Multiply(x.x1, first.sin))),
      Add(RoundTo(dtype, Multiply(x.x1, second.cos)), RoundTo(dtype, Multiply(x.x0, second.sin)))};
}

// a + b, rounded to odd: where the sum is no f32, to that one of its neighbours whose last bit is
// set. Rounding boundaries of narrower formats are even, so that rounding the result to f16 gives
// what rounding the sum itself would.
ROPE_HD float SumToOdd(float a, float b) {
  const float sum = Add(a, b);
  const float b_there = Add(sum, -a), a_there = Add(sum, -b_there);
  const float error = Add(Add(a, -a_there), Add(b, -b_there));  // exactly (Knuth's TwoSum)
  const uint32_t bits = FloatBits(sum);
  const bool is_inexact = error < 0 || error > 0;  // no if the sum is not finite
  if (!is_inexact || (bits & 1u) != 0) return sum;
  return BitsFloat((error < 0) == (sum < 0) ? bits + 1 : bits - 1);
}

// NATIVE: multiplication, and multiply-add with one rounding, of f16 numbers. cos and sin are such.
// Products are exact in f32, which has twice their digits and reaches far beyond their exponents.
// The store rounds the sum.
ROPE_HD Pair RotateNative(Pair x, CosSin first, CosSin second) {
  const float product0 = RoundTo(ROPE_DTYPE_F16, Multiply(x.x1, first.sin)),
              product1 = RoundTo(ROPE_DTYPE_F16, Multiply(x.x0, second.sin));
  return {SumToOdd(Multiply(x.x0, first.cos), -product0),
          SumToOdd(Multiply(x.x1, second.cos), product1)};
}

ROPE_HD Pair RotateBy(Arithmetic arithmetic, rope_dtype dtype, Pair x, CosSin first,
                      CosSin second) {
  switch (arithmetic) {
    case Arithmetic::kEager: return RotateEager(dtype, x, first, second);
    case Arithmetic::kNative: return RotateNative(x, first, second);
    default: return Rotate(x, first, second);
  }
}

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_ROTATE_H_
