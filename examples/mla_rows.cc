// The paged cache of DeepSeek-V3 in the rows of FlashMLA, as mla_rows.c has it, and what stands
// around it in an engine: the latent is normed on its way into the cache. One call does all of it:
//
//     0   512 e4m3, the latent, normed
//     512 4 f32, a scale for each 128 of them
//     528 64 bf16, the key, turned
//
// A move to a cache of floats reads the rows back. The program compares what is read with what the
// bytes say, and that with norms and rotations of its own.
#include <librope/rope.hpp>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

namespace {

constexpr int kLatent = 512, kGroup = 128, kDim = 64, kWidth = kLatent + kDim;
constexpr int kScales = kLatent, kKey = kScales + kLatent / kGroup * 4, kRow = kKey + kDim * 2;
constexpr int kPages = 2, kPageSize = 64, kFirst = 1000;
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

  // What the projection gives for each token: a latent, and a key beside it.
  const int64_t tokens = static_cast<int64_t>(kSlots.size());
  std::vector<uint16_t> projected(kSlots.size() * kWidth);
  for (size_t i = 0; i < projected.size(); ++i) {
    const float x = std::ldexp(std::sin(0.7f * i), -static_cast<int>(i % 7));
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    projected[i] = static_cast<uint16_t>(bits >> 16);
  }
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
  const rope_fused store = rope::WithNorms(rope::Append(cache, latent), nullptr, nullptr, &norm);
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = 1;
  args.tokens = tokens;
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

  double of_latents = 0, of_keys = 0;
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
      of_latents = std::fmax(of_latents, std::fabs(got - want) / size);
    }
    for (int c = 0; c < kDim; ++c) {
      uint16_t stored;
      std::memcpy(&stored, row + kKey + 2 * c, sizeof stored);
      const double got = keys[t * kDim + c], x0 = OfBf16(given[kLatent + c / 2 * 2]);
      if (got != OfBf16(stored)) return 1;
      const double angle = (kFirst + t) * std::pow(10000, -(c / 2) * 2.0 / kDim);
      const double x1 = OfBf16(given[kLatent + c / 2 * 2 + 1]);
      const double want = c % 2 == 0 ? x0 * std::cos(angle) - x1 * std::sin(angle)
                                     : x1 * std::cos(angle) + x0 * std::sin(angle);
      of_keys = std::fmax(of_keys, std::fabs(got - want) / std::hypot(x0, x1));
    }
  }
  std::printf("%d rows of %d bytes: latents are off by up to %.4f of their value, keys by %.4f\n",
              static_cast<int>(tokens), kRow, of_latents, of_keys);
  return of_latents <= 1.0 / 16 && of_keys <= 1.0 / 256 + 1e-4 ? 0 : 1;
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
