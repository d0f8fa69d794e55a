// ROPE_ANGLE_DIVIDE against JAX itself, recorded by tests/oracle/jax_angles.py.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/oracle_array.h"
#include "support/errors.h"
#include "support/handles.h"
#include "support/load_json.h"

namespace rope::testing {
namespace {

using nlohmann::json;

const json& Recorded() {
  static const json recorded = LoadJson("jax_angles.json");
  return recorded;
}

std::vector<int64_t> Positions() { return Recorded()["positions"]; }

// The configuration of a recorded case. min_timescale is a factor of all timescales.
rope_config ConfigOf(const json& record) {
  const double least = record.value("min", 1.0);
  rope_config config = Config(record["head_dim"]);
  config.angle = ROPE_ANGLE_DIVIDE;
  config.theta = record["max"].get<double>() / least;
  config.factor = record.value("factor", least == 1 ? 0 : least);
  if (config.factor != 0) config.scaling = ROPE_SCALING_LINEAR;
  if (record.contains("llama3")) {
    config.scaling = ROPE_SCALING_LLAMA3;
    config.factor = 8;
    config.low_freq_factor = 1;
    config.high_freq_factor = 4;
    config.original_max_position_embeddings = 8192;
  }
  if (record.contains("rotary_dim")) {
    config.scaling = ROPE_SCALING_PROPORTIONAL;
    config.rotary_dim = record["rotary_dim"];
  }
  return config;
}

// The rows of a format for some positions.
std::vector<float> Fill(const rope_config& config, rope_cos_sin_format format,
                        const std::vector<int64_t>& positions) {
  const Context context = Create(config);
  const int pairs = config.head_dim / 2;
  const auto tokens = static_cast<int64_t>(positions.size());
  std::vector<float> values(positions.size() *
                            static_cast<size_t>(rope_cos_sin_width(format, pairs)));
  const rope_positions ids = Ids(ROPE_POSITIONS_IDS_T, positions.data());
  const rope_cos_sin rows = Rows(format, ROPE_DTYPE_F32, pairs, 1, values.data());
  EXPECT_OK(rope_cos_sin_fill(context.get(), 1, tokens, &ids, &rows, nullptr));
  return values;
}

void ExpectSameBits(const std::vector<float>& got, const OracleArray& want) {
  ASSERT_EQ(got.size() * sizeof(float), want.bytes.size());
  int differ = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    differ += std::memcmp(&got[i], want.as<float>() + i, sizeof(float)) != 0;
  }
  EXPECT_EQ(differ, 0) << "of " << got.size();
}

TEST(DivideAngle, HasTheBitsOfJaxThatDivides) {
  for (const json& record : Recorded()["cases"]) {
    SCOPED_TRACE(record["name"].get<std::string>());
    ExpectSameBits(Fill(ConfigOf(record), ROPE_COS_SIN_ANGLES, Positions()),
                   OracleArray(record["divided"]));
  }
}

TEST(DivideAngle, InvFreqHasTheInversesOfJaxsTimescales) {
  for (const json& record : Recorded()["cases"]) {
    const Context context = Create(ConfigOf(record));
    const OracleArray want(record["timescale"]);
    std::vector<double> inv_freq(want.bytes.size() / sizeof(float));
    ASSERT_OK(rope_context_inv_freq(context.get(), 0, inv_freq.data(),
                                    static_cast<int32_t>(inv_freq.size())));
    for (size_t i = 0; i < inv_freq.size(); ++i) {
      EXPECT_EQ(inv_freq[i], 1 / static_cast<double>(want.as<float>()[i])) << record["name"] << i;
    }
  }
}

// Timescales from elsewhere, such as a TPU.
TEST(DivideAngle, TheInversesOfTimescalesGiveTheSameBits) {
  for (const json& record : Recorded()["cases"]) {
    const OracleArray timescale(record["timescale"]);
    std::vector<double> inverses;
    for (size_t i = 0; i < timescale.bytes.size() / sizeof(float); ++i) {
      inverses.push_back(1 / static_cast<double>(timescale.as<float>()[i]));
    }
    rope_config config = Config(record["head_dim"]);
    config.angle = ROPE_ANGLE_DIVIDE;
    config.inv_freq = inverses.data();
    config.table_length = static_cast<int32_t>(inverses.size());
    SCOPED_TRACE(record["name"].get<std::string>());
    ExpectSameBits(Fill(config, ROPE_COS_SIN_ANGLES, Positions()), OracleArray(record["divided"]));
  }
}

// What XLA makes of a whole function on a CPU is FLOAT32 with frequencies of its own.
TEST(DivideAngle, JaxThatMultipliesIsFloat32WithItsFrequencies) {
  for (const json& record : Recorded()["cases"]) {
    const OracleArray compiled(record["compiled"]);
    const int pairs = record["head_dim"].get<int>() / 2;
    std::vector<double> inv_freq(compiled.as<float>() + pairs, compiled.as<float>() + 2 * pairs);
    ASSERT_EQ(Positions()[1], 1);
    rope_config config = Config(record["head_dim"]);
    config.inv_freq = inv_freq.data();
    config.table_length = pairs;
    SCOPED_TRACE(record["name"].get<std::string>());
    ExpectSameBits(Fill(config, ROPE_COS_SIN_ANGLES, Positions()), compiled);
  }
}

// The reason for a policy of its own: the two round differently.
TEST(DivideAngle, IsNotFloat32) {
  rope_config config = Config(128);
  const std::vector<float> product = Fill(config, ROPE_COS_SIN_ANGLES, Positions());
  config.angle = ROPE_ANGLE_DIVIDE;
  EXPECT_NE(Fill(config, ROPE_COS_SIN_ANGLES, Positions()), product);
}

TEST(DivideAngle, CosAndSinAreThoseOfTheAngle) {
  for (const json& record : Recorded()["cases"]) {
    const rope_config config = ConfigOf(record);
    const auto pairs = static_cast<size_t>(config.head_dim / 2);
    const std::vector<float> rows = Fill(config, ROPE_COS_SIN_PACKED, Positions());
    const OracleArray angles(record["divided"]);
    for (size_t t = 0; t < Positions().size(); ++t) {
      for (size_t i = 0; i < pairs; ++i) {
        const long double angle = angles.as<float>()[t * pairs + i];
        EXPECT_NEAR(rows[t * 2 * pairs + i], static_cast<double>(std::cos(angle)), 1.5e-7);
        EXPECT_NEAR(rows[(t * 2 + 1) * pairs + i], static_cast<double>(std::sin(angle)), 1.5e-7);
      }
    }
  }
}

// The stated bound: (4 + 2 ln theta) 2^-24 of the angle.
TEST(DivideAngle, IsWithinItsBoundOfTheTrueAngle) {
  const std::vector<int64_t> positions = {1, 3, 1000, 99991, 131071, 16777215};
  for (const double theta : {2.0, 10000.0, 500000.0, 1e7, 1e12}) {
    for (const int head_dim : {2, 64, 80, 96, 128, 1024}) {
      rope_config config = Config(head_dim);
      config.angle = ROPE_ANGLE_DIVIDE;
      config.theta = theta;
      const std::vector<float> angles = Fill(config, ROPE_COS_SIN_ANGLES, positions);
      const auto pairs = static_cast<size_t>(head_dim / 2);
      const long double bound = (4 + 2 * std::log(static_cast<long double>(theta))) * 0x1p-24L;
      for (size_t n = 0; n < angles.size(); ++n) {
        const long double exponent = -2 * static_cast<long double>(n % pairs) / head_dim;
        const long double angle = static_cast<long double>(positions[n / pairs]) *
                                  std::pow(static_cast<long double>(theta), exponent);
        EXPECT_LE(std::fabs(angles[n] - angle), bound * angle) << theta << " " << head_dim;
      }
    }
  }
}

TEST(DivideAngle, WhatJaxHasNoTimescaleForIsRefused) {
  static const std::vector<double> kFactors(32, 2.0);
  const BadInput<rope_config> kBad[] = {
      {"YARN",
       [](rope_config* c) {
         c->scaling = ROPE_SCALING_YARN;
         c->factor = 4;
         c->original_max_position_embeddings = 4096;
       },
       kUnsupported,
       {"config->angle (ROPE_ANGLE_DIVIDE)", "LLAMA3", "others as inv_freq"}},
      {"freq_factors",
       [](rope_config* c) {
         c->freq_factors = kFactors.data();
         c->table_length = 32;
       },
       kUnsupported,
       {"ROPE_ANGLE_DIVIDE", "no freq_factors"}},
      {"inv_freq_dtype",
       [](rope_config* c) { c->inv_freq_dtype = ROPE_DTYPE_BF16; },
       kUnsupported,
       {"ROPE_ANGLE_DIVIDE", "inv_freq_dtype"}},
  };
  for (const auto& bad : kBad) {
    rope_config config = Config(64);
    config.angle = ROPE_ANGLE_DIVIDE;
    bad.change(&config);
    rope_context* context = nullptr;
    ExpectParts("rope_context_create", bad, rope_context_create(&config, &context));
    EXPECT_EQ(context, nullptr);
  }
}

}  // namespace
}  // namespace rope::testing
