// Keys by which classes tell their layers apart: each is its own class's only. Elsewhere it is
// refused, unless it says what is so anyway. Without any of them the layers are those of the class.
#include <string>
#include <vector>

#include "answer.h"
#include "testing.h"

namespace rope::testing {
namespace {

using nlohmann::json;
using Names = std::vector<std::string>;

// Four layers.
std::string With(const std::string& model_type, const std::string& entries) {
  return R"({"model_type": ")" + model_type + R"(", "hidden_size": 512, "num_attention_heads": 4,
             "num_hidden_layers": 4, "rope_theta": 10000, "max_position_embeddings": 4096, )" +
         entries + "}";
}

void ExpectNotRead(const char* type, const std::string& entries, const char* key) {
  SCOPED_TRACE(type + (": " + entries));
  ExpectRefused(With(type, entries), {key}, ROPE_ERROR_UNSUPPORTED);
}

std::string LayersOf(const char* type, const std::string& entries) {
  return Model(With(type, entries)).Layers(4);
}

TEST(ModelLayerKeys, OfOtherClassesAreRefused) {
  for (const char* type : {"llama", "qwen3", "deepseek_v3"}) {
    ExpectNotRead(type, R"("cross_attention_layers": [3])", "cross_attention_layers ([3])");
    ExpectNotRead(type, R"("attn_layer_indices": [1])", "attn_layer_indices");
    ExpectNotRead(type, R"("full_attn_idxs": [0, 1, 2])", "full_attn_idxs");
    ExpectNotRead(type, R"("full_attention_layers": [3])", "full_attention_layers");
    ExpectNotRead(type, R"("hybrid_layer_ids": [3])", "hybrid_layer_ids");
    ExpectNotRead(type, R"("attn_type_list": [1, 1, 0, 1])", "attn_type_list");
    ExpectNotRead(type, R"("block_types": ["recurrent", "attention"])", "block_types");
    ExpectNotRead(type, R"("layers_block_type": ["mamba", "attention", "mamba", "attention"])",
                  "layers_block_type");
    ExpectNotRead(type, R"("mixer_types": ["minicpm4", "lightning", "minicpm4", "minicpm4"])",
                  "mixer_types");
    ExpectNotRead(type, R"("compress_ratios": [0, 4, 0, 0])", "compress_ratios");
    ExpectNotRead(type, R"("full_attention_interval": 4)", "full_attention_interval (4)");
    ExpectNotRead(type, R"("layer_group_size": 4)", "layer_group_size (4)");
    ExpectNotRead(type, R"("mamba_step": 2)", "mamba_step (2)");
    ExpectNotRead(type, R"("hybrid_override_pattern": "M*-E")", "hybrid_override_pattern");
    ExpectNotRead(type, R"("layer_rope_theta": [1e4, 1e4, 1e4, 0])", "layer_rope_theta");
    ExpectNotRead(type, R"("layer_types": ["full_attention", "mamba", "conv", "full_attention"])",
                  "layer_types[1] (\"mamba\") must be a kind of attention");
  }
  ExpectRefused(With("llama", R"("cross_attention_layers": [3])"),
                {"the class of a llama, which does not read it", "accept it by name"},
                ROPE_ERROR_UNSUPPORTED);
  ExpectNotRead("smollm3", R"("layer_types": ["mamba", "mamba", "mamba", "full_attention"])",
                "layer_types[0] (\"mamba\")");
  ExpectNotRead("recurrent_gemma", R"("layer_types": ["full_attention", "full_attention",
                "full_attention", "full_attention"])",
                "layer_types");
}

TEST(ModelLayerKeys, PeriodsAreThoseOfTheClass) {
  EXPECT_EQ(LayersOf("afmoe", R"("global_attn_every_n_layers": 2)"), "snsn");
  EXPECT_EQ(LayersOf("cohere2", R"("sliding_window_pattern": 2)"), "snsn");
  EXPECT_EQ(LayersOf("modernbert", R"("global_attn_every_n_layers": 2)"), "fsfs");
  EXPECT_EQ(LayersOf("qwen3_next", R"("full_attention_interval": 2)"), "nfnf");
  EXPECT_EQ(LayersOf("bailing_hybrid", R"("layer_group_size": 2)"), "nfnf");
  for (const char* key : {"sliding_window_pattern", "_sliding_window_pattern",
                          "full_attention_interval", "layer_group_size"}) {
    ExpectNotRead("afmoe", '"' + std::string(key) + R"(": 2)", key);
    ExpectNotRead("gemma4_text", '"' + std::string(key) + R"(": 2)", key);
  }
  for (const char* type : {"cohere2", "gemma3_text", "olmo3", "exaone4"}) {
    ExpectNotRead(type, R"("global_attn_every_n_layers": 2)", "global_attn_every_n_layers (2)");
  }
  ExpectNotRead("gemma3n_text", R"("sliding_window_pattern": 2)", "sliding_window_pattern");
  ExpectNotRead("qwen3_next", R"("layer_group_size": 2)", "layer_group_size");
  ExpectRefused(With("gemma3_text", R"("sliding_window_pattern": "LG")"),
                {"sliding_window_pattern"});  // Exaone's letters
}

TEST(ModelLayerKeys, ThatSayWhatIsSoChangeNothing) {
  const auto same = [](const char* type, const std::string& own, const std::string& other) {
    EXPECT_EQ(Answer(With(type, own + other)), Answer(With(type, own + R"("x": 1)"))) << other;
  };
  for (const char* other :
       {R"("cross_attention_layers": [])", R"("attn_layer_indices": [0, 1, 2, 3, 4])",
        R"("attn_type_list": [1, 1, 1, 1])", R"("block_types": ["attention"])",
        R"("compress_ratios": [0, 0, 0, 0])", R"("full_attention_interval": 1)",
        // windows that RoPE does not depend on
        R"("sliding_window_pattern": 6)", R"("hybrid_layer_pattern": [1, 0, 1, 0])",
        R"("layer_types": ["sliding_attention", "attention", "full_attention", "hybrid"])"}) {
    same("llama", "", other);
  }
  same("afmoe", "", R"("sliding_window_pattern": 4)");
  same("qwen3_next", "", R"("layer_group_size": 4)");
  same("qwen3_next", "", R"("attn_type_list": [0, 0, 0, 1])");
  // A list says more than a period.
  const std::string list = R"("layer_types": ["full_attention", "sliding_attention",
      "sliding_attention", "full_attention"], )";
  same("gemma3_text", list, R"("sliding_window_pattern": 2, "_sliding_window_pattern": 6)");
  same("afmoe", list, R"("sliding_window_pattern": 3)");
}

TEST(ModelLayerKeys, OfOtherClassesCanBeAccepted) {
  const std::string text = With("llama", R"("cross_attention_layers": [3])");
  const char* const accepted[] = {"cross_attention_layers"};
  rope_model* made = nullptr;
  ASSERT_EQ(rope_model_create_accepting(text.data(), text.size(), accepted, 1, &made), ROPE_OK);
  EXPECT_EQ(Model(made).Layers(4), "ffff");
}

TEST(ModelLayerKeys, ListsOfOneClassMustAgree) {
  const auto both = [](const char* ratios) {
    return With("deepseek_v4", R"("layer_types": ["sliding_attention",
        "compressed_sparse_attention", "heavily_compressed_attention", "sliding_attention"],
        "compress_ratios": )" + std::string(ratios));
  };
  EXPECT_EQ(Model(both("[0, 4, 128, 0]")).Layers(4), "mccm");
  ExpectRefused(both("[0, 4, 0, 0]"), {"compress_ratios ([0, 4, 0, 0])", "layer_types"},
                ROPE_ERROR_UNSUPPORTED);
  EXPECT_EQ(LayersOf("deepseek_v4", R"("x": 1)"), "cccc");
  ExpectRefused(With("deepseek_v4", R"("layer_types": ["full_attention", "sliding_attention",
                     "sliding_attention", "sliding_attention"])"),
                {"layer_types[0] (\"full_attention\")", "sliding_attention"});
  ExpectNotRead("lfm2", R"("full_attn_idxs": [1], "layer_types": ["conv", "conv",
                "full_attention", "conv"])",
                "full_attn_idxs");
}

TEST(ModelLayerKeys, OfThetasAreNumbersOrAMask) {
  EXPECT_EQ(Model(With("granitemoe_swa", R"("layer_rope_theta": [1e4, 5e5, 0, 1e4])")).Types(),
            (Names{"theta_10000", "theta_500000", "nope"}));
  EXPECT_EQ(LayersOf("muse_glimmer_text", R"("layer_rope_theta": [0, 1e4, null, 1e4])"), "nfnf");
  ExpectRefused(With("muse_glimmer_text", R"("layer_rope_theta": [0, 5e5, 0, 5e5])"),
                {"layer_rope_theta[1] (500000) must be 0 or 10000"}, ROPE_ERROR_UNSUPPORTED);
}

// Whatever layer_types says: with the widths and the theta of full attention.
TEST(ModelLayerKeys, TheLastLayerOfGemma4IsFull) {
  const std::string sliding = R"("layer_types": ["sliding_attention", "full_attention",
      "sliding_attention", "sliding_attention"])";
  for (const char* type : {"gemma4_text", "diffusion_gemma_text", "embedding_gemma2_text"}) {
    EXPECT_EQ(Model(R"({"model_type": ")" + std::string(type) + R"(", "num_hidden_layers": 4, )" +
                    sliding + "}")
                  .Layers(4),
              "sfsf")
        << type;
  }
  EXPECT_EQ(Model(R"({"model_type": "embedding_gemma2_text", "num_hidden_layers": 5,
                      "sliding_window_pattern": 2})")
                .Layers(5),
            "sfsff");
  EXPECT_EQ(LayersOf("gemma3_text", sliding), "sfss");
}

TEST(ModelLayerKeys, FullAttentionIsWithoutRopeByItsName) {
  const std::string list = R"("layer_types": ["sliding_attention", "attention", "full_attention",
      "sliding_attention"])";
  for (const char* type : {"cohere2", "afmoe", "flint", "kolibri1", "exaone4"}) {
    EXPECT_EQ(LayersOf(type, list + R"(, "sliding_window": 4096)"), "snns") << type;
    ExpectRefused(With(type, R"("layer_types": ["sliding_attention", "chunked_attention",
                       "full_attention", "sliding_attention"])"),
                  {"layer_types[1] (\"chunked_attention\") must be full_attention or sliding"});
  }
  // Without a window all layers turn in Kolibri, as in Exaone 4; in Cohere's classes none would.
  EXPECT_EQ(LayersOf("kolibri1", R"("sliding_window": null)"), "ssss");
  ExpectNotRead("cohere2", R"("sliding_window": null)", "sliding_window (null) must be a number");
}

TEST(ModelLayerKeys, DenseLayersOfCohere2MoeTurn) {
  EXPECT_EQ(LayersOf("cohere2_moe", R"("sliding_window_pattern": 2)"), "snsn");
  EXPECT_EQ(LayersOf("cohere2_moe", R"("sliding_window_pattern": 2, "first_k_dense_replace": 1)"),
            "ssns");  // the first is full and turns, the pattern begins behind it
  EXPECT_EQ(LayersOf("cohere2_moe", R"("first_k_dense_replace": 2, "sliding_window_pattern": 2,
                                       "prefix_dense_sliding_window_pattern": 2)"),
            "snsn");
  EXPECT_EQ(LayersOf("cohere2_moe", R"("mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
                     "layer_types": ["full_attention", "full_attention", "sliding_attention",
                                     "full_attention"])"),
            "snsn");
}

TEST(ModelLayerKeys, FullAttentionOfBeamTurnsIfItHasADictionary) {
  const std::string kinds = R"("layer_types": ["sliding_attention", "full_attention",
      "sliding_attention", "full_attention"], "rope_parameters": {"sliding_attention":
      {"rope_theta": 1e4}, "full_attention": )";
  EXPECT_EQ(LayersOf("beam", kinds + "null}"), "snsn");
  EXPECT_EQ(LayersOf("beam", kinds + R"({"rope_theta": 1e4}})"), "sfsf");
  EXPECT_EQ(LayersOf("beam", R"("x": 1)"), "sssn");
}

TEST(ModelLayerKeys, SwitchesMakeAllLayersAlike) {
  const auto dots = [](const std::string& entries) {
    return Model(R"({"model_type": "dots3_note_text", "num_hidden_layers": 4, )" + entries + "}")
        .Layers(4);
  };
  EXPECT_EQ(dots(R"("use_sliding_window": true)"), "iiss");
  EXPECT_EQ(dots(R"("use_sliding_window": false)"), "iiii");
  EXPECT_EQ(LayersOf("gigachat3_5", R"("linear_attention_type": null)"), "ffff");
  EXPECT_EQ(LayersOf("gigachat3_5", R"("x": 1)"), "nnnn");
}

TEST(ModelLayerKeys, OfUnknownModelsDecideOrAreRefused) {
  const char* unknown = "nobody_knows";
  EXPECT_EQ(LayersOf(unknown, R"("cross_attention_layers": [3])"), "fffn");
  EXPECT_EQ(LayersOf(unknown, R"("attn_layer_indices": [1])"), "nfnn");
  ExpectNotRead(unknown, R"("layer_types": ["full_attention", "full_attention", "full_attention",
                "full_attention"], "cross_attention_layers": [3])",
                "cross_attention_layers");
  for (const char* other :
       {R"("full_attention_interval": 4)", R"("layer_group_size": 4)", R"("mamba_step": 2)",
        R"("hybrid_override_pattern": "M*-E")", R"("attn_layer_period": 8)",
        R"("linear_attn_config": {"kda_layers": [1]})", R"("full_attention_layers": [3])",
        R"("compress_ratios": [0, 4, 0, 4])", R"("sliding_window_pattern": 2)",
        R"("global_attn_every_n_layers": 3)", R"("attention_windows": [0, 8, 8, 8])"}) {
    ExpectNotRead(unknown, other, "may say which layers of this unknown model_type have RoPE");
  }
  const std::string kinds = R"("rope_parameters": {"full_attention": {"rope_theta": 1e4},
      "sliding_attention": {"rope_theta": 1e4}})";
  EXPECT_EQ(LayersOf(unknown, kinds), "....");  // nothing tells which layers are of which kind
  ExpectNotRead(unknown, kinds + R"(, "sliding_window_pattern": 2)", "sliding_window_pattern");
}

// A pattern that nobody reads leaves the class's own, which has other layers with another RoPE.
TEST(ModelLayerKeys, MisspeltOnesAreRefused) {
  const auto refused = [](const char* type, const std::string& entry, const char* right) {
    SCOPED_TRACE(type + (": " + entry));
    ExpectRefused(With(type, entry), {"must be spelt", right}, ROPE_ERROR_PARSE);
  };
  for (const char* key : {"sliding_window_patern", "sliding_windows_pattern",
                          "sliding-window-pattern", "slidingWindowPattern"}) {
    refused("gemma3_text", "\"" + std::string(key) + "\": 2", "sliding_window_pattern");
  }
  refused("cohere2", R"("sliding_window_patern": 2)", "sliding_window_pattern");
  refused("exaone4", R"("sliding_window_patern": "LLLG")", "sliding_window_pattern");
  for (const char* type : {"gemma3_text", "llama", "nobody_knows"}) {
    for (const char* key : {"layer_typs", "layer_type", "layers_types", "LayerTypes"}) {
      refused(type, "\"" + std::string(key) +
                        R"(": ["full_attention", "full_attention", "full_attention", "conv"])",
              "layer_types");
    }
  }
  refused("bamba", R"("attn_layer_indexes": [1])", "attn_layer_indices");
  // Beside the right one, of another kind, or in a class that does not read it, it is none.
  EXPECT_EQ(LayersOf("gemma3_text", R"("sliding_window_pattern": 2, "sliding_window_patern": 4)"),
            LayersOf("gemma3_text", R"("sliding_window_pattern": 2)"));
  EXPECT_EQ(LayersOf("llama", R"("layer_type": "llama")"), "ffff");
  EXPECT_EQ(LayersOf("llama", R"("attn_layer_indexes": 1)"), "ffff");
}

// Of every recorded class the keys are removed, which says what it does by itself.
TEST(ModelLayerKeys, WithoutThemLayersAreThoseOfTheClass) {
  int compared = 0;
  const json index = LoadJson("oracle/index.json");
  for (const json& entry : index["cases"]) {
    const std::string name = entry["file"];
    const json record = LoadJson("oracle/" + name);
    // LFM 2 MoE is not made without a list; cross-attention of Mllama gets cos and sin, unused.
    const bool is_class = name.substr(0, 6) == "class-" && name != "class-lfm2-moe.json";
    if (!is_class || !record["layers"].is_array() || name == "class-mllama.json") continue;
    json config = record["config"];
    json* text = &config;
    for (const char* part : {"text_config", "decoder", "global_config", "decoder_config"}) {
      if (config.contains(part) && !config[part].empty()) text = &config[part];
    }
    size_t removed = 0;
    for (const char* key :
         {"layer_types", "layers_block_type", "block_types", "attn_layer_indices", "no_rope_layers",
          "layer_rope_theta", "sliding_window_pattern", "global_attn_every_n_layers",
          "full_attention_interval", "no_rope_layer_interval"}) {
      removed += text->erase(key);
    }
    if (removed == 0) continue;
    (*text)["num_hidden_layers"] = record["layers"].size();
    rope_model* made = nullptr;
    if (Create(config.dump(), &made) != ROPE_OK) continue;
    const Model model(made);
    for (size_t i = 0; i < record["layers"].size(); ++i) {
      const int rope = record["layers"][i];
      const std::string ours = model.LayerName(static_cast<int32_t>(i));
      ASSERT_EQ(ours == "nope", rope < 0) << name << " layer " << i << " " << ours;
      if (rope < 0 || model.Types().size() < 3) continue;
      const json& kind = record["ropes"][rope]["layer_type"];
      EXPECT_TRUE(kind.is_null() || kind == ours) << name << " layer " << i << " " << ours;
    }
    ++compared;
  }
  EXPECT_GT(compared, 40);
}

}  // namespace
}  // namespace rope::testing
