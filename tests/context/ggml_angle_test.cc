// ROPE_ANGLE_GGML against the loop of ggml_rope_cache_init and rope_yarn (ggml-cpu/ops.cpp),
// written out here with libm's cosf and sinf; and, with several ids per token, against heads that
// ggml itself has rotated (data/ggml_modes.json).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "model/oracle_array.h"
#include "support/errors.h"
#include "support/handles.h"
#include "support/load_json.h"

namespace rope::testing {
namespace {

constexpr int kDim = 128, kPairs = kDim / 2;

rope_config GgmlConfig() {
  rope_config config = Config(kDim);
  config.angle = ROPE_ANGLE_GGML;
  return config;
}

// What ggml computes for one token: its operations in their order.
struct Ggml {
  float freq_base = 10000, freq_scale = 1, ext_factor = 0, attn_factor = 1;
  float corr_low = 0, corr_high = 0;
  const double* freq_factors = nullptr;

  void Cache(const std::vector<float>& positions, const std::vector<int>& axis_of_pair,
             std::vector<float>* cos, std::vector<float>* sin) const {
    const float theta_scale = powf(freq_base, -2.0f / kDim);
    std::vector<float> theta = positions;
    for (int i = 0; i < kPairs; ++i) {
      const float ff = freq_factors != nullptr ? static_cast<float>(freq_factors[i]) : 1.0f;
      const float extrapolated =
          theta[static_cast<size_t>(axis_of_pair[static_cast<size_t>(i)])] / ff;
      float angle = freq_scale * extrapolated, scale = attn_factor;
      if (ext_factor != 0) {
        const float y = (static_cast<float>(i) - corr_low) / std::max(0.001f, corr_high - corr_low);
        const float mix = (1 - std::min(1.0f, std::max(0.0f, y))) * ext_factor;
        angle = angle * (1 - mix) + extrapolated * mix;
        scale *= 1.0f + 0.1f * logf(1.0f / freq_scale);
      }
      cos->push_back(cosf(angle) * scale);
      sin->push_back(sinf(angle) * scale);
      for (float& t : theta) t *= theta_scale;
    }
  }
};

// Fills the row of `positions` and compares. cosf and sinf are right to an ulp, ours to 9e-8.
void ExpectSame(const rope_config& config, const Ggml& ggml, const std::vector<int64_t>& positions,
                const std::vector<int>& axis_of_pair) {
  const Context context = Create(config);
  std::vector<float> cos(kPairs), sin(kPairs), want_cos, want_sin;
  const rope_positions ids = Ids(ROPE_POSITIONS_IDS_BTA, positions.data());
  const rope_cos_sin rows =
      Rows(ROPE_COS_SIN_SPLIT, ROPE_DTYPE_F32, kPairs, 1, cos.data(), sin.data());
  ASSERT_OK(rope_cos_sin_fill(context.get(), 1, 1, &ids, &rows, nullptr));
  ggml.Cache(std::vector<float>(positions.begin(), positions.end()), axis_of_pair, &want_cos,
             &want_sin);
  for (size_t i = 0; i < kPairs; ++i) {
    EXPECT_NEAR(want_cos[i], cos[i], 3e-7) << "pair " << i;
    EXPECT_NEAR(want_sin[i], sin[i], 3e-7) << "pair " << i;
  }
}

const std::vector<int> kOneAxis(kPairs, 0);
const int64_t kPositions[] = {0, 1, 17, 4095, 131071, 1048575};

TEST(GgmlAngle, IsThatOfGgmlsRecurrence) {
  for (int64_t p : kPositions) ExpectSame(GgmlConfig(), Ggml(), {p}, kOneAxis);
}

TEST(GgmlAngle, TheRecurrenceDriftsFromTheTrueAngle) {  // the reason for a policy of its own
  std::vector<float> cos, sin;
  Ggml().Cache({1048575.0f}, kOneAxis, &cos, &sin);
  double worst = 0;
  for (int i = 0; i < kPairs; ++i) {
    worst = std::max(worst, std::fabs(cos[static_cast<size_t>(i)] -
                                      std::cos(1048575 * std::pow(10000, -2.0 * i / kDim))));
  }
  EXPECT_GT(worst, 1e-2);
}

TEST(GgmlAngle, LinearScalesTheAngle) {
  rope_config config = GgmlConfig();
  config.scaling = ROPE_SCALING_LINEAR;
  config.factor = 4;
  Ggml ggml;
  ggml.freq_scale = 0.25f;
  for (int64_t p : kPositions) ExpectSame(config, ggml, {p}, kOneAxis);
}

// From 1 to 8.
std::vector<double> RisingFactors() {
  std::vector<double> factors(kPairs);
  for (size_t i = 0; i < kPairs; ++i) factors[i] = 1 + 7.0 * static_cast<double>(i) / kPairs;
  return factors;
}

TEST(GgmlAngle, FreqFactorsDivideTheAngle) {
  const std::vector<double> factors = RisingFactors();
  rope_config config = GgmlConfig();
  config.freq_factors = factors.data();
  config.table_length = kPairs;
  Ggml ggml;
  ggml.freq_factors = factors.data();
  for (int64_t p : kPositions) ExpectSame(config, ggml, {p}, kOneAxis);
}

TEST(GgmlAngle, YarnMixesAngles) {
  rope_config config = GgmlConfig();
  config.scaling = ROPE_SCALING_YARN;
  config.factor = 4;
  config.original_max_position_embeddings = 4096;
  Ggml ggml;
  ggml.freq_scale = 0.25f;
  ggml.ext_factor = 1;
  const auto corr = [](double rotations) {
    return kDim * std::log(4096 / (rotations * 2 * M_PI)) / (2 * std::log(10000.0));
  };
  ggml.corr_low = static_cast<float>(std::max(0.0, std::floor(corr(32))));
  ggml.corr_high = static_cast<float>(std::min(kDim - 1.0, std::ceil(corr(1))));
  for (int64_t p : kPositions) ExpectSame(config, ggml, {p}, kOneAxis);
}

// A context so long that the range begins behind its end, which is the last channel: ggml's ramp is
// then a step, and all pairs keep their frequency.
TEST(GgmlAngle, YarnIsAStepWhereItsRangeBeginsBehindItsEnd) {
  rope_config config = GgmlConfig();
  config.scaling = ROPE_SCALING_YARN;
  config.factor = 4;
  config.original_max_position_embeddings = int64_t{1} << 40;
  Ggml ggml;
  ggml.freq_scale = 0.25f;
  ggml.ext_factor = 1;
  const auto corr = [](double rotations) {
    return kDim * std::log(0x1p40 / (rotations * 2 * M_PI)) / (2 * std::log(10000.0));
  };
  ggml.corr_low = static_cast<float>(std::max(0.0, std::floor(corr(32))));
  ggml.corr_high = static_cast<float>(std::min(kDim - 1.0, std::ceil(corr(1))));
  ASSERT_GT(ggml.corr_low, ggml.corr_high);
  for (int64_t p : kPositions) ExpectSame(config, ggml, {p}, kOneAxis);
}

TEST(GgmlAngle, EveryAxisHasItsOwnRecurrence) {  // mrope: all axes step at every pair
  rope_config config = GgmlConfig();
  config.axes = 3;
  config.mrope_section[0] = 16;
  config.mrope_section[1] = 24;
  config.mrope_section[2] = 24;
  std::vector<int> axes;
  for (int i = 0; i < kPairs; ++i) axes.push_back(i < 16 ? 0 : i < 40 ? 1 : 2);
  ExpectSame(config, Ggml(), {100, 2000, 30000}, axes);
}

// Each pair's factor divides the angle of its own axis, in blocks and interleaved (ggml's IMROPE).
TEST(GgmlAngle, FreqFactorsAndAxesTogether) {
  const std::vector<double> factors = RisingFactors();
  rope_config config = GgmlConfig();
  config.freq_factors = factors.data();
  config.table_length = kPairs;
  config.axes = 3;
  Ggml ggml;
  ggml.freq_factors = factors.data();
  for (int interleaved : {0, 1}) {
    config.mrope_interleaved = interleaved;
    const std::vector<int> sections =
        interleaved != 0 ? std::vector<int>{24, 20, 20} : std::vector<int>{16, 24, 24};
    std::vector<int> axes;
    for (int i = 0; i < kPairs; ++i) {
      const bool turns = i % 3 != 0 && i < 3 * sections[1];
      const int in_blocks = i < 16 ? 0 : i < 40 ? 1 : 2;
      axes.push_back(interleaved != 0 ? (turns ? i % 3 : 0) : in_blocks);
    }
    for (size_t a = 0; a < 3; ++a) config.mrope_section[a] = sections[a];
    ExpectSame(config, ggml, {100, 2000, 30000}, axes);
  }
}

constexpr int kMrope = 8, kImrope = 40, kVision = 24;  // ggml's modes

std::vector<float> FloatsOf(const nlohmann::json& data) {
  return OracleArray({{"dtype", "f32"}, {"shape", {0}}, {"data", data}}).ToFloat();
}

// The head that the generator gave to ggml.
std::vector<float> HeadOf(int head_dim, size_t tokens) {
  std::vector<float> x;
  for (size_t t = 0; t < tokens; ++t) {
    for (int i = 0; i < head_dim; ++i) {
      x.push_back(static_cast<float>((i * 37 + static_cast<int>(t) * 11) % 101 - 50) / 64);
    }
  }
  return x;
}

// cosf of two libraries, and products that are fused or not, of values up to 1.2.
void ExpectRotated(const Context& context, rope_qk_args args, std::vector<float> x,
                   const nlohmann::json& rotated, double tolerance = 1e-6) {
  args.q = Tensor(x.data(), ROPE_DTYPE_F32, 1);
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  const std::vector<float> want = FloatsOf(rotated);
  ASSERT_EQ(x.size(), want.size());
  for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], want[i], tolerance) << i;
}

TEST(GgmlAngle, SectionsAndFactorsTogetherAreThoseOfGgml) {
  const nlohmann::json recorded = LoadJson("ggml_modes.json");
  int compared = 0;
  for (const nlohmann::json& c : recorded["cases"]) {
    if (c["mode"] == kVision) continue;
    ASSERT_TRUE(c["mode"] == kMrope || c["mode"] == kImrope);
    SCOPED_TRACE(c["name"].get<std::string>());
    rope_config config = Config(c["head_dim"], ROPE_PAIRING_HALVES, c["freq_base"]);
    config.angle = ROPE_ANGLE_GGML;
    config.rotary_dim = c["n_dims"];
    config.axes = c["sections"][3] != 0 ? 4 : 3;
    config.mrope_interleaved = c["mode"] == kImrope ? 1 : 0;
    for (size_t a = 0; a < 4; ++a) config.mrope_section[a] = c["sections"][a];
    if (c["freq_scale"] != 1.0) {
      config.scaling = c["ext_factor"] != 0.0 ? ROPE_SCALING_YARN : ROPE_SCALING_LINEAR;
      config.factor = 1 / c["freq_scale"].get<double>();
    }
    if (config.scaling == ROPE_SCALING_YARN) {
      config.original_max_position_embeddings = c["n_ctx_orig"];
    }
    const std::vector<float> given = FloatsOf(c["factors"]);
    const std::vector<double> factors(given.begin(), given.end());
    config.freq_factors = factors.data();
    config.table_length = static_cast<int32_t>(factors.size());
    std::vector<int64_t> ids;
    for (int a = 0; a < config.axes; ++a) {
      for (const nlohmann::json& id : c["positions"][static_cast<size_t>(a)]) ids.push_back(id);
    }
    const size_t tokens = c["positions"][0].size();
    rope_qk_args args = Args(1, static_cast<int64_t>(tokens));
    args.positions = Ids(ROPE_POSITIONS_IDS_ABT, ids.data());
    // YaRN: ggml's compiler may fuse the angle's sum. The pairs that it blends turn by less than 20
    // here, of which 1.5 units in the last place are 3.6e-6, times a pair of 1.2 and the factor
    // of 1.14.
    const double tolerance = config.scaling == ROPE_SCALING_YARN ? 5e-6 : 1e-6;
    ExpectRotated(Create(config), args, HeadOf(c["head_dim"], tokens), c["rotated"], tolerance);
    ++compared;
  }
  EXPECT_EQ(compared, 5);
}

// GGML_ROPE_TYPE_VISION starts anew with each section, which no context of several axes does: its
// rows are made of those of two contexts of half a head, as docs/gguf.md says. What the reader
// makes of a tower's config.json (FLOAT32) is near.
TEST(GgmlAngle, TowersAreRowsOfHalfAHeadForEachId) {
  const nlohmann::json recorded = LoadJson("ggml_modes.json");
  int compared = 0;
  for (const nlohmann::json& c : recorded["cases"]) {
    if (c["mode"] != kVision) continue;
    const int head_dim = c["head_dim"], half = c["n_dims"], pairs = half / 2;
    ASSERT_EQ(head_dim, 2 * half);
    rope_config config = Config(half, ROPE_PAIRING_HALVES, c["freq_base"]);
    config.angle = ROPE_ANGLE_GGML;
    const Context of_half = Create(config);
    const size_t tokens = c["positions"][0].size();
    std::vector<float> cos(tokens * static_cast<size_t>(half)), sin(cos.size());
    std::vector<int64_t> all_ids;
    for (size_t a = 0; a < 2; ++a) {
      const std::vector<int64_t> ids = c["positions"][a];
      const size_t first = a * static_cast<size_t>(pairs);
      rope_cos_sin rows =
          Rows(ROPE_COS_SIN_SPLIT, ROPE_DTYPE_F32, pairs, 1, &cos[first], &sin[first]);
      rows.stride_token = half;
      const rope_positions at = Ids(ROPE_POSITIONS_IDS_T, ids.data());
      ASSERT_OK(
          rope_cos_sin_fill(of_half.get(), 1, static_cast<int64_t>(tokens), &at, &rows, nullptr));
      all_ids.insert(all_ids.end(), ids.begin(), ids.end());
    }
    const rope_cos_sin rows =
        Rows(ROPE_COS_SIN_SPLIT, ROPE_DTYPE_F32, half, 1, cos.data(), sin.data());
    rope_qk_args args = Args(1, static_cast<int64_t>(tokens));
    args.cos_sin = &rows;
    ExpectRotated(Create(Config(head_dim)), args, HeadOf(head_dim, tokens), c["rotated"]);

    std::vector<double> inv_freq = InvFreq(Config(half, ROPE_PAIRING_HALVES, c["freq_base"]));
    inv_freq.insert(inv_freq.end(), inv_freq.begin(), inv_freq.end());
    rope_config tower = Config(head_dim, ROPE_PAIRING_HALVES, 0);
    tower.inv_freq = inv_freq.data();
    tower.table_length = half;
    tower.axes = 2;
    tower.mrope_section[0] = tower.mrope_section[1] = pairs;
    args.cos_sin = nullptr;
    args.positions = Ids(ROPE_POSITIONS_IDS_ABT, all_ids.data());
    ExpectRotated(Create(tower), args, HeadOf(head_dim, tokens), c["rotated"], 2e-5);
    ++compared;
  }
  EXPECT_EQ(compared, 1);
}

TEST(GgmlAngle, RefusesWhatGgmlDoesNotKnow) {
  rope_config config = GgmlConfig();
  config.scaling = ROPE_SCALING_LLAMA3;
  config.factor = 8;
  config.low_freq_factor = 1;
  config.high_freq_factor = 4;
  config.original_max_position_embeddings = 8192;
  rope_context* context = nullptr;
  EXPECT_EQ(rope_context_create(&config, &context), kUnsupported);
  ExpectMessage("rope_context_create", {"ROPE_ANGLE_GGML"});
  EXPECT_EQ(context, nullptr);
}

}  // namespace
}  // namespace rope::testing
