// What rope_model_create accepts, rope_context_create accepts, too: for published configurations
// and for thousands of texts made from them by chance, always the same ones.
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "testing.h"

namespace rope::testing {
namespace {

using nlohmann::json;

// Whether the text is accepted.
bool ExpectContextsIfAccepted(const std::string& text) {
  rope_model* model = nullptr;
  const rope_status status = Create(text, &model);
  if (status == ROPE_OK) {
    ExpectContexts(model, text);
  } else {
    EXPECT_TRUE(status == ROPE_ERROR_PARSE || status == ROPE_ERROR_UNSUPPORTED)
        << rope_last_error() << "\n"
        << text;
  }
  rope_model_destroy(model);
  return status == ROPE_OK;
}

// --- texts that were accepted, and whose contexts were not --------------------------------------

TEST(ModelContext, NumbersThatNoContextTakesAreRefused) {
  ExpectRefused(R"({"model_type": "llama", "head_dim": 64, "rope_theta": 1e-300})",
                {"full_attention", "theta (1e-300)", "inv_freq[1]"});
  ExpectRefused(Llama(R"({"type": "linear", "factor": 1e-300})"), {"inv_freq[0]"});
  ExpectRefused(Llama(R"({"type": "yarn", "factor": 4, "attention_factor": 1e300})"),
                {"attention_factor"});
  ExpectRefused(Llama(R"({"type": "yarn", "factor": 1e300, "mscale": 1e300, "mscale_all_dim": 1})"),
                {"attention_factor"});
  ExpectRefused(R"({"model_type": "pixtral", "head_dim": 64, "rope_theta": 1e-300})",
                {"vision", "theta (1e-300)"});
  ExpectRefused(R"({"rope_type": "linear", "factor": 1e-300})", {"inv_freq[0]"});
}

TEST(ModelContext, DynamicNeedsTwoPairs) {
  const std::string dynamic = R"("rope_scaling": {"type": "dynamic", "factor": 2)";
  ExpectRefused(
      R"({"model_type": "llama", "head_dim": 2, "max_position_embeddings": 64, )" + dynamic + "}}",
      {"rope_scaling.type (\"dynamic\")", "4 rotated channels"});
  ExpectRefused(R"({"model_type": "glm", "head_dim": 8, "max_position_embeddings": 64, )" +
                    dynamic + R"(, "partial_rotary_factor": 0.25}})",
                {"rope_scaling.type (\"dynamic\")", "4 rotated channels"});
}

TEST(ModelContext, ProportionalSpansWholeHeads) {
  ExpectRefused(
      R"({"model_type": "deepseek_v3", "rope_parameters": {"rope_type": "proportional"}})",
      {"rope_parameters.rope_type (\"proportional\")", "from 128 on"}, ROPE_ERROR_UNSUPPORTED);
}

TEST(ModelContext, ThreeAxesNeedThreePairs) {
  const auto vision = [](const char* head_dim) {
    return std::string(R"({"model_type": "minimax_m3_vl", "vision_config": {"head_dim": )") +
           head_dim + "}}";
  };
  ExpectRefused(vision("4"), {"vision_config.head_dim (4", "from 6 to 1024"});
  EXPECT_EQ(Model(vision("6")).Config("vision").rotary_dim, 6);
}

// A table of the turning pairs alone, where the core reads one of all pairs.
TEST(ModelContext, AlternatingIdsHaveATableOfAllPairs) {
  const Model model(R"({"model_type": "neomme", "rope_parameters": {"full_attention":
      {"rope_type": "proportional", "partial_rotary_factor": 0.25}, "sliding_attention": {}}})");
  const rope_config c = model.Config("full_attention");
  EXPECT_EQ(c.scaling, ROPE_SCALING_PROPORTIONAL);
  EXPECT_EQ(c.rotary_dim, 16);
  EXPECT_EQ(c.head_dim, 64);
  ASSERT_EQ(c.table_length, 32);
  EXPECT_EQ(c.pair_axis[31], 1);
}

// --- all texts ----------------------------------------------------------------------------------

TEST(ModelContext, IsMadeOfEveryPublishedConfiguration) {
  for (const json& entry : PublishedModels()) {
    EXPECT_TRUE(ExpectContextsIfAccepted(entry["config"].dump())) << entry["id"];
  }
}

// Configurations changed at random: keys removed, added, exchanged, numbers moved.
class Mutator {
 public:
  Mutator() {
    for (const json& entry : PublishedModels()) {
      texts_.push_back(entry["config"]);
      Collect(entry["config"]);
    }
    for (const char* type :
         {"nanochat",      "gemma4",     "minimax_m3_vl", "dinov3_vit",      "deepseek_v4",
          "mimo_v2_flash", "zaya",       "neomme",        "ernie4_5_vl_moe", "muse_glimmer",
          "hrm_text",      "molmo2",     "longcat_flash", "clvp_encoder",    "llama4",
          "laguna",        "modernbert", "olmo3",         "glm_moe_dsa",     "pixtral",
          "kimi_k25",      "sam2_video", "phi3",          "gpt_oss",         "dots3_note",
          "step3p5",       "qwen",       "nomic_bert",    "glm4_moe_lite",   "baichuan",
          "qwen2_vl"}) {
      types_.push_back(type);
    }
    for (const char* key : {"layer_rope_theta",
                            "per_layer_config",
                            "rope_scaling_layers",
                            "compress_ratios",
                            "compress_rope_theta",
                            "index_head_dim",
                            "hybrid_layer_pattern",
                            "no_rope_layers",
                            "cross_attention_layers",
                            "xdrope_section",
                            "alpha",
                            "short_mscale",
                            "long_mscale",
                            "truncate",
                            "mscale",
                            "attention_factor",
                            "sliding_window_pattern",
                            "projection_dim",
                            "kv_channels",
                            "vision_config",
                            "text_config",
                            "partial_rotary_factors",
                            "yarn_only_types",
                            "use_dynamic_ntk",
                            "seq_length",
                            "rotary_emb_interleaved"}) {
      keys_.push_back(key);
    }
  }

  std::string Next() {
    json text = texts_[Below(texts_.size())];
    for (size_t i = 1 + Below(4); i > 0; --i) Mutate(&text);
    return text.dump();
  }

 private:
  void Collect(const json& value) {
    if (value.is_object()) {
      for (const auto& [key, member] : value.items()) {
        if (key == "model_type") types_.push_back(member);
        keys_.push_back(key);
        Collect(member);
      }
    }
    for (size_t i = 0; value.is_array() && i < value.size(); ++i) Collect(value[i]);
    values_.push_back(value);
  }

  size_t Below(size_t count) { return static_cast<size_t>(random_() % count); }

  json Any() {
    static const json kOdd[] = {nullptr,
                                true,
                                0,
                                -1,
                                1e-300,
                                1e300,
                                INT64_MAX,
                                0.5,
                                "",
                                INT64_MIN,
                                json::array(),
                                json::object(),
                                1e-5,
                                1024,
                                3,
                                2,
                                7,
                                1.0000001,
                                UINT64_MAX,
                                json::array({1, 2, 3})};
    const size_t pick = Below(2 * std::size(kOdd));
    return pick < std::size(kOdd) ? kOdd[pick] : values_[Below(values_.size())];
  }

  void Mutate(json* value) {
    if (value->is_object() && !value->empty() && Below(6) != 0) {
      auto member = value->begin();
      std::advance(member, Below(value->size()));
      switch (Below(7)) {
        case 0: value->erase(member); return;
        case 1: *member = Any(); return;
        case 2:
        case 3: (*value)[keys_[Below(keys_.size())]] = Any(); return;
        case 4:
          if (value->contains("model_type")) (*value)["model_type"] = types_[Below(types_.size())];
          return;
        default: Mutate(&*member); return;
      }
    }
    if (value->is_array() && !value->empty() && Below(2) != 0) {
      Mutate(&(*value)[Below(value->size())]);
    } else if (value->is_number() && Below(2) != 0) {
      const double number = value->get<double>();
      const double changed[] = {2 * number, number / 2,   number + 1,   number - 1,
                                -number,    1e9 * number, 1e-9 * number};
      *value = changed[Below(std::size(changed))];
    } else {
      *value = Any();
    }
  }

  std::mt19937_64 random_{20261121};  // its numbers are the same everywhere
  std::vector<json> texts_, values_;
  std::vector<std::string> keys_, types_;
};

TEST(ModelContext, IsMadeOfEveryTextThatIsAccepted) {
  Mutator mutator;
  int accepted = 0;
  for (int i = 0; i < 20000 && !HasFailure(); ++i) {
    accepted += ExpectContextsIfAccepted(mutator.Next());
  }
  EXPECT_GT(accepted, 4000);
}

}  // namespace
}  // namespace rope::testing
