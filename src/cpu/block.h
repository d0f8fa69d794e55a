// What a rotation is given.
#ifndef LIBROPE_SRC_CPU_BLOCK_H_
#define LIBROPE_SRC_CPU_BLOCK_H_

#include <cstdint>

#include "math/pairing.h"
#include "math/scale.h"
#include "math/tensor.h"

namespace rope::cpu {

// A block of tokens of one tensor.
struct Block {
  const Tensor* tensor;  // its strides and its heads
  const char* in;        // the span of the first head of the first token
  char* out;
  const float* cos;  // row of the first token, in the kernel's order
  const float* sin;
  int64_t row_stride;  // floats
  const Segment* segments;
  int32_t segment_count;
  int32_t tokens;
  int64_t prefetch_ahead;     // bytes from a head to the one to ask the memory for
  int64_t prefetch_near;      // fewer, to one to ask for into the L1 cache besides; 0: none
  const char* prefetch_last;  // the last head of the task; null: do not ask
  bool prefetch_into_l1;      // or into the L2 cache
  bool in_cache;              // where the data of the call stays
  // Of a norm: weights of the pairs' first and second members, in the order of the rows
  // (kPerChannel: weight0 has those of all channels), of the first head, and the inverse roots of
  // the heads of each token.
  const float *weight0, *weight1;
  int32_t weight_step;  // floats from head to head; 0: heads share them
  const float* roots;
  int32_t root_stride;  // from token to token
  // Of codes: the inverse of their scale, or, where it is computed for each head, how, and where
  // that of the first head of the first token goes.
  float inverse;
  const GroupScales* scales;
  char* first_scale;

  void CodeBy(const GroupScales& by) {
    if (by.groups == 0) inverse = 1.0f / by.value;
    scales = &by;
  }
};

// Heads that follow each other, whose channels are added up.
struct SummedHeads {
  const char* in;
  int64_t step;  // bytes
  int32_t count, channels;
  const float* means;      // of each head, for NormSum::kDistances
  float* sums;             // of each head
  int64_t prefetch_ahead;  // bytes from a head to the one to ask the memory for; 0: do not ask
  int32_t quarters;        // of a head that are asked for
  bool prefetch_into_l1;   // or into the L2 cache
};

// Channels of heads that follow each other, which are normed and do not turn.
struct NormedHeads {
  // The weights and biases of a head.
  const float* WeightsOf(int h) const { return weights + h * weight_step; }
  const float* BiasesOf(int h) const {
    return biases == nullptr ? nullptr : biases + h * weight_step;
  }

  const char* in;
  char* out;
  int64_t in_step, out_step;  // bytes
  int32_t count, channels;
  const float *weights, *biases;  // of the first head's channels; biases: null where are none
  int32_t weight_step;            // floats from head to head; 0: heads share them
  const float *roots, *means;     // of each head; means: null where biases are
  bool eager;                     // each result is rounded
};

// Heads that follow each other, with the gradients of their normed channels in f32.
struct NormedGradients {
  const float* normed;
  const char* x;             // what was normed
  char* out;                 // the gradients with respect to it
  int64_t normed_step;       // floats
  int64_t x_step, out_step;  // bytes
  int32_t count, channels;
  const float* weights;        // of each channel
  const float *roots, *means;  // of each head; means: null where there are none
  bool eager;                  // products with weights are rounded
  // Of each head, over the channels that are normed together: the sums of gradients times weights,
  // for norms with a mean, and of these times what the weights multiply; then their means.
  float *weighted, *products;
  float *weight, *bias;  // what the gradients of weights and biases are added to; null: nothing
};

// A row with values for both channels of each pair, in natural order.
struct ChannelRow {
  const float *cos0, *sin0, *cos1, *sin1;

  ChannelRow From(int pair) const { return {cos0 + pair, sin0 + pair, cos1 + pair, sin1 + pair}; }
};

// Rotates, by such a row, whole vectors of one segment, and returns how many pairs these were.
using ChannelRotation = int (*)(ChannelOrder order, const void* in, void* out, int pairs,
                                const ChannelRow& row);

// Heads that lie further apart than tokens are rotated one after the other, each for all tokens.
inline bool HeadsLieApart(const Tensor& tensor) {
  return tensor.in_strides.head > tensor.in_strides.token;
}

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_BLOCK_H_
