// The checks of q and k and of their outputs.
#ifndef LIBROPE_SRC_CALL_CHECK_TENSORS_H_
#define LIBROPE_SRC_CALL_CHECK_TENSORS_H_

#include "call/call.h"
#include "math/tensor.h"

namespace rope {

// Writes the tensors that are present, at least one, and how many they are.
rope_status CheckTensors(const Call& call, const Names& names, const rope_qk_args& args,
                         Tensor tensors[2], int32_t* count);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_CHECK_TENSORS_H_
