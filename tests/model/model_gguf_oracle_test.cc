// What llama.cpp's own converter writes for the models of tests/data/oracle, read by
// rope_model_create_gguf, gives the RoPE that transformers computes for the same configuration:
// the same layers turn, by the same frequencies and the same factor. The keys are those of
// tests/data/gguf.json (tests/gguf/record.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gguf_bytes.h"
#include "librope/model.h"
#include "oracle_array.h"
#include "support/load_json.h"

namespace rope::testing {
namespace {

using nlohmann::json;

template <class T>
std::string RawList(const json& values) {
  std::string bytes;
  for (const json& value : values) bytes += Raw<T>(value.get<T>());
  return bytes;
}

void AddKey(const std::string& key, const json& said, GgufBytes* bytes) {
  const std::string kind = said[0];
  const json& value = said[1];
  const uint64_t count = value.is_array() ? value.size() : 0;
  if (kind == "string") bytes->String(key, value);
  if (kind == "uint32") bytes->Add(GgufBytes::kU32, key, Raw<uint32_t>(value));
  if (kind == "float32") bytes->Add(GgufBytes::kF32, key, Raw<float>(value));
  if (kind == "bool") bytes->Add(GgufBytes::kBool, key, Raw<uint8_t>(value.get<bool>() ? 1 : 0));
  const auto list = [&](GgufBytes::Type type, const std::string& raw) {
    bytes->Add(GgufBytes::kArray, key, Raw<uint32_t>(type) + Raw(count) + raw);
  };
  if (kind == "int32[]") list(GgufBytes::kI32, RawList<int32_t>(value));
  if (kind == "uint32[]") list(GgufBytes::kU32, RawList<uint32_t>(value));
  if (kind == "float32[]") list(GgufBytes::kF32, RawList<float>(value));
  if (kind == "bool[]") {
    std::string raw;
    for (const json& flag : value) raw += Raw<uint8_t>(flag.get<bool>() ? 1 : 0);
    list(GgufBytes::kBool, raw);
  }
}

std::string FileOf(const json& record) {
  GgufBytes bytes;
  for (const auto& [key, said] : record["keys"].items()) AddKey(key, said, &bytes);
  for (const auto& [name, data] : record["tensors"].items()) {
    const OracleArray array(json{{"dtype", "f32"}, {"shape", {0}}, {"data", data}});
    const size_t count = array.bytes.size() / sizeof(float);
    bytes.Tensor(name, std::vector<float>(array.as<float>(), array.as<float>() + count));
  }
  return bytes.Bytes();
}

class GgufModel {
 public:
  explicit GgufModel(const std::string& bytes) {
    if (rope_model_create_gguf(bytes.data(), bytes.size(), &model_) != ROPE_OK) {
      error_ = rope_last_error();
    }
  }
  GgufModel(const GgufModel&) = delete;
  GgufModel& operator=(const GgufModel&) = delete;
  ~GgufModel() { rope_model_destroy(model_); }

  const rope_model* get() const { return model_; }
  const std::string& error() const { return error_; }

 private:
  rope_model* model_ = nullptr;
  std::string error_;
};

// What differs between one kind and the rope of the case, empty if nothing does.
std::string Compare(const rope_model* model, int32_t type, const json& rope) {
  rope_config config = ROPE_INIT(rope_config);
  if (rope_model_config(model, type, &config) != ROPE_OK) return rope_last_error();
  for (const json& length : rope["lengths"]) {
    config.seq_len = 0;
    if (config.scaling == ROPE_SCALING_LONGROPE) {
      config.seq_len = length["seq_len"].is_null() ? 1 : length["seq_len"].get<int64_t>();
    }
    rope_context* context = nullptr;
    if (rope_context_create(&config, &context) != ROPE_OK) return rope_last_error();
    rope_info info = ROPE_INIT(rope_info);
    EXPECT_EQ(rope_context_info(context, 0, &info), ROPE_OK);
    std::vector<double> ours(static_cast<size_t>(info.pairs));
    EXPECT_EQ(rope_context_inv_freq(context, 0, ours.data(), info.pairs), ROPE_OK);
    rope_context_destroy(context);
    const OracleArray theirs(length["inv_freq"]);
    if (theirs.shape[0] != info.pairs) {
      return std::to_string(info.pairs) + " pairs, not " + std::to_string(theirs.shape[0]);
    }
    for (size_t i = 0; i < ours.size(); ++i) {
      const double other = theirs.as<float>()[i];
      if (!(std::fabs(ours[i] - other) <= 1e-6 * other + 1e-20)) {
        return "inv_freq[" + std::to_string(i) + "] is " + std::to_string(ours[i]) + ", not " +
               std::to_string(other);
      }
    }
    const double attention = length["attention_factor"];
    if (!(std::fabs(info.attention_factor - attention) <= 1e-6 * attention)) {
      return "attention_factor is " + std::to_string(info.attention_factor) + ", not " +
             std::to_string(attention);
    }
    const double softmax = rope["softmax_factor"];
    if (!(std::fabs(info.softmax_factor - softmax) <= 1e-6 * softmax)) {
      return "softmax_factor is " + std::to_string(info.softmax_factor) + ", not " +
             std::to_string(softmax);
    }
    if (rope["axes"] != info.axes) return "axes are " + std::to_string(info.axes);
  }
  return "";
}

// The first difference between a record and its case.
std::string Difference(const json& record) {
  const json test = LoadJson("oracle/" + record["case"].get<std::string>() + ".json");
  const GgufModel model(FileOf(record));
  if (model.get() == nullptr) return model.error();
  std::map<std::pair<int32_t, int>, bool> seen;
  for (size_t layer = 0; layer < test["layers"].size(); ++layer) {
    const int index = test["layers"][layer];
    const std::string name = "layer " + std::to_string(layer) + ": ";
    int32_t type = -1;
    if (rope_model_layer_type(model.get(), static_cast<int32_t>(layer), &type) != ROPE_OK) {
      return name + rope_last_error();
    }
    if (!seen.emplace(std::make_pair(type, index), true).second) continue;
    rope_config config = ROPE_INIT(rope_config);
    EXPECT_EQ(rope_model_config(model.get(), type, &config), ROPE_OK);
    const bool turns = config.scaling != ROPE_SCALING_NOPE;
    if (turns != (index >= 0)) return name + (turns ? "turns" : "does not turn");
    if (!turns) continue;
    const std::string wrong = Compare(model.get(), type, test["ropes"][static_cast<size_t>(index)]);
    if (!wrong.empty()) return name + wrong;
  }
  int32_t type = -1;
  const auto beyond = static_cast<int32_t>(test["layers"].size());
  return rope_model_layer_type(model.get(), beyond, &type) == ROPE_OK ? "has more layers" : "";
}

// Files that hold another RoPE than the model's, or none that could be read: what their difference
// says, and why. The list is strict.
struct Expected {
  const char* name;
  const char* difference;
  const char* reason;
};

constexpr char kDynamic[] =
    "GGUF has no dynamic NTK: the converter writes the frequencies of short texts";
constexpr char kNoSections[] = "the defaults of the class have no sections";
constexpr char kNotWritten[] = "the converter does not write it for this architecture";

constexpr Expected kExpected[] = {
    {"class-exaone4-5", "must be absent or 0", "llama.cpp gives windows to models of 64 layers"},
    {"class-glm-ocr", "16 pairs, not 32",
     "the converter takes half of a head, the class all of it"},
    {"class-glm4-moe", "no even width of a head", "the defaults of the class do not fit together"},
    {"class-jamba", "without RoPE only", "it has none"},
    {"class-laguna", "64 pairs, not 32",
     "all layers have windows by the converter, and none by the class"},
    {"class-mellum", "must be rope.freq_base", "llama.cpp takes one base, and the file has two"},
    {"class-muse-glimmer-assistant", "is a draft", "it is the draft of another model"},
    {"class-paddleocr-vl", "dimension_sections is missing", kNoSections},
    {"class-qwen2-5-vl", "dimension_sections is missing", kNoSections},
    {"class-qwen3-vl", "dimension_sections is missing", kNoSections},
    {"class-qwen3-vl-moe", "dimension_sections is missing", kNoSections},
    {"class-solar-open", "32 pairs, not 64",
     "the converter takes half of a head, the class all of it"},
    {"hand-dynamic", "inv_freq[1]", kDynamic},
    {"hand-dynamic-partial", "inv_freq[1]", kDynamic},
    {"hand-dynamic-theta", "inv_freq[1]", kDynamic},
    {"hand-gemma3-dynamic-nested", "inv_freq[1]", kDynamic},
    {"hand-gemma3-longrope-nested", "is missing", kNotWritten},
    {"hand-gpt-neox-pythia", "inv_freq[1]", kNotWritten},
    {"hand-granite-swa-thetas", "inv_freq[1]", kNotWritten},
    {"hand-granitemoehybrid-rope", "does not turn", kNotWritten},
    {"hand-llama3-partial", "inv_freq[9]", "the converter bakes the factors for whole heads"},
    {"hand-longrope", "is missing", kNotWritten},
    {"hand-longrope-attention-factor", "is missing", kNotWritten},
    {"hand-longrope-factor", "is missing", kNotWritten},
    {"hand-olmo3-theta", "must be rope.freq_base",
     "llama.cpp takes one base, and the file has two"},
    {"hand-phimoe-mscale", "attention_factor",
     "the converter writes the one that follows from lengths"},
    {"hand-phimoe-mscale-equal", "attention_factor", "the same"},
    {"hand-proportional-linear", "inv_freq[0]", kNotWritten},
    {"hand-yarn-attention-factor", "yarn_attn_factor (0.75)", "llama.cpp does not read that key"},
    {"hand-yarn-betas-zero", "must be positive", "0 is no number of turns"},
    {"hand-yarn-mscale", "attention_factor", kNotWritten},
    {"hand-yarn-no-truncate", "inv_freq[11]", kNotWritten},
    {"internlm-internlm2-5-7b", "inv_freq[1]", kDynamic},
    {"model-exaone4-32b", "must be absent or 0", "the case has 8 of the 64 layers"},
    {"model-minicpm-2b-128k", "inv_freq[1]", kDynamic},
    {"nvidia-nemotron-h-56b-base-8k", "without RoPE only", "it has none"},
    {"nvidia-nvidia-nemotron-3-5-lightning-30b-a3b-nvfp4", "without RoPE only", "it has none"},
};

const Expected* FindExpected(const std::string& name) {
  for (const Expected& expected : kExpected) {
    if (expected.name == name) return &expected;
  }
  return nullptr;
}

TEST(ModelGgufOracle, KeysOfTheConverterGiveTheModelsRope) {
  const json recorded = LoadJson("gguf.json");
  size_t same = 0, differ = 0;
  for (const json& record : recorded["records"]) {
    const std::string name = record["case"];
    const std::string difference = Difference(record);
    const Expected* expected = FindExpected(name);
    if (expected == nullptr) {
      EXPECT_EQ(difference, "") << name;
      ++same;
      continue;
    }
    EXPECT_NE(difference.find(expected->difference), std::string::npos)
        << name << " differs otherwise: " << difference;
    ++differ;
  }
  EXPECT_EQ(differ, std::size(kExpected));
  EXPECT_GT(same, size_t{150});
  std::printf("%zu models as transformers computes them, %zu files that say otherwise\n", same,
              differ);
}

// Digests of angles of the layers: of the file, and of the configuration that it was written from.
// Where the converter computes in f32 they are off in the last place: baked factors (Llama 3, Gemma
// 4), YaRN's attention factor.
TEST(ModelGgufOracle, DigestsOfAnglesAreThoseOfTheConfiguration) {
  const json recorded = LoadJson("gguf.json");
  size_t same = 0, compared = 0;
  for (const json& record : recorded["records"]) {
    const std::string name = record["case"];
    if (FindExpected(name) != nullptr) continue;
    const GgufModel file(FileOf(record));
    const json test = LoadJson("oracle/" + name + ".json");
    const std::string text = test["config"].dump();
    rope_model* model = nullptr;
    if (rope_model_create(text.data(), text.size(), &model) != ROPE_OK) continue;
    bool equal = true, open = false;
    for (int32_t layer = 0; !open && layer < static_cast<int32_t>(test["layers"].size()); ++layer) {
      const rope_model* const of[] = {file.get(), model};
      rope_digest_text digests[2];
      for (int i = 0; i < 2; ++i) {
        int32_t type = 0;  // the only one, where an excerpt does not tell how many layers there are
        if (rope_model_layer_type(of[i], layer, &type) != ROPE_OK) {
          open = rope_model_layer_type_count(of[i]) > 1;
        }
        ASSERT_EQ(rope_model_digest(of[i], type, ROPE_DIGEST_ANGLES, &digests[i]), ROPE_OK)
            << name << rope_last_error();
      }
      equal = equal && std::string(digests[0].text) == digests[1].text;
    }
    rope_model_destroy(model);
    if (open) continue;
    ++compared;
    same += equal;
    const bool in_f32 =
        !record["tensors"].empty() || record["keys"].dump().find("\"yarn\"") != std::string::npos;
    EXPECT_TRUE(equal || in_f32) << name;
  }
  EXPECT_GE(compared, size_t{150});
  EXPECT_GE(same, size_t{134});
  std::printf("%zu of %zu files have the angles of their configurations, bit for bit\n", same,
              compared);
}

// As llama.cpp rotates: its angles, the factors of one length, YaRN's range in whole pairs, and its
// numbers of turns but for two architectures (docs/gguf.md).
rope_config AsLlamaCpp(rope_config config, const std::string& architecture, int64_t tokens) {
  config.angle = ROPE_ANGLE_GGML;
  config.yarn_no_truncate = 0;
  if (architecture != "mistral3" && architecture != "grok") config.beta_fast = config.beta_slow = 0;
  if (config.scaling != ROPE_SCALING_LONGROPE) return config;
  const bool beyond = tokens > config.original_max_position_embeddings;
  config.freq_factors = beyond ? config.long_factor : config.short_factor;
  config.short_factor = config.long_factor = nullptr;
  config.scaling = ROPE_SCALING_DEFAULT;
  config.original_max_position_embeddings = config.max_position_embeddings = 0;
  return config;
}

// Rotates the head that record.py has rotated by ggml.
std::vector<float> Rotated(const rope_config& config, const json& positions) {
  const auto tokens = static_cast<int64_t>(positions[0].size());
  std::vector<float> x(static_cast<size_t>(tokens * config.head_dim));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int32_t i = 0; i < config.head_dim; ++i) {
      x[static_cast<size_t>(t * config.head_dim + i)] =
          static_cast<float>((i * 37 + t * 11) % 101 - 50) / 64;
    }
  }
  const int32_t axes = config.axes != 0 ? config.axes : 1;
  std::vector<int64_t> ids;
  for (int32_t a = 0; a < axes; ++a) {
    for (const json& id : positions[static_cast<size_t>(a)]) ids.push_back(id);
  }
  rope_context* context = nullptr;
  EXPECT_EQ(rope_context_create(&config, &context), ROPE_OK) << rope_last_error();
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = 1;
  args.tokens = tokens;
  args.q.data = x.data();
  args.q.dtype = ROPE_DTYPE_F32;
  args.q.layout = ROPE_LAYOUT_BSHD;
  args.q.heads = 1;
  args.positions.kind = axes > 1 ? ROPE_POSITIONS_IDS_ABT : ROPE_POSITIONS_IDS_T;
  args.positions.ids_i64 = ids.data();
  EXPECT_EQ(rope_apply_qk(context, &args), ROPE_OK) << rope_last_error();
  rope_context_destroy(context);
  return x;
}

// cosf of two libraries, and products that are fused or not: a few units of f32's last place of
// values up to 1.2 (50 / 64 each way, times an attention factor up to 1.5).
constexpr double kTolerance = 1e-6;

TEST(ModelGgufOracle, LlamaCppsArgumentsAndGgmlsRopeGiveTheSameHeads) {
  const json recorded = LoadJson("gguf.json");
  size_t compared = 0;
  for (const json& record : recorded["records"]) {
    if (!record.contains("ggml")) continue;
    const GgufModel model(FileOf(record));
    if (model.get() == nullptr) continue;  // the other test says which
    for (const json& kind : record["ggml"]) {
      const std::string name = record["case"].get<std::string>() + " layer " + kind["layer"].dump();
      int32_t type = -1;
      ASSERT_EQ(rope_model_layer_type(model.get(), kind["layer"], &type), ROPE_OK) << name;
      rope_config config = ROPE_INIT(rope_config);
      ASSERT_EQ(rope_model_config(model.get(), type, &config), ROPE_OK) << name;
      const std::vector<float> ours =
          Rotated(AsLlamaCpp(config, record["keys"]["general.architecture"][1], kind["tokens"]),
                  recorded["positions"]);
      const OracleArray theirs(json{{"dtype", "f32"}, {"shape", {0}}, {"data", kind["rotated"]}});
      ASSERT_EQ(theirs.bytes.size(), ours.size() * sizeof(float)) << name;
      double worst = 0;
      for (size_t i = 0; i < ours.size(); ++i) {
        worst = std::max(worst, std::fabs(static_cast<double>(ours[i]) - theirs.as<float>()[i]));
      }
      EXPECT_LE(worst, kTolerance) << name;
      ++compared;
    }
  }
  EXPECT_GT(compared, size_t{80});
  std::printf("%zu kinds of layers rotated as ggml rotates them\n", compared);
}

}  // namespace
}  // namespace rope::testing
