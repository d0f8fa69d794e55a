// What a cache holds is moved: keys turn in their slots (`turned`), or turn into other pages, with
// values copied beside them (`moved`). Beside it what does no more than move the same bytes: a
// sweep in place over the same slots, and copies between the same addresses. Keys in 8 bits have a
// computed scale for each head, which those leave out.
#include "moves.h"

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
#include "sweeps.h"
#include "tensors.h"

namespace bench {
namespace {

constexpr int kPageSize = 16, kPages = 2048;  // more slots than the caches hold
constexpr int kHeads = kKHeads;               // of v, too

// What all contenders of a group share: tokens in whole pages, in any order.
struct Cache {
  Cache(rope_dtype dtype, int64_t tokens) : dtype(dtype) {
    const int64_t numbers = int64_t{kPages} * kPageSize * kHeads * kDim;
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

  rope_kv_cache Pages(const std::vector<int32_t>& table, bool by_heads, bool values) const {
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
    return int64_t{kPageSize} * kHeads * kDim * static_cast<int64_t>(ElementSize(dtype));
  }
  int64_t TokenBytes() const { return PageBytes() / kPageSize; }

  rope_dtype dtype;
  Buffer k, v, k_scales, v_scales;
  rope_scale k_scale = ROPE_INIT(rope_scale), v_scale = k_scale;
  std::vector<int32_t> from, to;
  std::vector<int64_t> before, after, distances;
};

void Moves(rope_dtype dtype, bool by_heads, bool moved, int64_t tokens) {
  const std::string group = std::string(moved ? "moved_" : "turned_") + DtypeName(dtype) +
                            (by_heads ? "_hnd_" : "_nhd_") + std::to_string(tokens);
  // Made by the contender that runs first.
  const auto shared = std::make_shared<std::unique_ptr<Cache>>();
  const auto add = [=](const std::string& contender, auto body) {
    benchmark::RegisterBenchmark((group + "/" + contender).c_str(), [=](benchmark::State& state) {
      if (*shared == nullptr) *shared = std::make_unique<Cache>(dtype, tokens);
      body(state, **shared);
      state.counters["tokens"] = static_cast<double>(tokens);
    });
  };
  const auto call = [=](const std::string& contender, rope_operation operation, rope_angle angle) {
    add(contender, [=](benchmark::State& state, const Cache& cache) {
      rope_config config = ROPE_INIT(rope_config);
      config.head_dim = kDim;
      config.theta = 500000;
      config.pairing = ROPE_PAIRING_HALVES;
      config.angle = angle;
      rope_context* made = nullptr;
      if (rope_context_create(&config, &made) != ROPE_OK) return state.SkipWithError("no context");
      const Context context(made);
      const rope_kv_cache source = cache.Pages(cache.from, by_heads, moved),
                          to = cache.Pages(moved ? cache.to : cache.from, by_heads, moved);
      const auto ids = [](const std::vector<int64_t>& numbers) {
        rope_positions positions = {};
        positions.kind = ROPE_POSITIONS_IDS_T;
        positions.ids_i64 = numbers.data();
        return positions;
      };
      const rope_positions before = ids(cache.before);
      rope_fused fused = ROPE_INIT(rope_fused);
      fused.source = &source;
      fused.cache = &to;
      if (operation == ROPE_OPERATION_REROTATE) fused.from_positions = &before;
      rope_qk_args args = ROPE_INIT(rope_qk_args);
      args.operation = operation;
      args.batch = 1;
      args.tokens = tokens;
      args.positions = ids(operation == ROPE_OPERATION_REROTATE ? cache.after : cache.distances);
      args.fused = &fused;
      rope_status status = ROPE_OK;
      for (auto _ : state) {
        status |= rope_apply_qk(context.get(), &args);
        benchmark::ClobberMemory();
      }
      if (status != ROPE_OK) state.SkipWithError(rope_last_error());
    });
  };
  call("rope", ROPE_OPERATION_SHIFT, ROPE_ANGLE_EXACT);
  call("rerotate", ROPE_OPERATION_REROTATE, ROPE_ANGLE_FLOAT32);
  call("rerotate_exact", ROPE_OPERATION_REROTATE, ROPE_ANGLE_EXACT);
  static volatile float one = 1;
  // visit(to, from, bytes): whole pages, and of a single token its bytes, as if they lay together.
  const auto pieces = [=](const Cache& cache, auto visit) {
    const int64_t bytes = tokens < kPageSize ? tokens * cache.TokenBytes() : cache.PageBytes();
    for (size_t i = 0; i < cache.from.size(); ++i) {
      for (void* const data : {cache.k.get(), cache.v.get()}) {
        if (data == cache.v.get() && !moved) continue;
        char* const pages = static_cast<char*>(data);
        visit(pages + cache.to[i] * cache.PageBytes(), pages + cache.from[i] * cache.PageBytes(),
              static_cast<size_t>(bytes));
      }
    }
  };
  if (moved) {
    const auto copies = [=](const std::string& contender, auto copy) {
      add(contender, [=](benchmark::State& state, const Cache& cache) {
        for (auto _ : state) {
          pieces(cache, copy);
          benchmark::ClobberMemory();
        }
      });
    };
    const Copy around = StreamingCopies().front();
    copies("move_memcpy",
           [](char* to, const char* from, size_t bytes) { std::memcpy(to, from, bytes); });
    copies("nt_move", [around](char* to, const char* from, size_t bytes) {
      around.run(reinterpret_cast<float*>(to), reinterpret_cast<const float*>(from), bytes);
    });
    return;
  }
  const std::vector<Sweep> sweeps = RmwSweeps();
  for (const Sweep& sweep : sweeps) {
    if (sweep.vector_bytes != sweeps.front().vector_bytes) break;  // the widest
    add(sweep.name, [=](benchmark::State& state, const Cache& cache) {
      for (auto _ : state) {
        pieces(cache, [&](char*, char* at, size_t bytes) {
          sweep.run(reinterpret_cast<float*>(at), bytes, one);
        });
        benchmark::ClobberMemory();
      }
    });
  }
}

}  // namespace

void RegisterMoves() {
  for (const rope_dtype dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16, ROPE_DTYPE_I8}) {
    for (const bool by_heads : {false, true}) {
      for (const bool moved : {false, true}) {
        Moves(dtype, by_heads, moved, 1);
        Moves(dtype, by_heads, moved, 2048);
        Moves(dtype, by_heads, moved, 8192);
      }
    }
  }
}

}  // namespace bench
