// ROPE_ROUNDING_NATIVE on CPUs that multiply f16.
#ifndef LIBROPE_SRC_CPU_F16_ARITHMETIC_H_
#define LIBROPE_SRC_CPU_F16_ARITHMETIC_H_

#include "cpu/block.h"
#include "math/pairing.h"
#include "math/tensor.h"

namespace rope::cpu {

// A rotation by this CPU's own instructions, with rows in the order of the vectors that compute the
// same bits in f32 (rotate-inl.h), but for those of a NaN: so all calls take it that can. Both
// null: there are none, or not for this order of channels.
struct F16Rotation {
  void (*rotate)(const Block& block) = nullptr;
  void (*rotate_token)(const Tensor* tensors, int count, const Segment& segment, const float* cos,
                       const float* sin) = nullptr;
};
F16Rotation F16RotationOf(ChannelOrder order);

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_F16_ARITHMETIC_H_
