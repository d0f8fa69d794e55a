// The paged cache of DeepSeek-V3 in the rows of FlashMLA, as mla_rows.c has it, and what stands
// around it in an engine: the latent is normed on its way into the cache, and the queries, absorbed
// channels that do not turn beside those that do, are put together. One call does all of it:
//
//     0   512 e4m3, the latent, normed
//     512 4 f32, a scale for each 128 of them
//     528 64 bf16, the key, turned
//
// A move to a cache of floats reads the rows back. The program compares what is read with what the
// bytes say, and that and the queries with norms and rotations of its own.
#include <librope/rope.hpp>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

namespace {

constexpr int kLatent = 512, kGroup = 128, kDim = 64, kWidth = kLatent + kDim;
constexpr int kScales = kLatent, kKey = kScales + kLatent / kGroup * 4, kRow = kKey + kDim * 2;
constexpr int kPages = 2, kPageSize = 64, kFirst = 1000, kHeads = 4;
constexpr double kEps = 1e-6;
const std::vector<int64_t> kSlots = {70, 3, 71};

double OfBf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float x;
  std::memcpy(&x, &wide, sizeof x);
  return x;
}

double OfE4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  const double size = exponent == 0 ? fraction / 512.0 : std::ldexp(8 + fraction, exponent - 10);
  return code & 0x80 ? -size : size;
}

// Rows of `stride` bytes with one head of `channels`, each of `size` bytes.
rope_tensor Part(void* data, rope_dtype dtype, int size, int channels, int stride) {
  const int token = stride / size;
  return rope::WithHeadDim(rope::Strided(data, dtype, 1, kPageSize * token, token, 0), channels);
}

// Stands for what projections give, in bf16.
std::vector<uint16_t> Numbers(double step, size_t count) {
  std::vector<uint16_t> numbers(count);
  for (size_t i = 0; i < count; ++i) {
    const auto x = static_cast<float>(std::ldexp(std::sin(step * i), -static_cast<int>(i % 7)));
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    numbers[i] = static_cast<uint16_t>(bits >> 16);
  }
  return numbers;
}

// The larger one; NaN is larger than all.
void Raise(double* worst, double off) {
  if (!(off <= *worst)) *worst = off;
}

// By how much of a pair kDim channels are off those of `given`, turned.
template <class Got>
double OffTurned(const uint16_t* given, size_t position, const Got& got) {
  double off = 0;
  for (int c = 0; c < kDim; c += 2) {
    const double x0 = OfBf16(given[c]), x1 = OfBf16(given[c + 1]);
    const double angle = position * std::pow(10000, -1.0 * c / kDim);
    const double of_x0 = got(c) - (x0 * std::cos(angle) - x1 * std::sin(angle));
    const double of_x1 = got(c + 1) - (x1 * std::cos(angle) + x0 * std::sin(angle));
    Raise(&off, std::hypot(of_x0, of_x1) / std::hypot(x0, x1));
  }
  return off;
}

int Run() {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = kDim;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_INTERLEAVED;
  const rope::Context context(config);
  rope_config as_is = ROPE_INIT(rope_config);
  as_is.head_dim = kDim;
  as_is.scaling = ROPE_SCALING_NOPE;
  const rope::Context reader(as_is);

  // For each token a latent, and a key beside it. Queries: their channels that turn, and those that
  // are absorbed into the latent, by a product for each head, [heads, tokens, kLatent].
  const int64_t tokens = static_cast<int64_t>(kSlots.size());
  std::vector<uint16_t> projected = Numbers(0.7, kSlots.size() * kWidth);
  std::vector<uint16_t> q = Numbers(0.3, kSlots.size() * kHeads * kDim);
  std::vector<uint16_t> absorbed = Numbers(0.4, kSlots.size() * kHeads * kLatent);
  std::vector<uint16_t> queries(kSlots.size() * kHeads * kWidth);
  std::vector<float> weight(kLatent);
  for (int c = 0; c < kLatent; ++c) weight[c] = 0.5f + c % 9 / 8.0f;

  // Three parts of one memory; strides count elements of each.
  std::vector<float> memory(kPages * kPageSize * kRow / 4);  // aligned to the scales
  uint8_t* const bytes = reinterpret_cast<uint8_t*>(memory.data());
  rope_scale scale =
      rope::ComputedScale(memory.data() + kScales / 4, kPageSize * kRow / 4, kRow / 4, 0, kGroup);
  scale.power_of_two = 1;
  scale.min_scale = 1e-4;
  rope_kv_cache cache = rope::MappedCache(kPages, kPageSize, kSlots.data(), tokens);
  cache.k = Part(bytes + kKey, ROPE_DTYPE_BF16, 2, kDim, kRow);
  cache.v = rope::WithScale(Part(bytes, ROPE_DTYPE_F8_E4M3, 1, kLatent, kRow), scale);

  const rope_norm norm = rope::MakeNorm(ROPE_NORM_KIND_RMS, kEps, weight.data(), ROPE_DTYPE_F32);
  const rope_tensor latent = Part(projected.data(), ROPE_DTYPE_BF16, 2, kLatent, kWidth * 2);
  rope_fused store = rope::WithNorms(rope::Append(cache, latent), nullptr, nullptr, &norm);
  const auto query = [&](int from, int channels) {
    return rope::WithHeadDim(
        rope::Strided(&queries[from], ROPE_DTYPE_BF16, kHeads, 0, kHeads * kWidth, kWidth),
        channels);
  };
  store.rest = rope::WithHeadDim(rope::Bhsd(absorbed.data(), ROPE_DTYPE_BF16, kHeads), kLatent);
  store.rest_out = query(0, kLatent);
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = 1;
  args.tokens = tokens;
  args.q = rope::Bshd(q.data(), ROPE_DTYPE_BF16, kHeads);
  args.q_out = query(kLatent, kDim);
  args.k = Part(&projected[kLatent], ROPE_DTYPE_BF16, 2, kDim, kWidth * 2);
  args.positions = rope::Offset(kFirst);
  args.fused = &store;
  context.Apply(args);

  // Read back, in the order of the slots, by a context that does not turn.
  std::vector<float> keys(kSlots.size() * kDim), latents(kSlots.size() * kLatent);
  const int32_t start = 0;
  rope_kv_cache floats = rope::LinearCache(1, static_cast<int32_t>(tokens), &start);
  floats.k = rope::Nhd(keys.data(), ROPE_DTYPE_F32, 1);
  floats.v = rope::WithHeadDim(rope::Nhd(latents.data(), ROPE_DTYPE_F32, 1), kLatent);
  const rope_fused read = rope::Move(cache, floats);
  rope_qk_args back = ROPE_INIT(rope_qk_args);
  back.batch = 1;
  back.tokens = tokens;
  back.positions = rope::Offset(0);
  back.fused = &read;
  reader.Apply(back);

  double of_latents = 0, of_keys = 0, of_queries = 0;
  for (size_t t = 0; t < kSlots.size(); ++t) {
    const uint8_t* const row = bytes + kSlots[t] * kRow;
    const uint16_t* const given = &projected[t * kWidth];
    double squares = 0;
    for (int c = 0; c < kLatent; ++c) squares += std::pow(OfBf16(given[c]), 2);
    const double rms = std::sqrt(squares / kLatent + kEps);
    for (int c = 0; c < kLatent; ++c) {
      float step;
      std::memcpy(&step, row + kScales + c / kGroup * 4, sizeof step);
      const double got = latents[t * kLatent + c], want = OfBf16(given[c]) / rms * weight[c];
      if (got != OfE4m3(row[c]) * step) return 1;
      const double size = std::fabs(want) + step / 64;  // codes below 1/64 have one distance
      Raise(&of_latents, std::fabs(got - want) / size);
    }
    const auto key = [&](int c) { return keys[t * kDim + c]; };
    for (int c = 0; c < kDim; ++c) {
      uint16_t stored;
      std::memcpy(&stored, row + kKey + 2 * c, sizeof stored);
      if (key(c) != OfBf16(stored)) return 1;
    }
    Raise(&of_keys, OffTurned(&given[kLatent], kFirst + t, key));
    for (int h = 0; h < kHeads; ++h) {
      const uint16_t* const made = &queries[(t * kHeads + h) * kWidth];
      const uint16_t* const rest = &absorbed[(h * tokens + t) * kLatent];
      if (std::memcmp(made, rest, kLatent * sizeof *rest) != 0) return 1;
      const auto turned = [&](int c) { return OfBf16(made[kLatent + c]); };
      Raise(&of_queries, OffTurned(&q[(t * kHeads + h) * kDim], kFirst + t, turned));
    }
  }
  std::printf(
      "%d rows of %d bytes, latents off by up to %.4f of their value, keys by %.4f; %d "
      "queries by %.4f\n",
      static_cast<int>(tokens), kRow, of_latents, of_keys, static_cast<int>(tokens) * kHeads,
      of_queries);
  constexpr double kRounded = 1.0 / 256 + 1e-4;
  return of_latents <= 1.0 / 16 && of_keys <= kRounded && of_queries <= kRounded ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return Run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
