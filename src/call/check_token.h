// The short way through the checks of what a decoding engine calls for each layer: one token, whose
// heads turn in place. It only says whether all is right, in few instructions. The checks of
// plan.cc are for every call, and say what is wrong.
#ifndef LIBROPE_SRC_CALL_CHECK_TOKEN_H_
#define LIBROPE_SRC_CALL_CHECK_TOKEN_H_

#include <cstdint>

#include "call/check_tensors.h"
#include "context/context.h"
#include "librope/rope.h"
#include "math/tensor.h"
#include "math/token_position.h"

namespace rope {

// The number of tensors, 1 or 2, if `args`, which are no prepared call's, are such a call in which
// all is right. Then `positions` and as many tensors are complete. Else 0, and the long way has to
// be gone: it writes them anew.
int32_t CheckToken(const rope_context& context, const rope_qk_args& args, WholeSource* positions,
                   Tensor tensors[2]);

// Whether all but the tensors of a call, with a cache or not, is as in such a call. Then
// `positions` is complete.
bool ReadPlace(const rope_context& context, const rope_qk_args& args, WholeSource* positions);

// The same of a call that reads keys in slots, by any operation. `from` is complete, too, where it
// has positions before.
bool ReadMovedPlace(const rope_context& context, const rope_qk_args& args, WholeSource* positions,
                    WholeSource* from);

// Whether q or k of such a call is described as it must be. Then `tensor` is complete, in place,
// and `reach` is what it takes of memory.
bool ReadHeads(const rope_context& context, const rope_tensor& t, Tensor* tensor, Reach* reach);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_CHECK_TOKEN_H_
