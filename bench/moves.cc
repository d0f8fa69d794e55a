// What a cache holds is moved: keys turn in their slots (`turned`), or turn into other pages, with
// values copied beside them (`moved`). Beside it the same by separate steps (keys out of the pages,
// turned where they follow each other, and back), and what does no more than move the same bytes: a
// sweep in place over the same slots, and copies between the same addresses. Keys of i8 have a
// computed scale for each head, which those leave out.
#include "moves.h"

#include <benchmark/benchmark.h>
#include <librope/rope.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "contexts.h"
#include "handles.h"
#include "paged_cache.h"
#include "sweeps.h"
#include "tensors.h"

namespace bench {
namespace {

Context Make(rope_angle angle, rope_scaling scaling) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = kDim;
  if (scaling != ROPE_SCALING_NOPE) config.theta = 500000;
  config.pairing = ROPE_PAIRING_HALVES;
  config.angle = angle;
  config.scaling = scaling;
  rope_context* context = nullptr;
  return Context(rope_context_create(&config, &context) == ROPE_OK ? context : nullptr);
}

rope_positions Ids(const std::vector<int64_t>& numbers) {
  rope_positions positions = {};
  positions.kind = ROPE_POSITIONS_IDS_T;
  positions.ids_i64 = numbers.data();
  return positions;
}

struct Contender {
  const char* name;
  rope_operation operation;
  rope_angle angle;
  bool apart;  // the keys out of the pages, turned there, and back
  bool alike;  // all by one distance
};
constexpr Contender kContenders[] = {
    {"rope", ROPE_OPERATION_SHIFT, ROPE_ANGLE_EXACT, false, false},
    {"rope_alike", ROPE_OPERATION_SHIFT, ROPE_ANGLE_EXACT, false, true},
    {"rope_apart", ROPE_OPERATION_SHIFT, ROPE_ANGLE_EXACT, true, false},
    {"rerotate", ROPE_OPERATION_REROTATE, ROPE_ANGLE_FLOAT32, false, false},
    {"rerotate_apart", ROPE_OPERATION_REROTATE, ROPE_ANGLE_FLOAT32, true, false},
    {"rerotate_exact", ROPE_OPERATION_REROTATE, ROPE_ANGLE_EXACT, false, false},
};
// Those that write the same, by their places above.
constexpr int kSameBytes[][2] = {{0, 1}, {0, 2}, {3, 4}};

// What a contender calls, described once.
class Move {
 public:
  Move(const PagedCache& cache, bool moved, const Contender& contender)
      : cache_(cache),
        moved_(moved),
        apart_(contender.apart),
        coded_(cache.dtype == ROPE_DTYPE_I8 || cache.dtype == ROPE_DTYPE_Q8_0),
        context_(Make(contender.angle, ROPE_SCALING_DEFAULT)),
        nope_(Make(contender.angle, ROPE_SCALING_NOPE)),
        from_(cache.Pages(cache.from, moved && !apart_)),
        to_(cache.Pages(moved ? cache.to : cache.from, moved && !apart_)),
        before_(Ids(cache.before)) {
    args_.operation = contender.operation;
    args_.batch = 1;
    args_.tokens = cache.tokens;
    args_.positions =
        Ids(contender.operation == ROPE_OPERATION_REROTATE ? cache.after : cache.distances);
    if (contender.alike) args_.positions.kind = ROPE_POSITIONS_IDS_STRIDED;  // of strides 0
    if (contender.operation == ROPE_OPERATION_REROTATE) fused_.from_positions = &before_;
    args_.fused = &fused_;
    if (!apart_) {
      fused_.source = &from_;
      fused_.cache = &to_;
      return;
    }
    const rope_dtype dtype = coded_ ? ROPE_DTYPE_F32 : cache.dtype;
    args_.k = Heads(cache.apart.get(), dtype, PagedCache::kHeads);
    if (!coded_) {  // as they lie in the pages: a batch row is one of these
      args_.batch = static_cast<int64_t>(cache.from.size());
      args_.tokens = cache.TokensOfPage();
      args_.positions.kind = before_.kind = ROPE_POSITIONS_IDS_BT;
      if (cache.by_heads) args_.k.layout = ROPE_LAYOUT_BHSD;
      return;
    }
    gathering_.source = &from_;
    gather_.batch = 1;
    gather_.tokens = cache.tokens;
    gather_.positions.kind = ROPE_POSITIONS_OFFSET;
    gather_.fused = &gathering_;
    scatter_ = gather_;
    gather_.k_out = args_.k;
    scatter_.k = args_.k;
    scattering_.cache = &to_;
    scatter_.fused = &scattering_;
  }
  Move(const Move&) = delete;
  Move& operator=(const Move&) = delete;

  rope_status operator()() const {
    if (!apart_) return rope_apply_qk(context_.get(), &args_);
    rope_status status = ROPE_OK;
    if (coded_) {
      status |= rope_apply_qk(nope_.get(), &gather_);
    } else {
      CopyKeys(cache_.from, true);
    }
    status |= rope_apply_qk(context_.get(), &args_);
    if (coded_) {
      status |= rope_apply_qk(nope_.get(), &scatter_);
    } else {
      CopyKeys(moved_ ? cache_.to : cache_.from, false);
    }
    if (moved_) CopyValues();
    return status;
  }

  // The pages that are written, which hold nothing before or are as they were made.
  Bytes After() const {
    const std::vector<int32_t>& written = moved_ ? cache_.to : cache_.from;
    const auto bytes = static_cast<size_t>(cache_.PageBytes());
    constexpr size_t kScales = PagedCache::kPageSize * PagedCache::kHeads * sizeof(float);
    cache_.Restore();
    for (const int32_t page : written) {
      if (!moved_) break;
      std::memset(cache_.KeysOf(page), 0x33, bytes);
      std::memset(cache_.ValuesOf(page), 0x33, bytes);
    }
    Bytes after;
    if ((*this)() != ROPE_OK) return after;
    for (const int32_t page : written) {
      AddBytes(&after, cache_.KeysOf(page), bytes);
      AddBytes(&after, cache_.ValuesOf(page), bytes);
      AddBytes(&after, PagedCache::ScalesOf(cache_.k_scales, page), kScales);
      AddBytes(&after, PagedCache::ScalesOf(cache_.v_scales, page), kScales);
    }
    return after;
  }

 private:
  // Keys from the pages to where they turn, or back.
  void CopyKeys(const std::vector<int32_t>& pages, bool out) const {
    const int64_t bytes = cache_.PieceBytes();
    char* apart = static_cast<char*>(cache_.apart.get());
    for (const int32_t page : pages) {
      for (int i = 0; i < cache_.Pieces(); ++i, apart += bytes) {
        char* const in_page = cache_.KeysOf(page) + i * cache_.HeadBytes();
        std::memcpy(out ? apart : in_page, out ? in_page : apart, static_cast<size_t>(bytes));
      }
    }
  }
  void CopyValues() const {
    for (size_t i = 0; i < cache_.from.size(); ++i) {
      for (int p = 0; p < cache_.Pieces(); ++p) {
        std::memcpy(cache_.ValuesOf(cache_.to[i]) + p * cache_.HeadBytes(),
                    cache_.ValuesOf(cache_.from[i]) + p * cache_.HeadBytes(),
                    static_cast<size_t>(cache_.PieceBytes()));
      }
      if (cache_.dtype != ROPE_DTYPE_I8) continue;
      std::memcpy(PagedCache::ScalesOf(cache_.v_scales, cache_.to[i]),
                  PagedCache::ScalesOf(cache_.v_scales, cache_.from[i]),
                  sizeof(float) * cache_.TokensOfPage() * PagedCache::kHeads);
    }
  }

  const PagedCache& cache_;
  bool moved_, apart_, coded_;
  Context context_, nope_;
  rope_kv_cache from_, to_;
  rope_positions before_;
  rope_fused fused_ = ROPE_INIT(rope_fused), gathering_ = fused_, scattering_ = fused_;
  rope_qk_args args_ = ROPE_INIT(rope_qk_args), gather_ = args_, scatter_ = args_;
};

void Moves(rope_dtype dtype, bool by_heads, bool moved, int64_t tokens) {
  const std::string group = std::string(moved ? "moved_" : "turned_") + DtypeName(dtype) +
                            (by_heads ? "_hnd_" : "_nhd_") + std::to_string(tokens);
  // Made by the contender that runs first.
  const auto shared = std::make_shared<std::unique_ptr<PagedCache>>();
  const auto add = [=](const std::string& contender, auto body) {
    benchmark::RegisterBenchmark((group + "/" + contender).c_str(), [=](benchmark::State& state) {
      if (*shared == nullptr) {
        *shared = std::make_unique<PagedCache>(dtype, by_heads, tokens);
        for (const auto& [first, second] : kSameBytes) {
          const Contender &one = kContenders[first], &other = kContenders[second];
          ExpectSame(group, one.name, Move(**shared, moved, one).After(), other.name,
                     Move(**shared, moved, other).After());
        }
      }
      (*shared)->Restore();
      body(state, **shared);
      state.counters["tokens"] = static_cast<double>(tokens);
    });
  };
  for (const Contender& contender : kContenders) {
    add(contender.name, [=](benchmark::State& state, const PagedCache& cache) {
      const Move move(cache, moved, contender);
      rope_status status = ROPE_OK;
      for (auto _ : state) {
        status |= move();
        benchmark::ClobberMemory();
      }
      if (status != ROPE_OK) state.SkipWithError(rope_last_error());
    });
  }
  static volatile float one = 1;
  // visit(to, from, bytes): whole pages, and of a single token its bytes, as if they lay together.
  const auto pieces = [=](const PagedCache& cache, auto visit) {
    const int64_t bytes = cache.TokensOfPage() * cache.TokenBytes();
    for (size_t i = 0; i < cache.from.size(); ++i) {
      visit(cache.KeysOf(cache.to[i]), cache.KeysOf(cache.from[i]), static_cast<size_t>(bytes));
      if (!moved) continue;
      visit(cache.ValuesOf(cache.to[i]), cache.ValuesOf(cache.from[i]), static_cast<size_t>(bytes));
    }
  };
  if (moved) {
    const auto copies = [=](const std::string& contender, auto copy) {
      add(contender, [=](benchmark::State& state, const PagedCache& cache) {
        for (auto _ : state) {
          pieces(cache, copy);
          benchmark::ClobberMemory();
        }
      });
    };
    const Copy around = StreamingCopies().front();
    copies("move_memcpy",
           [](char* to, const char* from, size_t bytes) { std::memcpy(to, from, bytes); });
    copies("nt_move_" + around.name.substr(8), [around](char* to, const char* from, size_t bytes) {
      around.run(reinterpret_cast<float*>(to), reinterpret_cast<const float*>(from), bytes);
    });
    return;
  }
  const std::vector<Sweep> sweeps = RmwSweeps();
  for (const Sweep& sweep : sweeps) {
    if (sweep.vector_bytes != sweeps.front().vector_bytes) break;  // the widest
    add(sweep.name, [=](benchmark::State& state, const PagedCache& cache) {
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
        Moves(dtype, by_heads, moved, 16);
        Moves(dtype, by_heads, moved, 2048);
        Moves(dtype, by_heads, moved, 8192);
      }
    }
  }
  for (const int64_t tokens : {2048, 8192}) {
    Moves(ROPE_DTYPE_Q8_0, false, false, tokens);
    Moves(ROPE_DTYPE_Q8_0, false, true, tokens);
  }
}

}  // namespace bench
