// A key that speaks of RoPE, put into every recorded configuration at every level that may hold
// one, is used (the answer changes) or refused: never passed over. A key that tells layers apart is
// used by its own classes alone: elsewhere it is refused, or changes nothing.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "answer.h"
#include "testing.h"

namespace rope::testing {
namespace {

using nlohmann::json;
using Path = std::vector<std::string>;  // keys, outermost first

struct Insertion {
  const char* key;
  const char* value;
};

// Values that no recorded configuration has: one that is used changes the answer.
constexpr Insertion kBeside[] = {
    {"rope_theta", "12345.0"},
    {"rotary_emb_base", "12345.0"},
    {"rope_local_base_freq_theta", "77777"},
    {"swa_rope_theta", "77777"},
    {"rope_local_theta", "77777"},
    {"partial_rotary_factor", "0.3125"},
    {"rotary_pct", "0.3125"},
    {"rotary_percent", "0.3125"},
    {"rotary_dim", "6"},
    {"use_rope", "false"},
    {"rope_type", R"("original")"},
    {"rope_factor", "3"},
    {"use_rotary_embeddings", "false"},
    {"no_rope_layer_interval", "3"},
    {"nope_layers", "[1]"},
    {"position_embedding_type", R"("alibi")"},
    {"mrope_section", "[1, 2, 3]"},
    {"rope_scaling_factor", "4"},
    {"yarn_factor", "4"},
    {"ntk_alpha", "4"},
    {"rope_3d_layout", R"("hwt")"},
    {"fope_init_factor", "0.5"},
    {"xdrope_section", "[1, 2, 3, 4]"},
    {"ropeBase", "77777"},
    {"theta_scale", "2"},
    {"rotary_embedding_base", "12345.0"},
    {"rope_pct", "0.3125"},
    {"attention_factor", "0.625"},
    {"beta_fast", "17"},
    {"low_freq_factor", "3"},
    {"mscale", "0.75"},
    {"short_mscale", "0.75"},
    {"frequency_base", "77777"},
    {"max_wavelength", "77777"},
    {"position_scale", "2"},
    {"rot_dim", "6"},
    {"no_pe_layers", "[1]"},
    {"pos_type", R"("alibi")"},
    {"pos_embedding_style", R"("learned")"},
    {"use_pos_emb", "false"},
};

// In a rope dictionary any key counts.
constexpr Insertion kInside[] = {
    {"attn_factor", "0.75"},
    {"extrapolation_factor", "0.5"},
    {"apply_yarn_scaling", "false"},
    {"fope_init_factor", "1"},
    {"scale_base", "512"},
    {"rotary_dim", "6"},
    {"mixed_b", "0.625"},
    {"interpolation", "2"},
    {"mrope_interleaved_glm", "true"},
    {"rope_theta", "12345.0"},
    {"alpha", "77.0"},
    {"chunk_size", "77"},
};

// In the entry of one layer.
constexpr Insertion kOfALayer[] = {
    {"rope_theta", "12345.0"},
    {"partial_rotary_factor", "0.3125"},
    {"use_rope", "false"},
    {"rope_scaling", R"({"rope_type": "linear", "factor": 3})"},
};

// Keys that tell layers apart, and the families that read them.
struct LayerWord {
  const char* key;
  const char* value;
  bool repeats;  // the list is written out for all layers
  std::vector<std::string> readers;
};

const std::vector<std::string> kOfKinds = {"afmoe",
                                           "alice_ai",
                                           "bailing_hybrid",
                                           "beam",
                                           "cohere2",
                                           "cohere2_moe",
                                           "deepseek_v4",
                                           "diffusion_gemma",
                                           "dots3_note",
                                           "embedding_gemma2",
                                           "exaone4",
                                           "exaone4_5",
                                           "exaone_moe",
                                           "flint",
                                           "gemma3",
                                           "gemma3n",
                                           "gemma4",
                                           "gemma4_unified",
                                           "granitemoehybrid",
                                           "kolibri1",
                                           "laguna",
                                           "lfm2",
                                           "lfm2_moe",
                                           "lfm3",
                                           "mellum",
                                           "mimo_v2_flash",
                                           "minimax",
                                           "modernbert",
                                           "modernbert-decoder",
                                           "neomme",
                                           "olmo3",
                                           "olmo_hybrid",
                                           "qwen3_5",
                                           "qwen3_5_moe",
                                           "qwen3_next",
                                           "qwen4_exp",
                                           "step3p5",
                                           "step3p7",
                                           "t5gemma2",
                                           "ultrabert",
                                           "zamba2",
                                           "zaya"};

const LayerWord kLayerWords[] = {
    {"layer_types", R"(["sliding_attention", "full_attention", "full_attention"])", true, kOfKinds},
    {"layer_types", R"(["linear_attention", "full_attention"])", true, kOfKinds},
    {"layers_block_type", R"(["mamba", "attention"])", true, {"granitemoehybrid", "zamba2"}},
    {"layers_block_type",
     R"(["hybrid", "linear_attention"])",
     true,
     {"granitemoehybrid", "zamba2"}},
    {"block_types", R"(["recurrent", "attention"])", false, {"recurrent_gemma"}},
    {"attn_type_list", "[0, 1, 1]", true, {"minimax"}},
    {"attn_layer_indices", "[1]", false, {"bamba"}},
    {"full_attn_idxs", "[1, 2]", false, {"lfm2", "lfm2_moe"}},
    {"full_attention_layers", "[1]", false, {"gigachat3_5"}},
    {"cross_attention_layers", "[1]", false, {"mllama"}},
    {"hybrid_layer_ids", "[1]", false, {}},
    {"mixer_types", R"(["minicpm4", "lightning-attn"])", false, {"minicpm_sala"}},
    {"compress_ratios", "[4, 0, 0]", true, {"deepseek_v4"}},
    {"hybrid_layer_pattern", "[0, 1, 1]", true, {"mimo_v2_flash"}},
    {"attention_windows", "[128, 0, 0]", true, {"ultrabert"}},
    {"no_rope_layers", "[0, 1, 1]", true, {"smollm3", "llama4", "mistral_large4"}},
    {"no_rope_layer_interval", "2", false, {"smollm3", "llama4", "mistral_large4"}},
    {"layer_rope_theta", "[0, 10000, 500000]", true, {"granite_swa", "granitemoe_swa"}},
    {"sliding_window_pattern",
     "3",
     false,
     {"cohere2", "cohere2_moe", "embedding_gemma2", "exaone4", "exaone4_5", "exaone_moe", "gemma3",
      "t5gemma2"}},
    {"_sliding_window_pattern", "3", false, {}},
    {"global_attn_every_n_layers", "5", false, {"afmoe", "modernbert", "modernbert-decoder"}},
    {"full_attention_interval",
     "3",
     false,
     {"alice_ai", "qwen3_5", "qwen3_5_moe", "qwen3_next", "qwen4_exp"}},
    {"layer_group_size", "3", false, {"bailing_hybrid"}},
    {"mamba_step", "4", false, {}},
    {"hybrid_override_pattern", R"("M*-E")", false, {}},
};

std::vector<json> Configurations() {
  std::vector<json> configurations;
  for (const json& entry : PublishedModels()) configurations.push_back(entry["config"]);
  const json index = LoadJson("oracle/index.json");
  for (const json& entry : index["cases"]) {
    const json file = LoadJson("oracle/" + entry["file"].get<std::string>());
    configurations.push_back(file["config"]);
    if (!file["config_saved"].is_null()) configurations.push_back(file["config_saved"]);
  }
  const json diffusion = LoadJson("diffusion.json");
  for (const json& test : diffusion["cases"]) configurations.push_back(test["config"]);
  return configurations;
}

Path operator/(Path path, const std::string& key) {
  path.push_back(key);
  return path;
}

// nullptr if there is no object.
const json* At(const json& config, const Path& path) {
  const json* object = &config;
  for (const std::string& key : path) {
    if (!object->contains(key)) return nullptr;
    object = &object->at(key);
  }
  return object->is_object() && !object->empty() ? object : nullptr;
}

// The objects that hold the language model's keys: the whole, and the parts that lead to it.
std::vector<Path> PartsOf(const json& config) {
  std::vector<Path> parts = {Path()};
  for (size_t i = 0; i < parts.size(); ++i) {
    for (const char* key :
         {"thinker_config", "vlm_config", "text_config", "llm_config", "language_config"}) {
      const Path path = parts[i] / key;
      if (At(config, path) != nullptr) parts.push_back(path);
    }
  }
  return parts;
}

// The rope dictionaries of one part, and those of kinds of layers inside them.
std::vector<Path> DictionariesOf(const json& config, const Path& part) {
  std::vector<Path> dictionaries;
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const Path path = part / name;
    const json* dictionary = At(config, path);
    if (dictionary == nullptr) continue;
    dictionaries.push_back(path);
    for (const auto& member : dictionary->items()) {
      if (At(config, path / member.key()) != nullptr) dictionaries.push_back(path / member.key());
    }
  }
  return dictionaries;
}

class ModelInsertion : public ::testing::Test {
 protected:
  void ExpectUsedOrRefused(const json& config, const std::string& before, const Path& where,
                           const Insertion& insertion) {
    json changed = config;
    json* object = &changed;
    for (const std::string& key : where) object = &(*object)[key];
    if (object->contains(insertion.key)) return;
    (*object)[insertion.key] = json::parse(insertion.value);
    const std::string after = Answer(changed.dump());
    EXPECT_NE(after, before) << json(where).dump() << " " << insertion.key
                             << " was passed over in\n"
                             << config.dump().substr(0, 1500);
    ++(after.empty() ? refused_ : used_);
  }

  // Calls try_one(config, its answer) for every configuration whose language model rotates.
  template <class TryOne>
  void InEach(const TryOne& try_one) {
    for (const json& config : Configurations()) {
      // What stands beside the text of this one is of its audio encoder.
      if (config.value("model_type", "") == "musicflamingo") continue;
      rope_model* model = nullptr;
      if (Create(config.dump(), &model) != ROPE_OK) continue;
      const std::string first = rope_model_layer_type_name(model, 0);
      rope_model_destroy(model);
      if (first != "nope" && first != "vision") try_one(config, Answer(config.dump()));
    }
  }

  // `layers` of the language model, whose keys stand in the part `where`.
  void ExpectOfItsClass(const json& config, const std::string& before, const Path& where,
                        size_t layers, const LayerWord& word) {
    json changed = config;
    json* object = &changed;
    std::string type = changed.value("model_type", "");
    for (const std::string& key : where) {
      object = &(*object)[key];
      type = object->value("model_type", type);
    }
    if (object->contains(word.key)) return;
    json value = json::parse(word.value);
    for (size_t i = 0; word.repeats && value.size() < layers; ++i) value.push_back(value[i]);
    (*object)[word.key] = value;
    const std::string after = Answer(changed.dump());
    if (after == before) return;
    ++(after.empty() ? refused_ : used_);
    for (const char* suffix : {"_text_model", "_text"}) {
      const size_t end = type.size() - std::min(type.size(), std::string(suffix).size());
      if (type.substr(end) == suffix) type.resize(end);
    }
    const bool reads =
        std::find(word.readers.begin(), word.readers.end(), type) != word.readers.end();
    EXPECT_TRUE(after.empty() || reads) << word.key << " was used in a " << type;
  }

  void ExpectSome(int used, int refused) const {
    std::printf("%d insertions used, %d refused\n", used_, refused_);
    EXPECT_GT(used_, used);
    EXPECT_GT(refused_, refused);
  }

 private:
  int used_ = 0, refused_ = 0;
};

TEST_F(ModelInsertion, BesideTheDictionary) {
  InEach([this](const json& config, const std::string& before) {
    for (const Path& part : PartsOf(config)) {
      for (const Insertion& one : kBeside) ExpectUsedOrRefused(config, before, part, one);
    }
  });
  ExpectSome(200, 5000);
}

TEST_F(ModelInsertion, InsideTheDictionary) {
  InEach([this](const json& config, const std::string& before) {
    for (const Path& part : PartsOf(config)) {
      for (const Path& path : DictionariesOf(config, part)) {
        for (const Insertion& one : kInside) ExpectUsedOrRefused(config, before, path, one);
      }
    }
  });
  ExpectSome(10, 1000);
}

TEST_F(ModelInsertion, WordsOfLayersAreThoseOfTheirClasses) {
  InEach([this](const json& config, const std::string& before) {
    if (!config.contains("model_type")) return;  // diffusers
    const Model model(config.dump());
    size_t layers = 0;
    while (!model.LayerName(static_cast<int32_t>(layers)).empty()) ++layers;
    if (layers == 0) return;
    for (const LayerWord& word : kLayerWords) {
      ExpectOfItsClass(config, before, PartsOf(config).back(), layers, word);
    }
  });
  ExpectSome(40, 8000);
}

TEST_F(ModelInsertion, InTheEntryOfALayer) {
  InEach([this](const json& config, const std::string& before) {
    const Path layer = PartsOf(config).back() / "per_layer_config" / "01";
    for (const Insertion& one : kOfALayer) ExpectUsedOrRefused(config, before, layer, one);
  });
  ExpectSome(-1, 1000);
}

}  // namespace
}  // namespace rope::testing
