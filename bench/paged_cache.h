// Pages of keys and values for the groups of moves: whole pages of tokens in any order, and where
// they go.
#ifndef LIBROPE_BENCH_PAGED_CACHE_H_
#define LIBROPE_BENCH_PAGED_CACHE_H_

#include <librope/rope.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "tensors.h"

namespace bench {

// What all contenders of a group share: tokens in whole pages, in any order.
struct PagedCache {
  static constexpr int kPageSize = 16, kPages = 2048;  // more slots than the caches hold
  static constexpr int kHeads = kKHeads;               // of v, too

  PagedCache(rope_dtype dtype, bool by_heads, int64_t tokens)
      : dtype(dtype), by_heads(by_heads), tokens(tokens) {
    const int64_t numbers = int64_t{kPages} * kPageSize * kHeads * kDim;
    first_page = MakeBuffer(dtype, numbers / kPages);
    const bool coded = dtype == ROPE_DTYPE_I8 || dtype == ROPE_DTYPE_Q8_0;
    apart = MakeBuffer(coded ? ROPE_DTYPE_F32 : dtype, tokens * kHeads * kDim);
    k = MakeBuffer(dtype, numbers);
    v = MakeBuffer(dtype, numbers);
    for (const auto& [scale, data] : {std::pair(&k_scale, &k_scales), {&v_scale, &v_scales}}) {
      *data = MakeBuffer(ROPE_DTYPE_F32, numbers / kDim);
      std::fill_n(static_cast<float*>(data->get()), numbers / kDim, 0.01f);
      scale->computed = 1;
      scale->dtype = ROPE_DTYPE_F32;
      scale->data = data->get();
      scale->stride_batch = kPageSize * kHeads;
      scale->stride_token = kHeads;
      scale->stride_head = 1;
    }
    std::vector<int32_t> pages(kPages);
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), std::mt19937(7));
    const auto used = static_cast<std::ptrdiff_t>((tokens + kPageSize - 1) / kPageSize);
    from.assign(pages.begin(), pages.begin() + used);
    to.assign(pages.begin() + used, pages.begin() + 2 * used);
    for (int64_t t = 0; t < tokens; ++t) {
      before.push_back(1000 + t);
      after.push_back(t);
      distances.push_back(-1000);
    }
  }

  // Keys as they were made. Those that turn in 8 bits are coded again each time, and would become
  // infinite in some millions of turns; and their sweeps find no subnormal f32.
  void Restore() const {
    for (const int32_t page : from) {
      std::memcpy(KeysOf(page), first_page.get(), static_cast<size_t>(PageBytes()));
      std::fill_n(ScalesOf(k_scales, page), kPageSize * kHeads, 0.01f);
    }
  }

  rope_kv_cache Pages(const std::vector<int32_t>& table, bool values) const {
    static constexpr int32_t kZero = 0;
    rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
    cache.kind = ROPE_SLOTS_PAGED;
    cache.pages = kPages;
    cache.page_size = kPageSize;
    cache.page_table = table.data();
    cache.page_table_stride = static_cast<int64_t>(table.size());
    cache.starts = &kZero;
    for (auto [tensor, data] : {std::pair(&cache.k, k.get()), {&cache.v, v.get()}}) {
      if (tensor == &cache.v && !values) continue;
      tensor->data = data;
      tensor->dtype = dtype;
      tensor->layout = by_heads ? ROPE_LAYOUT_HND : ROPE_LAYOUT_NHD;
      tensor->heads = kHeads;
      tensor->head_dim = kDim;
      if (dtype == ROPE_DTYPE_I8) tensor->scale = tensor == &cache.k ? &k_scale : &v_scale;
    }
    return cache;
  }

  // Bytes of the first `tokens` slots of a page lie together in NHD alone; whole pages in both.
  int64_t PageBytes() const {
    return static_cast<int64_t>(BytesOf(dtype, size_t{kPageSize} * kHeads * kDim));
  }
  int64_t TokenBytes() const { return PageBytes() / kPageSize; }
  int TokensOfPage() const { return static_cast<int>(std::min<int64_t>(tokens, kPageSize)); }
  // What of a page lies together: all of it, or of a single token in HND each head.
  int Pieces() const { return by_heads && tokens < kPageSize ? kHeads : 1; }
  int64_t PieceBytes() const { return TokenBytes() * TokensOfPage() / Pieces(); }
  int64_t HeadBytes() const { return PageBytes() / kHeads; }  // in HND, from one head to the next
  char* KeysOf(int32_t page) const { return static_cast<char*>(k.get()) + page * PageBytes(); }
  char* ValuesOf(int32_t page) const { return static_cast<char*>(v.get()) + page * PageBytes(); }
  static float* ScalesOf(const Buffer& scales, int32_t page) {
    return static_cast<float*>(scales.get()) + page * kPageSize * kHeads;
  }

  rope_dtype dtype;
  bool by_heads;
  int64_t tokens;
  Buffer k, v, k_scales, v_scales, first_page;
  Buffer apart;  // for keys out of their pages
  rope_scale k_scale = ROPE_INIT(rope_scale), v_scale = k_scale;
  std::vector<int32_t> from, to;
  std::vector<int64_t> before, after, distances;
};

}  // namespace bench

#endif  // LIBROPE_BENCH_PAGED_CACHE_H_
