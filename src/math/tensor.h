// q or k with its output, as the backends rotate it, and where its heads lie. Host and device. All
// offsets are 64-bit.
#ifndef LIBROPE_SRC_MATH_TENSOR_H_
#define LIBROPE_SRC_MATH_TENSOR_H_

#include <cstdint>

#include "librope/rope.h"
#include "math/host_device.h"

namespace rope {

// From one head, token or batch row to the next.
struct HeadStrides {
  int64_t batch, token, head;
};

// From the first head of the first token to that of a token.
ROPE_HD int64_t TokenOffset(const HeadStrides& strides, int64_t batch, int64_t token) {
  return batch * strides.batch + token * strides.token;
}

ROPE_HD int64_t HeadOffset(const HeadStrides& strides, int64_t batch, int64_t token, int64_t head) {
  return TokenOffset(strides, batch, token) + head * strides.head;
}

struct Tensor {
  const char* in;  // the first head of the first token; its span begins in_span bytes behind
  char* out;
  HeadStrides in_strides, out_strides;  // bytes
  int32_t in_span, out_span;
  int32_t heads;
  rope_dtype dtype;
  bool copies_rest;  // the channels outside the span go to the output, too
};

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_TENSOR_H_
