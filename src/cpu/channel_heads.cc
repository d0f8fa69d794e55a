#include "cpu/channel_heads.h"

#include <cstdint>

#include "cpu/scalar.h"

namespace rope::cpu {

void RotateHeads(const Kernels& kernels, const rope_context& context, ChannelOrder order,
                 Arithmetic arithmetic, const Tensor& tensor, const char* in, char* out,
                 const ChannelRow& row) {
  const auto vectors = kernels.rotate_by_channels[tensor.dtype - 1][static_cast<int>(arithmetic)];
  for (int32_t h = 0; h < tensor.heads; ++h) {
    RotateHead(tensor.dtype, order, arithmetic, context.segments.data(),
               static_cast<int32_t>(context.segments.size()), in + h * tensor.in_strides.head,
               out + h * tensor.out_strides.head, row, vectors);
  }
}

}  // namespace rope::cpu
