// PAGED and LINEAR slots have the bytes of slots that are spelt out (support/slot_kinds), and
// tokens go to no slot of others, by every instruction set.
#include "support/slot_kinds.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "support/handles.h"
#include "support/machine.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

using SlotKindsTest = TargetTest;

TEST_P(SlotKindsTest, HaveTheBytesOfSlotsThatAreSpeltOut) {
  CpuMachine machine;
  ExpectSlotKindsAgree(&machine, LongTests() ? 20000 : 600);
}

// Rows of narrow heads fit a block in which slots are looked for in runs: these end with a
// sequence, and with the slots that are listed.
class SlotRunsTest : public TargetTest {
 protected:
  static constexpr int kDim = 16, kTokens = 40;
  // Appends the tokens of a call to slots of zeros; what is in them then.
  std::vector<float> Append(rope_kv_cache cache, const rope_qk_args& of) {
    std::vector<float> k, slots(cache.pages * cache.page_size * kDim);
    for (int i = 0; i < kTokens * kDim; ++i) k.push_back(static_cast<float>(i + 1));
    cache.k = Tensor(slots.data(), ROPE_DTYPE_F32, 1, ROPE_LAYOUT_NHD);
    rope_fused fused = ROPE_INIT(rope_fused);
    fused.cache = &cache;
    rope_qk_args args = of;
    args.k = Tensor(k.data(), ROPE_DTYPE_F32, 1);
    args.fused = &fused;
    EXPECT_OK(rope_apply_qk(context_.get(), &args));
    return slots;
  }
  static rope_kv_cache Slots(rope_slot_kind kind, int64_t pages, int32_t page_size) {
    rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
    cache.kind = kind;
    cache.pages = pages;
    cache.page_size = page_size;
    return cache;
  }
  const Context context_ = Create(Config(kDim));
};

TEST_P(SlotRunsTest, EndWithTheSequence) {
  struct Case {
    int64_t batch;
    std::vector<int32_t> runs;
  };
  for (const Case& c : {Case{1, {0, 2, kTokens}}, Case{kTokens, {}}, Case{2, {}}}) {
    const bool packed = !c.runs.empty();
    const int64_t tokens = kTokens / c.batch, sequences = packed ? 2 : c.batch;
    std::vector<int32_t> starts(static_cast<size_t>(sequences), 3);
    rope_kv_cache linear = Slots(ROPE_SLOTS_LINEAR, sequences, 64),
                  spelt = Slots(ROPE_SLOTS_MAPPED, sequences, 64);
    linear.starts = starts.data();
    std::vector<int64_t> slots;
    for (int64_t n = 0; n < kTokens; ++n) {
      const int64_t sequence = packed ? n >= c.runs[1] : n / tokens;
      slots.push_back(sequence * 64 + 3 + (packed ? n - c.runs[sequence] : n % tokens));
    }
    spelt.slots_i64 = slots.data();
    spelt.slots_length = kTokens;
    rope_qk_args args = Args(c.batch, tokens);
    args.positions = Offset(3);
    if (packed) args.positions.cu_seqlens = c.runs.data(), args.positions.sequences = 2;
    EXPECT_EQ(Append(linear, args), Append(spelt, args)) << c.batch;
  }
}

TEST_P(SlotRunsTest, EndWithTheListedSlots) {
  std::vector<int64_t> slots(kTokens);
  std::iota(slots.begin(), slots.end(), 0);  // those behind the listed ones would go on
  rope_kv_cache cache = Slots(ROPE_SLOTS_MAPPED, 1, 64);
  cache.slots_i64 = slots.data();
  cache.slots_length = 36;
  rope_qk_args args = Args(1, kTokens);
  args.positions = Offset(3);
  const std::vector<float> got = Append(cache, args);
  EXPECT_NE(got[35 * kDim], 0);
  EXPECT_EQ(got[36 * kDim], 0);
}

INSTANTIATE_TARGETS(SlotKindsTest);
INSTANTIATE_TARGETS(SlotRunsTest);

}  // namespace
}  // namespace rope::testing
