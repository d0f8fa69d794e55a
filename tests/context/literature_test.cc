// The systems that RoPE is known from, each reproduced by its own formula.
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <nlohmann/json.hpp>
#include <vector>

#include "support/elements.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/load_json.h"
#include "support/random_values.h"

namespace rope::testing {
namespace {

using nlohmann::json;
using Vector = std::vector<float>;

// Contiguous [batch, tokens, heads, dim] at positions 0, 1, .., in place.
void Rotate(const Context& context, rope_layout layout, int batch, int tokens, int heads, void* x,
            rope_dtype dtype = ROPE_DTYPE_F32, int64_t offset = 0) {
  rope_qk_args args = Args(batch, tokens);
  args.q = Tensor(x, dtype, heads, layout);
  args.positions = Offset(offset);
  ASSERT_OK(rope_apply_qk(context.get(), &args));
}

// LLaMA: torch.view_as_complex(x) * freqs_cis, as printed in published explanations.
TEST(Literature, LlamaGivesItsWorkedExamples) {
  const json data = LoadJson("worked-examples.json");
  int cases = 0;
  for (const json& example : data["cases"]) {
    const std::vector<int> shape = example["shape"];
    Vector x = example["x"];
    const Vector want = example["expected"];
    const Context context = Create(Config(shape[3], ROPE_PAIRING_INTERLEAVED, data["theta"]));
    Rotate(context, ROPE_LAYOUT_BSHD, shape[0], shape[1], shape[2], x.data());
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], want[i], 1e-4) << example["name"];
    ++cases;
  }
  EXPECT_EQ(cases, 3);
}

TEST(Literature, LlamaHasItsFreqsCis) {
  const json data = LoadJson("worked-examples.json");
  const json& want = data["freqs_cis_5x4"];
  const Context context = Create(Config(8, ROPE_PAIRING_INTERLEAVED, data["theta"]));
  float got[5][4][2];
  const rope_positions positions = Offset(0);
  const rope_cos_sin rows = Rows(ROPE_COS_SIN_COMPLEX, ROPE_DTYPE_F32, 4, 1, got);
  ASSERT_OK(rope_cos_sin_fill(context.get(), 1, 5, &positions, &rows, nullptr));
  for (int t = 0; t < 5; ++t) {
    for (int i = 0; i < 4; ++i) {
      EXPECT_NEAR(got[t][i][0], want["cos"][t][i].get<double>(), 1e-4);
      EXPECT_NEAR(got[t][i][1], want["sin"][t][i].get<double>(), 1e-4);
    }
  }
}

// The same in complex numbers for a longer sequence, computed in f32 and cast back to bf16.
TEST(Literature, LlamaMultipliesComplexNumbers) {
  constexpr int kDim = 128, kTokens = 300;
  const Context context = Create(Config(kDim, ROPE_PAIRING_INTERLEAVED));
  const Vector source = RandomValues(kDim * kTokens, 1);
  std::vector<uint16_t> x(source.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = NearestOf(kBrain, source[i]);
  const std::vector<uint16_t> before = x;
  Rotate(context, ROPE_LAYOUT_BSHD, 1, kTokens, 1, x.data(), ROPE_DTYPE_BF16);
  for (int t = 0; t < kTokens; ++t) {
    for (int i = 0; i < kDim / 2; ++i) {
      const size_t at = t * kDim + 2 * i;
      const std::complex<double> pair(ValueOf(kBrain, before[at]), ValueOf(kBrain, before[at + 1]));
      const float frequency = 1.0f / static_cast<float>(std::pow(10000.0, 2.0 * i / kDim));
      const auto turned = pair * std::polar(1.0, double{static_cast<float>(t) * frequency});
      const double tolerance = std::abs(pair) * (0x1p-8 + 1e-4);  // bf16, and an ulp of the angle
      EXPECT_NEAR(ValueOf(kBrain, x[at]), turned.real(), tolerance);
      EXPECT_NEAR(ValueOf(kBrain, x[at + 1]), turned.imag(), tolerance);
    }
  }
}

// transformers: cos and sin of the f32 angle times the scaling factor, cast to the dtype of x; then
// x * cos + rotate_half(x) * sin, every operation in that dtype.
TEST(Literature, TransformersRoundsEveryOperation) {
  constexpr int kDim = 64, kTokens = 40;
  for (rope_dtype dtype = 1; dtype <= kLastDtype; ++dtype) {
    rope_config config = Config(kDim);
    config.rounding = ROPE_ROUNDING_EAGER;
    config.attention_factor = 1.19;
    const Context context = Create(config);
    const Vector source = RandomValues(kDim * kTokens, 2);
    const auto size = static_cast<size_t>(SizeOf(dtype));
    std::vector<char> memory(source.size() * size);
    const auto at = [&](std::vector<char>& m, size_t i) { return &m[i * size]; };
    for (size_t i = 0; i < source.size(); ++i) WriteElement(dtype, at(memory, i), source[i]);
    std::vector<char> before = memory;
    const int64_t positions[kTokens] = {0, 1, 2, 3, 500, 4095, 8191};
    ASSERT_OK(
        rope_apply_thd(context.get(), dtype, kTokens, positions, memory.data(), 1, nullptr, 0));
    const auto cast = [&](double v) { return static_cast<float>(Rounded(dtype, v)); };
    double unequal = 0;
    for (int t = 0; t < kTokens; ++t) {
      for (int c = 0; c < kDim; ++c) {
        const int pair = c % (kDim / 2);
        const float frequency = 1.0f / static_cast<float>(std::pow(10000.0, 2.0 * pair / kDim));
        const float angle = static_cast<float>(positions[t]) * frequency;
        const float cos = cast(static_cast<float>(std::cos(double{angle})) * 1.19f);
        const float sin = cast(static_cast<float>(std::sin(double{angle})) * 1.19f);
        const auto x = static_cast<float>(ReadElement(dtype, at(before, t * kDim + c)));
        const auto y =
            static_cast<float>(ReadElement(dtype, at(before, t * kDim + (c + kDim / 2) % kDim)));
        const float half = c < kDim / 2 ? -y : y;
        const float want = cast(double{cast(x * cos)} + cast(half * sin));
        const auto got = static_cast<float>(ReadElement(dtype, at(memory, t * kDim + c)));
        // cos and sin may fall on the other side of a rounding boundary.
        const double ulp =
            IsNarrow(dtype) ? std::ldexp(2, -FormatOf(dtype).mantissa_bits) : 0x1p-21;
        EXPECT_NEAR(got, want, ulp * (std::fabs(x) + std::fabs(y)));
        unequal += got != want;
      }
    }
    EXPECT_LT(unequal, (IsNarrow(dtype) ? 0.01 : 1) * kDim * kTokens) << dtype;
  }
}

// ChatGLM: [tokens, batch, heads, dim]; the first half of the head turns, ChatGLM2's pairs are
// adjacent, the other half passes through.
TEST(Literature, ChatGlmTurnsHalfOfTheHeadSequenceFirst) {
  constexpr int kDim = 128, kSpan = 64, kTokens = 6, kBatch = 2, kHeads = 3;
  for (rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
    rope_config config = Config(kDim, pairing);
    config.rotary_dim = kSpan;
    const Vector before = RandomValues(kDim * kTokens * kBatch * kHeads, 3);
    Vector x = before;
    Rotate(Create(config), ROPE_LAYOUT_SBHD, kBatch, kTokens, kHeads, x.data());
    for (size_t head = 0; head < x.size() / kDim; ++head) {
      const auto t = static_cast<double>(head / (kBatch * kHeads));
      const float* in = &before[head * kDim];
      const float* out = &x[head * kDim];
      for (int i = 0; i < kSpan / 2; ++i) {
        const int a = pairing == ROPE_PAIRING_HALVES ? i : 2 * i;
        const int b = pairing == ROPE_PAIRING_HALVES ? i + kSpan / 2 : 2 * i + 1;
        const double angle = t * std::pow(10000.0, -2.0 * i / kSpan);
        EXPECT_NEAR(out[a], in[a] * std::cos(angle) - in[b] * std::sin(angle), 5e-6);
        EXPECT_NEAR(out[b], in[b] * std::cos(angle) + in[a] * std::sin(angle), 5e-6);
      }
      for (int c = kSpan; c < kDim; ++c) EXPECT_EQ(out[c], in[c]);
    }
  }
}

// RoFormer, equation 15: the block-diagonal matrix of 2 x 2 rotations, in float64.
TEST(Literature, RoFormerMultipliesByABlockDiagonalMatrix) {
  constexpr int kDim = 32;
  rope_config config = Config(kDim, ROPE_PAIRING_INTERLEAVED);
  config.angle = ROPE_ANGLE_EXACT;
  const Context context = Create(config);
  for (int64_t m : {0, 1, 17, 4096, -3}) {
    std::vector<std::vector<double>> matrix(kDim, std::vector<double>(kDim));
    for (int i = 0; i < kDim / 2; ++i) {
      const double angle = static_cast<double>(m) * std::pow(10000.0, -2.0 * i / kDim);
      matrix[2 * i][2 * i] = matrix[2 * i + 1][2 * i + 1] = std::cos(angle);
      matrix[2 * i][2 * i + 1] = -std::sin(angle);
      matrix[2 * i + 1][2 * i] = std::sin(angle);
    }
    const Vector before = RandomValues(kDim, 4);
    Vector x = before;
    Rotate(context, ROPE_LAYOUT_BSHD, 1, 1, 1, x.data(), ROPE_DTYPE_F32, m);
    for (int r = 0; r < kDim; ++r) {
      double want = 0;
      for (int c = 0; c < kDim; ++c) want += matrix[r][c] * before[c];
      EXPECT_NEAR(x[r], want, 2e-6) << m;
    }
  }
}

// The values that transformers' test of RoFormer prints.
TEST(Literature, RoFormerGivesTheValuesOfTransformersTest) {
  int found = 0;
  for (const json& record : Golden()["golden"]) {
    if (record["kind"] != "apply") continue;
    ++found;
    constexpr int kDim = 64, kHeads = 12, kTokens = 16;
    Vector q(2 * kHeads * kTokens * kDim), k;
    for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i) / 100;
    k = q;
    for (float& v : k) v = -v;
    rope_qk_args args = Args(2, kTokens);
    args.q = Tensor(q.data(), ROPE_DTYPE_F32, kHeads, ROPE_LAYOUT_BHSD);
    args.k = Tensor(k.data(), ROPE_DTYPE_F32, kHeads, ROPE_LAYOUT_BHSD);
    args.positions = Offset(0);
    const Context context = Create(Config(kDim, ROPE_PAIRING_INTERLEAVED));
    ASSERT_OK(rope_apply_qk(context.get(), &args));
    for (int t = 0; t < 6; ++t) {
      for (int c = 0; c < 8; ++c) {
        EXPECT_NEAR(q[t * kDim + c], record["expected_q"][t][c].get<double>(), 1e-4);
        EXPECT_NEAR(k[t * kDim + c], record["expected_k"][t][c].get<double>(), 1e-4);
      }
    }
  }
  EXPECT_EQ(found, 1);
}

double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
  return sum;
}

Vector Turned(const Context& context, Vector x, int64_t position) {
  Rotate(context, ROPE_LAYOUT_BSHD, 1, 1, 1, x.data(), ROPE_DTYPE_F32, position);
  return x;
}

TEST(Literature, ScoresDependOnTheDistanceOnlyAndNormsStay) {
  constexpr int kDim = 128;
  rope_config config = Config(kDim);
  config.angle = ROPE_ANGLE_EXACT;
  const Context context = Create(config);
  const Vector q = RandomValues(kDim, 5), k = RandomValues(kDim, 6);
  for (int64_t distance : {0, 1, 100, -7, 65536}) {
    const double want = Dot(Turned(context, q, distance), k);
    for (int64_t at :
         {int64_t{1}, int64_t{999}, int64_t{1048575}, int64_t{1} << 62, int64_t{-12345}}) {
      const double got = Dot(Turned(context, q, at + distance), Turned(context, k, at));
      EXPECT_NEAR(got, want, 2e-6 * std::sqrt(Dot(q, q) * Dot(k, k))) << at << " + " << distance;
    }
  }
  for (int64_t at : {0, 5, 123456}) {
    const Vector turned = Turned(context, q, at);
    EXPECT_NEAR(Dot(turned, turned), Dot(q, q), 1e-6 * Dot(q, q));
  }
}

// RoFormer, section 3.4.3: the bound sum |S_j| / (d/2) of partial sums of e^(i m theta_j) decays.
// S_j is what the library makes of q = k = (1, 0, 1, 0, ..).
TEST(Literature, TheUpperBoundDecaysWithDistance) {
  constexpr int kDim = 128;
  const Context context = Create(Config(kDim, ROPE_PAIRING_INTERLEAVED));
  const auto bound = [&](int64_t distance) {
    Vector x(kDim);
    for (int i = 0; i < kDim; i += 2) x[i] = 1;
    const Vector y = Turned(context, x, distance);
    std::complex<double> sum = 0;
    double total = 0;
    for (int i = 0; i < kDim; i += 2) {
      sum += std::complex<double>(y[i], y[i + 1]);
      total += std::abs(sum);
    }
    return total / (kDim / 2);
  };
  const auto mean = [&](int from, int to) {
    double sum = 0;
    for (int d = from; d < to; ++d) sum += bound(d);
    return sum / (to - from);
  };
  double last = bound(0);
  EXPECT_NEAR(last, (kDim / 2 + 1) / 2.0, 1e-6);
  for (int from : {1, 10, 50, 150}) {
    const double next = mean(from, from * 2);
    EXPECT_LT(next, last) << from;
    last = next;
  }
  EXPECT_LT(mean(200, 250), 0.35 * bound(0));
}

// Vaswani et al. 2017: PE(p, 2i) = sin(p / 10000^(2i/d)), PE(p, 2i+1) = cos of the same.
TEST(Literature, TheTransformerHasItsSinusoidalTable) {
  constexpr int kDim = 512, kTokens = 100;
  const Context context = Create(Config(kDim));
  std::vector<float> table(kDim * kTokens);
  const rope_positions positions = Offset(0);
  const rope_cos_sin rows =
      Rows(ROPE_COS_SIN_SINUSOIDAL, ROPE_DTYPE_F32, kDim / 2, 1, table.data());
  ASSERT_OK(rope_cos_sin_fill(context.get(), 1, kTokens, &positions, &rows, nullptr));
  for (int p = 0; p < kTokens; ++p) {
    for (int i = 0; i < kDim / 2; ++i) {
      const double angle = p / std::pow(10000.0, 2.0 * i / kDim);
      EXPECT_NEAR(table[p * kDim + 2 * i], std::sin(angle), 1e-5);
      EXPECT_NEAR(table[p * kDim + 2 * i + 1], std::cos(angle), 1e-5);
    }
  }
}

// RoFormer's own table has all sines first.
TEST(Literature, RoFormerHasItsSinesFirst) {
  int found = 0;
  for (const json& record : Golden()["golden"]) {
    if (record["kind"] != "sin_cos_table") continue;
    ++found;
    const int dim = record["embedding_dim"];
    const json& want = record["expected"];
    const Context context = Create(Config(dim));
    std::vector<float> table(dim * want.size());
    const rope_positions positions = Offset(0);
    const rope_cos_sin rows =
        Rows(ROPE_COS_SIN_PACKED_SIN_FIRST, ROPE_DTYPE_F32, dim / 2, 1, table.data());
    ASSERT_OK(rope_cos_sin_fill(context.get(), 1, static_cast<int64_t>(want.size()), &positions,
                                &rows, nullptr));
    for (size_t p = 0; p < want.size(); ++p) {
      for (size_t c = 0; c < want[p].size(); ++c) {
        EXPECT_NEAR(table[p * dim + c], want[p][c].get<double>(), 1e-4);
      }
    }
  }
  EXPECT_EQ(found, 2);
}

}  // namespace
}  // namespace rope::testing
