// Digests of models: one for all spellings of a text, another for another RoPE, layer by layer.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "testing.h"

namespace rope::testing {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

std::string Digest(const Model& model, int32_t type = -1, rope_digest same = ROPE_DIGEST_ROTATION) {
  rope_digest_text digest = {};
  EXPECT_EQ(rope_model_digest(model.get(), type, same, &digest), ROPE_OK) << rope_last_error();
  return digest.text;
}

std::string DigestOfText(std::string_view text) { return Digest(Model(text)); }

// The same text with its keys in the other order.
ordered_json Reversed(const ordered_json& value) {
  if (value.is_array()) {
    ordered_json list = ordered_json::array();
    for (const ordered_json& entry : value) list.push_back(Reversed(entry));
    return list;
  }
  if (!value.is_object()) return value;
  ordered_json object = ordered_json::object();
  std::vector<std::string> keys;
  for (const auto& [key, entry] : value.items()) keys.push_back(key);
  for (auto key = keys.rbegin(); key != keys.rend(); ++key) object[*key] = Reversed(value[*key]);
  return object;
}

TEST(ModelDigest, OrderOfKeysAndWhiteSpaceDoNotCount) {
  size_t compared = 0;
  for (const json& entry : PublishedModels()) {
    const std::string id = entry["id"];
    const std::string text = entry["config"].dump();
    rope_model* made = nullptr;
    if (Create(text, &made) != ROPE_OK) continue;  // other tests say which are refused
    const Model model(made);
    rope_digest_text digest;
    if (rope_model_digest(model.get(), -1, ROPE_DIGEST_ROTATION, &digest) != ROPE_OK) continue;
    const ordered_json ordered = ordered_json::parse(text);
    EXPECT_EQ(DigestOfText(ordered.dump(4)), digest.text) << id;
    EXPECT_EQ(DigestOfText(Reversed(ordered).dump(1, '\t')), digest.text) << id;
    ++compared;
  }
  EXPECT_GT(compared, size_t{100});
}

// As transformers writes it, and as the model's own files have it.
TEST(ModelDigest, LayersThatAreAllListedAreThoseOfNoList) {
  const auto molmo = [](const std::string& keys) {
    return DigestOfText(R"({"model_type": "molmo2_text", "num_hidden_layers": 2, "rope_theta": 1e6,
        "rope_scaling": {"rope_type": "linear", "factor": 8})" +
                        keys + "}");
  };
  EXPECT_EQ(molmo(R"(, "rope_scaling_layers": [0, 1])"), molmo(""));
  EXPECT_NE(molmo(R"(, "rope_scaling_layers": [1])"), molmo(""));
  EXPECT_NE(molmo(R"(, "rope_scaling_layers": [])"), molmo(""));
  EXPECT_EQ(molmo(R"(, "rope_scaling_layers": [])"),
            DigestOfText(R"({"model_type": "molmo2_text", "num_hidden_layers": 2,
                             "rope_theta": 1e6})"));
}

constexpr char kFour[] = R"({"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
  "num_hidden_layers": 4, "rope_theta": 500000.0, "max_position_embeddings": 131072,
  "rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                   "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}})";

TEST(ModelDigest, TheSpellingOfTransformers4And5IsOne) {
  const std::pair<const char*, const char*> cases[] = {
      {kFour, R"({"model_type": "llama", "head_dim": 128, "hidden_size": 4096,
         "num_attention_heads": 32, "num_hidden_layers": 4, "max_position_embeddings": 131072,
         "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000, "factor": 8,
         "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}})"},
      {R"({"model_type": "gemma3_text", "hidden_size": 2560, "num_attention_heads": 8,
         "head_dim": 256, "num_hidden_layers": 12, "rope_theta": 1000000,
         "rope_local_base_freq": 10000, "sliding_window_pattern": 6,
         "rope_scaling": {"factor": 8.0, "rope_type": "linear"}})",
       R"({"model_type": "gemma3_text", "hidden_size": 2560, "num_attention_heads": 8,
         "head_dim": 256, "num_hidden_layers": 12, "layer_types": [
         "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
         "sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
         "sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
         "rope_parameters": {
         "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 1000000},
         "sliding_attention": {"rope_type": "default", "rope_theta": 10000}}})"},
      {R"({"model_type": "qwen2", "hidden_size": 4096, "num_attention_heads": 32,
         "num_hidden_layers": 4, "rope_theta": 1000000.0, "max_position_embeddings": 32768,
         "rope_scaling": {"type": "yarn", "factor": 4.0,
                          "original_max_position_embeddings": 32768}})",
       R"({"model_type": "qwen2", "hidden_size": 4096, "num_attention_heads": 32,
         "num_hidden_layers": 4, "max_position_embeddings": 32768,
         "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1000000.0,
                             "original_max_position_embeddings": 32768, "beta_fast": 32,
                             "beta_slow": 1}})"},
  };
  for (const auto& [four, five] : cases) EXPECT_EQ(DigestOfText(four), DigestOfText(five)) << four;
}

TEST(ModelDigest, EveryNumberOfADictionaryCounts) {
  std::set<std::string> digests = {DigestOfText(kFour)};
  const json config = json::parse(kFour);
  size_t texts = 1;
  for (const char* key :
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    json other = config;
    const double value = other["rope_scaling"][key];
    other["rope_scaling"][key] = value + 1;
    digests.insert(DigestOfText(other.dump()));
    ++texts;
  }
  for (double theta : {499999.0, 500000.0625}) {
    json other = config;
    other["rope_theta"] = theta;
    digests.insert(DigestOfText(other.dump()));
    ++texts;
  }
  for (int layers : {3, 5}) {
    json other = config;
    other["num_hidden_layers"] = layers;
    digests.insert(DigestOfText(other.dump()));
    ++texts;
  }
  EXPECT_EQ(digests.size(), texts);
}

std::string Cohere(const std::vector<int>& nope) {  // layers without RoPE are those of "full"
  json config = {{"model_type", "cohere2"},
                 {"hidden_size", 512},
                 {"num_attention_heads", 8},
                 {"num_hidden_layers", 4},
                 {"rope_theta", 50000.0}};
  for (int i = 0; i < 4; ++i) {
    const bool full = std::find(nope.begin(), nope.end(), i) != nope.end();
    config["layer_types"].push_back(full ? "full_attention" : "sliding_attention");
  }
  return config.dump();
}

TEST(ModelDigest, WhichLayerHasWhichCounts) {
  const std::set<std::string> digests = {DigestOfText(Cohere({3})), DigestOfText(Cohere({2})),
                                         DigestOfText(Cohere({2, 3})), DigestOfText(Cohere({}))};
  EXPECT_EQ(digests.size(), 4u);
}

TEST(ModelDigest, OfAKindIsThatOfItsConfiguration) {
  const Model model(Cohere({3}));
  for (int32_t t = 0; t < static_cast<int32_t>(model.Types().size()); ++t) {
    for (rope_digest same : {ROPE_DIGEST_ROTATION, ROPE_DIGEST_ANGLES, ROPE_DIGEST_BITS}) {
      const rope_config config = model.Config(t);
      rope_digest_text digest;
      EXPECT_EQ(rope_config_digest(&config, same, &digest), ROPE_OK);
      EXPECT_EQ(Digest(model, t, same), digest.text);
    }
  }
}

TEST(ModelDigest, ATowerCountsForTheModelAndNotForItsLayers) {
  const std::string text = Published("Qwen/Qwen2.5-VL-7B-Instruct");
  json wider = json::parse(text);
  const Model model(text);
  ASSERT_EQ(model.Types(), (std::vector<std::string>{"full_attention", "vision"}));
  wider["vision_config"]["num_heads"] = 2 * wider["vision_config"]["num_heads"].get<int>();
  const Model other(wider.dump());
  EXPECT_EQ(Digest(model, 0), Digest(other, 0));
  EXPECT_NE(Digest(model, 1), Digest(other, 1));
  EXPECT_NE(Digest(model), Digest(other));
}

TEST(ModelDigest, WhatATextLeavesOpenIsAnError) {
  const Model bare(R"({"rope_type": "default", "rope_theta": 10000})");
  rope_digest_text digest = {"as before"};
  for (int32_t type : {-1, 0}) {
    EXPECT_EQ(rope_model_digest(bare.get(), type, 0, &digest), kInvalid);
    ExpectMessage("rope_model_digest", {"layer type", "head_dim (0)"});
  }
  const Model unknown(R"({"model_type": "no_such", "head_dim": 64, "rope_theta": 10000,
                          "num_hidden_layers": 2})");
  EXPECT_EQ(rope_model_digest(unknown.get(), -1, ROPE_DIGEST_ROTATION, &digest), kInvalid);
  ExpectMessage("rope_model_digest", {"pairing (0) is required"});
  EXPECT_STREQ(digest.text, "as before");
  EXPECT_EQ(rope_model_digest(unknown.get(), -1, ROPE_DIGEST_ANGLES, &digest), ROPE_OK);
}

TEST(ModelDigest, ErrorsNameTheirArgument) {
  const Model model(kFour);
  rope_digest_text digest = {"as before"};
  EXPECT_EQ(rope_model_digest(nullptr, -1, 0, &digest), kInvalid);
  ExpectMessage("rope_model_digest", {"model (NULL)"});
  EXPECT_EQ(rope_model_digest(model.get(), -1, 0, nullptr), kInvalid);
  ExpectMessage("rope_model_digest", {"digest (NULL)"});
  for (int32_t type : {-2, 1}) {
    EXPECT_EQ(rope_model_digest(model.get(), type, 0, &digest), kInvalid);
    ExpectMessage("rope_model_digest", {"type (", "from 0 to 0"});
  }
  EXPECT_EQ(rope_model_digest(model.get(), 0, 3, &digest), kUnsupported);
  ExpectMessage("rope_model_digest", {"same (3)"});
  EXPECT_STREQ(digest.text, "as before");
}

}  // namespace
}  // namespace rope::testing
