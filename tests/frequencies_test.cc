// Frequencies and attention factors of every scaling: against published values, against formulas in
// quad precision, and the arithmetic of precise.h to the last bit.
#include "frequencies.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "context.h"
#include "precise.h"
#include "support/elements.h"
#include "support/errors.h"
#include "support/handles.h"
#include "support/load_json.h"
#include "support/quad.h"

namespace rope::testing {
namespace {

using nlohmann::json;
const json& Golden() {
  static const json data = LoadJson("golden.json");
  return data;
}

std::vector<double> InvFreq(const rope_config& config) {
  const Context context = Create(config);
  rope_info info = ROPE_INIT(rope_info);
  EXPECT_OK(rope_context_info(context.get(), 0, &info));
  std::vector<double> values(info.pairs);
  EXPECT_OK(rope_context_inv_freq(context.get(), 0, values.data(), info.pairs));
  return values;
}

rope_info Info(const rope_config& config) {
  const Context context = Create(config);
  rope_info info = ROPE_INIT(rope_info);
  EXPECT_OK(rope_context_info(context.get(), 0, &info));
  return info;
}

// The numbers of a rope_parameters dictionary as fields.
rope_config FromParameters(const json& p, int head_dim, int64_t max_positions) {
  rope_config c = Config(head_dim);
  const std::string type = p.value("rope_type", p.value("type", std::string("default")));
  c.theta = p.value("rope_theta", 10000.0);
  c.factor = p.value("factor", 0.0);
  c.attention_factor = p.value("attention_factor", 0.0);
  c.original_max_position_embeddings = p.value("original_max_position_embeddings", 0);
  if (type == "linear") c.scaling = ROPE_SCALING_LINEAR;
  if (type == "dynamic")
    c.scaling = ROPE_SCALING_DYNAMIC, c.max_position_embeddings = max_positions;
  if (type == "yarn") {
    c.scaling = ROPE_SCALING_YARN;
    if (c.original_max_position_embeddings == 0) c.original_max_position_embeddings = max_positions;
    c.beta_fast = p.value("beta_fast", 0.0);
    c.beta_slow = p.value("beta_slow", 0.0);
    c.mscale = p.value("mscale", 0.0);
    c.mscale_all_dim = p.value("mscale_all_dim", 0.0);
  }
  if (type == "llama3") {
    c.scaling = ROPE_SCALING_LLAMA3;
    c.low_freq_factor = p["low_freq_factor"];
    c.high_freq_factor = p["high_freq_factor"];
  }
  if (type == "proportional") {
    c.scaling = ROPE_SCALING_PROPORTIONAL;
    c.rotary_dim = static_cast<int>(head_dim * p["partial_rotary_factor"].get<double>());
  }
  return c;
}

void ExpectClose(const std::vector<double>& got, const std::vector<double>& want, double relative,
                 double absolute) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], absolute + relative * std::fabs(want[i])) << "pair " << i;
  }
}

TEST(Frequencies, GoldenTablesOfTransformers) {
  int found = 0;
  for (const json& record : Golden()["golden"]) {
    if (record["kind"] != "inv_freq") continue;
    SCOPED_TRACE(record["name"].get<std::string>());
    ++found;
    const json& model = record["config"];
    const int heads = model["num_attention_heads"], hidden = model["hidden_size"];
    rope_config config =
        FromParameters(record["rope_parameters"], model.value("head_dim", hidden / heads),
                       model["max_position_embeddings"]);
    if (!record["seq_len"].is_null()) config.seq_len = record["seq_len"];
    ExpectClose(InvFreq(config), record["expected"], 1.3e-6, 1e-4);
    ExpectClose(InvFreq(config), record["expected_ref_fp64"], 2e-6, 1e-9);
    EXPECT_NEAR(Info(config).attention_factor, record["attention_scaling"].get<double>(), 1e-15);
    config.angle = ROPE_ANGLE_EXACT;
    ExpectClose(InvFreq(config), record["expected_ref_fp64"], 1e-14, 1e-18);
  }
  EXPECT_EQ(found, 10);
}

TEST(Frequencies, PublishedModels) {
  int found = 0;
  for (const json& record : Golden()["derived"]) {
    if (record["kind"] != "derived_fp64" || !record.contains("inv_freq")) continue;
    const json& parameters = record["rope_parameters"];
    if (parameters.value("rope_type", "") == "dynamic-alpha") continue;  // a theta of its own
    SCOPED_TRACE(record["name"].get<std::string>());
    ++found;
    rope_config config = FromParameters(parameters, record["rotary_dim"], 32768);
    config.theta = record["rope_theta"];
    if (record.contains("seq_len")) config.seq_len = record["seq_len"];
    ExpectClose(InvFreq(config), record["inv_freq"], 2e-6, 1e-12);
    config.angle = ROPE_ANGLE_EXACT;
    ExpectClose(InvFreq(config), record["inv_freq"], 1e-13, 1e-18);
    const rope_info info = Info(config);
    EXPECT_NEAR(info.attention_factor, record["attention_scaling"].get<double>(), 1e-14);
    if (record.contains("softmax_scale_multiplier")) {
      EXPECT_NEAR(info.softmax_factor, record["softmax_scale_multiplier"].get<double>(), 1e-14);
    } else {
      EXPECT_EQ(info.softmax_factor, 1);
    }
  }
  EXPECT_GE(found, 7);
}

TEST(Frequencies, GoldenAttentionFactors) {
  int found = 0;
  for (const json& record : Golden()["golden"]) {
    if (record["kind"] != "attention_scaling") continue;
    for (const json& example : record["cases"]) {
      ++found;
      rope_config config = Config(128);
      const std::vector<double> ones(64, 1.0);
      const bool longrope = record["name"] == "longrope_attention_factor_default";
      config.scaling = longrope ? ROPE_SCALING_LONGROPE : ROPE_SCALING_YARN;
      config.factor = example["factor"];
      config.attention_factor = example.value("attention_factor", 0.0);
      config.original_max_position_embeddings = 2048;
      if (longrope) {
        config.short_factor = config.long_factor = ones.data();
        config.table_length = 64;
        config.seq_len = 1;
      }
      EXPECT_EQ(Info(config).attention_factor, example["expected"].get<double>());
    }
  }
  EXPECT_EQ(found, 8);
}

// The formulas of transformers' modeling_rope_utils.py (_compute_yarn_parameters), in long double.
std::vector<double> YarnInvFreq(const rope_config& c) {
  const int dim = c.head_dim;
  const auto theta = static_cast<long double>(c.theta), factor = static_cast<long double>(c.factor);
  const auto pair_of = [&](double rotations) {
    const auto original = static_cast<long double>(c.original_max_position_embeddings);
    const long double turns = original / (rotations * 2 * static_cast<long double>(Pi()));
    return dim * std::log(turns) / (2 * std::log(theta));
  };
  long double low = pair_of(c.beta_fast), high = pair_of(c.beta_slow);
  if (!c.yarn_no_truncate) low = std::floor(low), high = std::ceil(high);
  if (low < 0) low = 0;
  if (high > dim - 1) high = dim - 1;
  if (low == high) high += 0.001L;
  std::vector<double> values;
  for (int i = 0; i < dim / 2; ++i) {
    const long double plain = std::pow(theta, -2.0L * i / dim);
    const long double ramp = (i - low) / (high - low);
    const long double share = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    values.push_back(static_cast<double>(plain * (1 - share) + plain / factor * share));
  }
  return values;
}

TEST(Frequencies, YarnWhereItsRangeLeavesThePairs) {
  const struct {
    const char* name;
    int64_t original;
    double beta_fast, beta_slow;
    int no_truncate;
  } cases[] = {
      {"begins before the first pair", 64, 32, 1, 0},
      {"ends behind the last channel", 4096, 32, 1e-6, 0},
      {"begins behind its end", int64_t{1} << 40, 32, 1, 0},
      {"is empty at the first pair", 6, 1, 1, 0},
      {"is empty between two pairs", 4096, 4, 4, 1},
      {"not truncated", 4096, 32, 1, 1},
  };
  for (const auto& example : cases) {
    SCOPED_TRACE(example.name);
    rope_config config = Config(8);
    config.scaling = ROPE_SCALING_YARN;
    config.factor = 4;
    config.original_max_position_embeddings = example.original;
    config.beta_fast = example.beta_fast;
    config.beta_slow = example.beta_slow;
    config.yarn_no_truncate = example.no_truncate;
    ExpectClose(InvFreq(config), YarnInvFreq(config), 2e-6, 0);
    config.angle = ROPE_ANGLE_EXACT;
    ExpectClose(InvFreq(config), YarnInvFreq(config), 1e-13, 0);
  }
}

// A base of 1 has no logarithm to divide by: all frequencies are NaN.
TEST(Frequencies, ThatAreNoNumbersAreRefused) {
  for (rope_angle angle : {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT}) {
    rope_config config = Config(8, ROPE_PAIRING_HALVES, 1);
    config.angle = angle;
    config.scaling = ROPE_SCALING_YARN;
    config.factor = 4;
    config.original_max_position_embeddings = 4096;
    rope_context* context = nullptr;
    EXPECT_EQ(rope_context_create(&config, &context), ROPE_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(rope_last_error()).find("theta (1)"), std::string::npos)
        << rope_last_error();
    EXPECT_EQ(context, nullptr);
  }
}

TEST(Frequencies, FactorsOfAttentionAndSoftmax) {
  const std::vector<double> ones(4, 1.0);
  rope_config longrope = Config(8);
  longrope.scaling = ROPE_SCALING_LONGROPE;
  longrope.original_max_position_embeddings = 2048;
  longrope.seq_len = 1;
  longrope.short_factor = longrope.long_factor = ones.data();
  longrope.table_length = 4;
  const struct {
    double factor;
    int64_t max_position;
    double want;
  } of_longrope[] = {
      {4, 0, std::sqrt(1 + std::log(4) / std::log(2048))},
      {4, 32768, std::sqrt(1 + std::log(4) / std::log(2048))},  // the factor, and not 16
      {0, 32768, std::sqrt(1 + std::log(16) / std::log(2048))},
      {1, 0, 1},
      {0.5, 0, 1},
      {0, 1024, 1},
  };
  for (const auto& example : of_longrope) {
    longrope.factor = example.factor;
    longrope.max_position_embeddings = example.max_position;
    EXPECT_NEAR(Info(longrope).attention_factor, example.want, 1e-15);
  }
  rope_config yarn = Config(8);
  yarn.scaling = ROPE_SCALING_YARN;
  yarn.original_max_position_embeddings = 2048;
  const double log40 = std::log(40);
  const struct {
    double factor, mscale, all_dim, attention, softmax;
  } of_yarn[] = {
      {40, 0, 0, 0.1 * log40 + 1, 1},
      {40, 0.7, 0, 0.1 * log40 + 1, 1},  // mscale counts beside mscale_all_dim only
      {40, 0, 0.7, 0.1 * log40 + 1, (0.07 * log40 + 1) * (0.07 * log40 + 1)},
      {40, 0.5, 0.7, (0.05 * log40 + 1) / (0.07 * log40 + 1),
       (0.07 * log40 + 1) * (0.07 * log40 + 1)},
      {0.5, 0.5, 0.7, 1, 1},
  };
  for (const auto& example : of_yarn) {
    yarn.factor = example.factor;
    yarn.mscale = example.mscale;
    yarn.mscale_all_dim = example.all_dim;
    EXPECT_NEAR(Info(yarn).attention_factor, example.attention, 1e-15) << example.all_dim;
    EXPECT_NEAR(Info(yarn).softmax_factor, example.softmax, 1e-15) << example.all_dim;
  }
}

TEST(Frequencies, FreqFactorsDivideWhatTheScalingGives) {
  const std::vector<double> factors = {1, 2, 4, 8};
  for (rope_scaling scaling :
       {ROPE_SCALING_DEFAULT, ROPE_SCALING_LINEAR, ROPE_SCALING_YARN, ROPE_SCALING_PROPORTIONAL}) {
    rope_config config = Config(8);
    config.scaling = scaling;
    if (scaling != ROPE_SCALING_DEFAULT) config.factor = 4;
    if (scaling == ROPE_SCALING_YARN) config.original_max_position_embeddings = 4096;
    const std::vector<double> plain = InvFreq(config);
    config.freq_factors = factors.data();
    config.table_length = 4;
    const std::vector<double> divided = InvFreq(config);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(divided[i], plain[i] / factors[i]) << scaling;
  }
}

TEST(Frequencies, LongropeChoosesByLength) {
  std::vector<double> shorts(64, 2.0), longs;
  for (int i = 1; i <= 64; ++i) longs.push_back(i);
  rope_config config = Config(128);
  const std::vector<double> plain = InvFreq(config);
  config.scaling = ROPE_SCALING_LONGROPE;
  config.factor = 1;
  config.original_max_position_embeddings = 2048;
  config.short_factor = shorts.data();
  config.long_factor = longs.data();
  config.table_length = 64;
  for (int64_t length : {1, 2048, 2049}) {
    config.seq_len = length;
    const std::vector<double> got = InvFreq(config);
    for (int i = 0; i < 64; ++i) {
      EXPECT_NEAR(got[i], plain[i] / (length > 2048 ? longs[i] : 2.0), 2e-7 * plain[i]) << length;
    }
  }
}

// EXACT: turns to the last bit of 64 fraction bits, for the formulas in quad precision.
TEST(Frequencies, FixedPointTurnsAreExactToTheLastBit) {
  for (double theta : {10000.0, 500000.0, 1e6, 8e6, 100.0, 1.5}) {
    for (int dim : {2, 4, 6, 64, 80, 96, 128, 254, 256, 1024}) {
      for (double factor : {1.0, 8.0, 3.7}) {
        rope_config config = Config(dim, ROPE_PAIRING_HALVES, theta);
        config.angle = ROPE_ANGLE_EXACT;
        if (factor != 1) config.scaling = ROPE_SCALING_LINEAR, config.factor = factor;
        const Context context = Create(config);
        const FrequencySet& set = context->sets[0];
        for (int i = 0; i<dim / 2; i += dim> 100 ? 7 : 1) {
          const Quad turns = InverseFrequency(theta, i, dim) / Quad(factor) / (2 * Pi());
          const uint64_t got = static_cast<uint64_t>(set.turns_high[i]) << 32 | set.turns_low[i];
          const Quad error = turns * Quad(0x1p64) - Quad(got);
          // Rounded to nearest, but for ties that 106 bits cannot decide.
          EXPECT_LE(static_cast<double>(error < 0 ? -error : error), 0.5 + 1e-8)
              << theta << " " << i;
        }
      }
    }
  }
}

// The same where the scaling's own numbers have no end in binary.
void ExpectExactTurns(const rope_config& config, const std::vector<Quad>& want) {
  const Context context = Create(config);
  const FrequencySet& set = context->sets[0];
  for (size_t i = 0; i < want.size(); ++i) {
    const uint64_t got = static_cast<uint64_t>(set.turns_high[i]) << 32 | set.turns_low[i];
    const Quad error = want[i] / (2 * Pi()) * Quad(0x1p64) - Quad(got);
    EXPECT_LE(static_cast<double>(error < 0 ? -error : error), 0.5 + 1e-8) << i;
  }
}

TEST(Frequencies, FixedPointTurnsOfLlama3AreExactToTheLastBit) {
  rope_config c = Config(16);
  c.angle = ROPE_ANGLE_EXACT;
  c.scaling = ROPE_SCALING_LLAMA3;
  c.factor = 20.9582;
  c.original_max_position_embeddings = 64;
  c.low_freq_factor = 0.7;
  c.high_freq_factor = 4.3;
  std::vector<Quad> want;
  int between = 0;
  for (int i = 0; i < 8; ++i) {
    const Quad f = InverseFrequency(c.theta, i, 16), turns = 64 * f / (2 * Pi());
    const Quad smooth =
        (turns - Quad(c.low_freq_factor)) / (Quad(c.high_freq_factor) - Quad(c.low_freq_factor));
    between += smooth > 0 && smooth < 1;
    want.push_back(smooth <= 0   ? f / Quad(c.factor)
                   : smooth >= 1 ? f
                                 : (1 - smooth) * f / Quad(c.factor) + smooth * f);
  }
  EXPECT_GE(between, 1);
  ExpectExactTurns(c, want);
}

TEST(Frequencies, FixedPointTurnsOfYarnAreExactToTheLastBit) {
  for (const bool truncate : {true, false}) {
    rope_config c = Config(64, ROPE_PAIRING_HALVES, 150000);
    c.angle = ROPE_ANGLE_EXACT;
    c.scaling = ROPE_SCALING_YARN;
    c.factor = 32;
    c.original_max_position_embeddings = 4096;
    c.yarn_no_truncate = !truncate;
    const auto pair = [&](int rotations) {
      return 64 * LogOf(4096 / (rotations * 2 * Pi())) / (2 * LogOf(Quad(c.theta)));
    };
    Quad low = pair(32), high = pair(1);
    if (truncate) {
      low = std::floor(static_cast<double>(low));
      high = std::ceil(static_cast<double>(high));
    }
    std::vector<Quad> want;
    for (int i = 0; i < 32; ++i) {
      const Quad f = InverseFrequency(c.theta, i, 64), at = (i - low) / (high - low);
      const Quad ramp = at < 0 ? Quad(0) : at > 1 ? Quad(1) : at;
      want.push_back(f / Quad(c.factor) * ramp + f * (1 - ramp));
    }
    ExpectExactTurns(c, want);
  }
}

TEST(Frequencies, Float32RepeatsTheStepsOfTransformers) {
  const std::vector<double> got = InvFreq(Config(128));
  for (int i = 0; i < 64; ++i) {
    const float exponent = static_cast<float>(2 * i) / 128.0f;
    const float want = 1.0f / static_cast<float>(std::pow(10000.0, double{exponent}));
    EXPECT_EQ(got[i], want) << i;
  }
  rope_config config = Config(128);
  config.scaling = ROPE_SCALING_LINEAR;
  config.factor = 3;
  const std::vector<double> scaled = InvFreq(config);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(scaled[i], static_cast<float>(got[i]) / 3.0f);
}

TEST(Frequencies, TheCallersTables) {
  const double given[4] = {1.25, -0.3, 0, 4096};
  const double factors[4] = {1, 2, 4, 8};
  for (rope_angle angle : {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT}) {
    rope_config config = Config(8);
    config.theta = 0;
    config.angle = angle;
    config.inv_freq = given;
    config.table_length = 4;
    const std::vector<double> got = InvFreq(config);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(got[i], angle == ROPE_ANGLE_EXACT ? given[i] : static_cast<float>(given[i]));
    }
    config.freq_factors = factors;
    const std::vector<double> divided = InvFreq(config);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(divided[i], got[i] / factors[i]);
  }
  rope_config config = Config(8);
  const std::vector<double> plain = InvFreq(config);
  config.freq_factors = factors;
  config.table_length = 4;
  const std::vector<double> divided = InvFreq(config);
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(divided[i], static_cast<float>(plain[i]) / static_cast<float>(factors[i]));
}

TEST(Frequencies, RoundedThroughADtype) {
  for (rope_dtype dtype : {ROPE_F16, ROPE_BF16}) {
    rope_config config = Config(64);
    const std::vector<double> plain = InvFreq(config);
    config.inv_freq_dtype = dtype;
    const std::vector<double> rounded = InvFreq(config);
    for (int i = 0; i < 32; ++i) EXPECT_EQ(rounded[i], Rounded(dtype, plain[i]));
  }
}

TEST(Frequencies, ProportionalTurnsSomePairsOfTheWholeHead) {
  rope_config config = Config(128);
  config.scaling = ROPE_SCALING_PROPORTIONAL;
  config.rotary_dim = 32;
  const std::vector<double> got = InvFreq(config);
  ASSERT_EQ(got.size(), 64u);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(got[i] != 0, i < 16);
  EXPECT_EQ(Info(config).rotary_dim, 128);
}

TEST(Frequencies, AxesOfPairsAreThoseOfThePublishedModels) {
  int found = 0;
  for (const json& record : Golden()["derived"]) {
    if (record["kind"] != "axis_map" || record["rule"] == "ernie 3d") continue;
    const std::vector<int> sections = record["sections"], want = record["axis"];
    rope_config config = Config(2 * static_cast<int>(want.size()));
    config.axes = static_cast<int>(sections.size());
    for (size_t a = 0; a < sections.size(); ++a) config.mrope_section[a] = sections[a];
    config.mrope_interleaved = record["rule"] == "interleaved";
    const Context context = Create(config);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_EQ(context->pair_axis[i], want[i]) << record["name"];
    ++found;
  }
  EXPECT_EQ(found, 4);
}

TEST(Sets, KeepTheirOwnFrequenciesAndFactors) {
  rope_config a = Config(64), b = Config(64, ROPE_PAIRING_HALVES, 500000);
  b.attention_factor = 1.5;
  const rope_config* configs[] = {&a, &b, &a};
  rope_context* made = nullptr;
  ASSERT_OK(rope_context_create_sets(configs, 3, &made));
  const Context sets(made);
  const std::vector<double> want[] = {InvFreq(a), InvFreq(b), InvFreq(a)};
  for (int s = 0; s < 3; ++s) {
    rope_info info = ROPE_INIT(rope_info);
    ASSERT_OK(rope_context_info(made, s, &info));
    EXPECT_EQ(info.freq_sets, 3);
    EXPECT_EQ(info.attention_factor, s == 1 ? 1.5 : 1);
    std::vector<double> got(32);
    ASSERT_OK(rope_context_inv_freq(made, s, got.data(), 32));
    EXPECT_EQ(got, want[s]);
  }
}

TEST(NextChange, OfEveryScaling) {
  const auto next = [](const rope_config& config, int64_t length) {
    int64_t value = -1;
    EXPECT_OK(rope_config_next_change(&config, length, &value));
    return value;
  };
  EXPECT_EQ(next(Config(64), 0), INT64_MAX);
  rope_config dynamic = Config(64);
  dynamic.scaling = ROPE_SCALING_DYNAMIC;
  dynamic.factor = 2;
  dynamic.max_position_embeddings = 2048;
  dynamic.seq_len = 1;
  EXPECT_EQ(next(dynamic, 0), 2049);
  EXPECT_EQ(next(dynamic, 2048), 2049);
  EXPECT_EQ(next(dynamic, 5000), 5001);
  EXPECT_EQ(next(dynamic, INT64_MAX), INT64_MAX);
  // The claim itself: equal up to there, different from there on.
  const auto at = [&](int64_t length) {
    dynamic.seq_len = length;
    return InvFreq(dynamic);
  };
  EXPECT_EQ(at(1), at(2048));
  EXPECT_NE(at(2048), at(2049));
  const std::vector<double> shorts(32, 1.0), longs(32, 4.0);
  rope_config longrope = Config(64);
  longrope.scaling = ROPE_SCALING_LONGROPE;
  longrope.factor = 4;
  longrope.original_max_position_embeddings = 4096;
  longrope.seq_len = 1;
  longrope.short_factor = shorts.data();
  longrope.long_factor = longs.data();
  longrope.table_length = 32;
  EXPECT_EQ(next(longrope, 0), 4097);
  EXPECT_EQ(next(longrope, 4096), 4097);
  EXPECT_EQ(next(longrope, 4097), INT64_MAX);
  // The length is the argument: that of the configuration is not read.
  longrope.seq_len = -3;
  EXPECT_EQ(next(longrope, 0), 4097);
  // No length is above the largest.
  longrope.original_max_position_embeddings = INT64_MAX;
  EXPECT_EQ(next(longrope, 5), INT64_MAX);
  longrope.long_factor = shorts.data();
  EXPECT_EQ(next(longrope, 0), INT64_MAX);
}

// An engine sets it for every kind of layer.
TEST(SeqLen, IsWithoutEffectWhereTheScalingDoesNotUseIt) {
  rope_config config = Config(64);
  const std::vector<double> want = InvFreq(config);
  config.seq_len = 100000;
  EXPECT_EQ(InvFreq(config), want);
  config.scaling = ROPE_SCALING_LINEAR;
  config.factor = 1;
  EXPECT_EQ(InvFreq(config), want);
  config.scaling = ROPE_SCALING_NOPE;
  config.factor = 0;
  EXPECT_NE(Create(config), nullptr);
}

// The lengths that a context tells have its frequencies, and those around them have not.
TEST(ValidFrom, IsTheFirstLengthWithTheseFrequencies) {
  const auto expect = [](rope_config config, int64_t seq_len, int64_t from, int64_t below) {
    config.seq_len = seq_len;
    const Context context = Create(config);
    rope_info info = ROPE_INIT(rope_info);
    ASSERT_OK(rope_context_info(context.get(), 0, &info));
    EXPECT_EQ(info.valid_from, from) << seq_len;
    EXPECT_EQ(info.valid_below, below) << seq_len;
    const std::vector<double> want = InvFreq(config);
    const auto at = [&config](int64_t length) {
      config.seq_len = length;
      return InvFreq(config);
    };
    EXPECT_EQ(at(std::max<int64_t>(1, from)), want) << seq_len;
    if (from > 1) EXPECT_NE(at(from - 1), want) << seq_len;
    if (below == INT64_MAX) return;
    EXPECT_EQ(at(below - 1), want) << seq_len;
    EXPECT_NE(at(below), want) << seq_len;
  };
  expect(Config(64), 5, 0, INT64_MAX);
  rope_config dynamic = Config(64);
  dynamic.scaling = ROPE_SCALING_DYNAMIC;
  dynamic.factor = 2;
  dynamic.max_position_embeddings = 2048;
  expect(dynamic, 5, 0, 2049);
  expect(dynamic, 2048, 0, 2049);
  expect(dynamic, 3000, 3000, 3001);
  dynamic.scaling = ROPE_SCALING_DYNAMIC_STEPS;
  expect(dynamic, 2048, 0, 2049);
  expect(dynamic, 2049, 2049, 4097);
  expect(dynamic, 4096, 2049, 4097);
  expect(dynamic, 4097, 4097, 8193);
  dynamic.max_position_embeddings = int64_t{1} << 61;
  expect(dynamic, INT64_MAX, (int64_t{1} << 62) + 1, INT64_MAX);
  const std::vector<double> shorts(32, 1.0), longs(32, 4.0);
  rope_config longrope = Config(64);
  longrope.scaling = ROPE_SCALING_LONGROPE;
  longrope.factor = 4;
  longrope.original_max_position_embeddings = 4096;
  longrope.short_factor = shorts.data();
  longrope.long_factor = longs.data();
  longrope.table_length = 32;
  expect(longrope, 1, 0, 4097);
  expect(longrope, 4097, 4097, INT64_MAX);
  expect(longrope, 100000, 4097, INT64_MAX);
  longrope.long_factor = shorts.data();
  expect(longrope, 100000, 0, INT64_MAX);
}

// What a context tells of the lengths it is right for, and what it does beyond.
TEST(ValidBelow, IsToldAndLargerPositionsAreRefused) {
  const auto valid_below = [](const Context& context, int32_t set = 0) {
    rope_info info = ROPE_INIT(rope_info);
    EXPECT_OK(rope_context_info(context.get(), set, &info));
    return info.valid_below;
  };
  EXPECT_EQ(valid_below(Create(Config(64))), INT64_MAX);

  rope_config dynamic = Config(64);
  dynamic.scaling = ROPE_SCALING_DYNAMIC;
  dynamic.factor = 2;
  dynamic.max_position_embeddings = 2048;
  dynamic.seq_len = 3000;
  EXPECT_EQ(valid_below(Create(dynamic)), 3001);

  const std::vector<double> shorts(32, 1.0), longs(32, 4.0);
  rope_config below = Config(64);
  below.scaling = ROPE_SCALING_LONGROPE;
  below.factor = 4;
  below.original_max_position_embeddings = 4096;
  below.seq_len = 1;
  below.short_factor = shorts.data();
  below.long_factor = longs.data();
  below.table_length = 32;
  rope_config above = below;
  above.seq_len = 4097;
  const rope_config* configs[] = {&below, &above};
  rope_context* created = nullptr;
  ASSERT_OK(rope_context_create_sets(configs, 2, &created));
  const Context sets(created), context = Create(below);
  EXPECT_EQ(valid_below(context), 4097);
  EXPECT_EQ(valid_below(sets, 0), 4097);
  EXPECT_EQ(valid_below(sets, 1), INT64_MAX);

  std::vector<float> q(4 * 64, 1.0f);
  const std::vector<float> before = q;
  const auto apply = [&q](const Context& with, const rope_positions& positions,
                          rope_operation operation = ROPE_FORWARD) {
    rope_qk_args args = Args(2, 2);
    args.operation = operation;
    args.q = Tensor(q.data(), ROPE_F32, 1);
    args.positions = positions;
    return rope_apply_qk(with.get(), &args);
  };
  const auto expect_refused = [&](rope_status status, std::initializer_list<const char*> parts) {
    EXPECT_EQ(status, kInvalid);
    ExpectMessage("rope_apply_qk", parts);
    EXPECT_EQ(q, before);
  };
  expect_refused(apply(context, Offset(4095)),
                 {"position 4096", "token 1", "must be below 4096", "4097 tokens", "seq_len"});
  expect_refused(apply(context, Offset(4095), ROPE_INVERSE), {"position 4096"});
  int64_t offsets[2] = {0, 4095};
  rope_positions positions{};
  positions.kind = ROPE_POSITIONS_SEQ_OFFSETS;
  positions.offsets_i64 = offsets;
  expect_refused(apply(context, positions), {"position 4096", "token 1", "batch row 1"});
  const int32_t wrong_sets[2] = {1, 0}, right_sets[2] = {0, 1};
  positions.freq_sets = wrong_sets;
  expect_refused(apply(sets, positions), {"4097", "batch row 1"});
  positions = rope_positions{};
  float ids[4] = {0, 1e30f, -5, std::nanf("")};
  positions.kind = ROPE_POSITIONS_IDS_BT;
  positions.ids_f32 = ids;
  expect_refused(apply(context, positions), {"token 1", "batch row 0"});
  float row[64 * 2];
  const rope_positions last = Offset(4096);
  const rope_cos_sin rows = Rows(ROPE_COS_SIN_PACKED, ROPE_F32, 32, 1, row);
  EXPECT_EQ(rope_cos_sin_fill(context.get(), 1, 1, &last, &rows, nullptr), kInvalid);
  ExpectMessage("rope_cos_sin_fill", {"4097"});

  rope_config with_axes = below;  // every axis is looked at
  std::vector<uint8_t> axis_of_pair(32, 0);
  axis_of_pair[31] = 2;
  with_axes.axes = 3;
  with_axes.pair_axis = axis_of_pair.data();
  const Context axes = Create(with_axes);
  for (int a = 0; a < 3; ++a) {
    int64_t coordinates[2 * 2 * 3] = {};
    coordinates[2 * 3 + a] = 4096;
    positions = rope_positions{};
    positions.kind = ROPE_POSITIONS_IDS_BTA;
    positions.ids_i64 = coordinates;
    expect_refused(apply(axes, positions), {"position 4096", "token 0", "batch row 1"});
  }
  positions = rope_positions{};
  positions.kind = ROPE_POSITIONS_IDS_BT;
  positions.ids_f32 = ids;

  EXPECT_OK(apply(context, Offset(4094)));  // the last position that the length has
  EXPECT_OK(apply(context, Offset(-70000)));
  const int64_t distances[2 * 2] = {70000, 70000, 70000, 70000};
  rope_positions far{};
  far.kind = ROPE_POSITIONS_IDS_BT;
  far.ids_i64 = distances;
  EXPECT_OK(apply(context, far, ROPE_SHIFT));  // no positions
  ids[1] = 1;
  EXPECT_OK(apply(context, positions));
  positions = rope_positions{};
  positions.kind = ROPE_POSITIONS_SEQ_OFFSETS;
  positions.offsets_i64 = offsets;
  positions.freq_sets = right_sets;
  EXPECT_OK(apply(sets, positions));
}

// --- precise.h ----------------------------------------------------------------------------------

Quad ToQuad(Precise p) { return Quad(p.high) + Quad(p.low); }
double RelativeError(Precise got, Quad want) {
  const Quad error = (ToQuad(got) - want) / want;
  return static_cast<double>(error < 0 ? -error : error);
}

TEST(PreciseArithmetic, HasAHundredBits) {
  std::mt19937_64 random(9);
  std::uniform_real_distribution<double> uniform(0.1, 10);
  double worst = 0;
  for (int n = 0; n < 100000; ++n) {
    const Precise a = Precise(uniform(random)) + uniform(random) * 0x1p-55;
    const Precise b = Precise(uniform(random)) + uniform(random) * 0x1p-55;
    worst = std::max({worst, RelativeError(a + b, ToQuad(a) + ToQuad(b)),
                      RelativeError(a * b, ToQuad(a) * ToQuad(b)),
                      RelativeError(a / b, ToQuad(a) / ToQuad(b))});
  }
  EXPECT_LT(worst, 0x1p-100);
}

TEST(PreciseArithmetic, Roots) {
  double worst = 0;
  for (double value : {2.0, 10000.0, 500000.0, 1e6, 1e-3, 1.5, 1e10}) {
    for (int n : {1, 2, 3, 16, 32, 64, 127, 512}) {
      worst = std::max(worst, RelativeError(Root(value, n), RootOf(value, n)));
    }
  }
  EXPECT_LT(worst, 0x1p-98);
}

TEST(PreciseArithmetic, Logarithms) {
  double worst = 0;
  for (double value : {1e-300, 1e-3, 0.5, 0.7, 0.75, 1.25, 1.4, 1.5, 2.0, 10000.0, 500000.0, 1e300}) {
    worst = std::max({worst, RelativeError(Log(Precise(value)), LogOf(value)),
                      RelativeError(Log(Precise(value) / 3.0), LogOf(Quad(value) / 3))});
  }
  EXPECT_LT(worst, 0x1p-98);
  EXPECT_EQ(static_cast<double>(Log(Precise(1))), 0);
}

TEST(PreciseArithmetic, FixedTurnsRoundToNearest) {
  std::mt19937_64 random(10);
  const auto check = [](Precise turns) {
    const Turns fixed = ToFixedTurns(turns);
    const Quad got = Quad(fixed.whole) * Quad(0x1p64) + Quad(fixed.fraction);
    const Quad error = ToQuad(turns) * Quad(0x1p64) - got;
    EXPECT_LE(static_cast<double>(error < 0 ? -error : error), 0.5)
        << turns.high << " " << turns.low;
  };
  for (int n = 0; n < 100000; ++n) {
    const double high =
        std::ldexp(static_cast<double>(random() >> 11), -53 - static_cast<int>(random() % 20));
    check(Precise(random() % 2 ? high : -high) +
          std::ldexp(static_cast<double>(random() >> 11), -120));
  }
  for (double v :
       {0.0, 1.0, -1.0, 0.5, -0.5, 1e9 + 0.25, -1e9 - 0.25, 0x1p-64, 0x1p-65, -0x1p-64}) {
    check(v);
    check(Precise(v) - 0x1p-66);  // carries and borrows across the words
    check(Precise(v) + 0x1p-70);
  }
}

}  // namespace
}  // namespace rope::testing
