// What each rounding policy rounds, and which arithmetic rotates its pairs.
#ifndef LIBROPE_SRC_MATH_ROUNDING_H_
#define LIBROPE_SRC_MATH_ROUNDING_H_

#include <cstdint>
#include <iterator>

#include "librope/rope.h"
#include "math/host_device.h"

namespace rope {

// The functions of rotate.h.
enum class Arithmetic : uint8_t { kFused, kEager, kNative };
inline constexpr int kArithmetics = static_cast<int>(Arithmetic::kNative) + 1;

// Whether elements of this dtype are rotated by it: NATIVE is the arithmetic of f16.
ROPE_HD constexpr bool IsFor(Arithmetic arithmetic, rope_dtype dtype) {
  return arithmetic != Arithmetic::kNative || dtype == ROPE_DTYPE_F16;
}

struct RoundingRule {
  bool rounds_rows;  // to the dtype of the tensor
  Arithmetic arithmetic;
};

// By number.
inline constexpr RoundingRule kRoundings[] = {
    {false, Arithmetic::kFused},  // FLOAT32
    {true, Arithmetic::kEager},   // EAGER
    {true, Arithmetic::kFused},   // COS_SIN
    {true, Arithmetic::kNative},  // NATIVE
};
static_assert(std::size(kRoundings) == ROPE_ROUNDING_NATIVE + 1);

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_ROUNDING_H_
