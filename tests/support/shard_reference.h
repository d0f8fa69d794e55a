// Which tokens a rank has, from the header's words rather than from its formulas: every token of a
// row is asked whose it is, and a rank has its own in their order.
#ifndef LIBROPE_TESTS_SUPPORT_SHARD_REFERENCE_H_
#define LIBROPE_TESTS_SUPPORT_SHARD_REFERENCE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "librope/rope.h"

namespace rope::testing {

// The rank that has token `number` of `length` tokens.
inline int64_t OwnerOf(rope_shard_scheme scheme, int64_t world, int64_t block, int64_t number,
                       int64_t length) {
  switch (scheme) {
    case ROPE_SHARD_CONTIGUOUS: return number / (length / world);
    case ROPE_SHARD_ZIGZAG: {
      const int64_t chunk = number / (length / (2 * world));
      return std::min(chunk, 2 * world - 1 - chunk);
    }
    case ROPE_SHARD_STRIPED: return number / std::max<int64_t>(block, 1) % world;
    default: std::abort();  // a scheme that is not described here
  }
}

// Those of `tokens` that a rank has.
inline std::vector<int64_t> OwnOf(rope_shard_scheme scheme, int64_t rank, int64_t world,
                                  int64_t block, std::vector<int64_t> tokens) {
  if (scheme == ROPE_SHARD_HEADS || scheme == 0) return tokens;
  std::vector<int64_t> own;
  const auto length = static_cast<int64_t>(tokens.size());
  for (int64_t i = 0; i < length; ++i) {
    if (OwnerOf(scheme, world, block, i, length) == rank) {
      own.push_back(tokens[static_cast<size_t>(i)]);
    }
  }
  return own;
}

// How many ranks share the tokens of a row.
inline int64_t PartsOf(const rope_shard& s) {
  const auto parts = [](rope_shard_scheme scheme, int64_t world) {
    return scheme == 0 || scheme == ROPE_SHARD_HEADS ? 1 : world;
  };
  return parts(s.scheme, s.world) * parts(s.inner_scheme, s.inner_world);
}

// What the length of a document must be a multiple of.
inline int64_t DocumentUnitOf(const rope_shard& s) {
  const int64_t block = s.scheme == ROPE_SHARD_ZIGZAG ? 2 : s.block;
  return s.world * std::max<int64_t>(block, 1);
}

// The tokens of a row of `length` that a rank has, in the order of its memory.
inline std::vector<int64_t> NumbersOf(const rope_shard& s, int64_t length,
                                      const std::vector<int32_t>& cu_seqlens = {}) {
  std::vector<int64_t> outer;
  const std::vector<int32_t> whole = {0, static_cast<int32_t>(length)};
  const std::vector<int32_t>& cuts = s.per_document != 0 ? cu_seqlens : whole;
  for (size_t d = 0; d + 1 < cuts.size(); ++d) {
    std::vector<int64_t> document(static_cast<size_t>(cuts[d + 1] - cuts[d]));
    std::iota(document.begin(), document.end(), cuts[d]);
    for (const int64_t token : OwnOf(s.scheme, s.rank, s.world, s.block, document)) {
      outer.push_back(token);
    }
  }
  return OwnOf(s.inner_scheme, s.inner_rank, s.inner_world, s.inner_block, outer);
}

inline std::vector<int64_t> NumbersOf(const rope_positions& p, int64_t tokens) {
  std::vector<int32_t> cuts;
  if (p.cu_seqlens != nullptr) cuts.assign(p.cu_seqlens, p.cu_seqlens + p.sequences + 1);
  return NumbersOf(*p.shard, tokens * PartsOf(*p.shard), cuts);
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_SHARD_REFERENCE_H_
