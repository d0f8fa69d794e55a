// Which tokens of a row a rank has, when several ranks share it. Host and device.
#ifndef LIBROPE_SRC_MATH_SHARD_H_
#define LIBROPE_SRC_MATH_SHARD_H_

#include <cstdint>

#include "librope/rope.h"
#include "math/divisor.h"
#include "math/host_device.h"

namespace rope {

// How a group of ranks divides tokens.
struct ShardLevel {
  rope_shard_scheme scheme;
  int32_t rank, world;
  int32_t block;  // STRIPED: tokens of a stripe
  SmallDivisor by_block;
};

// A rope_shard, checked. Where it has one level the inner one is HEADS, which divides no tokens.
// Tokens of a row are counted in 31 bits: with 64 a GPU's kernels need more registers than they
// have.
struct Shard {
  ShardLevel outer, inner;
  bool per_document;
  SmallDivisor by_outer_parts;
  int32_t tokens;        // of a row, on this rank
  int32_t outer_tokens;  // of a row, on all ranks of the inner level
  int32_t all_tokens;    // of a row, on all ranks
};

// Into how many parts the level divides tokens.
ROPE_HD int32_t TokenParts(const ShardLevel& level) {
  return level.scheme == ROPE_SHARD_HEADS ? 1 : level.world;
}

// The number, among the tokens of all ranks, of token `i` of the `count` that this rank has: `i`,
// and those of other ranks before it.
ROPE_HD uint32_t TokenOfRank(const ShardLevel& level, uint32_t i, uint32_t count) {
  const auto rank = static_cast<uint32_t>(level.rank);
  const uint32_t others = static_cast<uint32_t>(level.world) - 1;
  if (level.scheme == ROPE_SHARD_HEADS) return i;
  if (level.scheme == ROPE_SHARD_CONTIGUOUS) return i + rank * count;
  if (level.scheme == ROPE_SHARD_ZIGZAG) {
    return i + (i < count / 2 ? rank : 2 * others - rank) * (count / 2);
  }
  return i + (level.by_block(i) * others + rank) * static_cast<uint32_t>(level.block);
}

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_SHARD_H_
