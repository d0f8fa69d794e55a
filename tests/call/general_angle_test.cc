// The general angle, config.frequency: what models' own code computes with it (data/angles.json),
// the bits of plain contexts where one axis turns each pair, rows of it for each head, and what is
// refused.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "model/oracle_array.h"
#include "support/errors.h"
#include "support/handles.h"
#include "support/load_json.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

struct Array {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

Array ArrayOf(const nlohmann::json& json) {
  const OracleArray array(json);
  return {array.shape, array.ToFloat()};
}

// A context of frequencies [axes, heads, pairs]; `table` must live until it is made.
rope_config ConfigOf(const std::vector<double>& table, int axes, int heads, int pairs,
                     rope_pairing pairing = ROPE_PAIRING_HALVES) {
  rope_config config = Config(2 * pairs, pairing, 0);
  config.axes = axes;
  config.freq_heads = heads;
  config.table_length = pairs;
  config.frequency = table.data();
  return config;
}

class GeneralAngleOnTarget : public TargetTest {};

// torch's cos and sin are within 1e-7; a sum that is a matrix product (Mochi, LightGlue) may round
// less.
TEST_P(GeneralAngleOnTarget, IsThatOfPublicCode) {
  const nlohmann::json all = LoadJson("angles.json");
  ASSERT_EQ(all["cases"].size(), 6u);
  for (const nlohmann::json& c : all["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const Array positions = ArrayOf(c["positions"]), frequency = ArrayOf(c["frequency"]),
                cos = ArrayOf(c["cos"]), sin = ArrayOf(c["sin"]);
    const int64_t tokens = positions.shape[0];
    const auto axes = static_cast<int>(frequency.shape[0]),
               heads = static_cast<int>(frequency.shape[1]),
               pairs = static_cast<int>(frequency.shape[2]);
    const std::vector<double> table(frequency.values.begin(), frequency.values.end());
    for (const rope_angle angle : {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT}) {
      rope_config config =
          ConfigOf(table, axes, heads, pairs,
                   c["pairing"] == "halves" ? ROPE_PAIRING_HALVES : ROPE_PAIRING_INTERLEAVED);
      config.angle = angle;
      const Context context = Create(config);
      const rope_positions at = Ids(ROPE_POSITIONS_IDS_BTA, positions.values.data());

      std::vector<float> values(2 * cos.values.size());
      rope_cos_sin rows = Rows(ROPE_COS_SIN_SPLIT, ROPE_DTYPE_F32, pairs, 1, values.data(),
                               values.data() + cos.values.size());
      rows.heads = heads > 1 ? heads : 0;
      ASSERT_OK(rope_cos_sin_fill(context.get(), 1, tokens, &at, &rows, nullptr));
      for (size_t i = 0; i < cos.values.size(); ++i) {
        const auto pair = i % static_cast<size_t>(heads * pairs);
        const auto token = i / static_cast<size_t>(heads * pairs);
        double size = 0;  // of the products
        for (int a = 0; a < axes; ++a) {
          const size_t f = static_cast<size_t>(a) * static_cast<size_t>(heads * pairs) + pair;
          const size_t p = token * static_cast<size_t>(axes) + static_cast<size_t>(a);
          size += std::fabs(positions.values[p] * table[f]);
        }
        const bool same_angle = angle == ROPE_ANGLE_FLOAT32 && !c["matrix"];
        const double tolerance = 3e-7 + (same_angle ? 0 : 0x1p-23 * axes * size);
        ASSERT_NEAR(values[i], cos.values[i], tolerance) << i;
        ASSERT_NEAR(values[i + cos.values.size()], sin.values[i], tolerance) << i;
      }
      if (c["x"].is_null() || angle != ROPE_ANGLE_FLOAT32) continue;
      Array x = ArrayOf(c["x"]), turned = ArrayOf(c["turned"]);
      rope_qk_args args = Args(1, tokens);
      args.q = Tensor(x.values.data(), ROPE_DTYPE_F32, heads);
      args.positions = at;
      ASSERT_OK(rope_apply_qk(context.get(), &args));
      for (size_t i = 0; i < x.values.size(); ++i) {
        ASSERT_NEAR(x.values[i], turned.values[i], 3e-6) << i;
      }
    }
  }
}

// FLOAT32: a product with 0 and a sum with it round nothing.
TEST_P(GeneralAngleOnTarget, OfOneAxisForEachPairHasThePlainBits) {
  constexpr int kPairs = 20, kAxes = 3, kHeads = 2, kTokens = 7;
  std::vector<double> inv_freq, table(kAxes * kHeads * kPairs);
  std::vector<uint8_t> pair_axis;
  for (int i = 0; i < kPairs; ++i) {
    inv_freq.push_back(std::pow(10000, -i / 20.0) * (i % 4 == 3 ? -1 : 1));
    pair_axis.push_back(static_cast<uint8_t>(i % kAxes));
    for (int h = 0; h < kHeads; ++h) {
      table[static_cast<size_t>((i % kAxes * kHeads + h) * kPairs + i)] = inv_freq.back();
    }
  }
  rope_config plain = Config(2 * kPairs, ROPE_PAIRING_HALVES, 0);
  plain.axes = kAxes;
  plain.table_length = kPairs;
  plain.inv_freq = inv_freq.data();
  plain.pair_axis = pair_axis.data();
  std::vector<int64_t> ids;
  for (int i = 0; i < kTokens * kAxes; ++i) ids.push_back(i * 7919 % 100003 - 50000);
  std::vector<float> given(kTokens * 4 * 2 * kPairs);
  for (size_t i = 0; i < given.size(); ++i) given[i] = 0.25f * static_cast<float>(i % 61) - 7;
  const auto turned = [&](const rope_config& config) {
    const Context context = Create(config);
    std::vector<float> q = given;
    rope_qk_args args = Args(1, kTokens);
    args.q = Tensor(q.data(), ROPE_DTYPE_F32, 4);
    args.positions = Ids(ROPE_POSITIONS_IDS_BTA, ids.data());
    EXPECT_OK(rope_apply_qk(context.get(), &args));
    return q;
  };
  EXPECT_EQ(turned(ConfigOf(table, kAxes, kHeads, kPairs)), turned(plain));
}

// An axis more whose frequencies are 0 changes no bit, also of what one token or a block of tokens
// would have by a shorter way without config.frequency.
TEST_P(GeneralAngleOnTarget, AnAxisThatTurnsNothingChangesNoBit) {
  constexpr int kPairs = 12;
  std::vector<double> table;
  for (int i = 0; i < kPairs; ++i) table.push_back(std::pow(10000, -i / 12.0));
  for (const rope_angle angle : {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT}) {
    for (const int tokens : {1, 5, 40}) {
      const auto turned = [&](int axes) {
        std::vector<double> of_axes = table;
        of_axes.resize(axes * kPairs);
        rope_config config = ConfigOf(of_axes, axes, 1, kPairs);
        config.angle = angle;
        const Context context = Create(config);
        std::vector<int64_t> ids;
        for (int i = 0; i < tokens * axes; ++i) ids.push_back(i / axes * 7919 + 1000003);
        std::vector<float> q(tokens * 2 * 2 * kPairs);
        for (size_t i = 0; i < q.size(); ++i) q[i] = 0.25f * static_cast<float>(i % 61) - 7;
        rope_qk_args args = Args(1, tokens);
        args.q = Tensor(q.data(), ROPE_DTYPE_F32, 2);
        args.positions = Ids(ROPE_POSITIONS_IDS_BTA, ids.data());
        EXPECT_OK(rope_apply_qk(context.get(), &args));
        return q;
      };
      EXPECT_EQ(turned(1), turned(2)) << "angle " << angle << ", " << tokens << " tokens";
    }
  }
}

// Rows for each head, in any format and order of strides, give the bits of positions.
TEST_P(GeneralAngleOnTarget, RowsOfEachHeadGiveTheBitsOfPositions) {
  constexpr int kPairs = 12, kAxes = 2, kHeads = 3;
  constexpr int64_t kBatch = 2, kTokens = 5;
  std::vector<double> table;
  for (int i = 0; i < kAxes * kHeads * kPairs; ++i) table.push_back(0.37 * (i % 17) - 2);
  std::vector<int64_t> ids;
  for (int i = 0; i < kBatch * kTokens * kAxes; ++i) ids.push_back(i * 77 % 1009 - 300);
  const rope_positions at = Ids(ROPE_POSITIONS_IDS_BTA, ids.data());
  for (const rope_angle angle : {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT}) {
    rope_config config = ConfigOf(table, kAxes, kHeads, kPairs);
    config.angle = angle;
    config.attention_factor = 1.25;
    const Context context = Create(config);
    std::vector<float> q(kBatch * kTokens * kHeads * 2 * 2 * kPairs);
    for (size_t i = 0; i < q.size(); ++i) q[i] = 0.25f * static_cast<float>(i % 61) - 7;
    std::vector<float> by_rows = q;
    rope_qk_args args = Args(kBatch, kTokens);
    args.q = Tensor(q.data(), ROPE_DTYPE_F32, 2 * kHeads);
    args.positions = at;
    ASSERT_OK(rope_apply_qk(context.get(), &args));
    const std::vector<float> given = by_rows;
    for (int format = ROPE_COS_SIN_PACKED; format <= ROPE_COS_SIN_COMPLEX; ++format) {
      for (const bool heads_first : {false, true}) {
        const int64_t width = rope_cos_sin_width(format, kPairs);
        const auto count = static_cast<size_t>(kBatch * kTokens * kHeads * width);
        std::vector<float> data(count, NAN), sin(count, NAN);
        rope_cos_sin rows = Rows(format, ROPE_DTYPE_F32, kPairs, kBatch, data.data(),
                                 rope_cos_sin_tensors(format) == 2 ? sin.data() : nullptr);
        rows.heads = kHeads;
        if (heads_first) {
          rows.stride_token = width;
          rows.stride_head = kTokens * width;
        }
        ASSERT_OK(rope_cos_sin_fill(context.get(), kBatch, kTokens, &at, &rows, nullptr));
        by_rows = given;
        args.q.data = by_rows.data();
        args.positions = {};
        args.cos_sin = &rows;
        ASSERT_OK(rope_apply_qk(context.get(), &args));
        EXPECT_EQ(by_rows, q) << "format " << format << " angle " << angle;
      }
    }
    // The angles themselves.
    std::vector<float> angles(kBatch * kTokens * kHeads * kPairs);
    rope_cos_sin rows = Rows(ROPE_COS_SIN_ANGLES, ROPE_DTYPE_F32, kPairs, kBatch, angles.data());
    rows.heads = kHeads;
    ASSERT_OK(rope_cos_sin_fill(context.get(), kBatch, kTokens, &at, &rows, nullptr));
    for (size_t i = 0; i < angles.size(); ++i) {
      const size_t own = i % (kHeads * kPairs), token = i / (kHeads * kPairs);
      const double want = static_cast<double>(ids[2 * token]) * table[own] +
                          static_cast<double>(ids[2 * token + 1]) * table[kHeads * kPairs + own];
      ASSERT_NEAR(angles[i], want, 1e-6 * 4000);
    }
  }
}

INSTANTIATE_TARGETS(GeneralAngleOnTarget);

TEST(GeneralAngle, CoordinatesThatAreNoNumbersGiveNaN) {
  const std::vector<double> table = {0.5, 0, 0.25, 1};  // one head, two axes, two pairs
  for (const rope_angle angle : {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT}) {
    rope_config config = ConfigOf(table, 2, 0, 2);
    config.angle = angle;
    const Context context = Create(config);
    const float ids[] = {1, std::numeric_limits<float>::infinity(), 2, 3};
    float q[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    rope_qk_args args = Args(1, 2);
    args.q = Tensor(q, ROPE_DTYPE_F32, 1);
    args.positions = Ids(ROPE_POSITIONS_IDS_BTA, ids);
    ASSERT_OK(rope_apply_qk(context.get(), &args));
    for (int i = 0; i < 8; ++i) EXPECT_EQ(std::isnan(q[i]), i < 4) << i;
  }
}

TEST(GeneralAngle, IsToldByTheContext) {
  const std::vector<double> table = {0.5, 0.25, 1, -1, 2, 3};  // one axis, three heads, two pairs
  const Context context = Create(ConfigOf(table, 1, 3, 2));
  EXPECT_EQ(Info(context).freq_heads, 3);
  EXPECT_EQ(Info(Config(8)).freq_heads, 0);
  EXPECT_EQ(Info(context).inv_freq_count, 6);
  EXPECT_EQ(Info(Config(8)).inv_freq_count, 4);
  std::vector<double> told(6);
  ASSERT_OK(rope_context_inv_freq(context.get(), 0, told.data(), 6));
  EXPECT_EQ(told, table);
  EXPECT_EQ(rope_context_inv_freq(context.get(), 0, told.data(), 2), kInvalid);
  ExpectMessage("rope_context_inv_freq", {"count (2)", "axes * freq_heads * pairs (6)"});
  const int64_t position = 0;
  float q[12] = {};
  EXPECT_EQ(rope_apply_thd(context.get(), ROPE_DTYPE_F32, 1, &position, q, 3, nullptr, 0),
            kInvalid);
  ExpectMessage("rope_apply_thd", {"3 freq_heads", "rope_apply_qk"});
}

TEST(GeneralAngle, WhatIsRefusedNamesItsField) {
  const std::vector<double> table(2 * 3 * 4, 0.5);
  const std::vector<double> other(4, 1.0);
  const std::vector<uint8_t> pair_axis(4, 0);
  const double unsound[] = {0.5, NAN, 1, 1};
  const BadInput<rope_config> kBad[] = {
      {"heads alone",
       [](rope_config* c) {
         c->frequency = nullptr;
         c->table_length = 0;
         c->axes = 0;
         c->theta = 1e4;
       },
       kInvalid,
       {"config->freq_heads (3)", "0 without frequency"}},
      {"negative heads",
       [](rope_config* c) { c->freq_heads = -1; },
       kInvalid,
       {"config->freq_heads (-1)", "from 0 to 1024"}},
      {"many heads",
       [](rope_config* c) { c->freq_heads = 1025; },
       kInvalid,
       {"config->freq_heads (1025)", "from 0 to 1024"}},
      {"scaling",
       [](rope_config* c) {
         c->scaling = ROPE_SCALING_LINEAR;
         c->factor = 2;
       },
       kInvalid,
       {"config->scaling", "with frequency"}},
      {"NOPE",
       [](rope_config* c) { c->scaling = ROPE_SCALING_NOPE; },
       kInvalid,
       {"config->scaling", "with frequency"}},
      {"inv_freq",
       [&](rope_config* c) { c->inv_freq = other.data(); },
       kInvalid,
       {"config->inv_freq", "with frequency"}},
      {"freq_factors",
       [&](rope_config* c) { c->freq_factors = other.data(); },
       kInvalid,
       {"config->freq_factors", "with frequency"}},
      {"pair_axis",
       [&](rope_config* c) { c->pair_axis = pair_axis.data(); },
       kInvalid,
       {"config->pair_axis", "with frequency"}},
      {"sections",
       [](rope_config* c) { c->mrope_section[0] = 4; },
       kInvalid,
       {"config->mrope_section", "with frequency"}},
      {"interleaved",
       [](rope_config* c) { c->mrope_interleaved = 1; },
       kInvalid,
       {"config->mrope_interleaved", "with frequency"}},
      {"GGML",
       [](rope_config* c) {
         c->angle = ROPE_ANGLE_GGML;
         c->theta = 1e4;
       },
       kUnsupported,
       {"config->frequency", "ROPE_ANGLE_GGML"}},
      {"DIVIDE",
       [](rope_config* c) {
         c->angle = ROPE_ANGLE_DIVIDE;
         c->theta = 1e4;
       },
       kUnsupported,
       {"config->frequency", "ROPE_ANGLE_DIVIDE"}},
      {"blocks",
       [](rope_config* c) { c->pairing = ROPE_PAIRING_HALVES_PER_AXIS; },
       kUnsupported,
       {"config->frequency", "HALVES_PER_AXIS"}},
      {"length",
       [](rope_config* c) { c->table_length = 24; },
       kInvalid,
       {"config->table_length (24)", "4"}},
      {"NaN",
       [&](rope_config* c) {
         c->frequency = unsound;
         c->axes = 0;
         c->freq_heads = 0;
       },
       kInvalid,
       {"config->frequency[1]", "finite"}},
      {"reserved", [](rope_config* c) { c->reserved2 = 1; }, kUnsupported, {"config->reserved2"}},
  };
  for (const auto& bad : kBad) {
    rope_config config = ConfigOf(table, 2, 3, 4);
    bad.change(&config);
    rope_context* context = nullptr;
    ExpectParts("rope_context_create", bad, rope_context_create(&config, &context));
    EXPECT_EQ(context, nullptr);
  }

  const Context context = Create(ConfigOf(table, 2, 3, 4));
  std::vector<float> q(1024), before = q;
  rope_qk_args args = Args(1, 1);
  args.q = Tensor(q.data(), ROPE_DTYPE_F32, 4);
  args.positions = Offset(1);
  EXPECT_EQ(rope_apply_qk(context.get(), &args), kInvalid);
  ExpectMessage("rope_apply_qk", {"args->q.heads (4)", "multiple of the context's freq_heads (3)"});
  rope_cos_sin rows = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, 4, 1, q.data() + 512);
  const rope_positions at = Offset(1);
  EXPECT_EQ(rope_cos_sin_fill(context.get(), 1, 1, &at, &rows, nullptr), kInvalid);
  ExpectMessage("rope_cos_sin_fill", {"out->heads (0)", "must be 3", "freq_heads"});
  rows.heads = 3;
  rows.stride_token = rows.stride_head = 8;
  EXPECT_EQ(rope_cos_sin_fill(context.get(), 1, 2, &at, &rows, nullptr), kInvalid);
  ExpectMessage("rope_cos_sin_fill", {"stride_token (8)", "stride_head (8)", "overlap"});
  EXPECT_EQ(q, before);
}

}  // namespace
}  // namespace rope::testing
