// librope against the transformers of diffusers: every case of tests/data/diffusion.json (models of
// diffusers with their pipelines' ids, run by tests/oracle/diffusion.py) goes through
// rope_model_create, rope_model_latent_ids and a context:
//
//   ids bit for bit where the pipeline makes some; their number and their order are those of the
//   model's attention in any case;
//   cos and sin of every token and axis within 4e-7 of the model's; in classes whose angles are in
//   f32 also 2^-22 of the angle, because torch's powers and the fractions of its linspace depend on
//   the CPU that made the file (and in Z-Image, which rounds its angles of f64);
//   rotated f32 tensors within that error and 2e-6 of the size of the pair, bf16 ones within one
//   rounding more.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "oracle_array.h"
#include "support/handles.h"
#include "testing.h"

namespace rope::testing {
namespace {

using nlohmann::json;

constexpr double kAngleError = 0x1p-22;

class Case {
 public:
  explicit Case(const json& test)
      : test_(test),
        name_(test["name"]),
        model_(test["config"].dump()),
        tokens_(test["tokens"]),
        axes_(test["axes"]) {}

  void Check() {
    SCOPED_TRACE(name_);
    ASSERT_TRUE(model_);
    type_ = TypeNumber();
    config_ = model_.Config(type_);
    ASSERT_EQ(std::max(config_.axes, 1), axes_);
    MakeIds();
    if (::testing::Test::HasFailure()) return;
    rope_context* context = nullptr;
    ASSERT_EQ(rope_context_create(&config_, &context), ROPE_OK) << rope_last_error();
    ReadFrequencies(context);
    CheckFirstPairs(context);
    CheckRows(context);
    if (test_.contains("f32")) CheckRotated(context, "f32");
    CheckRotated(context, "bf16");
    rope_context_destroy(context);
  }

 private:
  int32_t TypeNumber() const {
    const std::vector<std::string> types = model_.Types();
    const auto at = std::find(types.begin(), types.end(), test_["type"].get<std::string>());
    EXPECT_NE(at, types.end());
    return static_cast<int32_t>(at - types.begin());
  }

  void MakeIds() {
    const json& given = test_["args"];
    std::vector<rope_latent_grid> grids;
    for (const json& grid : given["grids"]) grids.push_back({grid[0], grid[1], grid[2], 0});
    rope_latent_args args = ROPE_INIT(rope_latent_args);
    args.count = static_cast<int32_t>(grids.size());
    args.grids = grids.data();
    args.text = given["text"];
    args.fps = given.value("fps", 0.0);
    const std::vector<double> scale = given.value("scale", std::vector<double>{0, 0, 0});
    args.scale_t = scale.at(0);
    args.scale_h = scale.at(1);
    args.scale_w = scale.at(2);
    int64_t tokens = -1;
    ASSERT_EQ(rope_model_latent_ids(model_.get(), type_, &args, nullptr, 0, &tokens), ROPE_OK)
        << rope_last_error();
    ASSERT_EQ(tokens, tokens_);
    ids_.assign(static_cast<size_t>(tokens * axes_), NAN);
    ASSERT_EQ(rope_model_latent_ids(model_.get(), type_, &args, ids_.data(),
                                    static_cast<int64_t>(ids_.size()), &tokens),
              ROPE_OK)
        << rope_last_error();
    if (test_.contains("ids")) {
      EXPECT_EQ(ids_, OracleArray(test_["ids"]).ToFloat());
    }
  }

  rope_positions Positions() const {
    rope_positions positions = {};
    positions.kind = ROPE_POSITIONS_IDS_ABT;
    positions.ids_f32 = ids_.data();
    return positions;
  }

  float Id(int axis, int64_t token) const {
    return ids_[static_cast<size_t>(axis * tokens_ + token)];
  }

  int AxisOf(int pair) const {
    if (config_.pair_axis != nullptr) return config_.pair_axis[pair];
    int axis = 0;  // of HALVES_PER_AXIS, or the only one
    for (int last = config_.mrope_section[0]; axes_ > 1 && pair >= last;) {
      last += config_.mrope_section[++axis];
    }
    return axis;
  }

  // From here on a pair is one of one head, or of all heads if each has its own frequencies.
  void ReadFrequencies(const rope_context* context) {
    rope_info info = ROPE_INIT(rope_info);
    ASSERT_EQ(rope_context_info(context, 0, &info), ROPE_OK);
    std::vector<double> told(static_cast<size_t>(info.inv_freq_count));
    ASSERT_EQ(rope_context_inv_freq(context, 0, told.data(), info.inv_freq_count), ROPE_OK);
    heads_ = std::max(info.freq_heads, 1);
    pairs_ = heads_ * info.pairs;
    frequency_ = told;
    if (config_.frequency != nullptr) return;
    frequency_.assign(static_cast<size_t>(axes_ * pairs_), 0);
    for (int pair = 0; pair < pairs_; ++pair) {
      frequency_[static_cast<size_t>(AxisOf(pair) * pairs_ + pair)] =
          told[static_cast<size_t>(pair)];
    }
  }

  double Frequency(int axis, int pair) const {
    return frequency_[static_cast<size_t>(axis * pairs_ + pair)];
  }

  // Rows of librope: cos and sin of each pair, one after the other.
  std::vector<float> Rows(const rope_context* context) const {
    std::vector<float> rows(static_cast<size_t>(tokens_ * 2 * pairs_));
    rope_cos_sin out = ROPE_INIT(rope_cos_sin);
    out.format = ROPE_COS_SIN_COMPLEX;
    out.dtype = ROPE_DTYPE_F32;
    out.pairs = pairs_ / heads_;
    out.heads = config_.freq_heads;
    out.batch = 1;
    out.data = rows.data();
    const rope_positions positions = Positions();
    EXPECT_EQ(rope_cos_sin_fill(context, 1, tokens_, &positions, &out, nullptr), ROPE_OK)
        << rope_last_error();
    return rows;
  }

  double Allowed(int pair, int64_t token) const {
    double angle = 0;
    for (int axis = 0; axis < axes_; ++axis) {
      angle += std::abs(Id(axis, token) * Frequency(axis, pair));
    }
    const bool rounded = test_["config"]["_class_name"] == "ZImageTransformer2DModel";
    const bool exact = config_.angle == ROPE_ANGLE_EXACT && !rounded;
    return 4e-7 + (exact ? 0 : kAngleError * angle);
  }

  void CheckFirstPairs(const rope_context* context) const {
    const std::vector<float> want = OracleArray(test_["first"]).ToFloat();
    const std::vector<float> rows = Rows(context);
    ASSERT_EQ(want.size(), static_cast<size_t>(tokens_ * axes_ * 2));
    for (int64_t token = 0; token < tokens_; ++token) {
      for (int axis = 0; axis < axes_; ++axis) {
        int pair = 0;
        while (Frequency(axis, pair) == 0) ++pair;
        for (int part = 0; part < 2; ++part) {
          EXPECT_NEAR(rows[static_cast<size_t>((token * pairs_ + pair) * 2 + part)],
                      want[static_cast<size_t>((token * axes_ + axis) * 2 + part)],
                      Allowed(pair, token))
              << "token " << token << " axis " << axis << " id " << Id(axis, token);
        }
      }
    }
  }

  void CheckRows(const rope_context* context) const {
    const std::vector<float> want = OracleArray(test_["cos_sin"]).ToFloat();
    const std::vector<float> rows = Rows(context);
    size_t at = 0;
    for (int64_t token : test_["rows"]) {
      for (int pair = 0; pair < pairs_; ++pair) {
        for (int part = 0; part < 2; ++part) {
          ASSERT_NEAR(rows[static_cast<size_t>((token * pairs_ + pair) * 2 + part)], want[at++],
                      Allowed(pair, token))
              << "token " << token << " pair " << pair;
        }
      }
    }
    EXPECT_EQ(at, want.size());
  }

  // Every token, and every head, has the same x before the rotation.
  void CheckRotated(const rope_context* context, const std::string& dtype) const {
    const OracleArray want_array(test_[dtype]);
    const std::vector<float> want = want_array.ToFloat();
    const std::vector<float> x = OracleArray(test_["x"]).ToFloat();
    const rope_dtype type = dtype == "f32" ? ROPE_DTYPE_F32 : ROPE_DTYPE_BF16;
    const int64_t size = ElementSize(type);
    const int64_t width = int64_t{heads_} * config_.head_dim;
    std::vector<uint8_t> q(static_cast<size_t>(tokens_ * width * size));
    for (int64_t i = 0; i < tokens_ * width; ++i) {
      StoreElement(type, q.data(), i, x[static_cast<size_t>(i) % x.size()]);
    }
    rope_qk_args args = Args(1, tokens_);
    args.q = Tensor(q.data(), type, heads_);
    args.positions = Positions();
    ASSERT_EQ(rope_apply_qk(context, &args), ROPE_OK) << rope_last_error();
    double size_of_x = 0;
    for (float value : x) size_of_x = std::max<double>(size_of_x, std::abs(value));
    size_t at = 0;
    for (int64_t token : test_["rows"]) {
      double angle_error = 0;
      for (int pair = 0; pair < pairs_; ++pair) {
        angle_error = std::max(angle_error, Allowed(pair, token));
      }
      for (int64_t channel = 0; channel < width; ++channel, ++at) {
        const float got = LoadElement(type, q.data(), token * width + channel);
        const double rounding = type == ROPE_DTYPE_BF16 ? 0x1p-7 * std::abs(want[at]) : 0;
        ASSERT_NEAR(got, want[at], 2 * (angle_error + 2e-6) * size_of_x + rounding)
            << dtype << ", token " << token << " channel " << channel;
      }
    }
    EXPECT_EQ(at, want.size());
  }

  const json& test_;
  const std::string name_;
  const Model model_;
  const int64_t tokens_;
  const int axes_;
  int32_t type_ = 0;
  rope_config config_ = ROPE_INIT(rope_config);
  std::vector<float> ids_;
  int heads_ = 1, pairs_ = 0;
  std::vector<double> frequency_;  // [axes][pairs]
};

TEST(DiffusionOracle, IdsAndRotationsAreThoseOfDiffusers) {
  const json document = LoadJson("diffusion.json");
  ASSERT_EQ(document["format"], 1);
  ASSERT_GE(document["cases"].size(), 10u);
  for (const json& test : document["cases"]) Case(test).Check();
}

// The defaults of the table are those of the classes, and nothing else that a class has is in the
// way.
TEST(DiffusionOracle, SavedConfigurationsSayWhatDefaultsSay) {
  const json document = LoadJson("diffusion.json");
  ASSERT_GE(document["defaults"].size(), 30u);
  for (const json& test : document["defaults"]) {
    SCOPED_TRACE(test["needed"].dump());
    const Model needed(test["needed"].dump()), saved(test["saved"].dump());
    ASSERT_TRUE(needed);
    ASSERT_TRUE(saved);
    rope_digest_text of_needed, of_saved;
    ASSERT_EQ(rope_model_digest(needed.get(), -1, ROPE_DIGEST_BITS, &of_needed), ROPE_OK);
    ASSERT_EQ(rope_model_digest(saved.get(), -1, ROPE_DIGEST_BITS, &of_saved), ROPE_OK);
    EXPECT_STREQ(of_needed.text, of_saved.text);
  }
}

}  // namespace
}  // namespace rope::testing
