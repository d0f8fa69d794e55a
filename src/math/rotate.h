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

// ROPE_ROUNDING_EAGER: both products and the sum are rounded to the dtype, as an eager framework
// stores them.
ROPE_HD Pair RotateEager(rope_dtype dtype, Pair x, CosSin first, CosSin second) {
  return {Add(RoundTo(dtype, Multiply(x.x0, first.cos)),
              -RoundTo(dtype, Multiply(x.x1, first.sin))),
          Add(RoundTo(dtype, Multiply(x.x1, second.cos)),
              RoundTo(dtype, Multiply(x.x0, second.sin)))};
}

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_ROTATE_H_
