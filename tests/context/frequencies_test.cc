// Frequencies and attention factors of every scaling: against published values, and against
// formulas in quad precision.
#include "context/frequencies.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "context/context.h"
#include "context/torch_pow.h"
#include "support/elements.h"
#include "support/enumerators.h"
#include "support/errors.h"
#include "support/handles.h"
#include "support/load_json.h"
#include "support/quad.h"

namespace rope::testing {
namespace {

// What a scaling gives nothing else checks: a new one needs values here.
static_assert(kLastScaling == ROPE_SCALING_DYNAMIC_STEPS);

using nlohmann::json;

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

TEST(Frequencies, AreThoseOfTransformersTests) {
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

TEST(Frequencies, OfPublishedModelsFollowTheirFormulas) {
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

TEST(Frequencies, AttentionFactorsAreThoseOfTransformersTests) {
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

TEST(Frequencies, OfYarnAreRightWhereItsRangeLeavesThePairs) {
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

TEST(Frequencies, FactorsOfAttentionAndSoftmaxFollowTheirFormulas) {
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
  rope_config config = Config(128, ROPE_PAIRING_HALVES, 500000);
  const std::vector<double> got = InvFreq(config);
  const TorchPow pow(500000, 64);
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(got[i], 1 / pow(i, static_cast<float>(2 * i) / 128.0f)) << i;
  }
  config.scaling = ROPE_SCALING_LINEAR;
  config.factor = 3;
  const std::vector<double> scaled = InvFreq(config);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(scaled[i], static_cast<float>(got[i]) / 3.0f);
}

// theta was computed with torch 2.15 by the expression of transformers, of a length in a tensor;
// Qwen 1 takes it from Python's numbers.
TEST(Frequencies, Float32TakesLongSequencesOfDynamicNtkFromATensor) {
  const struct {
    rope_scaling scaling;
    double factor;
    int64_t seq_len;
    double theta;
  } cases[] = {
      {ROPE_SCALING_DYNAMIC, 2.7, 4096, 10000},
      {ROPE_SCALING_DYNAMIC, 2.7, 5000, 16201.4462890625},
      {ROPE_SCALING_DYNAMIC, 2.7, 100003, 734483.25},
      {ROPE_SCALING_DYNAMIC_STEPS, 2, 65536, 346314.06936764135},
  };
  for (const auto& example : cases) {
    rope_config config = Config(64);
    config.scaling = example.scaling;
    config.max_position_embeddings = 4096;
    config.seq_len = example.seq_len;
    config.factor = example.factor;
    const TorchPow pow(static_cast<float>(example.theta), 32);
    const std::vector<double> got = InvFreq(config);
    for (int i = 0; i < 32; ++i) {
      EXPECT_EQ(got[i], 1 / pow(i, static_cast<float>(2 * i) / 64.0f)) << example.seq_len << i;
    }
  }
}

TEST(Frequencies, OfTheCallerAreTakenAndDivided) {
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

TEST(Frequencies, AreRoundedThroughADtype) {
  for (rope_dtype dtype = 1; dtype <= kLastDtype; ++dtype) {
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
  const Context sets = CreateSets({a, b, a});
  const std::vector<double> want[] = {InvFreq(a), InvFreq(b), InvFreq(a)};
  for (int s = 0; s < 3; ++s) {
    rope_info info = ROPE_INIT(rope_info);
    ASSERT_OK(rope_context_info(sets.get(), s, &info));
    EXPECT_EQ(info.freq_sets, 3);
    EXPECT_EQ(info.attention_factor, s == 1 ? 1.5 : 1);
    std::vector<double> got(32);
    ASSERT_OK(rope_context_inv_freq(sets.get(), s, got.data(), 32));
    EXPECT_EQ(got, want[s]);
  }
}

}  // namespace
}  // namespace rope::testing
