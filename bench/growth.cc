// How costs grow: ns per token with the number of tokens, at every position, with the number of
// sequences; contexts with head_dim and with their sets of frequencies; configs with their layers.
// Prints CSV, which growth_plot.py draws: series, x, ns, and the ns of its limit where it has one.
#include <librope/model.h>
#include <librope/rope.h>
#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "rounds.h"
#include "sweeps.h"

namespace {
int64_t used_bytes = 0;  // of operator new, the library's too
}  // namespace

// These stand before the system's for the whole program. Not inline: compilers would compare one
// with the other's malloc.
__attribute__((noinline)) void* operator new(size_t bytes) {
  void* memory = std::malloc(bytes != 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  used_bytes += static_cast<int64_t>(malloc_usable_size(memory));
  return memory;
}
__attribute__((noinline)) void operator delete(void* memory) noexcept {
  if (memory != nullptr) used_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept {
  operator delete(memory);
}

namespace {

constexpr int kDim = 128;

void Check(rope_status status) {
  if (status == ROPE_OK) return;
  std::fprintf(stderr, "growth: %s\n", rope_last_error());
  std::exit(1);
}

struct Free {
  void operator()(void* p) const { std::free(p); }
  void operator()(rope_context* context) const { rope_context_destroy(context); }
};
using Context = std::unique_ptr<rope_context, Free>;

rope_config Config(int head_dim = kDim) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = head_dim;
  config.theta = 500000;
  config.pairing = ROPE_PAIRING_HALVES;
  return config;
}

Context Create(const rope_config& config) {
  rope_context* context = nullptr;
  Check(rope_context_create(&config, &context));
  return Context(context);
}

// q and k of some tokens, zeros, from the start of a page on.
class Tensors {
 public:
  Tensors(rope_dtype dtype, int64_t tokens, int q_heads, int k_heads) {
    const int64_t size = dtype == ROPE_DTYPE_F32 ? 4 : 2;
    q_bytes_ = static_cast<size_t>(tokens * q_heads * kDim * size);
    k_bytes_ = static_cast<size_t>(tokens * k_heads * kDim * size);
    memory_.reset(std::aligned_alloc(4096, (q_bytes_ + k_bytes_ + 4095) / 4096 * 4096));
    if (memory_ == nullptr) {
      std::fprintf(stderr, "growth: %lld tokens do not fit\n", static_cast<long long>(tokens));
      std::exit(1);
    }
    std::memset(memory_.get(), 0, q_bytes_ + k_bytes_);
    args.batch = 1;
    args.tokens = tokens;
    args.q.data = memory_.get();
    args.q.dtype = dtype;
    args.q.layout = ROPE_LAYOUT_BSHD;
    args.q.heads = q_heads;
    args.k = args.q;
    args.k.data = static_cast<char*>(memory_.get()) + q_bytes_;
    args.k.heads = k_heads;
    args.positions.kind = ROPE_POSITIONS_OFFSET;
  }
  void Sweep(const bench::Sweep& sweep) const {
    static volatile float one = 1;
    sweep.run(static_cast<float*>(memory_.get()), (q_bytes_ + k_bytes_) / 256 * 256, one);
  }

  rope_qk_args args = ROPE_INIT(rope_qk_args);

 private:
  size_t q_bytes_, k_bytes_;
  std::unique_ptr<void, Free> memory_;
};

void Print(const std::string& series, double x, double ns, double limit = 0) {
  std::printf("%s,%.17g,%.4g,", series.c_str(), x, ns);
  std::printf(limit != 0 ? "%.4g\n" : "\n", limit);
  std::fflush(stdout);
}

// Some ms for each timing.
int RepeatFor(double ns) { return std::max(1, static_cast<int>(2e6 / ns)); }

constexpr int kRounds = 11;

double Time(std::function<void()> run, double about_ns) {
  return bench::MedianOfRounds({{"", std::move(run), RepeatFor(about_ns)}}, kRounds)[0];
}

// In place; the limit is the fastest sweep over the same memory.
void Tokens(rope_dtype dtype, const char* name) {
  const Context context = Create(Config());
  for (int64_t tokens = 1; tokens <= int64_t{1} << 20; tokens *= 4) {
    const Tensors t(dtype, tokens, 2, 1);
    const int repeat = RepeatFor(60.0 * static_cast<double>(tokens) + 200);
    std::vector<bench::Contender> contenders = {
        {"rope", [&] { Check(rope_apply_qk(context.get(), &t.args)); }, repeat}};
    const auto sweeps = bench::RmwSweeps();
    for (size_t i = 0; i < std::min<size_t>(sweeps.size(), 6); ++i) {  // the widest
      contenders.push_back({sweeps[i].name, [&t, s = sweeps[i]] { t.Sweep(s); }, repeat});
    }
    const auto medians = bench::MedianOfRounds(contenders, kRounds);
    const double limit = *std::min_element(medians.begin() + 1, medians.end());
    const auto per_token = static_cast<double>(tokens);
    Print(std::string("tokens ") + name, per_token, medians[0] / per_token, limit / per_token);
  }
}

// One token of 32 + 8 heads.
void Positions(rope_angle angle, const char* name) {
  rope_config config = Config();
  config.angle = angle;
  const Context context = Create(config);
  Tensors t(ROPE_DTYPE_F32, 1, 32, 8);
  for (int bit = 0; bit <= 62; bit += 2) {
    t.args.positions.offset = int64_t{1} << bit;
    const double ns = Time([&] { Check(rope_apply_qk(context.get(), &t.args)); }, 600);
    Print(std::string("position ") + name, static_cast<double>(t.args.positions.offset), ns);
  }
}

// 1024 tokens, packed.
void Sequences() {
  constexpr int kTokens = 1024;
  const Context context = Create(Config());
  Tensors t(ROPE_DTYPE_BF16, kTokens, 32, 8);
  for (int sequences = 1; sequences <= kTokens; sequences *= 4) {
    std::vector<int32_t> cuts, offsets;
    for (int s = 0; s <= sequences; ++s) cuts.push_back(kTokens / sequences * s);
    for (int s = 0; s < sequences; ++s) offsets.push_back(1000 * s);
    t.args.positions.kind = ROPE_POSITIONS_SEQ_OFFSETS;
    t.args.positions.offsets_i32 = offsets.data();
    t.args.positions.cu_seqlens = cuts.data();
    t.args.positions.sequences = sequences;
    const double ns = Time([&] { Check(rope_apply_qk(context.get(), &t.args)); }, 1e6);
    Print("sequences bf16", sequences, ns / kTokens);
  }
}

void Contexts() {
  for (int head_dim = 32; head_dim <= 1024; head_dim *= 2) {
    for (const rope_angle angle : {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT}) {
      rope_config config = Config(head_dim);
      config.angle = angle;
      const std::string name = angle == ROPE_ANGLE_EXACT ? " exact" : " float32";
      Print("create" + name, head_dim, Time([&] { Create(config); }, 1e4));
      const int64_t before = used_bytes;
      const Context context = Create(config);
      Print("bytes" + name, head_dim, static_cast<double>(used_bytes - before));
    }
  }
  for (int sets = 1; sets <= 256; sets *= 4) {
    const rope_config config = Config();
    const std::vector<const rope_config*> configs(static_cast<size_t>(sets), &config);
    const auto create = [&] {
      rope_context* context = nullptr;
      Check(rope_context_create_sets(configs.data(), sets, &context));
      rope_context_destroy(context);
    };
    Print("create sets", sets, Time(create, 1e4 * sets));
  }
}

// Gemma 3's config.json with more and more layers, each named.
void Models() {
  for (int layers = 1; layers <= 1024; layers *= 4) {
    std::string json =
        R"({"model_type": "gemma3_text", "hidden_size": 2560, "num_attention_heads": 8,
            "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
            "rope_theta": 1000000, "rope_local_base_freq": 10000, "num_hidden_layers": )" +
        std::to_string(layers) + R"(, "layer_types": [)";
    for (int i = 0; i < layers; ++i) {
      if (i != 0) json += ", ";
      json += i % 6 == 5 ? R"("full_attention")" : R"("sliding_attention")";
    }
    json += "]}";
    const auto read = [&] {
      rope_model* model = nullptr;
      Check(rope_model_create(json.data(), json.size(), &model));
      rope_model_destroy(model);
    };
    Print("read config", layers, Time(read, 2e4 + 200.0 * layers));
  }
}

}  // namespace

int main() {
  std::printf("series,x,ns,limit_ns\n");
  Tokens(ROPE_DTYPE_F32, "f32");
  Tokens(ROPE_DTYPE_BF16, "bf16");
  Positions(ROPE_ANGLE_FLOAT32, "float32");
  Positions(ROPE_ANGLE_EXACT, "exact");
  Sequences();
  Contexts();
  Models();
  return 0;
}
