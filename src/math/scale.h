// The scales of what is in 8 bits, and where they lie. Host and device.
#ifndef LIBROPE_SRC_MATH_SCALE_H_
#define LIBROPE_SRC_MATH_SCALE_H_

#include <cstdint>

#include "librope/rope.h"
#include "math/code.h"
#include "math/element.h"
#include "math/host_device.h"
#include "math/tensor.h"

namespace rope {

// A checked rope_scale.
struct GroupScales {
  char* data;           // of a call whose addresses are known
  HeadStrides strides;  // bytes, between the scales of heads: those of a head are adjacent
  float value;
  float least;  // computed: never smaller
  rope_dtype dtype;
  int32_t group, groups;  // channels that share one, and how many a head has; 0: `value` serves all
  bool computed, power_of_two, round_first;
};

ROPE_HD float LoadScale(rope_dtype dtype, const char* scales, int64_t index) {
  if (dtype == ROPE_DTYPE_F32) return LoadElement(ROPE_DTYPE_F32, scales, index);
  return FloatFromE8m0(static_cast<uint8_t>(scales[index]));
}

ROPE_HD void StoreScale(rope_dtype dtype, char* scales, int64_t index, float scale) {
  if (dtype == ROPE_DTYPE_F32) {
    StoreElement(ROPE_DTYPE_F32, scales, index, scale);
  } else {
    scales[index] = static_cast<char>(E8m0FromPowerOfTwo(scale));
  }
}

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_SCALE_H_
