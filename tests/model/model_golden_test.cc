// From config.json to frequencies: models of golden.json through rope_model_create and
// rope_context_create, against the values that transformers' own tests expect ("golden") and f64
// values of the documented formulas ("derived").
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "support/handles.h"
#include "testing.h"

namespace rope::testing {
namespace {

using nlohmann::json;

const json& Derived(const std::string& name) {
  for (const json& record : Golden()["derived"]) {
    if (record["name"] == name) return record;
  }
  static const json none;
  ADD_FAILURE() << "no record " << name;
  return none;
}

// Values printed with five digits.
void ExpectPrinted(const std::vector<double>& got, const json& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i].get<double>(), 1e-4) << i;
}

// Distance in units in the last place of f32.
double Ulps(double got, double want) {
  if (want == 0) return got == 0 ? 0 : INFINITY;
  int exponent;
  std::frexp(want, &exponent);
  return std::fabs(got - want) / std::ldexp(1.0, exponent - 24);
}

// `want` is the formula in f64. EXACT must meet it; FLOAT32 repeats the f32 steps of transformers,
// which end a few f32 units beside it: most where llama3 blends, and where LongRoPE multiplies
// first.
void ExpectFormula(rope_config config, const json& want) {
  const std::vector<double> steps = InvFreq(config);
  config.angle = ROPE_ANGLE_EXACT;
  const std::vector<double> exact = InvFreq(config);
  ASSERT_EQ(steps.size(), want.size());
  ASSERT_EQ(exact.size(), want.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const double value = want[i].get<double>();
    EXPECT_NEAR(exact[i], value, 2e-13 * std::fabs(value)) << "pair " << i;
    EXPECT_LE(Ulps(steps[i], value), 8) << "pair " << i;
  }
}

TEST(ModelGolden, FrequenciesAreThoseOfTransformersTests) {
  int checked = 0;
  for (const json& record : Golden()["golden"]) {
    if (record["kind"] != "inv_freq") continue;
    SCOPED_TRACE(record["name"].get<std::string>());
    // The nested records are one entry of a dictionary per layer type of Gemma 3.
    json config = record["config"];
    const bool nested = record["name"].get<std::string>().find("nested") != std::string::npos;
    config["rope_parameters"] = record["rope_parameters"];
    if (nested) {
      config["rope_parameters"] = {{"full_attention", record["rope_parameters"]},
                                   {"sliding_attention", {{"rope_theta", 1e4}}}};
    }
    const Model model(config.dump());
    rope_config rope = model.Config("full_attention");
    if (record["seq_len"].is_number()) rope.seq_len = record["seq_len"].get<int64_t>();
    const Context context = Create(rope);
    ExpectPrinted(InvFreq(context), record["expected"]);
    ExpectFormula(rope, record["expected_ref_fp64"]);
    EXPECT_DOUBLE_EQ(Info(context).attention_factor, record["attention_scaling"].get<double>());
    ++checked;
  }
  EXPECT_EQ(checked, 10);
}

TEST(ModelGolden, AttentionFactorsAreThoseOfTransformersTests) {
  int checked = 0;
  for (const json& record : Golden()["golden"]) {
    if (record["kind"] != "attention_scaling") continue;
    SCOPED_TRACE(record["name"].get<std::string>());
    for (const json& c : record["cases"]) {
      json dictionary = c;
      dictionary.erase("expected");
      dictionary["rope_theta"] = 10000;
      const bool yarn = record["name"] == "yarn_attention_factor_default";
      dictionary["rope_type"] = yarn ? "yarn" : "longrope";
      if (!yarn) {
        dictionary["short_factor"] = std::vector<double>(64, 1);
        dictionary["long_factor"] = std::vector<double>(64, 2);
      }
      const json config = {{"model_type", "llama"},
                           {"hidden_size", 4096},
                           {"num_attention_heads", 32},
                           {"max_position_embeddings", 2048},
                           {"rope_parameters", dictionary}};
      const Model model(config.dump());
      rope_config rope = model.Config();
      if (!yarn) rope.seq_len = 1;
      EXPECT_DOUBLE_EQ(Info(rope).attention_factor, c["expected"].get<double>());
      ++checked;
    }
  }
  EXPECT_EQ(checked, 8);
}

struct DerivedModel {
  const char *record, *text_of, *type;
  int64_t seq_len;
  const char* key;
};

TEST(ModelGolden, FrequenciesOfPublishedModelsFollowTheirFormulas) {
  const DerivedModel kModels[] = {
      {"llama31_8b", "meta-llama/Meta-Llama-3.1-8B", "full_attention", 0, "inv_freq"},
      {"deepseek_v3", "deepseek-ai/DeepSeek-R1", "full_attention", 0, "inv_freq"},
      {"deepseek_v4_flash_compress_layers", "deepseek-ai/DeepSeek-V4-Flash", "compress", 0,
       "inv_freq"},
      {"devstral2_123b", "mistralai/Devstral-2-123B-Instruct-2512", "full_attention", 0,
       "inv_freq"},
      {"phi35_mini", "microsoft/Phi-3.5-mini-instruct", "full_attention", 4096, "inv_freq_short"},
      {"phi35_mini", "microsoft/Phi-3.5-mini-instruct", "full_attention", 4097, "inv_freq_long"},
      {"gemma4_full", "google/gemma-4-26B-A4B", "full_attention", 0, "inv_freq"},
      {"gemma3_4b_full", "google/gemma-3-4b-it", "full_attention", 0, "inv_freq"},
      {"internlm2_5_7b_dynamic_65536", "internlm/internlm2_5-7b", "full_attention", 65536,
       "inv_freq"},
      {"hunyuan_vl_alpha", "tencent/HunyuanOCR (HunYuan-VL text)", "full_attention", 0, "inv_freq"},
      {"mimo_v2_flash_full", "XiaomiMiMo/MiMo-V2-Flash", "full_attention", 0, "inv_freq"},
  };
  for (const DerivedModel& m : kModels) {
    SCOPED_TRACE(std::string(m.record) + " " + m.key);
    const json& record = Derived(m.record);
    // No published copy of gemma-3-4b was seen; its values are those of the conversion script.
    const std::string text =
        std::string(m.text_of) == "google/gemma-3-4b-it"
            ? R"({"model_type": "gemma3_text", "head_dim": 256, "rope_theta": 1000000,
                                       "rope_scaling": {"rope_type": "linear", "factor": 8.0}})"
            : Published(m.text_of);
    const Model model(text);
    rope_config config = model.Config(m.type);
    config.seq_len = m.seq_len;
    const Context context = Create(config);
    ExpectFormula(config, record[m.key]);
    EXPECT_NEAR(Info(context).attention_factor, record["attention_scaling"].get<double>(), 1e-6);
    EXPECT_NEAR(Info(context).softmax_factor, record.value("softmax_scale_multiplier", 1.0), 1e-12);
  }
}

// The axis of every pair, found by giving each axis another id and asking for the angles.
std::vector<int> AxisOfPairs(const Context& context) {
  const rope_info info = Info(context);
  std::vector<int64_t> ids;
  for (int a = 0; a < info.axes; ++a) ids.push_back(a + 1);
  std::vector<float> angles(info.pairs);
  const rope_positions positions = Ids(ROPE_POSITIONS_IDS_ABT, ids.data());
  const rope_cos_sin rows = Rows(ROPE_COS_SIN_ANGLES, ROPE_DTYPE_F32, info.pairs, 1, angles.data());
  EXPECT_EQ(rope_cos_sin_fill(context.get(), 1, 1, &positions, &rows, nullptr), ROPE_OK)
      << rope_last_error();
  const std::vector<double> inv_freq = InvFreq(context);
  std::vector<int> axes;
  for (int i = 0; i < info.pairs; ++i) {
    axes.push_back(static_cast<int>(std::lround(static_cast<double>(angles[i]) / inv_freq[i])) - 1);
  }
  return axes;
}

TEST(ModelGolden, PairsHaveTheAxesOfTheirModels) {
  const std::pair<const char*, std::string> kMaps[] = {
      {"qwen2_vl_axis_map", Published("Qwen/Qwen2.5-VL-7B-Instruct")},
      {"glm4v_axis_map",
       R"({"model_type": "glm4v_text", "head_dim": 128, "partial_rotary_factor": 0.5,
                             "rope_parameters": {"mrope_section": [8, 12, 12]}})"},
      {"qwen3_vl_axis_map", Published("Qwen/Qwen3-VL-30B-A3B-Instruct")},
      {"ernie45_vl_axis_map", R"({"model_type": "ernie4_5_vl_moe", "head_dim": 128})"},
      {"hunyuan_xdrope_axis_map_original", Published("tencent/HunyuanOCR (HunYuan-VL text)")},
  };
  for (const auto& [name, text] : kMaps) {
    SCOPED_TRACE(name);
    const Model model(text);
    const rope_config config = model.Config();
    const Context context = Create(config);
    EXPECT_EQ(AxisOfPairs(context), Derived(name)["axis"].get<std::vector<int>>());
  }
}

TEST(ModelGolden, FrequenciesOfEsmAreF16Numbers) {
  const Model model(Published("facebook/esm2_t6_8M_UR50D"));
  rope_config config = model.Config();
  const std::vector<double> rounded = InvFreq(config);
  config.inv_freq_dtype = 0;
  const std::vector<double> fresh = InvFreq(config);
  EXPECT_NE(rounded, fresh);
  for (size_t i = 0; i < fresh.size(); ++i) {
    EXPECT_NEAR(rounded[i], fresh[i], fresh[i] * 0x1p-11) << i;
    int exponent;
    const double mantissa = std::frexp(rounded[i], &exponent);  // 11 bits, fewer if subnormal
    const double scaled = std::ldexp(mantissa, 11 + std::min(0, exponent + 13));
    EXPECT_EQ(scaled, std::trunc(scaled)) << i;
  }
}

}  // namespace
}  // namespace rope::testing
