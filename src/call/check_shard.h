// The checks of positions.shard.
#ifndef LIBROPE_SRC_CALL_CHECK_SHARD_H_
#define LIBROPE_SRC_CALL_CHECK_SHARD_H_

#include "call/call.h"
#include "math/shard.h"

namespace rope {

// `name` is how messages call the positions, such as "args->positions.". Reads no arrays.
rope_status CheckShard(const Call& call, const char* name, const rope_positions& positions,
                       Shard* shard);

// The lengths of documents, in host memory, after cu_seqlens has been checked.
rope_status CheckDocuments(const Call& call, const char* name, const rope_positions& positions,
                           const Shard& shard);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_CHECK_SHARD_H_
