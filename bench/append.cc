// A step of an engine: q turns in place, k turns into the pages of a cache, v is copied there;
// where the pages are in 8 bits, both are coded, by one given scale or by one for each head. Beside
// it what does no more than move the same bytes between the same addresses (q by a sweep, k and v
// by copies), the rotation in place followed by copies or by a call that codes, and the rotation in
// place alone.
#include "append.h"

#include <benchmark/benchmark.h>
#include <librope/rope.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "contexts.h"
#include "handles.h"
#include "sweeps.h"
#include "tensors.h"

namespace bench {
namespace {

constexpr int kPageSize = 16;
constexpr int kHeads = kKHeads;  // of v, too

// What the pages hold: elements of q's dtype, or codes; kRoundedE4m3: of what is rounded to it
// first.
enum class Pages { kSame, kGivenE4m3, kRoundedE4m3, kComputedI8 };
constexpr const char* kPagesNames[] = {"", "_to_e4m3", "_to_rounded_e4m3", "_to_i8"};

constexpr int64_t kLeastPages = 1024;  // more slots than the caches hold

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
    return pages == Pages::kSame ? bytes : bytes / static_cast<int64_t>(ElementSize(dtype));
  }

  rope_tensor CachedHeads(void* data, const rope_scale* scale) const {
    rope_tensor t = Described(data, kHeads, by_heads ? ROPE_LAYOUT_HND : ROPE_LAYOUT_NHD);
    if (pages == Pages::kSame) return t;
    t.dtype = pages == Pages::kComputedI8 ? ROPE_DTYPE_I8 : ROPE_DTYPE_F8_E4M3;
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

  rope_dtype dtype;
  Pages pages;
  bool by_heads;
  int64_t sequences, tokens;
  int32_t page_count;
  Buffer q, k, v, k_cache, v_cache, k_scales, v_scales;
  std::vector<int64_t> slots, positions;
};

void CopyOrdinary(char* to, const char* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

// The least that a code of 8 bits takes: one byte of each element is stored.
template <int kSize>
void CopyUpperBytes(char* to, const char* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes / kSize; ++i) to[i] = from[kSize * i + kSize - 1];
}

// What a call leaves to others.
enum class Way { kOneCall, kPrepared, kThenCopies, kThenCodes, kInPlace };

void Append(rope_dtype dtype, Pages pages, bool by_heads, int64_t sequences, int64_t tokens) {
  const int64_t all = sequences * tokens;
  const std::string group = std::string("append_") + DtypeName(dtype) +
                            kPagesNames[static_cast<int>(pages)] + (by_heads ? "_hnd_" : "_nhd_") +
                            std::to_string(all);
  // Made by the contender that runs first.
  const auto shared = std::make_shared<std::unique_ptr<Step>>();
  const auto add = [=](const std::string& contender, auto body) {
    benchmark::RegisterBenchmark((group + "/" + contender).c_str(), [=](benchmark::State& state) {
      if (*shared == nullptr)
        *shared = std::make_unique<Step>(dtype, pages, by_heads, sequences, tokens);
      body(state, **shared);
      state.counters["tokens"] = static_cast<double>(all);
    });
  };
  const auto call = [=](const std::string& contender, Way way) {
    add(contender, [=](benchmark::State& state, const Step& step) {
      const Context context = Create(ROPE_PAIRING_HALVES, ROPE_SCALING_DEFAULT),
                    nope = Create(ROPE_PAIRING_HALVES, ROPE_SCALING_NOPE);
      if (context == nullptr || nope == nullptr) return state.SkipWithError("no context");
      rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
      cache.kind = ROPE_SLOTS_MAPPED;
      cache.pages = step.page_count;
      cache.page_size = kPageSize;
      cache.slots_i64 = step.slots.data();
      cache.slots_length = all;
      rope_scale k_scale = step.Scale(step.k_scales.get()),
                 v_scale = step.Scale(step.v_scales.get());
      cache.k = step.CachedHeads(step.k_cache.get(), &k_scale);
      cache.v = step.CachedHeads(step.v_cache.get(), &v_scale);
      rope_fused fused = ROPE_INIT(rope_fused);
      fused.cache = &cache;
      fused.v = step.Described(step.v.get(), kHeads, ROPE_LAYOUT_BSHD);
      rope_qk_args args = step.Args(), stored = args;
      stored.q = rope_tensor{};
      stored.fused = &fused;
      if (way == Way::kOneCall || way == Way::kPrepared) args.fused = &fused;
      rope_status status = ROPE_OK;
      Prepared prepared;
      rope_qk_data data = ROPE_INIT(rope_qk_data);
      if (way == Way::kPrepared) {
        data.q = std::exchange(args.q.data, nullptr);
        data.k = std::exchange(args.k.data, nullptr);
        data.v = std::exchange(fused.v.data, nullptr);
        data.cache_k = std::exchange(cache.k.data, nullptr);
        data.cache_v = std::exchange(cache.v.data, nullptr);
        if (pages == Pages::kComputedI8) {
          data.cache_k_scales = std::exchange(k_scale.data, nullptr);
          data.cache_v_scales = std::exchange(v_scale.data, nullptr);
        }
        rope_prepared* made_once = nullptr;
        status = rope_prepared_create(context.get(), &args, &made_once);
        prepared.reset(made_once);
      }
      for (auto _ : state) {
        status |= way == Way::kPrepared ? rope_prepared_apply(prepared.get(), &data)
                                        : rope_apply_qk(context.get(), &args);
        if (way == Way::kThenCopies) step.CopyToSlots(CopyOrdinary);
        if (way == Way::kThenCodes) status |= rope_apply_qk(nope.get(), &stored);
        benchmark::ClobberMemory();
      }
      if (status != ROPE_OK) state.SkipWithError(rope_last_error());
    });
  };
  call("rope", Way::kOneCall);
  call("rope_prepared", Way::kPrepared);
  if (pages == Pages::kSame) {
    call("rope_then_copies", Way::kThenCopies);
  } else {
    call("rope_then_codes", Way::kThenCodes);
  }
  call("rope_in_place_alone", Way::kInPlace);
  static volatile float one = 1;
  const auto moves = [=](const std::string& contender, const Sweep& sweep, auto copy) {
    add(contender + "_" + sweep.name, [=](benchmark::State& state, const Step& step) {
      for (auto _ : state) {
        sweep.run(static_cast<float*>(step.q.get()), all * kQHeads * kDim * ElementSize(dtype),
                  one);
        step.CopyToSlots(copy);
        benchmark::ClobberMemory();
      }
    });
  };
  const Copy around = StreamingCopies().front();
  const std::vector<Sweep> sweeps = RmwSweeps();
  for (const Sweep& sweep : sweeps) {
    if (sweep.vector_bytes != sweeps.front().vector_bytes) break;  // the widest
    if (pages != Pages::kSame) {
      moves("move", sweep, dtype == ROPE_DTYPE_F32 ? CopyUpperBytes<4> : CopyUpperBytes<2>);
      continue;
    }
    moves("move", sweep, CopyOrdinary);
    moves("nt_move", sweep, [=](char* to, const char* from, int64_t bytes) {
      around.run(reinterpret_cast<float*>(to), reinterpret_cast<const float*>(from),
                 static_cast<size_t>(bytes));
    });
  }
}

}  // namespace

void RegisterAppend() {
  for (const rope_dtype dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16}) {
    for (const bool by_heads : {false, true}) {
      Append(dtype, Pages::kSame, by_heads, 1, 1);
      Append(dtype, Pages::kSame, by_heads, 64, 1);
      for (const int64_t tokens : {8, 512, 2048, 8192, 32768}) {
        Append(dtype, Pages::kSame, by_heads, 1, tokens);
      }
    }
  }
  for (const Pages pages : {Pages::kGivenE4m3, Pages::kComputedI8}) {
    Append(ROPE_DTYPE_BF16, pages, false, 64, 1);
    for (const int64_t tokens : {1, 8, 512, 2048, 8192, 32768}) {
      Append(ROPE_DTYPE_BF16, pages, false, 1, tokens);
    }
    Append(ROPE_DTYPE_BF16, pages, true, 1, 2048);
  }
  for (const int64_t tokens : {512, 2048}) {
    Append(ROPE_DTYPE_BF16, Pages::kRoundedE4m3, false, 1, tokens);
    Append(ROPE_DTYPE_F32, Pages::kGivenE4m3, false, 1, tokens);
  }
}

}  // namespace bench
