// What BACKWARD does besides turning back: gradients of repeated heads are added, and those of
// normed heads become those of what was normed. Some heads at once are widened to f32 in the L1
// cache, turned back there by the kernel of f32, and go to their output from there.
#ifndef LIBROPE_SRC_CPU_GRADIENTS_H_
#define LIBROPE_SRC_CPU_GRADIENTS_H_

#include <cstdint>

#include "context/context.h"
#include "cpu/block.h"
#include "cpu/kernels.h"
#include "math/norm.h"
#include "math/pairing.h"
#include "math/rounding.h"
#include "math/tensor.h"

namespace rope::cpu {

// A tensor of a call with BACKWARD.
struct GradientOf {
  const Kernels& kernels;
  const rope_context& context;
  const Norm* norm;                     // of what its output is the gradient of; null: none
  HeadStrides in_strides, out_strides;  // bytes
  int32_t sums;                         // heads of the input that are added for each of the output
  int32_t heads, channels;              // of the output, and of a head
  rope_dtype dtype;
};

// How heads turn back: by rows, by one row for each channel, or, with neither, not at all.
struct TurnBack {
  ChannelOrder order;
  Arithmetic arithmetic;
  int32_t span;       // the first channel that turns
  const Block* rows;  // its rows, their stride and its segments
  const ChannelRow* row;
  const Kernels::Rotation* reading;  // of ReadingOf; null: heads are added first
};

// The dtype in which heads of this one turn: f32, unless products are rounded.
inline rope_dtype TurnsIn(rope_dtype dtype, Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kFused ? ROPE_DTYPE_F32 : dtype;
}

// What turns back heads of a tensor, all channels of which turn, to f32 as it reads them; null:
// there is nothing, or they are sums.
inline const Kernels::Rotation* ReadingOf(const Kernels& kernels, rope_dtype dtype,
                                          ChannelOrder order, Arithmetic arithmetic, int32_t sums) {
  if (sums != 1 || TurnsIn(dtype, arithmetic) != ROPE_DTYPE_F32) return nullptr;
  const Kernels::Rotation& rotation =
      dtype == ROPE_DTYPE_F32
          ? kernels.rotations[ROPE_DTYPE_F32 - 1][order][static_cast<int>(arithmetic)]
          : kernels.widening[dtype - 1][order];
  return rotation.rotate != nullptr ? &rotation : nullptr;
}

// `count` tokens, whose first heads are here; `x` is where what was normed begins, if there is a
// norm, and `part` that of the gradients of weights to which all of them belong.
void PassGradients(const GradientOf& of, const TurnBack& turn, const char* in, const char* x,
                   char* out, int64_t part, int count);

// Gradients of weights begin with zeros.
void ClearParts(const NormGradients& gradients, int64_t first, int64_t last);

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_GRADIENTS_H_
