// The kernels of most calls: a token needs one position, whose place is known before the launch,
// and all offsets have 32 bits (see IsPlain in plain.cc). What kernel.h decides branch by branch is
// known here, so that a thread asks for its position and its vectors together, and few instructions
// lie before the first load and between the last one and the stores.
//
//   Locate    addresses, and the frequency of the thread's first pair; touches no memory
//   Ask       the position, first, because the longest chain hangs on it; then all vectors
//   MakeRow   cos and sin into shared memory; after it, a barrier
//   Rotate    arithmetic and stores
#ifndef LIBROPE_SRC_GPU_PLAIN_H_
#define LIBROPE_SRC_GPU_PLAIN_H_

#include <cstdint>
#include <cstring>

#include "gpu/kernel.h"

namespace rope::gpu {

bool IsPlain(const Params& p);
bool IsPlain(const FusedParams& p);

// Whether such a kernel exists: of whole vectors, in float32 arithmetic.
ROPE_HD constexpr bool HasPlain(const Variant& v) {
  return (v.form == kHalves16 || v.form == kAdjacent16) && v.arithmetic == Arithmetic::kFused;
}

// Half of an integer, or all of it.
ROPE_HD uint32_t WordAt(const uint32_t* at) {
#if defined(__CUDA_ARCH__)
  return *at;
#else
  uint32_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
#endif
}

// An integer in memory, from when its place is known until it is there: two loads that nothing
// branches around.
struct AskedInteger {
  const uint32_t* from;  // null: `words` are the integer
  bool wide;             // of 64 bits
  uint32_t words[2];

  ROPE_HD void SetPlace(const void* data, bool is_wide, int32_t index) {
    wide = is_wide;
    from = static_cast<const uint32_t*>(data) + (is_wide ? 2 * index : index);
  }

  ROPE_HD void Ask() {
    if (from != nullptr) words[0] = WordAt(from);
    if (wide) words[1] = WordAt(from + 1);
  }

  ROPE_HD int64_t Value() const {
    const auto sign = static_cast<uint32_t>(static_cast<int32_t>(words[0]) >> 31);
    return static_cast<int64_t>(static_cast<uint64_t>(wide ? words[1] : sign) << 32 | words[0]);
  }
};

struct PlainToken {
  int32_t batch, index;
};

ROPE_HD PlainToken SplitPlainToken(const TokenRange& range, uint32_t n) {
  const uint32_t row = range.by_row(n);
  return {static_cast<int32_t>(row), static_cast<int32_t>(n - row * range.batch_tokens)};
}

ROPE_HD int32_t Short(int64_t value) { return static_cast<int32_t>(value); }

// What a thread needs for cos and sin of its first pair.
struct PlainRow {
  uint32_t pair;       // none: not below pairs
  uint64_t frequency;  // turns, or in its lower half an f32
  AskedInteger given;
  int64_t position;  // what is added to it, and then the position itself
};

ROPE_HD uint64_t PlainFrequency(const CosSinSource& source, uint32_t pair) {
  return source.kind == CosSinKind::kExact ? source.frequencies.turns[pair]
                                           : FloatBits(source.frequencies.inv_freq[pair]);
}

ROPE_HD void LocatePosition(const PositionSource& positions, PlainToken at, PlainRow* row) {
  row->position = at.index;
  if (positions.type == PositionSource::kNone) {
    row->position = static_cast<int64_t>(static_cast<uint64_t>(positions.offset) +
                                         static_cast<uint64_t>(row->position));
    return;
  }
  int32_t place = at.batch;
  if (!positions.per_sequence) {
    place = at.batch * Short(positions.stride_batch) + at.index * Short(positions.stride_token);
    row->position = 0;
  }
  row->given.SetPlace(positions.data, positions.type == PositionSource::kInt64, place);
}

ROPE_HD CosSin PlainCosSin(const CosSinSource& source, uint64_t frequency, int64_t position) {
  CosSin value;
  if (source.kind == CosSinKind::kExact) {
    value = CosSinOfPosition(frequency, position);
  } else {
    const float f = BitsFloat(static_cast<uint32_t>(frequency));
    const auto at = static_cast<float>(position);
    const bool divides = source.kind == CosSinKind::kDivide;
    value = CosSinOfAngle(divides ? QuotientAngle(at, f) : AngleOf(at, f));
  }
  return {Multiply(value.cos, source.scales[0].cos), Multiply(value.sin, source.scales[0].sin)};
}

template <rope_dtype kType, Form kForm, Arithmetic kArithmetic, class Memory>
struct PlainKernel : Kernel<kType, kForm, kArithmetic, Memory> {
  using Base = Kernel<kType, kForm, kArithmetic, Memory>;

  // As that of Kernel.
  struct Held {
    const char* in;
    char* out;
    int32_t in_head, out_head;
    int32_t in_delta, out_delta;
    int32_t heads, vectors;
    Vector<Base::kBytes> data[2][2];
    PlainRow row;
  };

  ROPE_HD static void Locate(const Params& p, const Thread& i, Held* held) {
    uint32_t group = p.first_head_group + i.block_y * i.size_y + i.y;
    const bool is_second = group >= p.sides[0].head_groups;
    const Side& side = p.sides[is_second ? 1 : 0];
    if (is_second) group -= p.sides[0].head_groups;
    LocateRow(p, i, held);
    if (group >= side.head_groups || i.token() >= p.source.tokens.count) return;
    LocateSide(p, i, side, group, true, false, held);
  }

  ROPE_HD static void Ask(Held* held) {
    held->row.given.Ask();
    LoadVectors(held);
    // Here, before a branch: else the wait for the position is one for all vectors as well.
    held->row.position += held->row.given.Value();
  }

  ROPE_HD static void MakeRow(const CommonParams& p, const Thread& i, const Held& held,
                              CosSin* rows) {
    const uint32_t pairs = p.source.pairs;
    uint32_t pair = held.row.pair;
    if (pair >= pairs) return;
    rows += i.z * pairs;
    StoreRow(p, pair, held.row.frequency, held.row.position, rows);
    for (pair += i.size_x * i.size_y; pair < pairs; pair += i.size_x * i.size_y) {
      StoreRow(p, pair, PlainFrequency(p.source, pair), held.row.position, rows);
    }
  }

  ROPE_HD static void Rotate(const CommonParams& p, const Thread& i, const Held& held,
                             const CosSin* rows) {
    if (held.heads != 0) Base::template RotateHeads<false>(p, i, held, rows);
  }

 protected:
  // All that is needed for the row, and no heads yet.
  ROPE_HD static void LocateRow(const CommonParams& p, const Thread& i, Held* held) {
    held->in = nullptr;
    held->out = nullptr;
    held->heads = 0;
    held->vectors = 2;
    const CosSinSource& source = p.source;
    PlainRow& row = held->row;
    row = {UINT32_MAX, 0, {nullptr, false, {0, 0}}, 0};
    const uint32_t first = i.y * i.size_x + i.x, n = i.token();
    if (first >= source.pairs || n >= source.tokens.count) return;
    row.pair = first;
    row.frequency = PlainFrequency(source, first);
    LocatePosition(source.positions, SplitPlainToken(source.tokens, n), &row);
  }

  ROPE_HD static void LocateSide(const CommonParams& p, const Thread& i, const Side& side,
                                 uint32_t group, bool turns, bool to_slots, Held* held) {
    const PlainToken at = SplitPlainToken(p.source.tokens, i.token());
    int32_t in_at, out_at;
    if (turns) {
      const LaneSpan& span = p.source.lane_spans[0];
      const auto lane = static_cast<int32_t>(i.x);
      in_at = span.in_first + lane * p.in_step;
      out_at = span.out_first + lane * p.out_step;
      held->in_delta = span.in_delta;
      held->out_delta = span.out_delta;
    } else {
      const uint32_t first = i.x, second = first + p.lanes;
      in_at = out_at = static_cast<int32_t>(first) * Base::kBytes;
      held->in_delta = held->out_delta = static_cast<int32_t>(p.lanes) * Base::kBytes;
      held->vectors = (first < side.copy_vectors ? 1 : 0) + (second < side.copy_vectors ? 1 : 0);
    }
    const auto head = static_cast<int32_t>(group), groups = static_cast<int32_t>(side.head_groups);
    held->heads = group + side.head_groups < side.heads ? 2 : 1;
    held->in_head = groups * Short(side.in_strides.head);
    held->out_head = groups * Short(side.out_strides.head);
    held->in = side.in + (Offset(side.in_strides, at) + head * Short(side.in_strides.head) + in_at);
    const int32_t out_token = to_slots ? 0 : Offset(side.out_strides, at);
    held->out = side.out + (out_token + head * Short(side.out_strides.head) + out_at);
  }

  ROPE_HD static void LoadVectors(Held* held) {
    ROPE_UNROLL
    for (int u = 0; u < 2; ++u) {
      ROPE_UNROLL
      for (int v = 0; v < 2; ++v) {
        if (u >= held->heads || v >= held->vectors) continue;
        held->data[u][v] = Memory::template Load<Base::kBytes>(
            held->in + (u == 1 ? held->in_head : 0) + (v == 1 ? held->in_delta : 0));
      }
    }
  }

 private:
  ROPE_HD static int32_t Offset(const HeadStrides& strides, PlainToken at) {
    return at.batch * Short(strides.batch) + at.index * Short(strides.token);
  }

  ROPE_HD static void StoreRow(const CommonParams& p, uint32_t pair, uint64_t frequency,
                               int64_t position, CosSin* rows) {
    const CosSin value = PlainCosSin(p.source, frequency, position);
    Memory::StoreRow(rows + Base::RowPlace(p, pair), Base::Rounded(p, value));
  }
};

// With `fused`: threads of k and v find their slots themselves, since what is loaded for it arrives
// with what is loaded anyway.
//
//   AskPage   after Ask: what must wait for a first number of a slot
//   Rotate    or copy, or nothing where a token has no slot
template <rope_dtype kType, Form kForm, Arithmetic kArithmetic, class Memory>
struct PlainFusedKernel : PlainKernel<kType, kForm, kArithmetic, Memory> {
  using Plain = PlainKernel<kType, kForm, kArithmetic, Memory>;
  using Base = typename Plain::Base;

  struct Held : Plain::Held {
    bool rotates;
    int32_t slot_side;  // of the sides; negative: none, and out is complete
    AskedInteger slot;  // or the first one of the token's sequence
    int64_t number;     // this
    int64_t page;       // PAGED
  };

  ROPE_HD static void Locate(const FusedParams& p, const Thread& i, Held* held) {
    held->rotates = false;
    held->slot_side = -1;
    held->slot = {nullptr, false, {UINT32_MAX, UINT32_MAX}};  // kNowhere
    Plain::LocateRow(p, i, held);
    uint32_t group = p.first_head_group + i.block_y * i.size_y + i.y;
    int32_t s = 0;
    for (; s < p.side_count && group >= p.sides[s].head_groups; ++s) {
      group -= p.sides[s].head_groups;
    }
    if (s == p.side_count || i.token() >= p.source.tokens.count) return;
    const FusedSide& side = p.sides[s];
    held->rotates = side.turns;
    Plain::LocateSide(p, i, side, group, side.turns, side.to_slots, held);
    if (!side.to_slots) return;
    held->slot_side = s;
    LocateSlot(p.slots, SplitPlainToken(p.source.tokens, i.token()), i.token(), &held->slot);
  }

  ROPE_HD static void Ask(Held* held) {
    held->row.given.Ask();
    held->slot.Ask();
    Plain::LoadVectors(held);
    held->row.position += held->row.given.Value();
    held->number = held->slot.Value();
  }

  ROPE_HD static void AskPage(const FusedParams& p, const Thread& i, Held* held) {
    if (held->slot_side < 0 || !p.slots.IsPaged()) return;
    const PlainToken at = SplitPlainToken(p.source.tokens, i.token());
    // Its lower half is all of it, and there before all vectors are.
    const auto start = static_cast<int32_t>(held->slot.words[0]);
    held->page = PageAt(p.slots, at.batch, PlaceOf(start, at.index), p.page_size);
  }

  ROPE_HD static void Rotate(const FusedParams& p, const Thread& i, const Held& held,
                             const CosSin* rows) {
    if (held.heads == 0) return;
    Held placed = held;
    if (held.slot_side >= 0) {
      const PlainToken at = SplitPlainToken(p.source.tokens, i.token());
      const Slot slot = SlotAt(p.slots, at, held.number, held.page, p.page_size);
      if (slot.page < 0) {
        // Of all threads that a token has, one.
        const bool is_first =
            i.x == 0 && p.first_head_group + i.block_y * i.size_y + i.y == p.first_slot_group;
        if (slot.page == kMissing && p.dropped != nullptr && is_first) {
          Memory::Increment(p.dropped);
        }
        return;
      }
      placed.out += TokenOffset(p.sides[held.slot_side].out_strides, slot.page, slot.index);
    }
    if (held.rotates) {
      Base::template RotateHeads<false>(p, i, placed, rows);
      return;
    }
    ROPE_UNROLL
    for (int u = 0; u < 2; ++u) {
      if (u < held.heads) Base::StoreHead(placed, u, held.data[u]);
    }
  }

 private:
  ROPE_HD static void LocateSlot(const SlotSource& slots, PlainToken at, uint32_t n,
                                 AskedInteger* slot) {
    if (!slots.IsMapped()) {
      slot->SetPlace(slots.starts, false, at.batch);
    } else if (n < slots.slots_length) {
      const bool wide = slots.slots_i64 != nullptr;
      const void* const data = wide ? static_cast<const void*>(slots.slots_i64) : slots.slots_i32;
      slot->SetPlace(data, wide, static_cast<int32_t>(n));
    }
  }

  // SlotOf of math/slots.h, with what was loaded for it.
  ROPE_HD static Slot SlotAt(const SlotSource& slots, PlainToken at, int64_t number, int64_t page,
                             const Divisor& page_size) {
    if (slots.IsMapped()) return MappedSlot(slots, number, page_size);
    const int64_t place = PlaceOf(number, at.index);
    return slots.IsPaged() ? PagedSlot(slots, page, place, page_size)
                           : LinearSlot(slots, at.batch, place);
  }
};

}  // namespace rope::gpu

#endif  // LIBROPE_SRC_GPU_PLAIN_H_
