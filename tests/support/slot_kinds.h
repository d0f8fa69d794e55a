// Slots by page tables and by starts: random calls that norm, convert and move, whose memory
// afterwards is that of the same call with the slot of each token spelt out (MAPPED), which other
// tests compare with the definition. For any machine.
#ifndef LIBROPE_TESTS_SUPPORT_SLOT_KINDS_H_
#define LIBROPE_TESTS_SUPPORT_SLOT_KINDS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "support/elements.h"
#include "support/handles.h"
#include "support/machine.h"
#include "support/norm_call.h"
#include "support/random.h"

namespace rope::testing {

// Which slots the tokens of some sequences have, by PAGED or LINEAR and spelt out.
struct SlotPlaces {
  rope_kv_cache by_kind = ROPE_INIT(rope_kv_cache), spelt = ROPE_INIT(rope_kv_cache);
  std::vector<int32_t> starts, table, page_starts;
  std::vector<int64_t> slots;

  // lengths: tokens of each sequence, one after the other.
  SlotPlaces(Random* r, rope_slot_kind kind, const std::vector<int>& lengths) {
    const auto sequences = static_cast<int32_t>(lengths.size());
    int longest = 0;
    for (int length : lengths) {
      starts.push_back(r->Pick(0, 20));
      longest = std::max(longest, starts.back() + length);
    }
    const bool paged = kind == ROPE_SLOTS_PAGED;
    const int32_t page_size = paged ? r->Of({1, 3, 16}) : longest + r->Pick(0, 3);
    const int32_t row = paged ? (longest + page_size - 1) / page_size + r->Pick(0, 2) : 1;
    const int32_t pages = sequences * row + r->Pick(0, 2);
    std::vector<int32_t> order(static_cast<size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    for (int32_t i = pages - 1; paged && i > 0; --i) std::swap(order[i], order[r->Below(i + 1)]);
    table.assign(order.begin(), order.begin() + sequences * row);
    for (int32_t& page : table) {
      if (paged && r->Sometimes(8)) page = -1;
    }
    for (int32_t s = 0; s <= sequences; ++s) page_starts.push_back(s * row);
    for (int32_t s = 0; s < sequences; ++s) {
      for (int i = 0; i < lengths[s]; ++i) {
        const int64_t n = starts[s] + i;
        const int64_t page = table[s * row + n / page_size];
        slots.push_back(page < 0 ? -1 : page * page_size + n % page_size);
      }
    }
    by_kind.kind = kind;
    spelt.kind = ROPE_SLOTS_MAPPED;
    by_kind.pages = spelt.pages = pages;
    by_kind.page_size = spelt.page_size = page_size;
    by_kind.starts = starts.data();
    if (paged) {
      by_kind.page_table = table.data();
      if (r->Sometimes(2)) {
        by_kind.page_starts = page_starts.data();
      } else {
        by_kind.page_table_stride = row;
      }
    }
    spelt.slots_i64 = slots.data();
    spelt.slots_length = static_cast<int64_t>(slots.size());
  }
  SlotPlaces(const SlotPlaces&) = delete;

  void Describe(const rope_tensor& k, const rope_tensor& v) {
    for (rope_kv_cache* cache : {&by_kind, &spelt}) cache->k = k, cache->v = v;
  }
  void List(std::vector<MemorySpan>* memory) const {
    for (const auto* array : {&starts, &table, &page_starts}) {
      memory->push_back(SpanOf(*array, true));
    }
    memory->push_back(SpanOf(slots, true));
  }
};

// The memory of keys or values in a cache, with scales if they are codes.
struct StoredHeads {
  std::vector<uint8_t> bytes;
  std::vector<float> scales;
  rope_scale scale = ROPE_INIT(rope_scale);
  rope_tensor tensor{};

  StoredHeads(Random* r, const SlotPlaces& places, int heads, int width, rope_dtype dtype,
              int head_dim) {
    const int64_t page_size = places.spelt.page_size, slots = places.spelt.pages * page_size;
    const bool blocks = dtype == ROPE_DTYPE_Q8_0;
    const int64_t numbers = slots * heads * width;
    const bool codes = !blocks && dtype > ROPE_DTYPE_BF16;
    bytes.assign(
        static_cast<size_t>(blocks ? numbers / 32 * 34 : numbers * (codes ? 1 : SizeOf(dtype))),
        0x11);
    tensor = Tensor(bytes.data(), dtype, heads, r->Of({ROPE_LAYOUT_NHD, ROPE_LAYOUT_HND}));
    tensor.head_dim = head_dim;
    if (!codes) return;
    const int groups = r->Of({1, 2});
    scales.assign(static_cast<size_t>(slots * heads * groups), 0.5f);
    if (r->Sometimes(3)) {
      scale.value = 0.03125f;
    } else {
      scale.computed = 1;
      scale.dtype = ROPE_DTYPE_F32;
      scale.group = groups == 1 ? 0 : width / groups;
      scale.data = scales.data();
      scale.stride_head = groups;
      scale.stride_token = int64_t{groups} * heads;
      scale.stride_batch = scale.stride_token * page_size;
    }
    tensor.scale = &scale;
  }
  StoredHeads(const StoredHeads&) = delete;

  void List(std::vector<MemorySpan>* memory) const {
    memory->push_back(SpanOf(bytes));
    memory->push_back(SpanOf(scales));
  }
};

class SlotKinds {
 public:
  explicit SlotKinds(Machine* machine) : machine_(machine) {}

  // Which calls were made: appends, and moves of what they have stored.
  int appended = 0, moved = 0;

  // An append, and a move of what it stored.
  void Expect(uint64_t seed) {
    Random r(seed);
    const rope_slot_kind kind = r.Of({ROPE_SLOTS_PAGED, ROPE_SLOTS_LINEAR});
    const bool packed = r.Sometimes(2);
    const int sequences = r.Pick(1, 4), longest = r.Of({1, 2, 40});
    std::vector<int> lengths;
    for (int s = 0; s < sequences; ++s) {
      lengths.push_back(packed || s == 0 ? r.Pick(packed ? 0 : 1, longest) : lengths[0]);
    }
    const int all = std::accumulate(lengths.begin(), lengths.end(), 0);
    if (all == 0) return;
    std::vector<int32_t> ends(1, 0);
    for (int length : lengths) ends.push_back(ends.back() + length);
    std::vector<int64_t> ids, old_ids;
    for (int t = 0; t < all; ++t) old_ids.push_back(r.Below(5000)), ids.push_back(r.Below(5000));

    rope_config config = Config(64, r.Of({ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}));
    if (r.Sometimes(2)) config.rotary_dim = 32;
    const Context context = machine_->Create({config});
    const int heads = r.Pick(1, 4), v_width = r.Of({32, 64, 96});
    const rope_dtype dtype = r.Pick(ROPE_DTYPE_F32, ROPE_DTYPE_BF16);
    std::vector<char> k_bytes = Values(&r, dtype, all * heads * 64),
                      v_bytes = Values(&r, dtype, all * heads * v_width);
    const auto stored = [&] {
      return r.Of<rope_dtype>({dtype, ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E5M2, ROPE_DTYPE_I8,
                               ROPE_DTYPE_Q8_0, ROPE_DTYPE_F32, ROPE_DTYPE_BF16});
    };
    SlotPlaces places(&r, kind, lengths);
    StoredHeads k(&r, places, heads, 64, stored(), 0),
        v(&r, places, heads, v_width, stored(), v_width);
    places.Describe(k.tensor, v.tensor);
    Weighted k_norm(&r, heads, 64, all, true, true), v_norm(&r, heads, v_width, all, false, true);
    rope_fused fused = ROPE_INIT(rope_fused);
    if (r.Sometimes(2)) fused.k_norm = &k_norm.norm;
    if (r.Sometimes(2)) fused.v_norm = &v_norm.norm;
    fused.v = Tensor(v_bytes.data(), dtype, heads);
    fused.v.head_dim = v_width;
    rope_qk_args args = Args(packed ? 1 : sequences, packed ? all : lengths[0]);
    const auto at = [&](const std::vector<int64_t>& of) {
      rope_positions p = Ids(packed ? ROPE_POSITIONS_IDS_T : ROPE_POSITIONS_IDS_BT, of.data());
      if (packed) p.cu_seqlens = ends.data(), p.sequences = sequences;
      return p;
    };
    args.k = Tensor(k_bytes.data(), dtype, heads);
    args.positions = at(old_ids);
    args.fused = &fused;
    std::vector<MemorySpan> memory = {SpanOf(k_bytes, true), SpanOf(v_bytes, true),
                                      SpanOf(ids, true), SpanOf(old_ids, true), SpanOf(ends, true)};
    for (const Weighted* w : {&k_norm, &v_norm}) {
      memory.push_back(SpanOf(w->weights, true));
      memory.push_back(SpanOf(w->biases, true));
      memory.push_back(SpanOf(w->rstd, true));
    }
    places.List(&memory);
    k.List(&memory), v.List(&memory);
    if (!ExpectAlike(context, &args, &fused.cache, &places, {&k, &v}, memory, &r)) return;
    ++appended;

    // To slots of another cache.
    const rope_slot_kind other = r.Of({ROPE_SLOTS_PAGED, ROPE_SLOTS_LINEAR});
    SlotPlaces there(&r, other, lengths);
    StoredHeads to_k(&r, there, heads, 64, stored(), 0),
        to_v(&r, there, heads, v_width, stored(), v_width);
    there.Describe(to_k.tensor, to_v.tensor);
    rope_fused move = ROPE_INIT(rope_fused);
    const rope_positions before = at(old_ids);
    move.from_positions = &before;
    args.k = rope_tensor{};
    args.operation = ROPE_OPERATION_REROTATE;
    args.positions = at(ids);
    args.fused = &move;
    memory.clear();
    for (const auto* of : {&ids, &old_ids}) memory.push_back(SpanOf(*of, true));
    memory.push_back(SpanOf(ends, true));
    places.List(&memory), there.List(&memory);
    k.List(&memory), v.List(&memory);
    to_k.List(&memory), to_v.List(&memory);
    if (ExpectAlike(context, &args, &move.cache, &there, {&to_k, &to_v}, memory, &r, &move.source,
                    &places)) {
      ++moved;
    }
  }

 private:
  static std::vector<char> Values(Random* r, rope_dtype dtype, int64_t count) {
    std::vector<char> values(static_cast<size_t>(count * SizeOf(dtype)));
    for (int64_t i = 0; i < count; ++i) {
      WriteElement(dtype, &values[static_cast<size_t>(i * SizeOf(dtype))],
                   r->Pick(-2000, 2000) / 512.0);
    }
    return values;
  }

  // The call by both descriptions of its slots; false: both are refused, and nothing is written.
  bool ExpectAlike(const Context& context, rope_qk_args* args, const rope_kv_cache** cache,
                   SlotPlaces* places, const std::vector<StoredHeads*>& written,
                   const std::vector<MemorySpan>& memory, Random* r,
                   const rope_kv_cache** source = nullptr, const SlotPlaces* from = nullptr) {
    std::vector<std::vector<uint8_t>> bytes_before, bytes;
    std::vector<std::vector<float>> scales_before, scales;
    for (const StoredHeads* heads : written) {
      bytes_before.push_back(heads->bytes);
      scales_before.push_back(heads->scales);
    }
    *cache = &places->spelt;
    if (source != nullptr) *source = &from->spelt;
    const rope_status s = machine_->Apply(context, *args, memory, r);
    for (size_t i = 0; i < written.size(); ++i) {
      bytes.push_back(written[i]->bytes);
      scales.push_back(written[i]->scales);
      std::copy(bytes_before[i].begin(), bytes_before[i].end(), written[i]->bytes.begin());
      std::copy(scales_before[i].begin(), scales_before[i].end(), written[i]->scales.begin());
    }
    *cache = &places->by_kind;
    if (source != nullptr) *source = &from->by_kind;
    EXPECT_EQ(machine_->Apply(context, *args, memory, r), s) << rope_last_error();
    for (size_t i = 0; i < written.size(); ++i) {
      EXPECT_TRUE(written[i]->bytes == bytes[i]) << (i == 0 ? "k" : "v");
      EXPECT_TRUE(written[i]->scales == scales[i]) << "scales of " << (i == 0 ? "k" : "v");
      EXPECT_TRUE(s == ROPE_OK || bytes[i] == bytes_before[i]);
    }
    return s == ROPE_OK;
  }

  Machine* machine_;
};

inline void ExpectSlotKindsAgree(Machine* machine, int count) {
  SlotKinds kinds(machine);
  for (int n = 0; n < count && !::testing::Test::HasFailure(); ++n) {
    SCOPED_TRACE("seed " + std::to_string(n));
    kinds.Expect(static_cast<uint64_t>(n));
  }
  EXPECT_GE(kinds.appended, count / 3);
  EXPECT_GE(kinds.moved, count / 3);
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_SLOT_KINDS_H_
