// The checks of a call that reads keys and values in slots of a cache: rope_fused.source.
#ifndef LIBROPE_SRC_CALL_CHECK_SOURCE_H_
#define LIBROPE_SRC_CALL_CHECK_SOURCE_H_

#include "call/call.h"
#include "math/slots.h"
#include "math/token_position.h"

namespace rope {

// For a source and a cache that are one memory: no slot that a token writes is read by another one.
// Sets whether some token stays where it is.
rope_status CheckMoves(const Call& call, const SlotSource& source, const SlotSource& cache,
                       const PositionSource& positions, bool* in_place);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_CHECK_SOURCE_H_
