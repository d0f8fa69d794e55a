// A random call that moves keys and values from slots to slots, and what memory must be after it:
// gathered into plain tensors, turned there by rope_apply_qk, whose turn is that of
// support/move_reference.h, and copied by the slots' definition. Everything lies in one buffer, so
// that what is written where no slot is shows as well.
#ifndef LIBROPE_TESTS_SUPPORT_MOVE_CALL_H_
#define LIBROPE_TESTS_SUPPORT_MOVE_CALL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "support/cache_call.h"
#include "support/elements.h"
#include "support/handles.h"
#include "support/move_reference.h"
#include "support/random.h"
#include "support/reference.h"

namespace rope::testing {

// Where tokens go: to another memory, or to the same one, where they stay, go to slots of their
// own, or do either.
enum class Way { kApart, kStay, kElsewhere, kMixed };

struct MoveWish {
  rope_operation operation = ROPE_OPERATION_SHIFT;
  rope_slot_kind source = ROPE_SLOTS_MAPPED, cache = ROPE_SLOTS_MAPPED;
  Way way = Way::kApart;
  rope_dtype dtype = ROPE_DTYPE_F32;
  rope_layout source_layout = ROPE_LAYOUT_NHD, cache_layout = ROPE_LAYOUT_NHD;
  bool packed = false;  // cu_seqlens
  int sets = 1;
  int least_tokens = 1, most_tokens = 20, most_batch = 3, most_heads = 3, head_multiple = 1;
  bool aligned = false, to_cache_alone = false;
  // k and v of source and of cache are described alike, and nothing else is there: such calls have
  // a short way through the checks (call/check_move.h).
  bool alike = false;
};

class MoveCall {
 public:
  MoveCall(const rope_config& config, const MoveWish& wish, uint64_t seed)
      : config_(config), wish_(wish), r_(seed) {
    batch_ = wish.packed || wish.aligned ? 1 : r_.Pick(1, wish.most_batch);
    tokens_ = r_.Pick(wish.least_tokens, wish.most_tokens);
    args_ = Args(batch_, tokens_);
    args_.operation = wish.operation;
    MakeSequences();
    MakePositions(&args_.positions, &to_, wish.operation == ROPE_OPERATION_SHIFT);
    MakePositions(&from_positions_, &from_, false);
    MakeSlots();
    MakeTensors();
  }

  const rope_qk_args& args() {
    source_.cache.k = At(source_k_, memory_);
    source_.cache.v = At(source_v_, memory_);
    cache_.cache.k = At(cache_k_, memory_);
    cache_.cache.v = At(cache_v_, memory_);
    fused_.source = &source_.cache;
    fused_.cache = HasCache() ? &cache_.cache : nullptr;
    fused_.v_out = At(v_out_, memory_);
    fused_.from_positions = HasFrom() ? &from_positions_ : nullptr;
    args_.q = At(q_, memory_);
    args_.k_out = At(k_out_, memory_);
    args_.fused = &fused_;
    return args_;
  }

  void RunBy(const rope_runner* runner) { args_.runner = runner; }
  // Rows of cos and sin in place of positions: FORWARD.
  void ReadRows(const rope_cos_sin* rows) {
    args_.positions = rope_positions{};
    args_.cos_sin = rows;
  }
  int64_t batch() const { return batch_; }
  int64_t tokens() const { return tokens_; }
  const Lines& memory() const { return memory_; }
  int64_t moved() const { return moved_; }

  // What `memory` must be after the call.
  Lines Want(const Context& context) {
    Lines want = memory_;
    const int64_t size = SizeOf(wish_.dtype), heads = source_k_.heads;
    const int64_t width = Width(source_k_), row = heads * width * size;
    std::vector<char> keys(batch_ * tokens_ * row), turned(batch_ * tokens_ * heads * HeadBytes());
    for (int64_t i = 0; i < batch_ * tokens_; ++i) {
      const int64_t slot = source_.SlotOf(i);
      for (int h = 0; h < heads && slot >= 0; ++h) {
        std::memcpy(keys.data() + i * row + h * width * size,
                    memory_.data() + OffsetIn(source_, source_k_, slot, h), width * size);
      }
    }
    rope_fused only_from = ROPE_INIT(rope_fused);
    only_from.from_positions = &from_positions_;
    rope_qk_args plain = args_;
    plain.fused = HasFrom() ? &only_from : nullptr;
    plain.runner = nullptr;
    plain.k_out = rope_tensor{};
    plain.q = At(q_, want);
    if (plain.q.heads != 0) {
      EXPECT_OK(rope_apply_qk(context.get(), &plain));
    }
    plain.q = rope_tensor{};
    for (const rope_tensor* to : {&k_out_, &cache_k_}) {
      if (to->heads == 0) continue;
      plain.k = Tensor(keys.data(), wish_.dtype, heads);
      plain.k.head_dim = source_k_.head_dim;
      plain.k_out = Tensor(turned.data(), wish_.dtype, heads);
      plain.k_out.head_dim = to->head_dim;
      EXPECT_OK(rope_apply_qk(context.get(), &plain));
      ExpectTurnOfToken(context, plain, r_.Below(batch_ * tokens_));
      const int64_t span = config_.rotary_dim != 0 ? config_.rotary_dim : config_.head_dim;
      const int64_t dim = Width(*to);
      const bool whole = width == config_.head_dim && dim == config_.head_dim;
      const int64_t first = whole || dim == span ? 0 : config_.rotary_offset;
      Scatter(*to, to == &cache_k_, heads, turned.data(), dim * size, first * size,
              (whole ? dim : span) * size, &want);
    }
    if (source_v_.heads == 0) return want;
    const int64_t v_bytes = source_v_.head_dim * SizeOf(source_v_.dtype);
    std::vector<char> values(batch_ * tokens_ * source_v_.heads * v_bytes);
    for (int64_t i = 0; i < batch_ * tokens_; ++i) {
      for (int h = 0; h < source_v_.heads && source_.SlotOf(i) >= 0; ++h) {
        std::memcpy(values.data() + (i * source_v_.heads + h) * v_bytes,
                    memory_.data() + OffsetIn(source_, source_v_, source_.SlotOf(i), h), v_bytes);
      }
    }
    for (const rope_tensor* to : {&v_out_, &cache_v_}) {
      if (to->heads == 0) continue;
      Scatter(*to, to == &cache_v_, source_v_.heads, values.data(), v_bytes, 0, v_bytes, &want);
    }
    return want;
  }

 private:
  // A cache with the numbers that it points to.
  struct Slots {
    rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
    std::vector<int64_t> slots, all;  // all: of every token, by the header's definitions
    std::vector<int32_t> slots_i32, starts, table;

    int64_t SlotOf(int64_t token) const { return all[token]; }
  };

  bool HasCache() const { return cache_k_.heads != 0 || cache_v_.heads != 0; }
  bool HasFrom() const { return wish_.operation == ROPE_OPERATION_REROTATE; }
  int64_t HeadBytes() const { return config_.head_dim * 4; }

  // One token of a call is looked at: its heads in k_out are those of k, turned.
  void ExpectTurnOfToken(const Context& context, const rope_qk_args& call, int64_t i) const {
    if (config_.frequency != nullptr || call.cos_sin != nullptr) return;
    const int64_t size = SizeOf(wish_.dtype);
    const auto span_of = [&](const rope_tensor& t, int64_t h) {
      const int64_t first = Width(t) == config_.head_dim ? config_.rotary_offset : 0;
      return static_cast<const char*>(t.data) + ((i * t.heads + h) * Width(t) + first) * size;
    };
    const bool turns = config_.scaling != ROPE_SCALING_NOPE;
    std::vector<MoveRow> rows;
    if (turns) rows = MoveReference(context, config_).RowsAt(call, i / tokens_, i % tokens_);
    for (int h = 0; h < call.k.heads; ++h) {
      const char *const before = span_of(call.k, h), *const after = span_of(call.k_out, h);
      if (turns) {
        ExpectTurned(config_, call.operation, wish_.dtype, rows, before, after);
      } else {
        const int64_t span = config_.rotary_dim != 0 ? config_.rotary_dim : config_.head_dim;
        EXPECT_EQ(std::memcmp(before, after, static_cast<size_t>(span * size)), 0);
      }
    }
  }

  void Scatter(const rope_tensor& to, bool to_slots, int64_t heads, const char* rows,
               int64_t head_bytes, int64_t first, int64_t bytes, Lines* want) const {
    for (int64_t i = 0; i < batch_ * tokens_; ++i) {
      if (source_.SlotOf(i) < 0) continue;
      const int64_t slot = to_slots ? cache_.SlotOf(i) : 0;
      for (int h = 0; h < heads && slot >= 0; ++h) {
        const int64_t at =
            to_slots ? OffsetIn(cache_, to, slot, h)
                     : reinterpret_cast<intptr_t>(to.data) +
                           HeadOffset(to, batch_, tokens_, Width(to), i / tokens_, i % tokens_, h) *
                               SizeOf(to.dtype);
        std::memcpy(want->data() + at + first, rows + (i * heads + h) * head_bytes + first, bytes);
      }
    }
  }

  void MakeSequences() {
    sequences_ = batch_;
    if (!wish_.packed) return;
    cu_ = {0};
    while (cu_.back() < tokens_) {
      cu_.push_back(std::min<int32_t>(static_cast<int32_t>(tokens_), cu_.back() + r_.Pick(0, 9)));
    }
    sequences_ = static_cast<int64_t>(cu_.size()) - 1;
  }
  int64_t CountOf(int64_t s) const { return wish_.packed ? cu_[s + 1] - cu_[s] : tokens_; }
  int64_t FirstOf(int64_t s) const { return wish_.packed ? cu_[s] : s * tokens_; }

  struct Numbers {
    std::vector<int64_t> ids;
    std::vector<int32_t> sets;
  };
  void MakePositions(rope_positions* p, Numbers* numbers, bool distances) {
    p->kind =
        distances ? ROPE_POSITIONS_IDS_BT : r_.Pick(ROPE_POSITIONS_OFFSET, ROPE_POSITIONS_IDS_BT);
    for (int64_t i = 0; i < batch_ * tokens_ + sequences_; ++i) {
      numbers->ids.push_back(r_.Pick(distances ? -2000 : 0, 5000));
    }
    if (p->kind == ROPE_POSITIONS_OFFSET) {
      p->offset = r_.Pick(0, 1000);
    } else if (p->kind == ROPE_POSITIONS_SEQ_OFFSETS) {
      p->offsets_i64 = numbers->ids.data();
    } else {
      p->ids_i64 = numbers->ids.data();
    }
    if (wish_.packed) {
      p->cu_seqlens = cu_.data();
      p->sequences = static_cast<int32_t>(sequences_);
    }
    for (int64_t s = 0; s < sequences_; ++s) numbers->sets.push_back(r_.Pick(0, wish_.sets - 1));
    if (wish_.sets > 1) p->freq_sets = numbers->sets.data();
  }

  int64_t PagesFor(rope_slot_kind kind, int64_t page_size) const {
    if (kind == ROPE_SLOTS_LINEAR) return sequences_;
    if (kind == ROPE_SLOTS_MAPPED) return (batch_ * tokens_ + page_size - 1) / page_size + 1;
    return sequences_ * ((tokens_ + 20 + page_size - 1) / page_size) + 1;
  }

  // Slots in pages from `first` on, as many as PagesFor says.
  void Fill(rope_slot_kind kind, int64_t first, Slots* s) {
    rope_kv_cache& c = s->cache;
    c.kind = kind;
    const int64_t page_size = c.page_size, count = batch_ * tokens_;
    const int64_t pages = PagesFor(kind, page_size);
    s->all.assign(count, -1);
    if (kind == ROPE_SLOTS_MAPPED) {
      std::vector<int64_t> free(pages * page_size);
      std::iota(free.begin(), free.end(), first * page_size);
      for (int64_t swaps = r_.Pick(0, 6); swaps > 0; --swaps) {  // runs of slots in some order
        std::rotate(free.begin(), free.begin() + r_.Below(free.size()), free.end());
        std::swap(free[r_.Below(free.size())], free[r_.Below(free.size())]);
      }
      s->slots.assign(free.begin(), free.begin() + count);
      for (int64_t& slot : s->slots) {
        if (r_.Sometimes(9)) slot = -r_.Pick(1, 3);
      }
      UseSlots(r_.Sometimes(3) ? r_.Pick(1, static_cast<int>(count)) : count, s);
      return;
    }
    for (int64_t q = 0; q < sequences_; ++q) {
      s->starts.push_back(r_.Pick(0, kind == ROPE_SLOTS_LINEAR ? 5 : 20));
    }
    c.starts = s->starts.data();
    const int64_t row = pages / std::max<int64_t>(sequences_, 1);
    std::vector<int32_t> free(pages);
    std::iota(free.begin(), free.end(), static_cast<int32_t>(first));
    for (size_t i = 0; i < free.size(); ++i) std::swap(free[i], free[r_.Below(free.size())]);
    if (kind == ROPE_SLOTS_PAGED) {
      for (int64_t i = 0; i < sequences_ * row; ++i) {
        s->table.push_back(r_.Sometimes(8) ? -1 : free[i]);
      }
      c.page_table = s->table.data();
      c.page_table_stride = row;
    }
    for (int64_t q = 0; q < sequences_; ++q) {
      for (int64_t i = 0; i < CountOf(q); ++i) {
        const int64_t n = s->starts[q] + i;
        const int64_t page =
            kind == ROPE_SLOTS_LINEAR ? q : int64_t{s->table[q * row + n / page_size]};
        s->all[FirstOf(q) + i] = page < 0 ? -1 : page * page_size + n % page_size;
      }
    }
  }
  void UseSlots(int64_t length, Slots* s) {
    rope_kv_cache& c = s->cache;
    c.kind = ROPE_SLOTS_MAPPED;
    c.slots_length = length;
    s->slots_i32.assign(s->slots.begin(), s->slots.end());
    c.slots_i64 = r_.Sometimes(2) ? s->slots.data() : nullptr;
    c.slots_i32 = c.slots_i64 == nullptr ? s->slots_i32.data() : nullptr;
    for (size_t i = 0; i < s->all.size(); ++i) {
      s->all[i] = static_cast<int64_t>(i) < length ? std::max<int64_t>(s->slots[i], -1) : -1;
    }
  }

  void MakeSlots() {
    const auto page_size = [&](rope_slot_kind kind) {
      return kind == ROPE_SLOTS_LINEAR ? static_cast<int>(tokens_) + 5
             : wish_.aligned           ? 16
                                       : r_.Of({1, 2, 3, 7, 16});
    };
    rope_kv_cache &source = source_.cache, &cache = cache_.cache;
    const bool linear = wish_.source == ROPE_SLOTS_LINEAR;
    source.page_size = page_size(wish_.source);
    const int64_t used = PagesFor(wish_.source, source.page_size);
    source.pages = used + r_.Pick(0, 2);
    Fill(wish_.source, 0, &source_);
    if (wish_.way == Way::kApart) {
      cache.page_size = page_size(wish_.cache);
      cache.pages = PagesFor(wish_.cache, cache.page_size) + r_.Pick(0, 2);
      Fill(wish_.cache, 0, &cache_);
      return;
    }
    // One memory. LINEAR slots of a cache begin at page 0.
    const rope_slot_kind kind =
        wish_.cache == ROPE_SLOTS_LINEAR || linear ? ROPE_SLOTS_MAPPED : wish_.cache;
    cache.page_size = source.page_size;
    source.pages += PagesFor(kind, cache.page_size);
    cache.pages = source.pages;
    if (wish_.way == Way::kStay) {
      cache_ = source_;
      cache_.cache.slots_i64 = source.slots_i64 != nullptr ? cache_.slots.data() : nullptr;
      cache_.cache.slots_i32 = source.slots_i32 != nullptr ? cache_.slots_i32.data() : nullptr;
      cache_.cache.page_table = source.page_table != nullptr ? cache_.table.data() : nullptr;
      cache_.cache.starts = source.starts != nullptr ? cache_.starts.data() : nullptr;
      return;
    }
    Fill(kind, used, &cache_);
    if (wish_.way == Way::kElsewhere) return;
    std::vector<int64_t> mixed = cache_.all;
    for (size_t i = 0; i < mixed.size(); ++i) {
      if (r_.Sometimes(2)) mixed[i] = source_.all[i];
    }
    cache_.slots = mixed;
    cache = ROPE_INIT(rope_kv_cache);
    cache.pages = source.pages;
    cache.page_size = source.page_size;
    UseSlots(static_cast<int64_t>(mixed.size()), &cache_);
  }

  static rope_tensor At(const rope_tensor& t, Lines& memory) {
    rope_tensor at = t;
    if (t.heads != 0) at.data = memory.data() + reinterpret_cast<intptr_t>(t.data);
    return at;
  }
  int64_t Width(const rope_tensor& t) const {
    return t.head_dim != 0 ? t.head_dim : config_.head_dim;
  }
  int64_t OffsetIn(const Slots& s, const rope_tensor& t, int64_t slot, int64_t h) const {
    const int64_t page_size = s.cache.page_size, page = slot / page_size, n = slot % page_size,
                  width = Width(t);
    int64_t at;
    if (t.layout == ROPE_LAYOUT_STRIDED) {
      at = page * t.stride_batch + n * t.stride_token + h * t.stride_head;
    } else if (t.layout == ROPE_LAYOUT_NHD) {
      at = ((page * page_size + n) * t.heads + h) * width;
    } else {
      at = ((page * t.heads + h) * page_size + n) * width;
    }
    return reinterpret_cast<intptr_t>(t.data) + at * SizeOf(t.dtype);
  }

  // Places a tensor behind all others, with canaries between them.
  rope_tensor Place(rope_dtype dtype, int heads, int head_dim, rope_layout layout, int64_t outer,
                    int64_t inner) {
    rope_tensor t = Tensor(nullptr, dtype, heads, layout);
    t.head_dim = head_dim;
    const int64_t width = Width(t);
    int64_t elements = outer * inner * heads * width;
    if (layout == ROPE_LAYOUT_STRIDED) {
      int order[] = {0, 1, 2};
      std::swap(order[0], order[r_.Pick(0, 2)]);
      std::swap(order[1], order[r_.Pick(1, 2)]);
      const int64_t counts[] = {outer, inner, heads};
      int64_t strides[3], reach = width;
      for (int d : order) {
        strides[d] = reach + (wish_.aligned ? 0 : r_.Pick(0, 5));
        reach = strides[d] * counts[d];
      }
      SetStrides(&t, strides[0], strides[1], strides[2]);
      elements = reach;
    }
    const int64_t unit = wish_.aligned ? 64 : 4;
    const int64_t offset = (end_ + unit - 1) / unit * unit + unit * r_.Pick(1, 20);
    end_ = offset + elements * SizeOf(dtype);
    t.data = reinterpret_cast<void*>(offset);
    return t;
  }

  void MakeTensors() {
    const int span = config_.rotary_dim != 0 ? config_.rotary_dim : config_.head_dim;
    const auto width = [&] { return r_.Sometimes(3) ? span : r_.Of({0, config_.head_dim}); };
    const auto heads = [&] { return wish_.head_multiple * r_.Pick(1, wish_.most_heads); };
    const rope_kv_cache &source = source_.cache, &cache = cache_.cache;
    const bool one = wish_.way != Way::kApart, alone = wish_.to_cache_alone || wish_.alike;
    const rope_dtype dtype = wish_.dtype;
    if (!alone && r_.Sometimes(4)) {
      q_ = Place(dtype, heads(), 0, ROPE_LAYOUT_BSHD, batch_, tokens_);
    }
    const rope_layout source_layout = wish_.alike && wish_.source_layout == ROPE_LAYOUT_STRIDED
                                          ? ROPE_LAYOUT_HND
                                          : wish_.source_layout;
    const rope_layout cache_layout = wish_.alike ? source_layout : wish_.cache_layout;
    const auto in_source = [&](rope_dtype of, int count, int dim) {
      return Place(of, count, dim, source_layout, source.pages, source.page_size);
    };
    const auto in_cache = [&](const rope_tensor& t, int dim) {
      return Place(t.dtype, t.heads, dim, cache_layout, cache.pages, cache.page_size);
    };
    const auto stays = [&] { return one && (alone || !r_.Sometimes(6)); };
    source_k_ = in_source(dtype, heads(), width());
    if (alone || !r_.Sometimes(6)) {
      cache_k_ =
          stays() ? source_k_ : in_cache(source_k_, wish_.alike ? source_k_.head_dim : width());
    }
    if (cache_k_.heads == 0 || (!alone && r_.Sometimes(3))) {
      k_out_ = Place(dtype, source_k_.heads, width(), r_.Pick(1, 4), batch_, tokens_);
    }
    if (wish_.alike) {
      if (!r_.Sometimes(3)) {
        source_v_ = in_source(dtype, source_k_.heads, static_cast<int>(Width(source_k_)));
        cache_v_ = one && !r_.Sometimes(6) ? source_v_ : in_cache(source_v_, source_v_.head_dim);
      }
    } else if (alone || !r_.Sometimes(3)) {
      const rope_dtype v_dtype = r_.Pick(1, kLastDtype);
      const int dim = wish_.aligned ? 64 : r_.Of({1, 5, 16, 40});
      source_v_ = in_source(v_dtype, heads(), dim);
      const bool to_cache = alone || !r_.Sometimes(4);
      if (to_cache) cache_v_ = stays() ? source_v_ : in_cache(source_v_, dim);
      if (!to_cache || r_.Sometimes(3)) {
        v_out_ = Place(v_dtype, source_v_.heads, dim, r_.Pick(1, 4), batch_, tokens_);
      }
    }
    memory_.resize(end_ + 64);
    for (size_t i = 0; i < memory_.size(); i += 2) {  // small numbers in every dtype
      const auto bits = static_cast<uint16_t>(0x3c00 + r_.Below(0x400) + r_.Below(2) * 0x8000);
      std::memcpy(memory_.data() + i, &bits, std::min<size_t>(2, memory_.size() - i));
    }
    for (int64_t i = 0; i < batch_ * tokens_; ++i) {
      moved_ += source_.SlotOf(i) >= 0 && HasCache() && cache_.SlotOf(i) >= 0;
    }
  }

  const rope_config config_;
  const MoveWish wish_;
  Random r_;
  int64_t batch_, tokens_, sequences_ = 0, end_ = 0, moved_ = 0;
  rope_qk_args args_;
  rope_positions from_positions_{};
  rope_fused fused_ = ROPE_INIT(rope_fused);
  Slots source_, cache_;
  rope_tensor q_{}, k_out_{}, source_k_{}, source_v_{}, cache_k_{}, cache_v_{}, v_out_{};
  std::vector<int32_t> cu_;
  Numbers to_, from_;
  Lines memory_;
};

// Moves of every kind.
inline MoveWish RandomWish(Random* r) {
  MoveWish w;
  w.operation = r->Of<rope_operation>({ROPE_OPERATION_SHIFT, ROPE_OPERATION_SHIFT,
                                       ROPE_OPERATION_REROTATE, ROPE_OPERATION_REROTATE,
                                       ROPE_OPERATION_FORWARD, ROPE_OPERATION_INVERSE});
  w.source = r->Pick(ROPE_SLOTS_MAPPED, ROPE_SLOTS_LINEAR);
  w.cache = r->Pick(ROPE_SLOTS_MAPPED, ROPE_SLOTS_LINEAR);
  w.way = r->Of({Way::kApart, Way::kStay, Way::kElsewhere, Way::kMixed});
  w.dtype = r->Pick(1, kLastDtype);
  w.source_layout = r->Pick(ROPE_LAYOUT_STRIDED, ROPE_LAYOUT_HND);
  w.cache_layout = r->Pick(ROPE_LAYOUT_STRIDED, ROPE_LAYOUT_HND);
  w.packed = r->Sometimes(3);
  w.alike = r->Sometimes(2);
  if (w.alike && r->Sometimes(3)) w.most_tokens = w.most_batch = 1;
  return w;
}

// Moves on a device, of the heads, alignments and slots that caches have, and others.
inline MoveWish RandomMoveWish(Random* r) {
  MoveWish w = RandomWish(r);
  w.aligned = r->Sometimes(2);
  w.most_tokens = r->Of({1, 9, 40});
  w.most_heads = r->Of({1, 3, 3, 40});
  return w;
}

// And their context.
inline rope_config RandomMoveConfig(rope_dtype dtype, Random* r) {
  const rope_pairing pairing = r->Pick(1, kLastPairing);
  const int dim = r->Sometimes(12) ? 640 : r->Of({8, 12, 16, 24, 64, 128});
  rope_config config = Config(dim, pairing);
  if (r->Sometimes(3)) {
    config.rotary_dim = dim / 2;
    config.rotary_offset = r->Of({0, dim / 4, dim / 2});
  }
  if (pairing == ROPE_PAIRING_HALVES_PER_AXIS) {
    const int pairs = (config.rotary_dim != 0 ? config.rotary_dim : dim) / 2;
    config.axes = 2;
    config.mrope_section[0] = pairs / 2;
    config.mrope_section[1] = pairs - pairs / 2;
  }
  config.angle = r->Of({ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT, ROPE_ANGLE_DIVIDE});
  config.rounding = r->Pick(ROPE_ROUNDING_FLOAT32, ROPE_ROUNDING_COS_SIN);
  if (dtype == ROPE_DTYPE_F16 && r->Sometimes(4)) config.rounding = ROPE_ROUNDING_NATIVE;
  if (r->Sometimes(8)) config.scaling = ROPE_SCALING_NOPE;
  return config;
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_MOVE_CALL_H_
