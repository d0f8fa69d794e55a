// ROPE_ROUNDING_NATIVE on CPUs that multiply f16.
#ifndef LIBROPE_SRC_CPU_F16_ARITHMETIC_H_
#define LIBROPE_SRC_CPU_F16_ARITHMETIC_H_

#include "cpu/block.h"
#include "math/pairing.h"

namespace rope::cpu {

// A rotation by this CPU's own instructions, with rows in the order of the vectors that compute the
// same bits in f32 (rotate-inl.h); null: there are none, or not for this order of channels.
using F16Rotation = void (*)(const Block& block);
F16Rotation F16RotationOf(ChannelOrder order);

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_F16_ARITHMETIC_H_
