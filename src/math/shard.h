// Which tokens of a row a rank has, when several ranks share it. Host and device.
#ifndef LIBROPE_SRC_MATH_SHARD_H_
#define LIBROPE_SRC_MATH_SHARD_H_

#include <cstdint>

#include "librope/rope.h"
#include "math/host_device.h"

namespace rope {

// How a group of ranks divides tokens.
struct ShardLevel {
  rope_shard_scheme scheme;
  int32_t rank, world;
  int32_t block;  // STRIPED: tokens of a stripe
};

// A rope_shard, checked. Where it has one level the inner one is HEADS, which divides no tokens.
struct Shard {
  ShardLevel outer, inner;
  bool per_document;
  int64_t tokens;        // of a row, on this rank
  int64_t outer_tokens;  // of a row, on all ranks of the inner level
  int64_t all_tokens;    // of a row, on all ranks
};

// Into how many parts the level divides tokens.
ROPE_HD int32_t TokenParts(const ShardLevel& level) {
  return level.scheme == ROPE_SHARD_HEADS ? 1 : level.world;
}

// The number, among the tokens of all ranks, of token `i` of the `count` that this rank has.
ROPE_HD int64_t TokenOfRank(const ShardLevel& level, int64_t i, int64_t count) {
  const int64_t rank = level.rank, world = level.world;
  if (level.scheme == ROPE_SHARD_HEADS) return i;
  if (level.scheme == ROPE_SHARD_CONTIGUOUS) return rank * count + i;
  if (level.scheme == ROPE_SHARD_ZIGZAG) {
    const int64_t chunk = count / 2;
    return i < chunk ? rank * chunk + i : (2 * world - 1 - rank) * chunk + (i - chunk);
  }
  if (level.block == 1) return i * world + rank;
  const int64_t stripe = i / level.block;
  return (stripe * world + rank) * level.block + (i - stripe * level.block);
}

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_SHARD_H_
