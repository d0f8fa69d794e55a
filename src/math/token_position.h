// The position of a token, from every kind of positions. Host and device.
#ifndef LIBROPE_SRC_MATH_TOKEN_POSITION_H_
#define LIBROPE_SRC_MATH_TOKEN_POSITION_H_

#include <cstdint>

#include "math/host_device.h"
#include "math/shard.h"

namespace rope {

// All kinds of positions as one: a base value per token, or an array with strides. Of whole
// sequences.
struct WholeSource {
  enum Type : int32_t { kNone, kInt32, kInt64, kFloat };
  // Where the tokens of a call lie: a sequence in each batch row, runs of cu_seqlens in one, or on
  // several ranks; or each token of a row is a sequence.
  enum Place : uint8_t { kRows, kRuns, kShard, kEach };
  Type type;          // of data; kNone: positions are offset + i
  bool per_sequence;  // data has one offset for each sequence, else one id for each token
  Place place;
  int32_t sequences;  // runs in cu_seqlens; 0: sequences are the batch rows
  const void* data;
  const int32_t* cu_seqlens;
  const int32_t* freq_sets;
  int64_t offset;
  int64_t stride_axis, stride_batch, stride_token;  // of ids, in elements
};

// And which of their tokens are here. Most calls have no shard, and do not pay for zeros in it.
struct PositionSource : WholeSource {
  Shard shard;  // kShard; otherwise anything
};

// A token inside its sequence.
struct Token {
  int64_t batch, index;  // the batch row, and the token of that row
  int64_t sequence;      // the batch row or the run of cu_seqlens
  int64_t start;         // index - start is the token's number in its sequence
};

// The run of cu_seqlens that holds `index`: the last one that starts at or before it and is not
// empty. `cu_seqlens` may hold anything: the result is always in [0, sequences).
ROPE_HD int64_t FindSequence(const int32_t* cu_seqlens, int32_t sequences, int64_t index) {
  int32_t low = 0, high = sequences;  // cu_seqlens[low] <= index < cu_seqlens[high]
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    if (cu_seqlens[middle] <= index) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// How sequences are found: a type, because a device calls no pointers to functions.
struct BinarySearch {
  ROPE_HD static int64_t Find(const int32_t* cu_seqlens, int32_t sequences, int64_t index) {
    return FindSequence(cu_seqlens, sequences, index);
  }
};

// The sequence of a token, and what Token has as its start.
struct Run {
  int64_t sequence, start;
};

// Of a rank's token.
template <class Search>
ROPE_HD_APART Run RunOfShard(const PositionSource& source, int64_t batch, int64_t index) {
  const Shard& shard = source.shard;
  const auto i = static_cast<uint32_t>(index);
  const uint32_t in_outer = TokenOfRank(shard.inner, i, static_cast<uint32_t>(shard.tokens));
  if (shard.per_document) {  // all cu_seqlens are multiples of `parts`
    const auto parts = static_cast<uint32_t>(TokenParts(shard.outer));
    const int64_t sequence = Search::Find(source.cu_seqlens, source.sequences, in_outer * parts);
    const auto first = static_cast<uint32_t>(source.cu_seqlens[sequence]);
    const uint32_t length = static_cast<uint32_t>(source.cu_seqlens[sequence + 1]) - first;
    const uint32_t in_document = in_outer - shard.by_outer_parts(first);
    return {sequence, index - TokenOfRank(shard.outer, in_document, shard.by_outer_parts(length))};
  }
  const uint32_t in_row =
      TokenOfRank(shard.outer, in_outer, static_cast<uint32_t>(shard.outer_tokens));
  if (source.cu_seqlens == nullptr) return {batch, index - in_row};
  const int64_t sequence = Search::Find(source.cu_seqlens, source.sequences, in_row);
  return {sequence, index - (int64_t{in_row} - source.cu_seqlens[sequence])};
}

// Of a token, where place is not kShard.
template <class Search>
ROPE_HD Run RunOfWhole(const WholeSource& source, int64_t batch, int64_t index) {
  if (source.place == PositionSource::kRows) return {batch, 0};
  const int64_t sequence = Search::Find(source.cu_seqlens, source.sequences, index);
  return {sequence, source.cu_seqlens[sequence]};
}

template <class Search>
ROPE_HD Token LocateTokenBy(const PositionSource& source, int64_t batch, int64_t index) {
  const Run run = source.place == PositionSource::kShard ? RunOfShard<Search>(source, batch, index)
                                                         : RunOfWhole<Search>(source, batch, index);
  return {batch, index, run.sequence, run.start};
}

// On the host, where alone tokens can be sequences (call/join_batch.h). Inlined, with its first
// line, in calls on one token.
ROPE_HD_INLINED Token LocateToken(const PositionSource& source, int64_t batch, int64_t index) {
  if (source.place == PositionSource::kRows) return {batch, index, batch, 0};  // of most calls
  if (source.place == PositionSource::kEach) return {batch, index, index, index};
  return LocateTokenBy<BinarySearch>(source, batch, index);
}

ROPE_HD int64_t IdIndex(const PositionSource& source, const Token& token, int axis) {
  return axis * source.stride_axis + token.batch * source.stride_batch +
         token.index * source.stride_token;
}

// Integer positions (type is not kFloat). Sums wrap modulo 2^64.
ROPE_HD int64_t IntegerPosition(const PositionSource& source, const Token& token, int axis) {
  uint64_t position = 0;
  const bool ids = !source.per_sequence;
  if (source.type != PositionSource::kNone) {
    const int64_t at = ids ? IdIndex(source, token, axis) : token.sequence;
    position = source.type == PositionSource::kInt32
                   ? static_cast<uint64_t>(static_cast<const int32_t*>(source.data)[at])
                   : static_cast<uint64_t>(static_cast<const int64_t*>(source.data)[at]);
    if (ids) return static_cast<int64_t>(position);
  } else {
    position = static_cast<uint64_t>(source.offset);
  }
  return static_cast<int64_t>(position + static_cast<uint64_t>(token.index - token.start));
}

ROPE_HD float FloatPosition(const PositionSource& source, const Token& token, int axis) {
  return static_cast<const float*>(source.data)[IdIndex(source, token, axis)];
}

ROPE_HD float PositionAsFloat(const PositionSource& source, const Token& token, int axis) {
  return source.type == PositionSource::kFloat
             ? FloatPosition(source, token, axis)
             : static_cast<float>(IntegerPosition(source, token, axis));
}

ROPE_HD double PositionAsDouble(const PositionSource& source, const Token& token, int axis) {
  return source.type == PositionSource::kFloat
             ? FloatPosition(source, token, axis)
             : static_cast<double>(IntegerPosition(source, token, axis));
}

// The set of frequencies of a sequence, out of `sets`. An index out of range, which nobody has
// checked on a device, or which another thread has changed since, means set 0.
ROPE_HD int32_t FrequencySetOf(const PositionSource& source, int64_t sequence, int32_t sets) {
  if (source.freq_sets == nullptr) return 0;
  const int32_t set = source.freq_sets[sequence];
  return set >= 0 && set < sets ? set : 0;
}

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_TOKEN_POSITION_H_
