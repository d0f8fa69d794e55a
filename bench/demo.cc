// scripts/demo: librope at its main job, for a reader who has never seen it. Every claim that is
// printed is checked; the exit status says whether all held.
#include <librope/rope.h>

#include <cinttypes>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "baseline.h"
#include "rounds.h"
#include "sweeps.h"

namespace {

// Llama-3.1-8B.
constexpr int kQHeads = 32, kKHeads = 8, kDim = 128, kPairs = kDim / 2;
constexpr int kTokens = 8192;
constexpr int kTokenChannels = (kQHeads + kKHeads) * kDim;

int failures = 0;

const char* Verdict(bool good) {
  failures += !good;
  return good ? "ok" : "FAILED";
}

void Must(rope_status status) {
  if (status == ROPE_OK) return;
  std::fprintf(stderr, "demo: %s\n", rope_last_error());
  std::exit(1);
}

void Section(int number, const char* title) {
  std::printf("\n%d. %s\n", number, title);
  for (size_t i = 0; i < std::strlen(title) + 3; ++i) std::putchar('-');
  std::printf("\n");
}

rope_config Llama31(rope_angle angle) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = kDim;
  config.theta = 500000;
  config.pairing = ROPE_PAIRING_HALVES;
  config.scaling = ROPE_SCALING_LLAMA3;
  config.factor = 8;
  config.low_freq_factor = 1;
  config.high_freq_factor = 4;
  config.original_max_position_embeddings = 8192;
  config.angle = angle;
  return config;
}

rope_context* Create(const rope_config& config) {
  rope_context* context = nullptr;
  Must(rope_context_create(&config, &context));
  return context;
}

// The frequencies again, from the published formula, in long double.
long double TrueFrequency(int pair) {
  const long double pi = acosl(-1.0L);
  const long double inv_freq = powl(500000.0L, -2.0L * pair / kDim);
  const long double wavelength = 2 * pi / inv_freq;
  if (wavelength < 8192 / 4.0L) return inv_freq;
  if (wavelength > 8192 / 1.0L) return inv_freq / 8;
  const long double smooth = (8192 / wavelength - 1) / (4 - 1);
  return (1 - smooth) * inv_freq / 8 + smooth * inv_freq;
}

// --- 1. Worked examples ---

void WorkedExamples(const char* path) {
  Section(1, "Worked examples published for Llama's original code");
  std::printf(
      "Input and result as printed in tutorials of Meta's apply_rotary_emb (complex form), to "
      "four\n"
      "decimals. Allowed difference: 0.0001.\n\n");
  std::ifstream file(path);
  if (!file) {
    std::printf("cannot read %s: %s\n", path, Verdict(false));
    return;
  }
  const nlohmann::json examples = nlohmann::json::parse(file);
  std::printf("   %-34s %10s %12s\n", "example", "numbers", "difference");
  const auto row = [](const std::string& name, size_t numbers, double worst) {
    std::printf("   %-34s %10zu %12.6f   %s\n", name.c_str(), numbers, worst,
                Verdict(worst < 1e-4));
  };
  rope_config config = ROPE_INIT(rope_config);
  config.theta = examples["theta"].get<double>();
  config.pairing = ROPE_PAIRING_INTERLEAVED;
  for (const auto& example : examples["cases"]) {
    const auto shape = example["shape"].get<std::vector<int>>();  // batch, tokens, heads, head_dim
    auto x = example["x"].get<std::vector<float>>();
    const auto expected = example["expected"].get<std::vector<double>>();
    config.head_dim = shape[3];
    rope_context* rope = Create(config);
    rope_qk_args args = ROPE_INIT(rope_qk_args);
    args.batch = shape[0];
    args.tokens = shape[1];
    args.q.data = x.data();
    args.q.dtype = ROPE_DTYPE_F32;
    args.q.layout = ROPE_LAYOUT_BSHD;
    args.q.heads = shape[2];
    args.positions.kind = ROPE_POSITIONS_OFFSET;
    Must(rope_apply_qk(rope, &args));
    rope_context_destroy(rope);
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) worst = std::fmax(worst, std::fabs(x[i] - expected[i]));
    row(example["name"], x.size(), worst);
  }
  config.head_dim = 8;
  rope_context* rope = Create(config);
  float cos[5][4], sin[5][4];
  rope_cos_sin rows = ROPE_INIT(rope_cos_sin);
  rows.format = ROPE_COS_SIN_SPLIT;
  rows.dtype = ROPE_DTYPE_F32;
  rows.pairs = 4;
  rows.batch = 1;
  rows.data = cos;
  rows.sin = sin;
  rope_positions from_zero = {};
  from_zero.kind = ROPE_POSITIONS_OFFSET;
  Must(rope_cos_sin_fill(rope, 1, 5, &from_zero, &rows, nullptr));
  rope_context_destroy(rope);
  double worst = 0;
  const auto& table = examples["freqs_cis_5x4"];
  for (size_t t = 0; t < 5; ++t) {
    for (size_t i = 0; i < 4; ++i) {
      worst = std::fmax(worst, std::fabs(cos[t][i] - table["cos"][t][i].get<double>()));
      worst = std::fmax(worst, std::fabs(sin[t][i] - table["sin"][t][i].get<double>()));
    }
  }
  row("freqs_cis (the table of cos, sin)", 40, worst);
}

// --- 2. Precision ---

struct Row {
  float cos[kPairs], sin[kPairs];
};

Row RowAt(const rope_context* context, int64_t position) {
  Row row;
  rope_cos_sin out = ROPE_INIT(rope_cos_sin);
  out.format = ROPE_COS_SIN_SPLIT;
  out.dtype = ROPE_DTYPE_F32;
  out.pairs = kPairs;
  out.batch = 1;
  out.data = row.cos;
  out.sin = row.sin;
  rope_positions at = {};
  at.kind = ROPE_POSITIONS_OFFSET;
  at.offset = position;
  Must(rope_cos_sin_fill(context, 1, 1, &at, &out, nullptr));
  return row;
}

double WorstOf(const Row& row, const long double* angles) {
  long double worst = 0;
  for (int i = 0; i < kPairs; ++i) {
    worst = fmaxl(worst, fabsl(row.cos[i] - cosl(angles[i])));
    worst = fmaxl(worst, fabsl(row.sin[i] - sinl(angles[i])));
  }
  return static_cast<double>(worst);
}

void Precision(const rope_context* float32, const rope_context* exact) {
  Section(2, "Precision of cos and sin, Llama-3.1-8B's 64 frequencies");
  std::printf(
      "Largest error of any cos or sin against long double arithmetic. A context has one of two\n"
      "angle policies:\n\n"
      "   FLOAT32  (default) the angle is rounded to a float, as PyTorch code does. Models were\n"
      "            trained with exactly this error: reproducing it is parity, not sloppiness.\n"
      "   EXACT    the true angle at every position; for keys that are moved in the cache "
      "later.\n\n"
      "Bound for the first two columns: 1.5e-07. The last one shows what float angles are off "
      "by.\n\n");
  std::printf("   %11s  %14s  %18s  %20s\n", "", "EXACT", "FLOAT32", "FLOAT32");
  std::printf("   %11s  %14s  %18s  %20s\n", "position", "vs true angle", "vs its float angle",
              "vs true angle");
  std::vector<double> inv_freq(kPairs);
  Must(rope_context_inv_freq(float32, 0, inv_freq.data(), kPairs));
  for (const int64_t position :
       {INT64_C(0), INT64_C(8191), INT64_C(131071), INT64_C(1048575), INT64_C(2147483647)}) {
    long double true_angles[kPairs], float_angles[kPairs];
    for (int i = 0; i < kPairs; ++i) {
      true_angles[i] = position * TrueFrequency(i);
      float_angles[i] =
          static_cast<float>(position) * static_cast<float>(inv_freq[static_cast<size_t>(i)]);
    }
    const Row exact_row = RowAt(exact, position), float_row = RowAt(float32, position);
    const double e = WorstOf(exact_row, true_angles), f = WorstOf(float_row, float_angles);
    std::printf("   %11" PRId64 "  %14.1e  %18.1e  %20.1e   %s\n", position, e, f,
                WorstOf(float_row, true_angles), Verdict(e <= 1.5e-7 && f <= 1.5e-7));
  }
}

// --- 3. Prefill and decode ---

float ToFloat(uint16_t bf16) {
  const uint32_t bits = uint32_t{bf16} << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

uint16_t ToBf16(double exact) {  // nearest even; the values here are ordinary
  const auto value = static_cast<float>(exact);
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Tensors begin at a cache line, as those of engines do.
template <class T>
struct LineAllocator {
  using value_type = T;
  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U>&) {}
  T* allocate(size_t n) {
    return static_cast<T*>(::operator new (n * sizeof(T), std::align_val_t{64}));
  }
  void deallocate(T* p, size_t) { ::operator delete (p, std::align_val_t{64}); }
  template <class U>
  bool operator==(const LineAllocator<U>&) const {
    return true;
  }
  template <class U>
  bool operator!=(const LineAllocator<U>&) const {
    return false;
  }
};
template <class T>
using Tensor = std::vector<T, LineAllocator<T>>;

struct Data {
  Tensor<float> q, k;
  Tensor<uint16_t> q16, k16;
};

Data RandomData() {
  Data d;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  d.q.resize(size_t{kTokens} * kQHeads * kDim);
  d.k.resize(size_t{kTokens} * kKHeads * kDim);
  // A block of random numbers, repeated: drawing all of them takes longer than the demo.
  std::vector<float> block(65537);
  for (float& x : block) x = normal(random);
  for (size_t i = 0; i < d.q.size(); ++i) d.q[i] = block[i % block.size()];
  for (size_t i = 0; i < d.k.size(); ++i) d.k[i] = block[(i + 1000) % block.size()];
  for (const float x : d.q) d.q16.push_back(ToBf16(x));
  for (const float x : d.k) d.k16.push_back(ToBf16(x));
  return d;
}

void PrefillAndDecode(const rope_context* rope, const Data& input) {
  Section(3, "Prefill of 8192 tokens, then decode, Llama-3.1-8B's shape");
  std::printf(
      "q: 32 heads, k: 8 heads, 128 channels each, rotated in place. Every number of q and k is\n"
      "compared with the same rotation in double precision.\n\n");
  std::vector<int64_t> positions(kTokens);
  for (int t = 0; t < kTokens; ++t) positions[static_cast<size_t>(t)] = t;
  Data data = input;
  Must(rope_apply_thd(rope, ROPE_DTYPE_F32, kTokens, positions.data(), data.q.data(), kQHeads,
                      data.k.data(), kKHeads));
  Must(rope_apply_thd(rope, ROPE_DTYPE_BF16, kTokens, positions.data(), data.q16.data(), kQHeads,
                      data.k16.data(), kKHeads));
  double worst = 0;       // in units of the bound 4 * 2^-24 * (|x0| + |x1|)
  double worst_half = 0;  // bf16: in units of half a step at the result and that bound
  const auto check = [&](const Tensor<float>& x, const Tensor<float>& y,
                         const Tensor<uint16_t>& x16, const Tensor<uint16_t>& y16, int heads) {
    for (int t = 0; t < kTokens; ++t) {
      const Row row = RowAt(rope, t);
      for (int h = 0; h < heads; ++h) {
        const size_t at =
            (static_cast<size_t>(t) * static_cast<size_t>(heads) + static_cast<size_t>(h)) * kDim;
        for (size_t i = 0; i < kPairs; ++i) {
          const double c = row.cos[i], s = row.sin[i];
          for (int half = 0; half < 2; ++half) {
            const size_t out = at + i + (half != 0 ? kPairs : 0);
            const auto rotate = [&](double x0, double x1) {
              return half == 0 ? x0 * c - x1 * s : x1 * c + x0 * s;
            };
            const double a0 = x[at + i], a1 = x[at + i + kPairs];
            const double bound = 0x1p-22 * (std::fabs(a0) + std::fabs(a1));
            worst = std::fmax(worst, std::fabs(y[out] - rotate(a0, a1)) / bound);
            const double b0 = ToFloat(x16[at + i]), b1 = ToFloat(x16[at + i + kPairs]);
            const double want = rotate(b0, b1);
            const double slack = 0x1p-22 * (std::fabs(b0) + std::fabs(b1));
            const double step = std::exp2(std::floor(std::log2(std::fabs(want) + slack)) - 8);
            worst_half =
                std::fmax(worst_half, std::fabs(ToFloat(y16[out]) - want) / (step + slack));
          }
        }
      }
    }
  };
  check(input.q, data.q, input.q16, data.q16, kQHeads);
  check(input.k, data.k, input.k16, data.k16, kKHeads);
  std::printf(
      "   prefill f32    worst error: %2.0f %% of the bound 4 * 2^-24 * (|x0| + |x1|)   %s\n",
      100 * worst, Verdict(worst <= 1));
  std::printf("   prefill bf16   every result is rounded once, to the nearest bf16 number   %s\n",
              Verdict(worst_half <= 1));

  // Decode: tokens one at a time must give what prefill gave, bit for bit.
  Data one = input;
  bool same = true;
  const int last = 256;
  for (int t = kTokens - last; t < kTokens; ++t) {
    float* q = one.q.data() + size_t{kQHeads} * kDim * static_cast<size_t>(t);
    float* k = one.k.data() + size_t{kKHeads} * kDim * static_cast<size_t>(t);
    const int64_t position = t;
    Must(rope_apply_thd(rope, ROPE_DTYPE_F32, 1, &position, q, kQHeads, k, kKHeads));
    same &= std::memcmp(q, data.q.data() + (q - one.q.data()), sizeof(float) * kQHeads * kDim) == 0;
    same &= std::memcmp(k, data.k.data() + (k - one.k.data()), sizeof(float) * kKHeads * kDim) == 0;
  }
  std::printf("   decode f32     %d tokens one by one give the same bits as the prefill    %s\n",
              last, Verdict(same));
}

// --- 4. Speed ---

// Times librope and plain C on q and k at these places against sweeps over the same bytes.
void SpeedRow(const char* name, const rope_context* rope, rope_dtype dtype, int tokens, void* q,
              void* k, const baseline_table& table, int rounds) {
  const size_t size = dtype == ROPE_DTYPE_F32 ? 4 : 2;
  const size_t q_bytes = size * kQHeads * kDim * static_cast<size_t>(tokens);
  const size_t k_bytes = size * kKHeads * kDim * static_cast<size_t>(tokens);
  const int repeat = tokens == 1 ? 4000 : 1;
  std::vector<int64_t> positions(static_cast<size_t>(tokens));
  for (size_t t = 0; t < positions.size(); ++t) positions[t] = static_cast<int64_t>(t) + 100;
  std::vector<bench::Contender> contenders = {
      {"librope",
       [&] { Must(rope_apply_thd(rope, dtype, tokens, positions.data(), q, kQHeads, k, kKHeads)); },
       repeat},
      {"plain C",
       [&] {
         baseline_generic.halves[dtype - 1](&table, tokens, positions.data(), q, kQHeads);
         baseline_generic.halves[dtype - 1](&table, tokens, positions.data(), k, kKHeads);
       },
       repeat}};
  volatile float one = 1;  // the sweeps multiply by it
  for (const bench::Sweep& sweep : bench::RmwSweeps()) {
    contenders.push_back({sweep.name,
                          [&, sweep] {
                            sweep.run(static_cast<float*>(q), q_bytes, one);
                            sweep.run(static_cast<float*>(k), k_bytes, one);
                          },
                          repeat});
  }
  const std::vector<double> times = bench::MedianOfRounds(contenders, rounds);
  const double limit = *std::min_element(times.begin() + 2, times.end());
  const double per_token = 1.0 / tokens;
  std::printf("   %-22s %9.0f %9.0f %9.0f %9.0f %% %9.1f x\n", name, times[0] * per_token,
              limit * per_token, times[1] * per_token, 100 * limit / times[0], times[1] / times[0]);
}

void Speed(const rope_context* rope, Data* data) {
  Section(4, "Speed, one thread");
  std::printf(
      "Nanoseconds per token (q and k, 5120 numbers, in place). The memory limit is the fastest "
      "of\n"
      "several loops that only multiply the same bytes by a constant. Plain C is the usual loop "
      "over\n"
      "a table, g++ -O3. Measured in turns, in random order; the median counts.\n\n");
  std::printf("   %-22s %9s %9s %9s %11s %11s\n", "", "librope", "memory", "plain C", "librope",
              "faster");
  std::printf("   %-22s %9s %9s %9s %11s %11s\n", "", "", "limit", "loop", "of limit", "than C");
  std::vector<float> cos, sin;
  for (int t = 0; t < kTokens + 100; ++t) {
    const Row row = RowAt(rope, t);
    cos.insert(cos.end(), row.cos, row.cos + kPairs);
    sin.insert(sin.end(), row.sin, row.sin + kPairs);
  }
  const baseline_table table = {cos.data(), sin.data(), kDim};
  const auto both = [&](const char* f32, const char* bf16, int tokens, int rounds) {
    SpeedRow(f32, rope, ROPE_DTYPE_F32, tokens, data->q.data(), data->k.data(), table, rounds);
    SpeedRow(bf16, rope, ROPE_DTYPE_BF16, tokens, data->q16.data(), data->k16.data(), table,
             rounds);
  };
  both("prefill 8192, f32", "prefill 8192, bf16", 8192, 21);
  both("prefill 2048, f32", "prefill 2048, bf16", 2048, 41);
  both("decode, f32", "decode, bf16", 1, 101);
  std::printf(
      "\n   Decode works in the first-level cache, where arithmetic and not memory is the "
      "limit.\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s worked-examples.json\n", argv[0]);
    return 2;
  }
  rope_context* float32 = Create(Llama31(ROPE_ANGLE_FLOAT32));
  rope_context* exact = Create(Llama31(ROPE_ANGLE_EXACT));
  const int version = rope_version();
  std::printf(
      "librope %d.%d.%d on %s\n"
      "Rotary position embedding: turns each pair of channels of a query or key by an angle that\n"
      "grows with the token's position, so that attention sees distances.\n",
      version / 10000, version / 100 % 100, version % 100, rope_context_backend(float32));
  WorkedExamples(argv[1]);
  Precision(float32, exact);
  Data data = RandomData();
  PrefillAndDecode(float32, data);
  Speed(float32, &data);
  rope_context_destroy(float32);
  rope_context_destroy(exact);
  if (failures == 0) {
    std::printf(
        "\nVerdict: everything holds - examples reproduced, every error within its bound.\n");
  } else {
    std::printf("\nVerdict: %d of the checks above FAILED.\n", failures);
  }
  return failures != 0;
}
