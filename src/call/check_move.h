// The short way through the checks of a call that moves keys: k, with v or alone, is read in slots
// of a contiguous cache and goes to others, which are described alike, or turns where it is, and
// nothing else is done besides. It only says whether all is right, in few instructions.
// check_fused.h is for every call, and says what is wrong.
#ifndef LIBROPE_SRC_CALL_CHECK_MOVE_H_
#define LIBROPE_SRC_CALL_CHECK_MOVE_H_

#include "call/call.h"
#include "call/fused_plan.h"
#include "librope/rope.h"
#include "math/tensor.h"
#include "math/token_position.h"

namespace rope {

// Whether `args`, which are no prepared call's and have one row for all heads, are such a call in
// which all is right but for the positions before and, where it `compares`, which slots are read
// and written, as both are of one memory. Then k is complete, and so is `fused`, which has been
// cleared. Else the long way has to be gone: it writes them anew, and leaves its own message if
// something is wrong.
bool CheckMove(const Call& call, const rope_qk_args& args, const PositionSource& positions,
               Tensor* k, FusedPlan* fused, bool* compares);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_CHECK_MOVE_H_
