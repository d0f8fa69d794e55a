// A call that is divided among threads: no byte is written by two tasks, and all that is written
// are the outputs, the slots of its tokens and their scales, each to its last byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "support/elements.h"
#include "support/handles.h"
#include "support/random.h"

namespace rope::testing {
namespace {

// Runs one task after the other, and notes for each byte which one has changed it.
struct Watch {
  std::vector<std::vector<char>*> memories;
  std::vector<std::vector<uint32_t>> owners;  // task + 1; 0: none
  uint32_t tasks = 0;

  void Add(std::vector<char>* memory) {
    memories.push_back(memory);
    owners.emplace_back(memory->size());
  }
  void Note(const std::vector<std::vector<char>>& before, uint32_t task) {
    for (size_t m = 0; m < memories.size(); ++m) {
      const std::vector<char>& now = *memories[m];
      for (size_t i = 0; i < now.size(); ++i) {
        if (now[i] == before[m][i]) continue;
        uint32_t& owner = owners[m][i];
        ASSERT_TRUE(owner == 0 || owner == task + 1)
            << "byte " << i << " of memory " << m << " by tasks " << owner - 1 << " and " << task;
        owner = task + 1;
      }
    }
  }
};

int32_t RunWatched(void* data, rope_task_fn fn, void* task, uint32_t count) {
  auto* const watch = static_cast<Watch*>(data);
  watch->tasks = count;
  for (uint32_t i = 0; i < count; ++i) {
    std::vector<std::vector<char>> before;
    for (const std::vector<char>* memory : watch->memories) before.push_back(*memory);
    fn(task, i);
    watch->Note(before, i);
  }
  return 0;
}

struct Case {
  const char* name;
  rope_dtype stored;
  rope_layout layout;
  bool normed;
};

TEST(Tasks, WriteEachByteOnce) {
  constexpr int kTokens = 1000, kDim = 64, kQHeads = 12, kHeads = 4, kPageSize = 16, kPages = 64;
  constexpr Case kCases[] = {{"bf16, NHD", ROPE_DTYPE_BF16, ROPE_LAYOUT_NHD, false},
                             {"bf16, HND, normed", ROPE_DTYPE_BF16, ROPE_LAYOUT_HND, true},
                             {"int8, NHD, normed", ROPE_DTYPE_I8, ROPE_LAYOUT_NHD, true},
                             {"int8, HND", ROPE_DTYPE_I8, ROPE_LAYOUT_HND, false}};
  const Context context = Create(Config(kDim));
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const bool codes = c.stored == ROPE_DTYPE_I8;
    Random random(1);
    std::vector<float> q(kTokens * kQHeads * kDim);
    std::vector<uint16_t> k(kTokens * kHeads * kDim), v = k, weight(kDim, 0x3f40);
    for (float& x : q) x = random.Pick(-999, 999) / 256.0f;
    for (std::vector<uint16_t>* values : {&k, &v}) {
      for (uint16_t& x : *values) WriteElement(ROPE_DTYPE_BF16, &x, random.Pick(-999, 999) / 256.0);
    }
    std::vector<int64_t> slots;
    for (int t = 0; t < kTokens; ++t) slots.push_back((t * 77 + 3) % (kPages * kPageSize));
    const size_t slot_bytes = kHeads * kDim * (codes ? 1 : 2);
    std::vector<char> q_out, k_cache, v_cache, k_scales, v_scales;
    Watch watch;
    // Whatever a byte becomes, it differs from one of these.
    for (const char fill : {'\x11', '\xee'}) {
      q_out.assign(q.size() * sizeof(float), fill);
      k_cache.assign(kPages * kPageSize * slot_bytes, fill);
      k_scales.assign(kPages * kPageSize * kHeads * sizeof(float), fill);
      v_cache = k_cache, v_scales = k_scales;
      if (watch.memories.empty()) {
        for (std::vector<char>* m : {&q_out, &k_cache, &v_cache, &k_scales, &v_scales})
          watch.Add(m);
      }
      rope_scale scales[2];
      for (int i = 0; i < 2; ++i) {
        scales[i] = ROPE_INIT(rope_scale);
        scales[i].computed = 1;
        scales[i].dtype = ROPE_DTYPE_F32;
        scales[i].data = i == 0 ? k_scales.data() : v_scales.data();
        scales[i].stride_batch = kPageSize * kHeads;
        scales[i].stride_token = kHeads;
        scales[i].stride_head = 1;
      }
      rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
      cache.kind = ROPE_SLOTS_MAPPED;
      cache.pages = kPages;
      cache.page_size = kPageSize;
      cache.slots_i64 = slots.data();
      cache.slots_length = kTokens;
      cache.k = Tensor(k_cache.data(), c.stored, kHeads, c.layout);
      cache.v = Tensor(v_cache.data(), c.stored, kHeads, c.layout);
      cache.v.head_dim = kDim;
      if (codes) cache.k.scale = &scales[0], cache.v.scale = &scales[1];
      rope_norm norm = ROPE_INIT(rope_norm);
      norm.kind = ROPE_NORM_KIND_RMS;
      norm.eps = 1e-6;
      norm.weight = weight.data();
      norm.weight_dtype = ROPE_DTYPE_BF16;
      rope_fused fused = ROPE_INIT(rope_fused);
      fused.cache = &cache;
      fused.v = Tensor(v.data(), ROPE_DTYPE_BF16, kHeads);
      fused.v.head_dim = kDim;
      if (c.normed) fused.q_norm = fused.k_norm = &norm;
      const rope_runner runner = {&RunWatched, &watch};
      rope_qk_args args = Args(1, kTokens);
      args.q = Tensor(q.data(), ROPE_DTYPE_F32, kQHeads);
      args.q_out = Tensor(q_out.data(), ROPE_DTYPE_F32, kQHeads);
      args.k = Tensor(k.data(), ROPE_DTYPE_BF16, kHeads);
      args.positions = Offset(100);
      args.fused = &fused;
      args.runner = &runner;
      ASSERT_OK(rope_apply_qk(context.get(), &args));
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(watch.tasks, 1u);
    const auto written = [&](int m) {
      return watch.owners[m].size() -
             static_cast<size_t>(std::count(watch.owners[m].begin(), watch.owners[m].end(), 0u));
    };
    EXPECT_EQ(written(0), q_out.size());
    for (int m = 1; m < 5; ++m) {
      const size_t of_slot = m < 3 ? slot_bytes : codes ? kHeads * sizeof(float) : 0;
      EXPECT_EQ(written(m), kTokens * of_slot) << m;
      for (int64_t slot = 0; slot < kPages * kPageSize && of_slot != 0; ++slot) {
        const bool given = std::count(slots.begin(), slots.end(), slot) != 0;
        const bool by_heads = m < 3 && c.layout == ROPE_LAYOUT_HND;
        const size_t head = by_heads ? of_slot / kHeads * kPageSize : of_slot / kHeads,
                     page = static_cast<size_t>(slot / kPageSize) * of_slot * kPageSize,
                     first = page + static_cast<size_t>(slot % kPageSize) *
                                        (by_heads ? of_slot / kHeads : of_slot);
        for (int h = 0; h < kHeads; ++h) {
          for (size_t i = 0; i < of_slot / kHeads; ++i) {
            ASSERT_EQ(watch.owners[m][first + h * head + i] != 0, given)
                << "memory " << m << ", slot " << slot << ", head " << h << ", byte " << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace rope::testing
