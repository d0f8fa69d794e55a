// The heads of a token by a row with values for both channels of each pair.
#ifndef LIBROPE_SRC_CPU_CHANNEL_HEADS_H_
#define LIBROPE_SRC_CPU_CHANNEL_HEADS_H_

#include "context/context.h"
#include "cpu/block.h"
#include "cpu/kernels.h"
#include "math/pairing.h"
#include "math/rounding.h"
#include "math/tensor.h"

namespace rope::cpu {

// `in` and `out`: the span of the first head. Of `tensor` its dtype, its heads, and how they follow
// each other.
void RotateHeads(const Kernels& kernels, const rope_context& context, ChannelOrder order,
                 Arithmetic arithmetic, const Tensor& tensor, const char* in, char* out,
                 const ChannelRow& row);

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_CHANNEL_HEADS_H_
