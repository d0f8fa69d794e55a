// Layers: how many there are, which of them rotate, and those that say their sizes one by one.
#include <cstdint>
#include <string>
#include <vector>

#include "answer.h"
#include "testing.h"

namespace rope::testing {
namespace {

using Names = std::vector<std::string>;

TEST(ModelLayers, AreNotInvented) {
  for (
      const char* text :
      {R"({"model_type": "llama", "head_dim": 64})", R"({"model_type": "gemma3", "head_dim": 64})",
       R"({"model_type": "jamba", "head_dim": 64})",
       R"({"model_type": "recurrent_gemma", "hidden_size": 64, "num_attention_heads": 1,
            "block_types": ["recurrent", "attention"]})",
       R"({"model_type": "falcon", "hidden_size": 64, "num_attention_heads": 1, "alibi": true})"}) {
    const Model model(text);
    int32_t type = 77;
    EXPECT_EQ(rope_model_layer_type(model.get(), 0, &type), ROPE_ERROR_INVALID_ARGUMENT) << text;
    EXPECT_NE(std::string(rope_last_error()).find("how many layers"), std::string::npos);
    EXPECT_EQ(type, 77);
  }
  const Model smol(R"({"model_type": "smollm3", "head_dim": 64})");
  EXPECT_EQ(smol.Types(), (Names{"full_attention", "nope"}));  // the kinds are known
  EXPECT_EQ(smol.Layers(1), ".");
}

TEST(ModelLayers, AreToldByListsToo) {
  EXPECT_EQ(Model(R"({"model_type": "lfm2", "head_dim": 64,
                      "layer_types": ["full_attention", "mamba"]})")
                .Layers(3),
            "fn.");
  EXPECT_EQ(Model(R"({"model_type": "nemotron_h", "head_dim": 64,
                      "layers_block_type": ["mamba", "full_attention"]})")
                .Layers(3),
            "nn.");
  EXPECT_EQ(
      Model(R"({"model_type": "smollm3", "head_dim": 64, "no_rope_layers": [1, 0]})").Layers(3),
      "fn.");
  EXPECT_EQ(
      Model(R"({"model_type": "minimax", "head_dim": 64, "attn_type_list": [0, 1]})").Layers(3),
      "nf.");
  EXPECT_EQ(Model(R"({"model_type": "dia", "decoder_config": {"model_type": "dia_decoder",
                      "head_dim": 128, "num_hidden_layers": 2}})")
                .Layers(3),
            "ff.");
}

TEST(ModelLayers, OfKnownLabelsTurnOrDoNot) {
  const auto labelled = [](const std::string& label) {
    return R"({"model_type": "alice_ai", "head_dim": 64, "rope_theta": 1e4,
               "layer_types": ["full_attention", ")" +
           label + R"("]})";
  };
  for (const char* label : {"kda", "gla"}) EXPECT_EQ(Model(labelled(label)).Layers(2), "fn");
  EXPECT_EQ(Model(labelled("sliding_window")).Layers(2), "ff");
  for (const char* label : {"cross_attention", "hybrid_attention", "mamba_attention"}) {
    const std::string message =
        "layer_types[1] (\"" + std::string(label) + "\") is no kind of layer";
    ExpectRefused(labelled(label), {message.c_str(), "full_attention", "nope"},
                  ROPE_ERROR_UNSUPPORTED);
  }
}

// What rope_parameters does not say of a kind, some classes have defaults for, and others fail.
TEST(ModelLayers, OfAKindThatIsLeftOutAreAsInTheClass) {
  const auto with = [](const std::string& model_type, const std::string& kinds) {
    return R"({"model_type": ")" + model_type + R"(", "head_dim": 64, "layer_types": [)" + kinds +
           R"(], "rope_parameters": {"full_attention": {"rope_theta": 7e4}}})";
  };
  const std::string both = R"("sliding_attention", "full_attention")";
  for (const char* type : {"gemma3_text", "t5gemma2_text", "modernbert", "neomme", "olmo3"}) {
    EXPECT_EQ(Model(with(type, both)).Types(), (Names{"full_attention", "sliding_attention"}));
  }
  EXPECT_EQ(Model(with("gemma3_text", both)).Config("sliding_attention").theta, 1e4);
  for (const char* type : {"gemma4_text", "laguna", "lfm3", "mellum", "embedding_gemma2_text"}) {
    ExpectRefused(with(type, both),
                  {"layer_types[0] (\"sliding_attention\")", "rope_parameters is about"});
  }
  EXPECT_EQ(Model(with("laguna", R"("full_attention")")).Types(), Names{"full_attention"});
  ExpectRefused(R"({"model_type": "deepseek_v4", "hidden_size": 64, "num_attention_heads": 1,
                    "rope_parameters": {"main": {"rope_theta": 7e4}}})",
                {"rope_parameters.compress is missing"});
}

// transformers 5 has "rope_type": "default" beside it in these classes, and scales nothing.
TEST(ModelLayers, AFlatDictionaryMayNameItsScalingByType) {
  for (const char* type : {"gemma3_text", "gemma3n_text", "t5gemma2_text", "olmo3", "modernbert",
                           "modernbert-decoder"}) {
    const auto flat = [type](const char* key) {
      return R"({"model_type": ")" + std::string(type) +
             R"(", "head_dim": 64, "hidden_size": 256, "num_attention_heads": 4,
             "num_hidden_layers": 12, "rope_scaling": {")" +
             key + R"(": "linear", "factor": 8}})";
    };
    const Model model(flat("type"));
    EXPECT_EQ(model.Config("full_attention").scaling, ROPE_SCALING_LINEAR) << type;
    EXPECT_EQ(Answer(flat("type")), Answer(flat("rope_type"))) << type;
  }
}

TEST(ModelLayers, AreCountedAsTheClassDoes) {
  EXPECT_EQ(Model(R"({"model_type": "longcat_flash", "num_hidden_layers": 2})").Layers(3), "ff.");
  EXPECT_EQ(Model(R"({"model_type": "longcat_flash", "num_hidden_layers": 5})").Layers(5), "ffff.");
  EXPECT_EQ(Model(R"({"model_type": "exaone4", "head_dim": 64, "num_hidden_layers": 6,
                      "sliding_window_pattern": "LLLG"})")
                .Layers(6),
            "sssnsn");  // the last is full, whatever the letters say
  ExpectRefused(R"({"model_type": "llama", "head_dim": 64, "layer_types": []})",
                {"layer_types has 0 entries"});
}

TEST(ModelLayers, AreCountedByPassesAndByAttention) {
  EXPECT_EQ(Model(R"({"model_type": "longcat_flash", "num_layers": 2})").Layers(5), "ffff.");
  const Model hrm(R"({"model_type": "hrm_text", "num_hidden_layers": 1})");
  EXPECT_EQ(hrm.Layers(9), "ffffffff.");  // 2 * (3 + 1) passes
  const Model bamba(R"({"model_type": "bamba", "head_dim": 128, "num_hidden_layers": 3})");
  EXPECT_EQ(bamba.Layers(3), "nnn");
}

TEST(ModelLayers, BeyondTheLastArePassedOver) {  // extra layers, of multi-token prediction
  EXPECT_EQ(Model(R"({"model_type": "mllama_text_model", "head_dim": 128, "num_hidden_layers": 5,
                      "cross_attention_layers": [3, 5, 4096]})")
                .Layers(6),
            "fffnf.");
  ExpectRefused(R"({"model_type": "mllama_text_model", "head_dim": 128, "num_hidden_layers": 5,
                    "cross_attention_layers": [4097]})",
                {"cross_attention_layers[0] (4097)"});
  const Model molmo(R"({"model_type": "molmo2_text", "num_hidden_layers": 2, "rope_parameters":
      {"rope_type": "linear", "factor": 8}, "rope_scaling_layers": [1, 2, 4096]})");
  EXPECT_EQ(molmo.Layers(3), "us.");
  const Model gemma(R"({"model_type": "gemma4_text", "num_hidden_layers": 2, "layer_types":
      ["sliding_attention", "full_attention"], "per_layer_config": {"02": {"head_dim": 64},
      "99999": {"head_dim": 64}, "0001": {"head_dim": 128}}})");
  EXPECT_EQ(gemma.Config("full_attention").head_dim, 128);
}

// Published: the class of Llama 4, and no other, takes its default for an empty list.
TEST(ModelLayers, AnEmptyListOfLlama4IsNone) {
  const std::string rest = R"(", "head_dim": 128, "num_hidden_layers": 8, "no_rope_layers": []})";
  EXPECT_EQ(Model(R"({"model_type": "llama4_text)" + rest).Layers(8), "cccncccn");
  EXPECT_EQ(Model(R"({"model_type": "llama4_text", "no_rope_layers": []})").Layers(4),
            Model(R"({"model_type": "llama4_text"})").Layers(4));
  for (const std::string type : {"smollm3", "mistral_large4_text"}) {
    ExpectRefused(R"({"model_type": ")" + type + rest, {"no_rope_layers has 0 entries"});
  }
}

TEST(ModelLayers, ListedOrOfThetaZeroDoNotTurn) {
  const Model smol(R"({"model_type": "smollm3", "head_dim": 128, "num_hidden_layers": 4,
                       "no_rope_layers": [1, 0, 1, 1]})");
  EXPECT_EQ(smol.Layers(4), "fnff");  // 1 means RoPE
  const Model every(R"({"model_type": "smollm3", "head_dim": 128, "num_hidden_layers": 8,
                        "no_rope_layer_interval": 4})");
  EXPECT_EQ(every.Layers(8), "fffnfffn");
  const Model muse(R"({"model_type": "muse_glimmer", "text_config": {"model_type":
      "muse_glimmer_text", "rope_theta": 5e5, "layer_rope_theta": [500000.0, 500000.0, 500000.0,
      0]}})");
  EXPECT_EQ(muse.Types(), (Names{"full_attention", "nope"}));
  EXPECT_EQ(muse.Config().theta, 500000);
  EXPECT_EQ(muse.Layers(4), "fffn");
  const Model two(R"({"model_type": "granite_swa", "head_dim": 64,
                      "layer_rope_theta": [10000, 0, 500000]})");
  EXPECT_EQ(two.Types(), (Names{"theta_10000", "theta_500000", "nope"}));
}

TEST(ModelLayers, OfFullAttentionMayBeWithoutRope) {
  EXPECT_EQ(Model(R"({"model_type": "cohere2", "hidden_size": 4096, "num_attention_heads": 32,
      "num_hidden_layers": 4, "sliding_window_pattern": 4})")
                .Layers(4),
            "sssn");
  EXPECT_EQ(Model(R"({"model_type": "afmoe", "layer_types": ["full_attention",
      "sliding_attention"]})")
                .Layers(2),
            "ns");
  EXPECT_EQ(Model(R"({"model_type": "exaone4", "head_dim": 64, "num_hidden_layers": 4,
      "sliding_window": null, "sliding_window_pattern": null})")
                .Layers(4),
            "ssss");
  const Model nulls(R"({"model_type": "cohere_compass", "head_dim": 64, "layer_types":
      ["sliding_attention", "full_attention"], "rope_parameters": {"full_attention": null,
      "sliding_attention": {"rope_theta": 1e4, "mrope_section": [12, 10, 10]}}})");
  EXPECT_EQ(nulls.Layers(2), "sn");
  EXPECT_EQ(nulls.Config().mrope_interleaved, 1);
}

TEST(ModelLayers, OfHybridsTurnWhereTheyAttend) {
  const Model bamba(R"({"model_type": "bamba", "hidden_size": 4096, "num_attention_heads": 32,
                        "num_hidden_layers": 4, "attn_layer_indices": [1, 3]})");
  EXPECT_EQ(bamba.Config().rotary_dim, 64);
  EXPECT_EQ(bamba.Layers(4), "nfnf");
  const Model granite(R"({"model_type": "granitemoehybrid", "head_dim": 64, "num_hidden_layers": 2,
                          "position_embedding_type": "rope",
                          "layer_types": ["mamba", "attention"]})");
  EXPECT_EQ(granite.Layers(2), "nf");
  EXPECT_EQ(Model(R"({"model_type": "granitemoehybrid", "head_dim": 64, "num_hidden_layers": 1,
                      "position_embedding_type": "nope"})")
                .Types(),
            Names{"nope"});
  EXPECT_EQ(Model(R"({"model_type": "recurrent_gemma", "hidden_size": 2560, "num_hidden_layers": 6,
                      "num_attention_heads": 10, "block_types": ["recurrent", "recurrent",
                      "attention"]})")
                .Layers(6),
            "nnfnnf");
  EXPECT_EQ(
      Model(R"({"model_type": "mllama_text_model", "hidden_size": 4096, "num_hidden_layers": 5,
                      "num_attention_heads": 32, "cross_attention_layers": [3]})")
          .Layers(5),
      "fffnf");
  EXPECT_EQ(Model(R"({"model_type": "zamba2", "hidden_size": 2560, "num_attention_heads": 32,
                      "use_mem_rope": true})")
                .Config()
                .head_dim,
            160);
}

// GLM-5.3: latent attention in which nothing rotates.
TEST(ModelLayers, OfLatentAttentionWithoutRotatedChannelsDoNotTurn) {
  const Model model(R"({"model_type": "glm5_next", "text_config": {"model_type": "glm5_next_text",
      "head_dim": 0, "hidden_size": 4096, "num_attention_heads": 64, "qk_nope_head_dim": 256,
      "qk_rope_head_dim": 0, "num_hidden_layers": 2}})");
  EXPECT_EQ(model.Types(), Names{"nope"});
  EXPECT_EQ(model.Config().head_dim, 256);
  EXPECT_EQ(model.Layers(3), "nn.");
}

TEST(ModelLayers, OfMuseAreCountedFromTheLast) {
  const auto layers = [](const char* type, const char* count) {
    return Model(R"({"model_type": ")" + std::string(type) + R"(", "num_hidden_layers": )" + count +
                 "}")
        .Layers(6);
  };
  EXPECT_EQ(layers("muse_glimmer_text", "4"), "fffn..");
  EXPECT_EQ(layers("muse_spark_text", "6"), "fnfffn");
}

TEST(ModelPerLayer, HeadDimIsThatOfEachKind) {  // Gemma 4, as transformers 5.23 saves it
  const std::string head = R"({"model_type": "gemma4_text", "num_hidden_layers": 6, "head_dim": 256,
      "layer_types": ["sliding_attention", "sliding_attention", "full_attention",
                      "sliding_attention", "sliding_attention", "full_attention"],
      "per_layer_config": )";
  const Model model(head + R"({"02": {"head_dim": 128, "num_key_value_heads": 2},
                               "05": {"head_dim": 128}, "note": 1}})");
  EXPECT_EQ(model.Config("full_attention").head_dim, 128);
  EXPECT_EQ(model.Config("sliding_attention").head_dim, 256);
  EXPECT_EQ(Model(head + R"({"01": {"sliding_window": null}}})").Config("full_attention").head_dim,
            512);
  ExpectRefused(head + R"({"02": {"head_dim": 128}}})",
                {"per_layer_config", "full_attention", "head_dim"}, ROPE_ERROR_UNSUPPORTED);
  // Some layers of a kind have an entry: the others have what the model says of all.
  EXPECT_EQ(Model(head + R"({"01": {"head_dim": 256}}})").Config("sliding_attention").head_dim,
            256);
  ExpectRefused(head + R"({"01": {"head_dim": 128}}})",
                {"per_layer_config", "sliding_attention", "head_dim"}, ROPE_ERROR_UNSUPPORTED);
  ExpectRefused(head + R"({"02": {"head_dim": "x"}}})", {"per_layer_config.02.head_dim"});
  ExpectRefused(head + R"({"02": 7}})", {"per_layer_config.02"});
}

// transformers refuses them.
TEST(ModelPerLayer, EntriesAreThoseOfLayersByTheirNumbers) {
  const std::string head = R"({"model_type": "gemma4_text", "num_hidden_layers": 2, "layer_types":
      ["sliding_attention", "full_attention"], "per_layer_config": {)";
  for (const char* key : {"full_attention", "1/", "+1", "-1", "", "18446744073709551617"}) {
    ExpectRefused(head + '"' + key + R"(": {"head_dim": 64}}})",
                  {"per_layer_config.", key, "number of a layer"});
  }
  ExpectRefused(head + R"("1": {"head_dim": 64}, "01": {"head_dim": 128}}})",
                {"per_layer_config has two entries of layer 1"});
}

// Each of these was read with the heads of the other layers.
TEST(ModelPerLayer, LayersOfOneRopeHaveHeadsOfOneWidth) {
  const std::string kinds =
      R"("layer_types": ["full_attention", "sliding_attention", "full_attention"], )";
  const auto refused = [&](const std::string& keys, const std::string& entries,
                           std::initializer_list<const char*> message) {
    ExpectRefused(
        R"({"num_hidden_layers": 3, )" + keys + R"(, "per_layer_config": {)" + entries + "}}",
        message, ROPE_ERROR_UNSUPPORTED);
  };
  const std::string narrow = R"("1": {"head_dim": 64})";
  refused(kinds + R"("model_type": "qwen3")", narrow,
          {"per_layer_config", "\"full_attention\"", "head_dim"});
  const std::string molmo = R"("model_type": "molmo2_text", "rope_scaling_layers": [1, 2],
      "rope_parameters": {"rope_type": "linear", "factor": 8})";
  refused(molmo, R"("0": {"head_dim": 64}, "1": {"head_dim": 64})",
          {"per_layer_config", "\"scaled\"", "head_dim"});
  const Model of_two(R"({"num_hidden_layers": 3, )" + molmo + R"(, "per_layer_config": {)" +
                     narrow + R"(, "2": {"head_dim": 64}}})");
  EXPECT_EQ(of_two.Config("scaled").head_dim, 64);
  EXPECT_EQ(of_two.Config("unscaled").head_dim, 128);
  refused(R"("model_type": "granite_swa", "head_dim": 128, "layer_rope_theta": [1e4, 1e5, 1e4])",
          narrow, {"per_layer_config", "\"theta_100000\"", "head_dim"});
  refused(R"("model_type": "nobody_knows", "head_dim": 128, "rope_parameters": {"full_attention":
             {"rope_theta": 1e4}, "sliding_attention": {"rope_theta": 1e5}})",
          narrow, {"per_layer_config", "head_dim"});
  const std::string quotient = R"("model_type": "qwen2", "hidden_size": 256, )";
  refused(quotient + R"("num_attention_heads": 2)", R"("1": {"num_attention_heads": 4})",
          {"per_layer_config.1.num_attention_heads (4)", "head_dim"});
  EXPECT_EQ(Model("{" + quotient + R"("num_attention_heads": 2, "head_dim": 128, "per_layer_config":
                {"1": {"num_attention_heads": 4}}})")
                .Config("full_attention")
                .head_dim,
            128);
  refused(R"("model_type": "zamba2", "attention_head_dim": 64, "use_mem_rope": true)",
          R"("1": {"attention_head_dim": 128})",
          {"per_layer_config.1.attention_head_dim (128)", "all layers"});
  refused(quotient + R"("num_attention_heads": 2)", R"("0": {"qk_rope_head_dim": 32},
          "1": {"qk_rope_head_dim": 32}, "2": {"qk_rope_head_dim": 32})",
          {"per_layer_config.0.qk_rope_head_dim (32)"});
  // A class that divides does so beside an entry, too.
  refused(R"("model_type": "falcon", "hidden_size": 256, "num_attention_heads": 2, "head_dim": 64)",
          R"("0": {"num_key_value_heads": 1})", {"head_dim (64)", "128"});
  refused(R"("model_type": "falcon", "hidden_size": 256, "num_attention_heads": 2)",
          R"("0": {"head_dim": 64}, "1": {"head_dim": 64}, "2": {"head_dim": 64})",
          {"head_dim (64)", "128"});
}

TEST(ModelPerLayer, Dots3NoteHasWidthsAndThetasOfTwoKinds) {
  const std::string head = R"({"model_type": "dots3_note", "text_config": {"model_type":
      "dots3_note_text", "num_hidden_layers": 8, "head_dim": 256, "index_head_dim": 128)";
  const Model model(head + "}}");
  EXPECT_EQ(model.Types(), (Names{"indexed_attention", "sliding_attention", "indexer"}));
  EXPECT_EQ(model.Layers(8), "iisssiss");
  EXPECT_EQ(model.Config("indexed_attention").theta, 8e7);
  EXPECT_EQ(model.Config("indexed_attention").rotary_offset, 128);
  EXPECT_EQ(model.Config("sliding_attention").theta, 5e4);
  EXPECT_EQ(model.Config("sliding_attention").rotary_offset, 192);
  EXPECT_EQ(model.Config("indexer").theta, 8e7);
  EXPECT_EQ(model.Config("indexer").head_dim, 128);
  const Model older(head + R"(, "swa_rope_theta": 7, "swa_qk_nope_head_dim": 64, "layer_types":
      ["full_attention", "sliding_attention", "full_attention", "full_attention",
       "sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]}})");
  EXPECT_EQ(older.Layers(8), "isiisssi");
  EXPECT_EQ(older.Config("sliding_attention").theta, 7);
  EXPECT_EQ(older.Config("sliding_attention").rotary_offset, 64);
  // Where there are dictionaries, the class takes rope_theta for both kinds, or 8e7.
  const auto nested = [&head](const char* theta) {
    return head +
           R"(, "rope_parameters": {"indexed_attention": {"rope_type": "linear", "factor": 2},
        "sliding_attention": {"rope_type": "linear", "factor": 2)" +
           theta + "}}}}";
  };
  ExpectRefused(nested(""), {"sliding_attention.rope_theta", "swa_rope_theta"});
  const Model newer(nested(R"(, "rope_theta": 50000)"));
  EXPECT_EQ(newer.Config("sliding_attention").theta, 5e4);
  EXPECT_EQ(newer.Config("indexed_attention").theta, 8e7);
}

TEST(ModelPerLayer, Molmo2ScalesTheListedLayers) {
  const std::string head = R"({"model_type": "molmo2", "text_config": {"model_type": "molmo2_text",
      "num_hidden_layers": 4, "rope_parameters": {"rope_type": "yarn", "rope_theta": 500000,
      "factor": 8, "original_max_position_embeddings": 8192})";
  const Model some(head + R"(, "rope_scaling_layers": [3]}})");
  EXPECT_EQ(some.Types(), (Names{"scaled", "unscaled"}));
  EXPECT_EQ(some.Layers(4), "uuus");
  EXPECT_EQ(some.Config("scaled").scaling, ROPE_SCALING_YARN);
  EXPECT_EQ(some.Config("unscaled").scaling, ROPE_SCALING_DEFAULT);
  EXPECT_EQ(some.Config("unscaled").theta, 500000);
  EXPECT_EQ(Model(head + "}}").Layers(4), "ffff");
  ExpectRefused(head + R"(, "rope_scaling_layers": [-1]}})", {"rope_scaling_layers[0]"});
}

TEST(ModelPerLayer, Step35HasThetaAndShareByLayer) {
  const std::string head = R"({"model_type": "step3p5", "head_dim": 128, "hidden_size": 4096,
      "num_attention_heads": 64, "num_hidden_layers": 2,
      "layer_types": ["full_attention", "sliding_attention", "sliding_attention"])";
  // Three entries for two layers: the last is that of an extra layer.
  const std::string scaling = R"(, "rope_scaling": {"rope_type": "llama3", "factor": 2.0,
      "low_freq_factor": 1.0, "high_freq_factor": 32.0,
      "original_max_position_embeddings": 131072})";
  const Model model(head + scaling + R"(, "rope_theta": [5000000.0, 10000.0, 7],
      "partial_rotary_factors": [0.5, 1.0, 1.0], "yarn_only_types": ["full_attention"]})");
  EXPECT_EQ(model.Types(), (Names{"full_attention", "sliding_attention"}));
  EXPECT_EQ(model.Layers(3), "fs.");
  const rope_config full = model.Config("full_attention");
  EXPECT_EQ(full.theta, 5e6);
  EXPECT_EQ(full.rotary_dim, 64);
  EXPECT_EQ(full.scaling, ROPE_SCALING_LLAMA3);
  const rope_config sliding = model.Config("sliding_attention");
  EXPECT_EQ(sliding.theta, 10000);
  EXPECT_EQ(sliding.rotary_dim, 0);
  EXPECT_EQ(sliding.scaling, ROPE_SCALING_DEFAULT);
  // transformers scales full attention, whatever yarn_only_types says.
  for (const char* types :
       {"", R"(, "yarn_only_types": [])", R"(, "yarn_only_types": ["sliding_attention"])",
        R"(, "yarn_only_types": ["full_attention", "sliding_attention"])"}) {
    ExpectRefused(head + scaling + R"(, "rope_theta": 10000.0)" + types + "}",
                  {"yarn_only_types", "rope_scaling", "transformers"}, ROPE_ERROR_UNSUPPORTED);
  }
  const Model plain(head + R"(, "rope_theta": 10000.0, "partial_rotary_factors": [0.5, 1.0]})");
  EXPECT_EQ(plain.Config("full_attention").rotary_dim, 64);
  EXPECT_EQ(plain.Config("sliding_attention").theta, 10000);
  // A dictionary of each kind hides the theta beside it.
  ExpectRefused(R"({"model_type": "step3p5", "head_dim": 128, "rope_theta": 7, "rope_parameters":
                    {"full_attention": {"rope_type": "linear", "factor": 2}}})",
                {"rope_parameters.full_attention.rope_theta", "does not take rope_theta"});
  EXPECT_EQ(Model(R"({"model_type": "step3p5", "head_dim": 128, "rope_theta": 5})").Config().theta,
            5);
  ExpectRefused(head + R"(, "rope_theta": [5000000.0]})", {"rope_theta has 1 entries", "2 layers"});
  ExpectRefused(head + R"(, "rope_theta": [5000000.0, 0]})", {"rope_theta[1] must be positive"});
  ExpectRefused(head + R"(, "use_rope_layers": [1, 0]})", {"use_rope_layers"},
                ROPE_ERROR_UNSUPPORTED);
  ExpectRefused(R"({"model_type": "step3p5", "head_dim": 128, "num_hidden_layers": 2,
                    "rope_theta": [5000000.0, 10000.0]})",
                {"rope_theta[1] (10000)", "full_attention", "5000000"}, ROPE_ERROR_UNSUPPORTED);
}

}  // namespace
}  // namespace rope::testing
