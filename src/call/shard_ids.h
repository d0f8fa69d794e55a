// Positions as an array, for what cannot do without: rope_shard_ids.
#ifndef LIBROPE_SRC_CALL_SHARD_IDS_H_
#define LIBROPE_SRC_CALL_SHARD_IDS_H_

#include <cstdint>

#include "librope/rope.h"

namespace rope {

rope_status WriteShardIds(const char* function, int64_t batch, int64_t tokens,
                          const rope_positions* positions, int64_t* ids, int64_t* numbers);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_SHARD_IDS_H_
