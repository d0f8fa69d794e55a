// What the groups of appends share: q, k and v of a step, the pages where k and v go, and what does
// no more than move the same bytes between the same addresses.
#ifndef LIBROPE_BENCH_STEP_H_
#define LIBROPE_BENCH_STEP_H_

#include <benchmark/benchmark.h>
#include <librope/rope.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "handles.h"
#include "sweeps.h"
#include "tensors.h"

namespace bench {

inline constexpr int kPageSize = 16;
inline constexpr int kHeads = kKHeads;  // of v, too

// What the pages hold: elements of q's dtype, or codes; kRoundedE4m3: of what is rounded to it
// first.
enum class Pages { kSame, kGivenE4m3, kRoundedE4m3, kGivenE5m2, kComputedI8, kQ80 };
inline constexpr const char* kPagesNames[] = {"",         "_to_e4m3", "_to_rounded_e4m3",
                                              "_to_e5m2", "_to_i8",   "_to_q8_0"};

inline constexpr int64_t kLeastPages = 1024;  // more slots than the caches hold

// What all contenders of a group share.
struct Step {
  Step(rope_dtype dtype, Pages pages, bool by_heads, int64_t sequences, int64_t tokens)
      : dtype(dtype),
        pages(pages),
        by_heads(by_heads),
        sequences(sequences),
        tokens(tokens),
        page_count(static_cast<int32_t>(std::max(sequences * tokens / kPageSize, kLeastPages))) {
    const int64_t all = sequences * tokens, cache_heads = int64_t{page_count} * kPageSize * kHeads;
    q = MakeBuffer(dtype, all * kQHeads * kDim);
    k = MakeBuffer(dtype, all * kHeads * kDim);
    v = MakeBuffer(dtype, all * kHeads * kDim);
    k_cache = MakeBuffer(dtype, StoredBytes(cache_heads * kDim));
    v_cache = MakeBuffer(dtype, StoredBytes(cache_heads * kDim));
    k_scales = MakeBuffer(ROPE_DTYPE_F32, cache_heads);
    v_scales = MakeBuffer(ROPE_DTYPE_F32, cache_heads);
    // Pages in any order. Each sequence has pages of its own.
    std::vector<int64_t> order(static_cast<size_t>(page_count));
    std::iota(order.begin(), order.end(), int64_t{0});
    std::shuffle(order.begin(), order.end(), std::mt19937(7));
    size_t next = 0;
    for (int64_t s = 0; s < sequences; ++s) {
      for (int64_t t = 0; t < tokens; ++t) {
        if (t % kPageSize == 0) ++next;
        slots.push_back(order[next - 1] * kPageSize + t % kPageSize);
        positions.push_back(1000 * s + t);
      }
    }
  }

  rope_tensor Described(void* data, int heads, rope_layout layout) const {
    rope_tensor t = Heads(data, dtype, heads, layout);
    t.head_dim = kDim;
    return t;
  }

  // What a cache keeps of so many bytes.
  int64_t StoredBytes(int64_t bytes) const {
    const auto numbers = bytes / static_cast<int64_t>(ElementSize(dtype));
    return pages == Pages::kSame ? bytes : pages == Pages::kQ80 ? numbers / 32 * 34 : numbers;
  }

  rope_tensor CachedHeads(void* data, const rope_scale* scale) const {
    rope_tensor t = Described(data, kHeads, by_heads ? ROPE_LAYOUT_HND : ROPE_LAYOUT_NHD);
    if (pages == Pages::kSame) return t;
    if (pages == Pages::kQ80) {
      t.dtype = ROPE_DTYPE_Q8_0;
      return t;
    }
    t.dtype = pages == Pages::kComputedI8  ? ROPE_DTYPE_I8
              : pages == Pages::kGivenE5m2 ? ROPE_DTYPE_F8_E5M2
                                           : ROPE_DTYPE_F8_E4M3;
    t.scale = scale;
    return t;
  }

  rope_scale Scale(void* data) const {
    rope_scale scale = ROPE_INIT(rope_scale);
    if (pages != Pages::kComputedI8) {
      scale.value = 0.01f;
      scale.round_first = pages == Pages::kRoundedE4m3;
      return scale;
    }
    scale.computed = 1;
    scale.dtype = ROPE_DTYPE_F32;
    scale.data = data;
    scale.stride_batch = kPageSize * kHeads;
    scale.stride_token = kHeads;
    scale.stride_head = 1;
    return scale;
  }

  // The pages. `slots_length` and the tensors are set; scales must outlive it.
  rope_kv_cache Cache(const rope_scale* k_scale, const rope_scale* v_scale) const {
    rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
    cache.kind = ROPE_SLOTS_MAPPED;
    cache.pages = page_count;
    cache.page_size = kPageSize;
    cache.slots_i64 = slots.data();
    cache.slots_length = static_cast<int64_t>(slots.size());
    cache.k = CachedHeads(k_cache.get(), k_scale);
    cache.v = CachedHeads(v_cache.get(), v_scale);
    return cache;
  }

  rope_qk_args Args() const {
    rope_qk_args args = ROPE_INIT(rope_qk_args);
    args.batch = sequences;
    args.tokens = tokens;
    args.q = Described(q.get(), kQHeads, ROPE_LAYOUT_BSHD);
    args.k = Described(k.get(), kHeads, ROPE_LAYOUT_BSHD);
    args.positions.kind = ROPE_POSITIONS_IDS_BT;
    args.positions.ids_i64 = positions.data();
    return args;
  }

  // k and v to their slots, by `copy(to, from, bytes)`, in the largest pieces.
  template <class Copy>
  void CopyToSlots(Copy copy) const {
    const int64_t head = kDim * static_cast<int64_t>(ElementSize(dtype)), row = head * kHeads;
    const auto all = static_cast<int64_t>(slots.size());
    for (int64_t i = 0; i < all;) {
      const int64_t page = slots[i] / kPageSize, first = slots[i] % kPageSize;
      int64_t n = 1;
      while (i + n < all && first + n < kPageSize && slots[i + n] == slots[i] + n) ++n;
      for (const auto& [from, to] : {std::pair(k.get(), k_cache.get()), {v.get(), v_cache.get()}}) {
        const char* const in = static_cast<const char*>(from) + i * row;
        char* const out = static_cast<char*>(to) + StoredBytes(page * kPageSize * row);
        if (!by_heads) {
          copy(out + StoredBytes(first * row), in, n * row);
          continue;
        }
        for (int64_t t = 0; t < n; ++t) {
          for (int h = 0; h < kHeads; ++h) {
            copy(out + StoredBytes((h * kPageSize + first + t) * head), in + t * row + h * head,
                 head);
          }
        }
      }
      i += n;
    }
  }

  size_t CacheBytes() const {
    return static_cast<size_t>(StoredBytes(int64_t{page_count} * kPageSize * kHeads * kDim *
                                           static_cast<int64_t>(ElementSize(dtype))));
  }
  size_t TokenBytes(int heads) const {
    return slots.size() * heads * kDim * ElementSize(dtype);  // of all tokens
  }

  // q and both caches after `run`, which finds q and k as they were made, and empty caches. k is as
  // it was made again afterwards, q as well.
  template <class Run>
  Bytes After(Run run) const {
    Bytes q_before, k_before, after;
    AddBytes(&q_before, q.get(), TokenBytes(kQHeads));
    AddBytes(&k_before, k.get(), TokenBytes(kHeads));
    std::memset(k_cache.get(), 0x33, CacheBytes());
    std::memset(v_cache.get(), 0x33, CacheBytes());
    if (run() == ROPE_OK) {
      AddBytes(&after, q.get(), TokenBytes(kQHeads));
      AddBytes(&after, k_cache.get(), CacheBytes());
      AddBytes(&after, v_cache.get(), CacheBytes());
    }
    std::memcpy(q.get(), q_before.data(), q_before.size());
    std::memcpy(k.get(), k_before.data(), k_before.size());
    return after;
  }

  rope_dtype dtype;
  Pages pages;
  bool by_heads;
  int64_t sequences, tokens;
  int32_t page_count;
  Buffer q, k, v, k_cache, v_cache, k_scales, v_scales;
  std::vector<int64_t> slots, positions;
};

inline void CopyOrdinary(char* to, const char* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

// The least that a code of 8 bits takes: one byte of each element is stored.
template <int kSize>
void CopyUpperBytes(char* __restrict to, const char* __restrict from, int64_t bytes) {
  for (int64_t i = 0; i < bytes / kSize; ++i) to[i] = from[kSize * i + kSize - 1];
}

// Of Q8_0: two bytes more for each 32 elements.
template <int kSize>
void CopyUpperBlocks(char* __restrict to, const char* __restrict from, int64_t bytes) {
  for (; bytes > 0; bytes -= 32 * kSize, from += 32 * kSize, to += 34) {
    std::memcpy(to, from, 2);
    CopyUpperBytes<kSize>(to + 2, from, 32 * kSize);
  }
}

// add(contender, body(state, step)): the references, as one for each sweep and way of copying.
template <class Add>
void AddMoves(const Add& add, rope_dtype dtype, Pages pages) {
  static volatile float one = 1;
  const auto moves = [=](const std::string& contender, const Sweep& sweep, auto copy) {
    add(contender + "_" + sweep.name, [=](benchmark::State& state, const Step& step) {
      for (auto _ : state) {
        sweep.run(static_cast<float*>(step.q.get()), step.TokenBytes(kQHeads), one);
        step.CopyToSlots(copy);
        benchmark::ClobberMemory();
      }
    });
  };
  const Copy around = StreamingCopies().front();
  const std::vector<Sweep> sweeps = RmwSweeps();
  const bool is_f32 = dtype == ROPE_DTYPE_F32;
  for (const Sweep& sweep : sweeps) {
    if (sweep.vector_bytes != sweeps.front().vector_bytes) break;  // the widest
    if (pages == Pages::kQ80) {
      moves("move", sweep, is_f32 ? CopyUpperBlocks<4> : CopyUpperBlocks<2>);
      continue;
    }
    if (pages != Pages::kSame) {
      moves("move", sweep, is_f32 ? CopyUpperBytes<4> : CopyUpperBytes<2>);
      continue;
    }
    moves("move", sweep, CopyOrdinary);
    moves("nt_move", sweep, [=](char* to, const char* from, int64_t bytes) {
      around.run(reinterpret_cast<float*>(to), reinterpret_cast<const float*>(from),
                 static_cast<size_t>(bytes));
    });
  }
}

}  // namespace bench

#endif  // LIBROPE_BENCH_STEP_H_
