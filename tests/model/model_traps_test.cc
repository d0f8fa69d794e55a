// The traps of published files, one named test each. Those of sizes, dictionaries and layers that
// only the parser's fields show are ModelTraps of model_rules_test; here are those that show in the
// frequencies, and those of single families.
#include <cmath>
#include <string>
#include <vector>

#include "support/handles.h"
#include "testing.h"

namespace rope::testing {
namespace {

using Names = std::vector<std::string>;

// --- in the frequencies -------------------------------------------------------------------------

TEST(ModelTrapsNumbers, EqualLlama3FactorsDivideByZeroOnlyWhereMasked) {  // Llama 4 Scout
  const std::vector<double> f =
      InvFreq(Model(Llama(R"({"rope_type": "llama3", "factor": 16, "low_freq_factor": 1.0,
                      "high_freq_factor": 1.0, "original_max_position_embeddings": 8192})"))
                  .Config());
  const std::vector<double> plain = InvFreq(Model(Llama("null")).Config());
  ASSERT_EQ(f.size(), 64u);
  for (size_t i = 0; i < f.size(); ++i) {
    const bool slow = 2 * M_PI / plain[i] > 8192;
    EXPECT_EQ(f[i], slow ? plain[i] / 16 : plain[i]) << i;
  }
}

TEST(ModelTrapsNumbers, EqualBetasGiveARampOfOneStep) {  // Kimi K2
  const std::vector<double> f =
      InvFreq(Model(Llama(R"({"type": "yarn", "factor": 32, "beta_fast": 1.0, "beta_slow": 1.0,
                      "original_max_position_embeddings": 4096})"))
                  .Config());
  const std::vector<double> plain = InvFreq(Model(Llama("null")).Config());
  size_t extrapolated = 0, interpolated = 0;
  for (size_t i = 0; i < f.size(); ++i) {
    extrapolated += std::fabs(f[i] / plain[i] - 1) < 1e-6 ? 1 : 0;
    interpolated += std::fabs(32 * f[i] / plain[i] - 1) < 1e-6 ? 1 : 0;
  }
  EXPECT_EQ(extrapolated + interpolated, 64u);
  EXPECT_EQ(extrapolated, 46u);  // 64 ln(4096 / 2 pi) / ln(1e4) = 45.03, floor and ceil: 45, 46
}

TEST(ModelTrapsNumbers, ZeroBetasAndAbsentOnesAreTheSame) {
  const std::string yarn =
      R"({"type": "yarn", "factor": 4, "original_max_position_embeddings": 4096)";
  EXPECT_EQ(InvFreq(Model(Llama(yarn + R"(, "beta_fast": 0, "beta_slow": 0})")).Config()),
            InvFreq(Model(Llama(yarn + "}")).Config()));
}

TEST(ModelTrapsNumbers, NestedTruncateChangesTheRamp) {
  const auto nested = [](const std::string& truncate) {
    return InvFreq(Model(R"({"model_type": "gemma3_text", "head_dim": 64,
        "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 10000},
        "full_attention": {"rope_type": "yarn", "factor": 8, "rope_theta": 1000000,
                           "original_max_position_embeddings": 4096, "truncate": )" +
                         truncate + "}}}")
                       .Config("full_attention"));
  };
  EXPECT_NE(nested("false"), nested("true"));
}

// --- words --------------------------------------------------------------------------------------

TEST(ModelTrapsWords, SuMropeAndXdrope) {
  // "su" with the original length beside the dictionary, as the first Phi-3 files have it
  const Model su(R"({"model_type": "phi3", "head_dim": 4, "max_position_embeddings": 131072,
      "original_max_position_embeddings": 4096,
      "rope_scaling": {"type": "su", "short_factor": [1, 2], "long_factor": [3, 4]}})");
  EXPECT_EQ(su.Config().scaling, ROPE_SCALING_LONGROPE);
  EXPECT_EQ(su.Config().original_max_position_embeddings, 4096);
  const rope_config mrope = Model(R"({"model_type": "qwen2_vl", "hidden_size": 3584,
      "num_attention_heads": 28,
      "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}})")
                                .Config();
  EXPECT_EQ(mrope.scaling, ROPE_SCALING_DEFAULT);
  EXPECT_EQ(mrope.axes, 3);
  const rope_config xdrope = Model(R"({"model_type": "hunyuan_vl_text", "head_dim": 128,
      "rope_scaling": {"type": "xdrope", "alpha": 1000.0, "factor": 1.0,
                       "xdrope_section": [16, 16, 16, 16]}})")
                                 .Config();
  EXPECT_EQ(xdrope.scaling, ROPE_SCALING_DEFAULT);
  EXPECT_EQ(xdrope.axes, 4);
  EXPECT_NEAR(xdrope.theta, 1e4 * std::pow(1000, 128.0 / 126), 1);
}

TEST(ModelTrapsWords, PartialInsideAndBesideAgree) {
  const auto glm = [](const char* beside) {
    return std::string(R"({"model_type": "glm4_moe", "head_dim": 128, )") + beside +
           R"("rope_parameters": {"partial_rotary_factor": 0.25}})";
  };
  EXPECT_EQ(Model(glm("")).Config().rotary_dim, 32);
  EXPECT_EQ(Model(glm(R"("partial_rotary_factor": 0.25, )")).Config().rotary_dim, 32);
  ExpectRefused(glm(R"("partial_rotary_factor": 0.5, )"), {"partial_rotary_factor (0.5)"},
                ROPE_ERROR_UNSUPPORTED);
}

TEST(ModelTrapsWords, RotaryDimAlone) {  // MiniMax-M2.5
  EXPECT_EQ(Model(R"({"model_type": "minimax_m2", "head_dim": 128, "rotary_dim": 64})")
                .Config()
                .rotary_dim,
            64);
}

// --- layers that say their sizes one by one -----------------------------------------------------

TEST(ModelPerLayer, HeadDimOfEveryKind) {  // Gemma 4, as transformers 5.23 saves it
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
  ExpectRefused(head + R"({"02": {"head_dim": "x"}}})", {"per_layer_config.02.head_dim"});
  ExpectRefused(head + R"({"02": 7}})", {"per_layer_config.02"});
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
  // one theta, and a scaling of all kinds
  const Model plain(head + scaling + R"(, "rope_theta": 10000.0, "partial_rotary_factors":
      [0.5, 1.0]})");
  EXPECT_EQ(plain.Config("full_attention").rotary_dim, 64);
  EXPECT_EQ(plain.Config("sliding_attention").scaling, ROPE_SCALING_LLAMA3);
  EXPECT_EQ(plain.Config("sliding_attention").theta, 10000);
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

TEST(ModelPerLayer, MuseCountsLayersWithoutRopeFromTheLast) {
  const auto layers = [](const char* type, const char* count) {
    return Model(R"({"model_type": ")" + std::string(type) + R"(", "num_hidden_layers": )" + count +
                 "}")
        .Layers(6);
  };
  EXPECT_EQ(layers("muse_glimmer_text", "4"), "fffn..");
  EXPECT_EQ(layers("muse_spark_text", "6"), "fnfffn");
}

TEST(ModelPerLayer, AttentionLayersThatTheCountDoesNotTell) {
  EXPECT_EQ(Model(R"({"model_type": "longcat_flash", "num_layers": 2})").Layers(5), "ffff.");
  const Model hrm(R"({"model_type": "hrm_text", "num_hidden_layers": 1})");
  EXPECT_EQ(hrm.Layers(9), "ffffffff.");  // 2 * (3 + 1) passes
  const Model bamba(R"({"model_type": "bamba", "head_dim": 128, "num_hidden_layers": 3})");
  EXPECT_EQ(bamba.Layers(3), "nnn");
}

// --- spans and axes of single families ----------------------------------------------------------

TEST(ModelFamilies, ClvpRotatesTheFirstChannelsOfItsHeads) {
  const std::string encoder = R"({"model_type": "clvp_encoder", "hidden_size": 768,
      "num_attention_heads": 12, "num_hidden_layers": 2)";
  EXPECT_EQ(Model(encoder + R"(, "projection_dim": 768})").Config().rotary_dim, 32);
  EXPECT_EQ(Model(encoder + R"(, "projection_dim": 960})").Config().rotary_dim, 40);
  EXPECT_EQ(Model(encoder + R"(, "projection_dim": 768, "use_rotary_embedding": false})").Layers(2),
            "nn");
  ExpectRefused(encoder + "}", {"projection_dim"});
  ExpectRefused(encoder + R"(, "projection_dim": 999})", {"projection_dim"});
}

TEST(ModelFamilies, NeommeAlternatesTwoIds) {
  const rope_config c = Model(R"({"model_type": "neomme", "num_hidden_layers": 1,
      "layer_types": ["full_attention"]})")
                            .Config("full_attention");
  EXPECT_EQ(c.axes, 2);
  EXPECT_EQ(c.rotary_dim, 16);
  EXPECT_EQ(c.table_length, 8);
}

TEST(ModelFamilies, MistralLarge4HasAnIndexerAndLayersWithoutRope) {
  const Model model(R"({"model_type": "mistral_large4_text", "num_hidden_layers": 4,
      "max_position_embeddings": 1048576, "index_head_dim": 128})");
  EXPECT_EQ(model.Types(), (Names{"full_attention", "nope", "indexer"}));
  EXPECT_EQ(model.Layers(4), "fffn");
  EXPECT_EQ(model.Config().scaling, ROPE_SCALING_YARN);
  EXPECT_EQ(model.Config().original_max_position_embeddings, 512);
  EXPECT_EQ(model.Config("indexer").pairing, ROPE_PAIRING_INTERLEAVED_TO_HALVES);
}

}  // namespace
}  // namespace rope::testing
