// The checks of a norm.
#ifndef LIBROPE_SRC_CALL_CHECK_NORM_H_
#define LIBROPE_SRC_CALL_CHECK_NORM_H_

#include "call/call.h"
#include "math/norm.h"
#include "math/tensor.h"

namespace rope {

// The tensor that a norm is of.
struct NormedTensor {
  rope_dtype dtype;
  int32_t heads, channels;  // channels of a head
  bool turns;               // q or k
  bool keeps_width;         // each output has as many channels
};

// `name` is how messages call it, such as "args->fused->q_norm".
rope_status CheckNorm(const Call& call, const char* name, const rope_norm* given,
                      const NormedTensor& tensor, Norm* norm);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_CHECK_NORM_H_
