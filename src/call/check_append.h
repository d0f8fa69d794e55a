// The short way through the checks of a call with rope_fused, for what an engine does for each
// token and layer: k and v, which are described alike, go to a contiguous cache, as they are or in
// 8 bits, heads may be normed before, and nothing else is done besides. It only says whether all is
// right, in few instructions. check_fused.h is for every call, and says what is wrong.
#ifndef LIBROPE_SRC_CALL_CHECK_APPEND_H_
#define LIBROPE_SRC_CALL_CHECK_APPEND_H_

#include "call/call.h"
#include "call/check_tensors.h"
#include "call/fused_plan.h"
#include "math/token_position.h"

namespace rope {

// Whether `args`, which are no prepared call's and have one row for all heads, are such a call in
// which all is right. Then the tensors, q and k to the cache, are complete, and so is `fused`,
// which has been cleared. Else the long way has to be gone: it writes them anew, and leaves its own
// message if something is wrong.
bool CheckAppend(const Call& call, const Names& names, const rope_qk_args& args,
                 const PositionSource& positions, Shapes* shapes, Tensor tensors[3],
                 FusedPlan* fused);

// The same of a call on one token, all but whose tensors and rope_fused has been looked at, and
// which has no cache: q and k are normed, or one of them, and turn in place.
bool CheckNormedToken(const Call& call, const rope_qk_args& args, Shapes* shapes, Tensor tensors[3],
                      FusedPlan* fused);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_CHECK_APPEND_H_
