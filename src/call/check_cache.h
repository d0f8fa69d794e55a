// The checks of where in a cache the tokens of a call go, or come from.
#ifndef LIBROPE_SRC_CALL_CHECK_CACHE_H_
#define LIBROPE_SRC_CALL_CHECK_CACHE_H_

#include "call/call.h"
#include "math/slots.h"
#include "math/token_position.h"

namespace rope {

// Sizes, the fields of the kind, and, in host memory, that each slot exists: all of `cache` but its
// memory. `positions` say which tokens a sequence has; `name` is the argument with "->" behind it.
rope_status CheckCache(const Call& call, const char* name, const rope_kv_cache& cache,
                       const PositionSource& positions, SlotSource* slots);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_CHECK_CACHE_H_
