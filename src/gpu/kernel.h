// The bodies of the CUDA kernels: everything one thread does, as functions for host and device, so
// that a plain C++ test can walk every block and thread of a launch (tests/gpu/cuda_grid_test.cc).
// The memory of the tensors is reached through a template argument.
//
// A thread owns two vectors of a head, at `first` and `first + delta`, and does so for two heads:
// four loads, all issued before anything else. Both members of a pair are in one thread's vectors,
// and in place nothing is written before the whole block has read its heads. cos and sin of a token
// are made once per block, each pair by one thread, and shared.
//
//   Locate    addresses; touches no memory
//   Load      all vectors; before them, while there are registers for it, where in a shard tokens
//   are MakeRow   cos and sin into shared memory; after it, a barrier Rotate    arithmetic and
//   stores
#ifndef LIBROPE_SRC_GPU_KERNEL_H_
#define LIBROPE_SRC_GPU_KERNEL_H_

#include <cstdint>

#include "gpu/params.h"
#include "math/angle.h"
#include "math/cos_sin_table.h"
#include "math/element.h"
#include "math/rotate.h"
#include "math/slots.h"
#include "math/tensor.h"
#include "math/token_position.h"

namespace rope::gpu {

// Indices and sizes of a thread in its block and of the block in its grid.
struct Thread {
  uint32_t block_x, block_y;
  uint32_t x, y, z;
  uint32_t size_x, size_y, size_z;

  ROPE_HD uint32_t token() const { return block_x * size_z + z; }
};

struct TokenIndex {
  int64_t batch, index;
};

ROPE_HD TokenIndex SplitToken(const TokenRange& range, uint32_t n) {
  const uint32_t row = range.by_row(n);
  return {range.first_batch + row, range.first_index + (n - row * range.batch_tokens)};
}

// FindSequence of token_position.h for memory with a long latency: seven independent loads per step
// instead of one. The same result for every valid cu_seqlens, and always one in [0, sequences).
ROPE_HD int64_t FindSequenceWide(const int32_t* cu_seqlens, int32_t sequences, int64_t index) {
  constexpr uint32_t kWays = 8;
  uint32_t low = 0, size = static_cast<uint32_t>(sequences);  // the run is in [low, low + size)
  while (size > 1) {
    const uint32_t step = (size + kWays - 1) / kWays;
    int32_t starts[kWays];
    ROPE_UNROLL
    for (uint32_t k = 1; k < kWays; ++k) {
      starts[k] = cu_seqlens[low + (k * step < size ? k * step : 0)];
    }
    uint32_t parts = 0;
    ROPE_UNROLL
    for (uint32_t k = 1; k < kWays; ++k) {
      if (k * step < size && starts[k] <= index) parts = k;
    }
    low += parts * step;
    size = size - parts * step < step ? size - parts * step : step;
  }
  return low;
}

struct WideSearch {
  ROPE_HD static int64_t Find(const int32_t* cu_seqlens, int32_t sequences, int64_t index) {
    return FindSequenceWide(cu_seqlens, sequences, index);
  }
};

ROPE_HD Token LocateTokenWide(const PositionSource& positions, TokenIndex at) {
  return LocateTokenBy<WideSearch>(positions, at.batch, at.index);
}

// `in_shard`: what RunOfShard has found, where tokens are those of a shard.
ROPE_HD Token LocateTokenWide(const PositionSource& positions, TokenIndex at, Run in_shard) {
  const Run run = positions.place == PositionSource::kShard
                      ? in_shard
                      : RunOfWhole<WideSearch>(positions, at.batch, at.index);
  return {at.batch, at.index, run.sequence, run.start};
}

ROPE_HD int32_t SetOf(const CosSinSource& source, const Token& token) {
  return FrequencySetOf(source.positions, token.sequence, source.all_sets);
}

// Whether this launch is the one that has the token's frequencies.
ROPE_HD bool HasSet(const CosSinSource& source, const Token& token) {
  if (source.set_count == source.all_sets) return true;
  const int32_t set = SetOf(source, token) - source.first_set;
  return set >= 0 && set < source.set_count;
}

ROPE_HD const LaneSpan& LaneSpanOf(const CosSinSource& source, int32_t pair) {
  int32_t at = 0;
  for (int32_t n = 1; n < source.lane_span_count; ++n)
    at += pair >= source.lane_spans[n].first_pair ? 1 : 0;
  return source.lane_spans[at];
}

ROPE_HD PairRow ReadPairRow(const CosSinSource& source, TokenIndex at, int32_t pair) {
  const CosSinTable& table = source.rows;
  const int64_t row = table.RowOf(at.batch, at.index);
  if (table.format.per_channel()) {
    const LaneSpan& span = LaneSpanOf(source, pair);
    const int64_t first = row + span.row_first + (pair - span.first_pair) * source.row_step;
    return ReadChannels(table, first, first + span.row_delta, source.backward);
  }
  const CosSin value =
      RowOfPairsAt(table, row, source.all_pairs).Read(source.first_pair + pair, source.backward);
  return {value, value};
}

// The frequency of a pair of the launch, as math/angle.h asks for it.
struct LaunchFrequency {
  const Frequencies& all;
  uint32_t at;
  uint32_t axis_step;  // of sums

  ROPE_HD LaunchFrequency OfAxis(int axis) const {
    return {all, at + static_cast<uint32_t>(axis) * axis_step, axis_step};
  }

  ROPE_HD float inv_freq_f32() const { return all.inv_freq[at]; }
  ROPE_HD float timescale() const { return all.timescale[at]; }
  ROPE_HD uint64_t turns_fraction() const { return all.turns[at]; }
  ROPE_HD Turns turns() const { return all.whole_turns[at]; }
  ROPE_HD double inv_freq() const { return all.radians[at]; }
};

// That of `set`, counted from the launch's first one; of sums, on axis 0.
ROPE_HD LaunchFrequency FrequencyOf(const CosSinSource& source, int32_t set, uint32_t pair) {
  const uint32_t first = static_cast<uint32_t>(set) * static_cast<uint32_t>(source.terms);
  return {source.frequencies, first * source.pairs + pair, source.pairs};
}

// cos and sin of a pair from the token's position, scaled. kFloat32, kDivide, kExact and
// kCoordinate.
ROPE_HD CosSin MakeCosSin(const CosSinSource& source, const Token& token, uint32_t pair) {
  const int32_t set = SetOf(source, token) - source.first_set;
  const LaunchFrequency frequency = FrequencyOf(source, set, pair);
  const auto rule = static_cast<AngleRule>(source.kind);
  CosSin value;
  if (source.sums) {
    value = CosSinOfSum(rule, frequency, source.positions, token, source.axes);
  } else {
    const int axis = source.axes > 1 ? source.axis[pair] : 0;
    value = CosSinOfPair(rule, frequency, source.positions, token, axis);
  }
  return {Multiply(value.cos, source.scales[set].cos), Multiply(value.sin, source.scales[set].sin)};
}

template <int kBytes>
struct Vector {
  uint32_t words[(kBytes + 3) / 4];
};

template <rope_dtype kType>
inline constexpr bool kIsHalfWord = kType == ROPE_DTYPE_F16 || kType == ROPE_DTYPE_BF16;

// Two 16-bit elements, the first in the lower half.
template <rope_dtype kType>
ROPE_HD uint32_t PackTwo(float low, float high) {
  static_assert(kIsHalfWord<kType>);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t word;
  if constexpr (kType == ROPE_DTYPE_BF16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
#else
  if constexpr (kType == ROPE_DTYPE_BF16) {
    return Bf16FromFloat(low) | static_cast<uint32_t>(Bf16FromFloat(high)) << 16;
  } else {
    return F16FromFloat(low) | static_cast<uint32_t>(F16FromFloat(high)) << 16;
  }
#endif
}

template <rope_dtype kType>
ROPE_HD float FromHalfWord(uint32_t bits) {
  static_assert(kIsHalfWord<kType>);
  return kType == ROPE_DTYPE_BF16 ? FloatFromBf16(static_cast<uint16_t>(bits))
                                  : FloatFromF16(static_cast<uint16_t>(bits));
}

template <rope_dtype kType, int kCount, int kBytes>
ROPE_HD void Unpack(const Vector<kBytes>& vector, float* values) {
  if constexpr (kType == ROPE_DTYPE_F32) {
    ROPE_UNROLL
    for (int j = 0; j < kCount; ++j) values[j] = BitsFloat(vector.words[j]);
  } else if constexpr (kCount == 1) {
    values[0] = FromHalfWord<kType>(vector.words[0]);
  } else {
    ROPE_UNROLL
    for (int j = 0; j < kCount; j += 2) {
      values[j] = FromHalfWord<kType>(vector.words[j / 2] & 0xffffu);
      values[j + 1] = FromHalfWord<kType>(vector.words[j / 2] >> 16);
    }
  }
}

template <rope_dtype kType, int kCount, int kBytes>
ROPE_HD void Pack(const float* values, Vector<kBytes>* vector) {
  if constexpr (kType == ROPE_DTYPE_F32) {
    ROPE_UNROLL
    for (int j = 0; j < kCount; ++j) vector->words[j] = FloatBits(values[j]);
  } else if constexpr (kCount == 1) {
    vector->words[0] =
        kType == ROPE_DTYPE_BF16 ? Bf16FromFloat(values[0]) : F16FromFloat(values[0]);
  } else {
    ROPE_UNROLL
    for (int j = 0; j < kCount; j += 2) {
      vector->words[j / 2] = PackTwo<kType>(values[j], values[j + 1]);
    }
  }
}

// cos and sin of a thread's pairs j and j + 1.
struct TwoRows {
  CosSin values[2];
};

// One kernel of rope_apply_qk. Memory has, for the tensors, Load<bytes>(const char*) and
// Store<bytes>(char*, vector); for rows, which are shared memory, LoadRows<again>(const CosSin*),
// 16-byte aligned, and StoreRow(CosSin*, CosSin). `again`: the compiler must not keep what it loads
// for the next head, because with per_channel that is more than the registers hold.
template <rope_dtype kType, Form kForm, Arithmetic kArithmetic, class Memory>
struct Kernel {
  static constexpr int kElementBytes = ElementSize(kType);
  static constexpr int kPairs =  // of a thread: as many as elements in a vector
      kForm == kSingle                           ? 1
      : kForm == kHalves2 || kForm == kAdjacent2 ? 2
                                                 : 16 / kElementBytes;
  static constexpr int kBytes = kPairs * kElementBytes;
  // In the two vectors, taken as one of 2 * kPairs elements, pair j has the elements j and
  // j + kPairs, or 2j and 2j + 1. Adjacent pairs in both: the vectors lie half the span apart, and
  // hold pairs that lie as far apart. Else the thread's pairs follow each other.
  static constexpr bool kAdjacent = kForm == kAdjacent16 || kForm == kAdjacent2;
  static constexpr bool kReadsAdjacent = kAdjacent || kForm == kToHalves16;
  static constexpr bool kWritesAdjacent = kAdjacent || kForm == kToInterleaved16;

  // What a thread holds between the phases.
  struct Held {
    const char* in;  // its first vector in its first head
    char* out;
    int64_t in_head, out_head;    // to the second head
    int32_t in_delta, out_delta;  // to the second vector
    int32_t heads, vectors;       // 0 to 2
    bool rotates;                 // else it copies
    Run run;                      // of the thread's token, if tokens are those of a shard
    Vector<kBytes> data[2][2];    // [head][vector]
  };

  ROPE_HD static constexpr int Element(bool adjacent, int j, int member) {
    return adjacent ? 2 * j + member : j + member * kPairs;
  }

  // Where shared memory has a pair of the launch: pair j of lane x is at (j / 2, x, j % 2), so that
  // the lanes of a warp read neighbouring 16 bytes.
  ROPE_HD static uint32_t RowPlace(const CommonParams& p, uint32_t pair) {
    if constexpr (kPairs == 1) {
      return pair;
    } else {
      uint32_t lane = pair / kPairs, j = pair % kPairs;
      if constexpr (kAdjacent) {
        const uint32_t middle = p.source.pairs / 2;
        const bool upper = pair >= middle;
        const uint32_t own = upper ? pair - middle : pair;
        lane = own / (kPairs / 2);
        j = own % (kPairs / 2) + (upper ? kPairs / 2 : 0);
      }
      return ((j / 2) * p.lanes + lane) * 2 + j % 2;
    }
  }

  ROPE_HD static void Locate(const Params& p, const Thread& i, Held* held) {
    held->in = nullptr;
    held->out = nullptr;
    held->heads = held->vectors = 0;
    uint32_t group = p.first_head_group + i.block_y * i.size_y + i.y;
    const bool is_second = group >= p.sides[0].head_groups;
    const Side& side = p.sides[is_second ? 1 : 0];
    if (is_second) group -= p.sides[0].head_groups;
    const uint32_t n = i.token();
    if (group >= side.head_groups || n >= p.source.tokens.count) return;
    const TokenIndex at = SplitToken(p.source.tokens, n);
    held->rotates = i.x < p.lanes;
    LocateSide(p, i, side, group, at, p.lanes, p.copy_lanes, false, held);
  }

  ROPE_HD static void Load(const CommonParams& p, const Thread& i, Held* held) {
    const PositionSource& positions = p.source.positions;
    const bool in_shard = positions.place == PositionSource::kShard;
    if (in_shard && i.token() < p.source.tokens.count) {
      const TokenIndex at = SplitToken(p.source.tokens, i.token());
      held->run = RunOfShard<WideSearch>(positions, at.batch, at.index);
    }
    if (p.source.set_count != p.source.all_sets && held->heads != 0) {
      const TokenIndex at = SplitToken(p.source.tokens, i.token());
      if (!HasSet(p.source, LocateTokenWide(positions, at, held->run))) held->heads = 0;
    }
    ROPE_UNROLL
    for (int u = 0; u < 2; ++u) {
      if (u >= held->heads) continue;
      const char* const in = held->in + u * held->in_head;
      if (held->vectors > 0) held->data[u][0] = Memory::template Load<kBytes>(in);
      if (held->vectors > 1) {
        held->data[u][1] = Memory::template Load<kBytes>(in + held->in_delta);
      }
    }
  }

  // rows: size_z * pairs entries, and as many again for the second members if per_channel.
  ROPE_HD static void MakeRow(const CommonParams& p, const Thread& i, Run in_shard, CosSin* rows) {
    const CosSinSource& source = p.source;
    const uint32_t first = i.y * i.size_x + i.x;
    const uint32_t n = i.token();
    if (first >= source.pairs || n >= source.tokens.count) return;
    const TokenIndex at = SplitToken(source.tokens, n);
    const bool given = source.kind == CosSinKind::kRows;
    Token token;
    if (!given) {
      token = LocateTokenWide(source.positions, at, in_shard);
      if (!HasSet(source, token)) return;
    }
    for (uint32_t pair = first; pair < source.pairs; pair += i.size_x * i.size_y) {
      PairRow row;
      if (given) {
        row = ReadPairRow(source, at, static_cast<int32_t>(pair));
      } else {
        row.first = row.second = MakeCosSin(source, token, pair);
      }
      CosSin* const to = rows + i.z * source.pairs + RowPlace(p, pair);
      Memory::StoreRow(to, Rounded(p, row.first));
      if (p.per_channel) Memory::StoreRow(to + i.size_z * source.pairs, Rounded(p, row.second));
    }
  }

  ROPE_HD static void Rotate(const CommonParams& p, const Thread& i, const Held& held,
                             const CosSin* rows) {
    if (held.heads == 0) return;
    if (!held.rotates) {
      ROPE_UNROLL
      for (int u = 0; u < 2; ++u) {
        if (u < held.heads) StoreHead(held, u, held.data[u]);
      }
    } else if (p.per_channel) {
      RotateHeads<true>(p, i, held, rows);
    } else {
      RotateHeads<false>(p, i, held, rows);
    }
  }

 protected:
  // All but held->rotates. Lanes that copy begin with `first_copy`. `to_slots`: in slot 0.
  ROPE_HD static void LocateSide(const CommonParams& p, const Thread& i, const Side& side,
                                 uint32_t group, TokenIndex at, uint32_t first_copy,
                                 uint32_t copy_lanes, bool to_slots, Held* held) {
    int32_t in_at, out_at;
    if (held->rotates) {
      int32_t own = 0;
      for (int32_t s = 1; s < p.source.lane_span_count; ++s) {
        own += i.x >= p.source.lane_spans[s].first_lane ? 1 : 0;
      }
      const LaneSpan& span = p.source.lane_spans[own];
      const auto lane = static_cast<int32_t>(i.x - span.first_lane);
      in_at = span.in_first + lane * p.in_step;
      out_at = span.out_first + lane * p.out_step;
      held->in_delta = span.in_delta;
      held->out_delta = span.out_delta;
      held->vectors = 2;
    } else {
      const uint32_t first = i.x - first_copy, second = first + copy_lanes;
      const int32_t first_at = CopyOffset(side, first);
      in_at = side.copy_in + first_at;
      out_at = side.copy_out + first_at;
      held->in_delta = held->out_delta = CopyOffset(side, second) - first_at;
      held->vectors = (first < side.copy_vectors ? 1 : 0) + (second < side.copy_vectors ? 1 : 0);
    }
    held->heads = group + side.head_groups < side.heads ? 2 : 1;
    held->in_head = side.head_groups * side.in_strides.head;
    held->out_head = side.head_groups * side.out_strides.head;
    held->in = side.in + (HeadOffset(side.in_strides, at.batch, at.index, group) + in_at);
    const int64_t out_token = to_slots ? 0 : TokenOffset(side.out_strides, at.batch, at.index);
    held->out = side.out + (out_token + group * side.out_strides.head + out_at);
  }

  ROPE_HD static int32_t CopyOffset(const Side& side, uint32_t vector) {
    return static_cast<int32_t>(vector) * kBytes + (vector >= side.copy_gap_at ? side.copy_gap : 0);
  }

  ROPE_HD static CosSin Rounded(const CommonParams& p, CosSin value) {
    if (!p.rounds_rows) return value;
    return {RoundTo(kType, value.cos), RoundTo(kType, value.sin)};
  }

  // cos and sin of the thread's own pairs j and j + 1 (or of its only pair).
  template <bool kAgain>
  ROPE_HD static TwoRows ReadRows(const CommonParams& p, const Thread& i, const CosSin* rows,
                                  int j) {
    if constexpr (kPairs == 1) {
      return {{rows[i.x], {}}};
    } else {
      return Memory::template LoadRows<kAgain>(rows +
                                               2 * (static_cast<uint32_t>(j / 2) * p.lanes + i.x));
    }
  }

  template <class AnyHeld>
  ROPE_HD static void StoreHead(const AnyHeld& held, int u, const Vector<kBytes>* data) {
    char* const out = held.out + u * held.out_head;
    if (held.vectors > 0) Memory::template Store<kBytes>(out, data[0]);
    if (held.vectors > 1) Memory::template Store<kBytes>(out + held.out_delta, data[1]);
  }

  template <bool kPerChannel, class AnyHeld>
  ROPE_HD static void RotateHeads(const CommonParams& p, const Thread& i, const AnyHeld& held,
                                  const CosSin* rows) {
    rows += i.z * p.source.pairs;
    const CosSin* const second_rows = rows + i.size_z * p.source.pairs;
    ROPE_UNROLL
    for (int u = 0; u < 2; ++u) {
      if (u >= held.heads) continue;
      float x[2 * kPairs], y[2 * kPairs];
      Unpack<kType, kPairs>(held.data[u][0], x);
      Unpack<kType, kPairs>(held.data[u][1], x + kPairs);
      TwoRows first, second;
      ROPE_UNROLL
      for (int j = 0; j < kPairs; ++j) {
        if (j % 2 == 0) {
          first = ReadRows<kPerChannel>(p, i, rows, j);
          second = kPerChannel ? ReadRows<kPerChannel>(p, i, second_rows, j) : first;
        }
        const CosSin a = first.values[j % 2], b = second.values[j % 2];
        const Pair pair = {x[Element(kReadsAdjacent, j, 0)], x[Element(kReadsAdjacent, j, 1)]};
        const Pair rotated = RotateBy(kArithmetic, kType, pair, a, b);
        y[Element(kWritesAdjacent, j, 0)] = rotated.x0;
        y[Element(kWritesAdjacent, j, 1)] = rotated.x1;
      }
      Vector<kBytes> data[2];
      Pack<kType, kPairs>(y, &data[0]);
      Pack<kType, kPairs>(y + kPairs, &data[1]);
      StoreHead(held, u, data);
    }
  }
};

// Calls with `fused`: heads may go to the slots of a cache, and v is copied beside q and k. Memory
// also has Increment(uint32_t*), which other threads may do at the same time.
//
//   FindSlot  beside MakeRow: where the slot of a token is, by one thread, into shared memory
//   Store     after the barrier: Rotate, or nothing where a token has no slot
template <rope_dtype kType, Form kForm, Arithmetic kArithmetic, class Memory>
struct FusedKernel : Kernel<kType, kForm, kArithmetic, Memory> {
  using Base = Kernel<kType, kForm, kArithmetic, Memory>;

  struct Held : Base::Held {
    int32_t slot_side;  // of SlotPlaces, and out is that of slot 0; -1: out is complete
  };

  ROPE_HD static void Locate(const FusedParams& p, const Thread& i, Held* held) {
    held->in = nullptr;
    held->out = nullptr;
    held->slot_side = -1;
    held->heads = held->vectors = 0;
    uint32_t group = p.first_head_group + i.block_y * i.size_y + i.y;
    int32_t s = 0;
    for (; s < p.side_count && group >= p.sides[s].head_groups; ++s) {
      group -= p.sides[s].head_groups;
    }
    const uint32_t n = i.token();
    if (s == p.side_count || n >= p.source.tokens.count) return;
    const FusedSide& side = p.sides[s];
    const TokenIndex at = SplitToken(p.source.tokens, n);
    held->rotates = side.turns && i.x < p.lanes;
    held->slot_side = side.to_slots ? s - p.first_slot_side : -1;
    Base::LocateSide(p, i, side, group, at, side.turns ? p.lanes : 0,
                     side.turns ? p.copy_lanes : p.lanes + p.copy_lanes, side.to_slots, held);
  }

  // Behind the rows, size_z of them.
  ROPE_HD static SlotPlaces* PlacesOf(const FusedParams& p, const Thread& i, CosSin* rows) {
    const uint32_t count = i.size_z * p.source.pairs * (p.per_channel ? 2 : 1);
    return reinterpret_cast<SlotPlaces*>(rows + count);
  }

  ROPE_HD static void FindSlot(const FusedParams& p, const Thread& i, Run in_shard,
                               SlotPlaces* places) {
    // The last thread of a token: it has the least to do for its row.
    if (i.x != i.size_x - 1 || i.y != i.size_y - 1) return;
    const uint32_t n = i.token(), first = p.first_head_group + i.block_y * i.size_y;
    if (first + i.size_y <= p.first_slot_group || n >= p.source.tokens.count) return;
    const TokenIndex at = SplitToken(p.source.tokens, n);
    const Token token = LocateTokenWide(p.source.positions, at, in_shard);
    if (!HasSet(p.source, token)) return;
    const Slot slot = SlotOf(p.slots, token, p.row_tokens, p.page_size);
    for (int32_t s = p.first_slot_side; s < p.side_count; ++s) {
      places[i.z].bytes[s - p.first_slot_side] =
          slot.page < 0 ? -1 : TokenOffset(p.sides[s].out_strides, slot.page, slot.index);
    }
    // Of all blocks that a token has, one holds this group.
    if (slot.page == kMissing && p.dropped != nullptr && first <= p.first_slot_group) {
      Memory::Increment(p.dropped);
    }
  }

  ROPE_HD static void Store(const FusedParams& p, const Thread& i, const Held& held,
                            const CosSin* rows, const SlotPlaces* places) {
    if (held.heads == 0) return;
    Held placed = held;
    if (held.slot_side >= 0) {
      const int64_t place = places[i.z].bytes[held.slot_side];
      if (place < 0) return;
      placed.out += place;
    }
    Base::Rotate(p, i, placed, rows);
  }
};

// rope_cos_sin_fill: a thread per token and pair, source.rows is written. kWithAngles: the two
// formats that hold the angles, under EXACT computed in f64.
template <bool kWithAngles>
ROPE_HD void Fill(const CosSinSource& source, uint32_t n, uint32_t pair) {
  const TokenIndex at = SplitToken(source.tokens, n);
  const Token token = LocateTokenBy<WideSearch>(source.positions, at.batch, at.index);
  if (!HasSet(source, token)) return;
  const CosSinTable& table = source.rows;
  const int64_t row = table.RowOf(at.batch, at.index);
  const int32_t own = source.first_pair + static_cast<int32_t>(pair);
  if constexpr (kWithAngles) {
    const int32_t set = SetOf(source, token) - source.first_set;
    const LaunchFrequency frequency = FrequencyOf(source, set, pair);
    const AngleRule rule = source.kind == CosSinKind::kRadians
                               ? AngleRule::kExact
                               : static_cast<AngleRule>(source.kind);
    float angle;
    if (source.sums) {
      angle = AngleOfSum(rule, frequency, source.positions, token, source.axes);
    } else {
      const int axis = source.axes > 1 ? source.axis[pair] : 0;
      angle = AngleOfPair(rule, frequency, source.positions, token, axis);
    }
    StoreAngle(table, row, own, source.all_pairs, angle);
    return;
  }
  const CosSin value = MakeCosSin(source, token, pair);
  if (table.format.per_channel()) {
    const LaneSpan& span = LaneSpanOf(source, static_cast<int32_t>(pair));
    const int64_t first =
        row + span.row_first + (static_cast<int32_t>(pair) - span.first_pair) * source.row_step;
    StoreChannels(table, first, first + span.row_delta, value);
    return;
  }
  RowOfPairsAt(table, row, source.all_pairs).Store(own, value);
}

}  // namespace rope::gpu

#endif  // LIBROPE_SRC_GPU_KERNEL_H_
