// Every measurement of librope, each beside what it is compared with. A benchmark is called
// group/contender, and a group holds everything that is measured against each other: run one group
// at a time with --benchmark_enable_random_interleaving, as scripts/bench does. README.md tells
// what the contenders are.
#include <benchmark/benchmark.h>
#include <librope/rope.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "append.h"
#include "baseline.h"
#include "gradients.h"
#include "mla.h"
#include "moves.h"
#include "norm_append.h"
#include "norms.h"
#include "sweeps.h"
#include "tensors.h"

namespace {

using namespace bench;  // NOLINT: tensors and sweeps

constexpr int64_t kTablePositions = 131072;  // of the plain C loop's table

// Growing, with random gaps: 0.., one in three skipped.
const std::vector<int64_t>& Positions(int64_t tokens) {
  static std::vector<int64_t> positions;
  std::mt19937 random(5);
  if (static_cast<int64_t>(positions.size()) < tokens) {
    positions.clear();
    for (int64_t t = 0, p = 0; t < tokens; ++t) positions.push_back(p += 1 + (random() % 2));
  }
  return positions;
}

rope_config Config(rope_angle angle = 0, rope_rounding rounding = 0) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = kDim;
  config.theta = 500000;
  config.angle = angle;
  config.rounding = rounding;
  config.pairing = ROPE_PAIRING_HALVES;
  return config;
}

rope_config Yarn() {
  rope_config config = Config();
  config.scaling = ROPE_SCALING_YARN;
  config.factor = 4;
  config.original_max_position_embeddings = 32768;
  return config;
}

rope_config Llama3() {
  rope_config config = Config();
  config.scaling = ROPE_SCALING_LLAMA3;
  config.factor = 8;
  config.low_freq_factor = 1;
  config.high_freq_factor = 4;
  config.original_max_position_embeddings = 8192;
  return config;
}

[[noreturn]] void Die() {
  std::fprintf(stderr, "rope_bench: %s\n", rope_last_error());
  std::exit(1);
}

// `target`: what LIBROPE_CPU_TARGET is while the context is made.
rope_context* Create(const rope_config& config, const char* target = nullptr) {
  rope_context* context = nullptr;
  if (target != nullptr) setenv("LIBROPE_CPU_TARGET", target, 1);
  if (rope_context_create(&config, &context) != ROPE_OK) Die();
  if (target != nullptr) unsetenv("LIBROPE_CPU_TARGET");
  return context;
}

const baseline_table& Table() {
  static std::vector<float> cos(static_cast<size_t>(kTablePositions) * kPairs), sin(cos);
  static const baseline_table table = [] {
    rope_context* context = Create(Config());
    rope_cos_sin rows = ROPE_INIT(rope_cos_sin);
    rows.format = ROPE_COS_SIN_SPLIT;
    rows.dtype = ROPE_DTYPE_F32;
    rows.pairs = kPairs;
    rows.batch = 1;
    rows.data = cos.data();
    rows.sin = sin.data();
    rope_positions all = {};
    all.kind = ROPE_POSITIONS_OFFSET;
    if (rope_cos_sin_fill(context, 1, kTablePositions, &all, &rows, nullptr) != ROPE_OK) Die();
    rope_context_destroy(context);
    return baseline_table{cos.data(), sin.data(), kDim};
  }();
  return table;
}

rope_qk_args Args(const Tensors& t) {
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = 1;
  args.tokens = t.tokens;
  args.q.data = t.q.get();
  args.k.data = t.k.get();
  args.q.dtype = args.k.dtype = t.dtype;
  args.q.layout = args.k.layout = ROPE_LAYOUT_BSHD;
  args.q.heads = kQHeads;
  args.k.heads = kKHeads;
  if (t.q_out != nullptr) {
    args.q_out = args.q;
    args.k_out = args.k;
    args.q_out.data = t.q_out.get();
    args.k_out.data = t.k_out.get();
  }
  return args;
}

// --- Registration ---

// body(state) loops over the state. `tokens` lets the table print times per token. What counts is
// the time that the thread had the CPU, unless several threads work.
template <class Body>
benchmark::internal::Benchmark* Register(const std::string& group, const std::string& contender,
                                         int64_t tokens, Body body) {
  return benchmark::RegisterBenchmark((group + "/" + contender).c_str(),
                                      [=](benchmark::State& state) {
                                        body(state);
                                        state.counters["tokens"] = static_cast<double>(tokens);
                                      });
}

// rope_apply_qk with kept arguments; `next(args)` may change them between calls.
template <class Next>
void Loop(benchmark::State& state, const rope_context* context, rope_qk_args args, Next next) {
  rope_status status = ROPE_OK;
  for (auto _ : state) {
    next(args);
    status |= rope_apply_qk(context, &args);
  }
  if (status != ROPE_OK) state.SkipWithError(rope_last_error());
}
void Loop(benchmark::State& state, const rope_context* context, const rope_qk_args& args) {
  Loop(state, context, args, [](rope_qk_args&) {});
}

rope_prepared* Prepare(const rope_context* context, rope_qk_args args) {
  args.q.data = args.k.data = nullptr;
  rope_prepared* prepared = nullptr;
  if (rope_prepared_create(context, &args, &prepared) != ROPE_OK) Die();
  return prepared;
}

// One layer of a prepared call.
void PreparedLoop(benchmark::State& state, const rope_context* context, const rope_qk_args& args) {
  rope_prepared* prepared = Prepare(context, args);
  rope_qk_data data = ROPE_INIT(rope_qk_data);
  data.q = args.q.data;
  data.k = args.k.data;
  rope_status status = ROPE_OK;
  for (auto _ : state) status |= rope_prepared_apply(prepared, &data);
  if (status != ROPE_OK) state.SkipWithError(rope_last_error());
  rope_prepared_destroy(prepared);
}

// The fastest of these is the limit of memory for work in place. `as_f32`: over as many numbers,
// but f32, where a bar compares 16-bit work with that.
void RegisterSweeps(const std::string& group, rope_dtype dtype, int64_t tokens,
                    int widest = 1 << 20, bool as_f32 = false) {
  static volatile float one = 1;
  int kinds = 0, last = 0;
  for (const Sweep& sweep : RmwSweeps()) {
    if (sweep.vector_bytes > widest) continue;
    if (sweep.vector_bytes != last) ++kinds;
    if (kinds > 2) break;  // the two widest
    last = sweep.vector_bytes;
    const rope_dtype over = as_f32 ? ROPE_DTYPE_F32 : dtype;
    Register(group, (as_f32 ? "f32_" : "") + sweep.name, tokens, [=](benchmark::State& state) {
      const Tensors& t = GetTensors(over, tokens);
      for (auto _ : state) {
        sweep.run(static_cast<float*>(t.q.get()), t.q_bytes(), one);
        sweep.run(static_cast<float*>(t.k.get()), t.k_bytes(), one);
        benchmark::ClobberMemory();
      }
    });
  }
}

void RegisterPlainC(const std::string& group, rope_dtype dtype, rope_pairing pairing,
                    int64_t tokens) {
  for (const bool native : {false, true}) {
    const baseline& b = native ? baseline_native : baseline_generic;
    const baseline_rotate rotate =
        (pairing == ROPE_PAIRING_HALVES ? b.halves : b.interleaved)[dtype - 1];
    if (rotate == nullptr) continue;
    Register(group, native ? "c_native" : "c", tokens, [=](benchmark::State& state) {
      const Tensors& t = GetTensors(dtype, tokens);
      const baseline_table& table = Table();
      const int64_t* positions = Positions(tokens).data();
      for (auto _ : state) {
        rotate(&table, tokens, positions, t.q.get(), kQHeads);
        rotate(&table, tokens, positions, t.k.get(), kKHeads);
        benchmark::ClobberMemory();
      }
    });
  }
}

void RegisterRope(const std::string& group, const std::string& contender, const rope_config& config,
                  rope_dtype dtype, int64_t tokens, const char* target = nullptr) {
  Register(group, contender, tokens, [=](benchmark::State& state) {
    const Tensors& t = GetTensors(dtype, tokens);
    rope_context* context = Create(config, target);
    if (target != nullptr && std::strstr(rope_context_backend(context), target) == nullptr) {
      state.SkipWithError("no such target on this CPU");
    } else {
      rope_qk_args args = Args(t);
      args.positions.kind = ROPE_POSITIONS_IDS_T;
      args.positions.ids_i64 = Positions(tokens).data();
      Loop(state, context, args);
    }
    rope_context_destroy(context);
  });
}

// --- Groups ---

void Prefill(rope_dtype dtype, rope_pairing pairing, int64_t tokens) {
  const std::string group = std::string("prefill_") + DtypeName(dtype) +
                            (pairing == ROPE_PAIRING_HALVES ? "_halves_" : "_interleaved_") +
                            std::to_string(tokens);
  rope_config config = Config();
  config.pairing = pairing;
  RegisterRope(group, "rope", config, dtype, tokens);
  if (pairing == ROPE_PAIRING_HALVES) {
    config.angle = ROPE_ANGLE_EXACT;
    RegisterRope(group, "rope_exact", config, dtype, tokens);
  }
  RegisterPlainC(group, dtype, pairing, tokens);
  RegisterSweeps(group, dtype, tokens);
  if (dtype != ROPE_DTYPE_F32 && tokens <= 64) RegisterSweeps(group, dtype, tokens, 1 << 20, true);
}

void OutOfPlace(int64_t tokens) {
  const std::string group = "out_of_place_f32_halves_" + std::to_string(tokens);
  Register(group, "rope", tokens, [=](benchmark::State& state) {
    rope_context* context = Create(Config());
    rope_qk_args args = Args(GetTensors(ROPE_DTYPE_F32, tokens, true));
    args.positions.kind = ROPE_POSITIONS_IDS_T;
    args.positions.ids_i64 = Positions(tokens).data();
    Loop(state, context, args);
    rope_context_destroy(context);
  });
  for (const bool native : {false, true}) {
    const baseline& b = native ? baseline_native : baseline_generic;
    Register(group, native ? "c_native" : "c", tokens, [=, &b](benchmark::State& state) {
      const Tensors& t = GetTensors(ROPE_DTYPE_F32, tokens, true);
      const int64_t* positions = Positions(tokens).data();
      for (auto _ : state) {
        b.halves_copy[0](&Table(), tokens, positions, t.q.get(), t.q_out.get(), kQHeads);
        b.halves_copy[0](&Table(), tokens, positions, t.k.get(), t.k_out.get(), kKHeads);
        benchmark::ClobberMemory();
      }
    });
  }
  Register(group, "memcpy", tokens, [=](benchmark::State& state) {
    const Tensors& t = GetTensors(ROPE_DTYPE_F32, tokens, true);
    for (auto _ : state) {
      std::memcpy(t.q_out.get(), t.q.get(), t.q_bytes());
      std::memcpy(t.k_out.get(), t.k.get(), t.k_bytes());
      benchmark::ClobberMemory();
    }
  });
  for (const Copy& copy : StreamingCopies()) {
    Register(group, copy.name, tokens, [=](benchmark::State& state) {
      const Tensors& t = GetTensors(ROPE_DTYPE_F32, tokens, true);
      for (auto _ : state) {
        copy.run(static_cast<float*>(t.q_out.get()), static_cast<float*>(t.q.get()), t.q_bytes());
        copy.run(static_cast<float*>(t.k_out.get()), static_cast<float*>(t.k.get()), t.k_bytes());
        benchmark::ClobberMemory();
      }
    });
  }
}

// A cheap random position below kTablePositions.
struct RandomPosition {
  uint32_t state = 1;
  int64_t operator()() { return (state = state * 1664525u + 1013904223u) >> 15; }
};

void Decode(rope_dtype dtype) {
  const std::string group = std::string("decode_") + DtypeName(dtype);
  const auto rope = [=](const char* contender, const rope_config& config, auto next) {
    Register(group, contender, 1, [=](benchmark::State& state) {
      rope_context* context = Create(config);
      rope_qk_args args = Args(GetTensors(dtype, 1));
      args.positions.kind = ROPE_POSITIONS_OFFSET;
      args.positions.offset = 12345;
      Loop(state, context, args, next);
      rope_context_destroy(context);
    });
  };
  const auto same = [](rope_qk_args&) {};
  const auto next_token = [](rope_qk_args& args) { ++args.positions.offset; };
  const auto anywhere = [random = RandomPosition()](rope_qk_args& args) mutable {
    args.positions.offset = random();
  };
  rope("rope", Config(), same);
  rope("rope_next", Config(), next_token);
  rope("rope_random", Config(), anywhere);
  rope("rope_exact", Config(ROPE_ANGLE_EXACT), same);
  rope("rope_exact_random", Config(ROPE_ANGLE_EXACT), anywhere);
  if (dtype == ROPE_DTYPE_F16) rope("rope_native", Config(0, ROPE_ROUNDING_NATIVE), same);
  Register(group, "rope_thd", 1, [=](benchmark::State& state) {
    rope_context* context = Create(Config());
    const Tensors& t = GetTensors(dtype, 1);
    int64_t position = 12345;
    rope_status status = ROPE_OK;
    for (auto _ : state) {
      status |=
          rope_apply_thd(context, dtype, 1, &position, t.q.get(), kQHeads, t.k.get(), kKHeads);
    }
    if (status != ROPE_OK) state.SkipWithError(rope_last_error());
    rope_context_destroy(context);
  });
  // cos and sin made once per step and used by all layers: this is one layer.
  Register(group, "rope_rows", 1, [=](benchmark::State& state) {
    rope_context* context = Create(Config());
    float row[kDim];
    rope_cos_sin rows = ROPE_INIT(rope_cos_sin);
    rows.format = ROPE_COS_SIN_PACKED;
    rows.dtype = ROPE_DTYPE_F32;
    rows.pairs = kPairs;
    rows.batch = 1;
    rows.data = row;
    rope_positions at = {};
    at.kind = ROPE_POSITIONS_OFFSET;
    at.offset = 12345;
    if (rope_cos_sin_fill(context, 1, 1, &at, &rows, nullptr) != ROPE_OK) Die();
    rope_qk_args args = Args(GetTensors(dtype, 1));
    args.cos_sin = &rows;
    Loop(state, context, args);
    rope_context_destroy(context);
  });
  const auto step = [=] {
    rope_qk_args args = Args(GetTensors(dtype, 1));
    args.positions.kind = ROPE_POSITIONS_OFFSET;
    args.positions.offset = 12345;
    return args;
  };
  Register(group, "rope_prepared", 1, [=](benchmark::State& state) {
    rope_context* context = Create(Config());
    PreparedLoop(state, context, step());
    rope_context_destroy(context);
  });
  Register(group, "rope_prepare", 1, [=](benchmark::State& state) {  // once for all layers
    rope_context* context = Create(Config());
    const rope_qk_args args = step();
    for (auto _ : state) rope_prepared_destroy(Prepare(context, args));
    rope_context_destroy(context);
  });
  // What a call costs beside the heads.
  for (const bool prepared : {false, true}) {
    Register(group, prepared ? "rope_prepared_one_head" : "rope_one_head", 1,
             [=](benchmark::State& state) {
               rope_context* context = Create(Config());
               rope_qk_args args = step();
               args.q.heads = 1;
               args.k = rope_tensor{};
               prepared ? PreparedLoop(state, context, args) : Loop(state, context, args);
               rope_context_destroy(context);
             });
  }
  RegisterPlainC(group, dtype, ROPE_PAIRING_HALVES, 1);
  Register(group, "c_native_random", 1, [=](benchmark::State& state) {
    const Tensors& t = GetTensors(dtype, 1);
    const baseline_table& table = Table();
    RandomPosition random;
    for (auto _ : state) {
      const int64_t position = random();
      baseline_native.halves[dtype - 1](&table, 1, &position, t.q.get(), kQHeads);
      baseline_native.halves[dtype - 1](&table, 1, &position, t.k.get(), kKHeads);
      benchmark::ClobberMemory();
    }
  });
  RegisterSweeps(group, dtype, 1);
  if (dtype != ROPE_DTYPE_F32) RegisterSweeps(group, dtype, 1, 1 << 20, true);
}

// Validation and plan: a context without RoPE returns after them when it works in place.
void Edge() {
  const auto nope = [] {
    rope_config config = ROPE_INIT(rope_config);
    config.head_dim = kDim;
    config.scaling = ROPE_SCALING_NOPE;
    return Create(config);
  };
  Register("edge", "kept", 1, [=](benchmark::State& state) {
    rope_context* context = nope();
    rope_qk_args args = Args(GetTensors(ROPE_DTYPE_F32, 1));
    args.positions.kind = ROPE_POSITIONS_OFFSET;
    Loop(state, context, args, [](rope_qk_args& a) { ++a.positions.offset; });
    rope_context_destroy(context);
  });
  Register("edge", "built", 1, [=](benchmark::State& state) {
    rope_context* context = nope();
    const Tensors& t = GetTensors(ROPE_DTYPE_F32, 1);
    int64_t position = 0;
    rope_status status = ROPE_OK;
    for (auto _ : state) {
      rope_qk_args args = Args(t);
      args.positions.kind = ROPE_POSITIONS_OFFSET;
      args.positions.offset = ++position;
      status |= rope_apply_qk(context, &args);
    }
    if (status != ROPE_OK) state.SkipWithError(rope_last_error());
    rope_context_destroy(context);
  });
  Register("edge", "thd", 1, [=](benchmark::State& state) {
    rope_context* context = nope();
    const Tensors& t = GetTensors(ROPE_DTYPE_F32, 1);
    int64_t position = 0;
    rope_status status = ROPE_OK;
    for (auto _ : state) {
      ++position;
      status |= rope_apply_thd(context, ROPE_DTYPE_F32, 1, &position, t.q.get(), kQHeads, t.k.get(),
                               kKHeads);
    }
    if (status != ROPE_OK) state.SkipWithError(rope_last_error());
    rope_context_destroy(context);
  });
}

// A sweep in tasks of the size that librope gives to threads of 2048 tokens.
void SweepInTasks(const Sweep& sweep, const rope_runner* runner, void* data, int64_t bytes) {
  static constexpr int64_t kTaskBytes = 512 << 10;
  struct Work {
    const Sweep& sweep;
    char* data;
    int64_t bytes;
  } work = {sweep, static_cast<char*>(data), bytes};
  const auto task = [](void* opaque, uint32_t index) {
    static volatile float one = 1;
    const Work& w = *static_cast<Work*>(opaque);
    const int64_t first = index * kTaskBytes;
    w.sweep.run(reinterpret_cast<float*>(w.data + first),
                static_cast<size_t>(std::min(kTaskBytes, w.bytes - first)), one);
  };
  const auto count = static_cast<uint32_t>((bytes + kTaskBytes - 1) / kTaskBytes);
  if (runner->parallel_for(runner->pool, task, &work, count) != 0) std::abort();
}

// The sweeps with as many threads: what memory and caches let two threads gain.
void RegisterSweepsInTasks(const std::string& group, rope_dtype dtype, int64_t tokens,
                           int threads) {
  const int widest = RmwSweeps().front().vector_bytes;
  for (const Sweep& sweep : RmwSweeps()) {
    if (sweep.vector_bytes != widest) continue;
    const std::string name = (threads == 1 ? "rmw_one_" : "rmw_two_") + sweep.name.substr(4);
    Register(group, name, tokens, [=](benchmark::State& state) {
      const Tensors& t = GetTensors(dtype, tokens);
      rope_pool* pool = nullptr;
      if (rope_pool_create(threads, &pool) != ROPE_OK) Die();
      for (auto _ : state) {
        SweepInTasks(sweep, rope_pool_runner(pool), t.q.get(), static_cast<int64_t>(t.q_bytes()));
        SweepInTasks(sweep, rope_pool_runner(pool), t.k.get(), static_cast<int64_t>(t.k_bytes()));
        benchmark::ClobberMemory();
      }
      rope_pool_destroy(pool);
    })->UseRealTime();
  }
}

void Threads(rope_dtype dtype, int64_t tokens) {
  const std::string group =
      std::string("threads_") + DtypeName(dtype) + "_" + std::to_string(tokens);
  for (const int threads : {1, 2}) {
    Register(group, threads == 1 ? "one" : "two", tokens, [=](benchmark::State& state) {
      rope_context* context = Create(Config());
      rope_pool* pool = nullptr;
      if (threads > 1 && rope_pool_create(threads, &pool) != ROPE_OK) Die();
      rope_qk_args args = Args(GetTensors(dtype, tokens));
      args.positions.kind = ROPE_POSITIONS_IDS_T;
      args.positions.ids_i64 = Positions(tokens).data();
      args.runner = threads > 1 ? rope_pool_runner(pool) : nullptr;
      Loop(state, context, args);
      rope_pool_destroy(pool);
      rope_context_destroy(context);
    })->UseRealTime();
    RegisterSweepsInTasks(group, dtype, tokens, threads);
  }
}

void Fill() {
  constexpr int64_t kRows = 4096;
  const auto fill = [](const char* contender, rope_angle angle, rope_dtype dtype) {
    Register("cos_sin_fill", contender, kRows, [=](benchmark::State& state) {
      rope_config config = Config();
      config.angle = angle;
      rope_context* context = Create(config);
      const Buffer buffer = MakeBuffer(dtype, kRows * kDim);
      rope_cos_sin rows = ROPE_INIT(rope_cos_sin);
      rows.format = ROPE_COS_SIN_PACKED;
      rows.dtype = dtype;
      rows.pairs = kPairs;
      rows.batch = 1;
      rows.data = buffer.get();
      rope_positions at = {};
      at.kind = ROPE_POSITIONS_OFFSET;
      rope_status status = ROPE_OK;
      for (auto _ : state) status |= rope_cos_sin_fill(context, 1, kRows, &at, &rows, nullptr);
      if (status != ROPE_OK) state.SkipWithError(rope_last_error());
      rope_context_destroy(context);
    });
  };
  fill("float32_f32", ROPE_ANGLE_FLOAT32, ROPE_DTYPE_F32);
  fill("exact_f32", ROPE_ANGLE_EXACT, ROPE_DTYPE_F32);
  fill("float32_bf16", ROPE_ANGLE_FLOAT32, ROPE_DTYPE_BF16);
}

void CreateContexts() {
  const auto create = [](const char* contender, rope_config config) {
    Register("create", contender, 1, [=](benchmark::State& state) {
      for (auto _ : state) rope_context_destroy(Create(config));
    });
  };
  create("default", Config());
  create("yarn", Yarn());
  create("llama3", Llama3());
  rope_config exact = Yarn();
  exact.angle = ROPE_ANGLE_EXACT;
  create("yarn_exact", exact);
}

// A narrower instruction set against sweeps no wider than it.
void Target(const char* target, int vector_bytes, rope_dtype dtype, int64_t tokens) {
  const std::string group =
      std::string("only_") + target + "_" + DtypeName(dtype) + "_" + std::to_string(tokens);
  RegisterRope(group, "rope", Config(), dtype, tokens, target);
  RegisterSweeps(group, dtype, tokens, vector_bytes);
}

}  // namespace

int main(int argc, char** argv) {
  Decode(ROPE_DTYPE_F32);
  Decode(ROPE_DTYPE_BF16);
  Decode(ROPE_DTYPE_F16);
  for (const int64_t tokens : {16, 64, 2048, 8192, 65536}) {
    for (const rope_dtype dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16, ROPE_DTYPE_F16}) {
      Prefill(dtype, ROPE_PAIRING_HALVES, tokens);
      Prefill(dtype, ROPE_PAIRING_INTERLEAVED, tokens);
    }
  }
  OutOfPlace(8192);
  RegisterAppend();
  RegisterMoves();
  RegisterNorms();
  RegisterNormAppend();
  RegisterMla();
  RegisterGradients();
  for (const rope_dtype dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16}) {
    Threads(dtype, 2048);
    Threads(dtype, 8192);
  }
#if defined(__x86_64__)
  for (const rope_dtype dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_BF16, ROPE_DTYPE_F16}) {
    for (const int64_t tokens : {1, 16, 2048}) {
      Target("AVX2", 32, dtype, tokens);
      Target("SSE4", 16, dtype, tokens);
    }
  }
#endif
  Edge();
  Fill();
  CreateContexts();

  rope_context* context = Create(Config());
  benchmark::AddCustomContext("librope_backend", rope_context_backend(context));
  rope_context_destroy(context);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
