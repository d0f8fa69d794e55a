// The checks of a call's positions.
#ifndef LIBROPE_SRC_CALL_CHECK_POSITIONS_H_
#define LIBROPE_SRC_CALL_CHECK_POSITIONS_H_

#include "call/call.h"
#include "math/token_position.h"

namespace rope {

// `name` is how messages call the struct, such as "args->positions.". The contents of arrays are
// read only in host memory.
rope_status CheckPositions(const Call& call, const char* name, const rope_positions& positions,
                           PositionSource* source);

// Of a kind that has passed CheckPositions(), without ROPE_POSITIONS_.
const char* NameOfPositionKind(rope_position_kind kind);

// Batch rows, one after the other, that share a row of positions.
inline int64_t BatchRepeatOf(const rope_positions& positions) {
  return positions.batch_repeat != 0 ? positions.batch_repeat : 1;
}

// Positions for which the context's frequencies are right (rope_info.valid_below): every one in
// host memory; of those on a device, which cannot be read here, the ones that follow from an
// offset. So many batch rows of the call share them.
rope_status CheckValidity(const Call& call, const char* name, const PositionSource& source,
                          int64_t batch_repeat);

// Of REROTATE: the runs of both, which have passed CheckPositions().
rope_status CheckBothRuns(const Call& call, const PositionSource& from, const PositionSource& to);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_CHECK_POSITIONS_H_
