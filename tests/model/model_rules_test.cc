// The rules of the parser one by one: precedence, class-specific conversions, the traps of
// published files, rope dictionaries without a model, unknown models.
#include <cmath>
#include <string>

#include "testing.h"

namespace rope::testing {
namespace {

using Names = std::vector<std::string>;

// --- precedence ---------------------------------------------------------------------------------

TEST(ModelRules, TwoDictionariesSayTheSame) {
  const std::string head = R"({"model_type": "llama", "head_dim": 64, "rope_parameters":
      {"rope_type": "linear", "factor": 2, "rope_theta": 1000}, "rope_scaling": )";
  EXPECT_EQ(Model(head + R"({"type": "linear", "factor": 2}})").Config().factor, 2);
  EXPECT_EQ(Model(head + R"({"type": "linear", "factor": 2.0}})").Config().theta, 1000);
  for (const char* other :
       {R"({"type": "linear", "factor": 4}})", R"({"type": "dynamic", "factor": 2}})",
        R"({"type": "linear"}})", R"({"type": "linear", "factor": 2, "alpha": 3}})"}) {
    ExpectRefused(head + other, {"rope_scaling and rope_parameters must say the same"},
                  ROPE_ERROR_UNSUPPORTED);
  }
  EXPECT_EQ(Model(head + "{}}").Config().factor, 2);
  EXPECT_EQ(Model(head + "null}").Config().theta, 1000);
}

TEST(ModelRules, ThetaInsideBesideDefault) {
  const auto theta = [](const std::string& rest) {
    return Model(R"({"model_type": "mixtral", "head_dim": 64)" + rest + "}").Config().theta;
  };
  EXPECT_EQ(theta(R"(, "rope_theta": 7, "rope_parameters": {"rope_theta": 7.0})"), 7);
  EXPECT_EQ(theta(R"(, "rope_theta": 5, "rope_parameters": {"rope_type": "default"})"), 5);
  EXPECT_EQ(theta(R"(, "rope_theta": null)"), 1e6);
  EXPECT_EQ(theta(""), 1e6);
}

TEST(ModelRules, TypeAndRopeType) {
  EXPECT_EQ(Model(Llama(R"({"type": "linear", "factor": 2})")).Config().scaling,
            ROPE_SCALING_LINEAR);
  EXPECT_EQ(
      Model(Llama(R"({"rope_type": "linear", "type": "linear", "factor": 2})")).Config().scaling,
      ROPE_SCALING_LINEAR);
  ExpectRefused(Llama(R"({"rope_type": "linear", "type": "yarn", "factor": 2})"),
                {"rope_scaling.type (\"yarn\") must mean the same as rope_type (\"linear\")"});
  EXPECT_EQ(Model(Llama(R"({"rope_type": null, "type": "linear", "factor": 2})")).Config().scaling,
            ROPE_SCALING_LINEAR);
  EXPECT_EQ(Model(Llama(R"({"rope_theta": 10000})")).Config().scaling, ROPE_SCALING_DEFAULT);
}

// transformers turns the whole head then, and other programs half of it.
TEST(ModelRules, PartialIsRefusedInClassesThatDoNotReadIt) {
  ExpectRefused(Llama(R"({"rope_type": "default", "partial_rotary_factor": 0.5})"),
                {"rope_scaling.partial_rotary_factor (0.5)"}, ROPE_ERROR_UNSUPPORTED);
  EXPECT_EQ(
      Model(Llama(R"({"rope_type": "default", "partial_rotary_factor": 1})")).Config().rotary_dim,
      0);
  EXPECT_EQ(Model(Llama(R"({"rope_type": "linear", "factor": 2, "partial_rotary_factor": 0.5})"))
                .Config()
                .rotary_dim,
            64);
}

TEST(ModelRules, TheTextModelIsFoundInItsWrappers) {
  for (const char* wrap :
       {R"({"model_type": "llava", "text_config": )",
        R"({"model_type": "internvl_chat", "llm_config": )",
        R"({"model_type": "deepseek_vl_v2", "language_config": )",
        R"({"model_type": "qwen3_omni_moe", "thinker_config": {"text_config": )"}) {
    std::string text = wrap;
    text += R"({"model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28,
                "rope_theta": 1000000.0}})";
    if (text.find("thinker") != std::string::npos) text += "}";
    EXPECT_EQ(Model(text).Config().theta, 1e6) << wrap;
    EXPECT_EQ(Model(text).Config().head_dim, 128) << wrap;
  }
}

// --- class-specific conversions -----------------------------------------------------------------

TEST(ModelConversions, Gemma3ScalesItsFullLayersAlone) {
  const Model model(R"({"model_type": "gemma3_text", "head_dim": 256, "rope_theta": 1000000,
      "rope_local_base_freq": 12345, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
      "num_hidden_layers": 12})");
  EXPECT_EQ(model.Types(), (Names{"full_attention", "sliding_attention"}));
  EXPECT_EQ(model.Config("full_attention").factor, 8);
  EXPECT_EQ(model.Config("sliding_attention").scaling, ROPE_SCALING_DEFAULT);
  EXPECT_EQ(model.Config("sliding_attention").theta, 12345);
  EXPECT_EQ(model.Layers(12), "sssssfsssssf");
  EXPECT_EQ(Model(R"({"model_type": "gemma3n_text", "num_hidden_layers": 10})").Layers(10),
            "ssssfssssf");
  // Entries without a theta take that of their kind.
  const Model nested(R"({"model_type": "gemma3_text", "rope_local_base_freq": 7, "rope_theta": 9,
      "rope_parameters": {"full_attention": {"rope_type": "default"}, "sliding_attention": {}}})");
  EXPECT_EQ(nested.Config("full_attention").theta, 9);
  EXPECT_EQ(nested.Config("sliding_attention").theta, 7);
}

TEST(ModelConversions, ModernBertScalesBoth) {
  const Model model(R"({"model_type": "modernbert", "hidden_size": 768, "num_attention_heads": 12,
      "global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "num_hidden_layers": 6,
      "global_attn_every_n_layers": 3, "rope_scaling": {"type": "linear", "factor": 2}})");
  EXPECT_EQ(model.Config("full_attention").theta, 160000);
  EXPECT_EQ(model.Config("sliding_attention").theta, 10000);
  EXPECT_EQ(model.Config("sliding_attention").factor, 2);
  EXPECT_EQ(model.Layers(6), "fssfss");
}

TEST(ModelConversions, Olmo3SlidingFallsBackToTheClass) {
  const Model model(R"({"model_type": "olmo3", "hidden_size": 4096, "num_attention_heads": 32,
      "rope_theta": 123456, "max_position_embeddings": 65536, "num_hidden_layers": 4,
      "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192,
      "attention_factor": 1.2079441541679836}})");
  EXPECT_EQ(model.Config("full_attention").theta, 123456);
  EXPECT_EQ(model.Config("full_attention").attention_factor, 1.2079441541679836);
  EXPECT_EQ(model.Config("sliding_attention").theta, 500000);
  EXPECT_EQ(model.Config("sliding_attention").scaling, ROPE_SCALING_DEFAULT);
  EXPECT_EQ(model.Config("full_attention").rounding, ROPE_ROUNDING_FLOAT32);
  EXPECT_EQ(model.Layers(4), "sssf");
}

TEST(ModelConversions, NestedOnlyFamiliesHaveDefaults) {
  const Model zaya(R"({"model_type": "zaya", "layer_types": ["hybrid", "hybrid_sliding"]})");
  EXPECT_EQ(zaya.Config("hybrid").theta, 5e6);
  EXPECT_EQ(zaya.Config("hybrid").rotary_dim, 64);
  EXPECT_EQ(zaya.Config("hybrid_sliding").theta, 1e4);
  const Model laguna(R"({"model_type": "laguna"})");
  EXPECT_EQ(laguna.Config("full_attention").rotary_dim, 64);
  EXPECT_EQ(laguna.Config("sliding_attention").rotary_dim, 0);
  EXPECT_EQ(laguna.LayerName(0), "");  // no rule tells
  ExpectRefused(R"({"model_type": "mellum", "rope_scaling": {"type": "yarn", "factor": 2}})",
                {"rope_scaling", "yarn", "full_attention"});
}

TEST(ModelConversions, MimoHasWidthsAndThetasOfTwoKinds) {
  const std::string rest = R"("model_type": "mimo_v2_flash", "head_dim": 192, "swa_head_dim": 128,
      "rope_theta": 5000000, "swa_rope_theta": 10000, "partial_rotary_factor": 0.334,
      "num_hidden_layers": 12})";
  const Model model("{" + rest);
  EXPECT_EQ(model.Config("full_attention").rotary_dim, 64);  // int(64.128)
  EXPECT_EQ(model.Config("sliding_attention").head_dim, 128);
  EXPECT_EQ(model.Config("sliding_attention").rotary_dim, 42);
  EXPECT_EQ(model.Layers(12), "fssssfsssssf");
  const Model listed(R"({"hybrid_layer_pattern": [0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1], )" + rest);
  EXPECT_EQ(listed.Layers(12), "fssfssssssss");
}

TEST(ModelConversions, Phi3SpellsLongropeInThreeWays) {
  for (const char* name : {"longrope", "su", "yarn"}) {
    const Model model(
        std::string(R"({"model_type": "phi3", "head_dim": 4, "max_position_embeddings":
        131072, "original_max_position_embeddings": 4096, "rope_scaling": {"type": ")") +
        name + R"(", "short_factor": [1, 2], "long_factor": [3, 4]}})");
    EXPECT_EQ(model.Config().scaling, ROPE_SCALING_LONGROPE) << name;
    EXPECT_EQ(model.Config().attention_factor, 0) << name;
  }
}

TEST(ModelConversions, OlderNamesOfThetaAndShareAreRead) {
  const Model neox(R"({"model_type": "gpt_neox", "hidden_size": 2560, "num_attention_heads": 32,
                       "rotary_emb_base": 20000, "rotary_pct": 1.0})");
  EXPECT_EQ(neox.Config().theta, 20000);
  EXPECT_EQ(neox.Config().rotary_dim, 0);
  const Model glm(R"({"model_type": "chatglm", "kv_channels": 128, "rope_ratio": 500})");
  EXPECT_EQ(glm.Config().theta, 5e6);
  EXPECT_EQ(glm.Config().rotary_dim, 64);
  const Model dbrx(R"({"model_type": "dbrx", "d_model": 6144, "n_heads": 48,
                       "attn_config": {"rope_theta": 500000}})");
  EXPECT_EQ(dbrx.Config().theta, 5e5);
}

TEST(ModelConversions, HybridsTurnTheirAttentionLayersAlone) {
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

TEST(ModelConversions, HunyuanAlphaRaisesThetaOnce) {
  const Model model(R"({"model_type": "hunyuan_v1_dense", "head_dim": 128,
      "max_position_embeddings": 32768, "rope_theta": 10000.0, "rope_scaling": {"alpha": 1000.0,
      "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "type": "dynamic"}})");
  EXPECT_NEAR(model.Config().theta, 11158839.92507748, 1e-6);
  EXPECT_EQ(model.Config().scaling, ROPE_SCALING_DEFAULT);  // static: never rewritten by length
  EXPECT_EQ(model.Config().factor, 0);
  EXPECT_EQ(model.Config().rounding, ROPE_ROUNDING_EAGER);
}

// --- traps --------------------------------------------------------------------------------------

TEST(ModelTraps, HeadDimOfLatentAttention) {
  const Model model(R"({"model_type": "glm_moe_dsa", "head_dim": 192, "qk_rope_head_dim": 64,
      "qk_nope_head_dim": 192, "rope_parameters": {"rope_theta": 8000000}})");
  EXPECT_EQ(model.Config().rotary_dim, 64);
  EXPECT_EQ(model.Config().rotary_offset, 192);
  EXPECT_EQ(model.Config().head_dim, 256);
  const Model mistral4(R"({"model_type": "mistral4", "qk_rope_head_dim": 64, "qk_nope_head_dim": 64,
      "head_dim": 128, "rope_parameters": {"partial_rotary_factor": 0.5}})");
  EXPECT_EQ(mistral4.Config().head_dim, 128);
  EXPECT_EQ(mistral4.Config().rotary_dim, 64);
  EXPECT_EQ(mistral4.Config().rotary_offset, 64);
  const Model straight(R"({"model_type": "deepseek_v3", "qk_rope_head_dim": 64,
      "qk_nope_head_dim": 128, "rope_interleave": false})");
  EXPECT_EQ(straight.Config().pairing, ROPE_PAIRING_HALVES);
}

TEST(ModelTraps, HeadDimNullAbsentGiven) {
  const std::string head =
      R"({"model_type": "qwen3", "hidden_size": 2560, "num_attention_heads": 32)";
  EXPECT_EQ(Model(head + R"(, "head_dim": 96})").Config().head_dim, 96);
  EXPECT_EQ(Model(head + R"(, "head_dim": null})").Config().head_dim, 80);
  EXPECT_EQ(Model(head + "}").Config().head_dim, 128);
}

TEST(ModelTraps, MscaleAllDimZeroIsUnset) {
  const std::string yarn = R"({"rope_type": "yarn", "factor": 64.0, "mscale": 1.0,
      "original_max_position_embeddings": 4096, "llama_4_scaling_beta": 0.1, "mscale_all_dim": )";
  const Model unset(Llama(yarn + "0.0}"));
  EXPECT_EQ(unset.Config().attention_factor, 0);  // the core's 0.1 ln 64 + 1
  EXPECT_EQ(unset.Config().mscale_all_dim, 0);
  // Set in a model without latent attention: part of the attention factor, not of the softmax.
  EXPECT_EQ(Model(Llama(yarn + "1.0}")).Config().attention_factor, 1);
  EXPECT_EQ(Model(Llama(yarn + "1.0}")).Config().mscale_all_dim, 0);
  EXPECT_NEAR(Model(Llama(yarn + "0.5}")).Config().attention_factor,
              (0.1 * std::log(64) + 1) / (0.05 * std::log(64) + 1), 1e-15);
}

TEST(ModelTraps, YarnBetasAreToldAsTheyAreAndMustBeInOrder) {
  const std::string yarn =
      R"({"type": "yarn", "factor": 32, "original_max_position_embeddings": 4096)";
  EXPECT_EQ(Model(Llama(yarn + R"(, "beta_fast": 0, "beta_slow": 0})")).Config().beta_fast, 0);
  const rope_config kimi = Model(Llama(yarn + R"(, "beta_fast": 1.0, "beta_slow": 1.0})")).Config();
  EXPECT_EQ(kimi.beta_fast, 1);
  EXPECT_EQ(kimi.beta_slow, 1);
  ExpectRefused(Llama(yarn + R"(, "beta_fast": 1, "beta_slow": 32})"), {"beta_fast", "beta_slow"});
  ExpectRefused(Llama(yarn + R"(, "beta_fast": -1})"), {"beta_fast (-1)"});
}

TEST(ModelTraps, TruncateCountsWhenNested) {
  const Model model(R"({"model_type": "gpt_oss", "max_position_embeddings": 131072,
      "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": {
      "full_attention": {"rope_type": "yarn", "factor": 32, "truncate": false,
                         "original_max_position_embeddings": 4096},
      "sliding_attention": {"rope_type": "default"}}})");
  EXPECT_EQ(model.Config("full_attention").yarn_no_truncate, 1);
  EXPECT_EQ(model.Layers(2), "sf");
}

TEST(ModelTraps, OriginalLength) {
  // yarn: the model's length if there is none; longrope and yarn: the key beside wins
  EXPECT_EQ(
      Model(Llama(R"({"type": "yarn", "factor": 4})")).Config().original_max_position_embeddings,
      8192);
  const std::string beside =
      R"({"model_type": "llama", "head_dim": 4, "max_position_embeddings": 64,
      "original_max_position_embeddings": 16, "rope_scaling": )";
  const Model longrope(beside + R"({"type": "longrope", "original_max_position_embeddings": 16,
      "short_factor": [1, 1], "long_factor": [2, 2]}})");
  ExpectRefused(beside + R"({"type": "longrope", "original_max_position_embeddings": 8,
      "short_factor": [1, 1], "long_factor": [2, 2]}})",
                {"rope_scaling.original_max_position_embeddings (8) must be ",
                 "original_max_position_embeddings (16)"});
  EXPECT_EQ(longrope.Config().original_max_position_embeddings, 16);
  EXPECT_EQ(longrope.Config().max_position_embeddings, 64);
  // inert inside the dictionary
  EXPECT_EQ(Model(Llama(R"({"type": "dynamic", "factor": 4, "max_position_embeddings": 1})"))
                .Config()
                .max_position_embeddings,
            8192);
  EXPECT_EQ(Model(Llama(R"({"type": "yarn", "factor": null,
      "original_max_position_embeddings": 2048})"))
                .Config()
                .factor,
            4);
}

TEST(ModelTraps, EqualLlama3Factors) {
  const rope_config c = Model(Llama(R"({"rope_type": "llama3", "factor": 16, "low_freq_factor": 1.0,
      "high_freq_factor": 1.0, "original_max_position_embeddings": 8192})"))
                            .Config();
  EXPECT_EQ(c.low_freq_factor, c.high_freq_factor);
}

TEST(ModelTraps, NumbersOfEitherKind) {
  const Model model(R"({"model_type": "llama", "head_dim": 128.0, "num_hidden_layers": 2.0,
      "rope_theta": 500000, "max_position_embeddings": 131072.0, "rope_scaling": {"type": "llama3",
      "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
      "original_max_position_embeddings": 8192.0}})");
  EXPECT_EQ(model.Config().head_dim, 128);
  EXPECT_EQ(model.Config().original_max_position_embeddings, 8192);
  EXPECT_EQ(Model(R"({"model_type": "hunyuan_vl_text", "head_dim": 16, "rope_parameters": {
      "xdrope_section": [2.0, 2, 2, 2]}})")
                .Config()
                .mrope_section[0],
            2);
}

TEST(ModelTraps, NoRopeLayersAndZeroTheta) {
  const Model smol(R"({"model_type": "smollm3", "head_dim": 128, "num_hidden_layers": 4,
                       "no_rope_layers": [1, 0, 1, 1]})");
  EXPECT_EQ(smol.Layers(4), "fnff");  // 1 means RoPE
  const Model every(R"({"model_type": "smollm3", "head_dim": 128, "num_hidden_layers": 8,
                        "no_rope_layer_interval": 4})");
  EXPECT_EQ(every.Layers(8), "fffnfffn");
  const Model muse(R"({"model_type": "muse_glimmer", "text_config": {"model_type":
      "muse_glimmer_text", "layer_rope_theta": [500000.0, 500000.0, 500000.0, 0]}})");
  EXPECT_EQ(muse.Types(), (Names{"full_attention", "nope"}));
  EXPECT_EQ(muse.Config().theta, 500000);
  EXPECT_EQ(muse.Layers(4), "fffn");
  const Model two(R"({"model_type": "granite_swa", "head_dim": 64,
                      "layer_rope_theta": [10000, 0, 500000]})");
  EXPECT_EQ(two.Types(), (Names{"theta_10000", "theta_500000", "nope"}));
}

TEST(ModelTraps, FullAttentionWithoutRope) {
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
      "sliding_attention": {"rope_type": "default", "mrope_section": [12, 10, 10]}}})");
  EXPECT_EQ(nulls.Layers(2), "sn");
  EXPECT_EQ(nulls.Config().mrope_interleaved, 1);
}

TEST(ModelTraps, RotaryDimAndFactorMustAgree) {
  const std::string head = R"({"model_type": "minimax_m2", "head_dim": 128, "rotary_dim": 64)";
  EXPECT_EQ(Model(head + R"(, "partial_rotary_factor": 0.5})").Config().rotary_dim, 64);
  ExpectRefused(head + R"(, "partial_rotary_factor": 0.25})", {"rotary_dim", "agree"});
}

TEST(ModelTraps, BaichuanByItsVocabulary) {  // 1 and 2 share all keys of RoPE
  const auto rounding = [](const char* vocab_size) {
    return Model(std::string(R"({"model_type": "baichuan", "hidden_size": 4096,
                                 "num_attention_heads": 32, "vocab_size": )") +
                 vocab_size + "}")
        .Config()
        .rounding;
  };
  EXPECT_EQ(rounding("64000"), ROPE_ROUNDING_EAGER);
  EXPECT_EQ(rounding("64008"), ROPE_ROUNDING_EAGER);  // fine-tuned models add tokens
  EXPECT_EQ(rounding("125696"), ROPE_ROUNDING_FLOAT32);
}

TEST(ModelTraps, HeadsMustDivideTheWidth) {
  ExpectRefused(R"({"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 33})",
                {"num_attention_heads (33) must divide hidden_size (4096)"});
  EXPECT_EQ(Model(R"({"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 33,
                      "head_dim": 128})")
                .Config()
                .head_dim,
            128);
}

TEST(ModelTraps, PartialFactorOfLatentAttention) {
  const std::string lite = R"({"model_type": "glm4_moe_lite", "qk_rope_head_dim": 64,
      "qk_nope_head_dim": 192, "partial_rotary_factor": )";
  EXPECT_EQ(Model(lite + "1.0}").Config().rotary_dim, 64);
  EXPECT_EQ(Model(lite + "0.25}").Config().rotary_dim, 64);                     // 64 of 256
  EXPECT_EQ(Model(lite + R"(0.5, "head_dim": 128})").Config().rotary_dim, 64);  // 64 of 128
  ExpectRefused(lite + "0.5}", {"partial_rotary_factor (0.5)", "qk_rope_head_dim (64)"},
                ROPE_ERROR_UNSUPPORTED);
  const std::string v3 = R"({"model_type": "deepseek_v3", "qk_rope_head_dim": 64,
      "qk_nope_head_dim": 128, "partial_rotary_factor": 0.5, "rope_scaling": )";
  ExpectRefused(v3 + "null}", {"partial_rotary_factor (0.5)"}, ROPE_ERROR_UNSUPPORTED);
  ExpectRefused(v3 + R"({"type": "linear", "factor": 2}})", {"partial_rotary_factor (0.5)"},
                ROPE_ERROR_UNSUPPORTED);
}

TEST(ModelTraps, Qwen1GrowsInSteps) {
  const std::string qwen = R"({"model_type": "qwen", "kv_channels": 128, "rotary_pct": 1.0,
      "rotary_emb_base": 10000, "seq_length": 2048)";
  const rope_config c = Model(qwen + R"(, "use_dynamic_ntk": true})").Config();
  EXPECT_EQ(c.scaling, ROPE_SCALING_DYNAMIC_STEPS);
  EXPECT_EQ(c.factor, 2);
  EXPECT_EQ(c.max_position_embeddings, 2048);
  EXPECT_EQ(Model(qwen + "}").Config().scaling, ROPE_SCALING_DYNAMIC_STEPS);  // class default
  EXPECT_EQ(Model(qwen + R"(, "use_dynamic_ntk": false})").Config().scaling, ROPE_SCALING_DEFAULT);
  ExpectRefused(R"({"model_type": "qwen", "kv_channels": 128})", {"seq_length is missing"});
  ExpectRefused(qwen + R"(, "rope_scaling": {"type": "linear", "factor": 2}})", {"use_dynamic_ntk"},
                ROPE_ERROR_UNSUPPORTED);
  // the model's own formula, by which a prompt of `tokens` is turned
  for (int64_t tokens : {1, 2048, 2049, 4096, 4097, 8192, 8193, 30000}) {
    const double value = std::log2(static_cast<double>(tokens) / 2048) + 1;
    const double alpha = std::max(std::pow(2, std::ceil(value)) - 1, 1.0);
    rope_config config = c;
    config.seq_len = tokens;
    rope_context* context = nullptr;
    ASSERT_EQ(rope_context_create(&config, &context), ROPE_OK) << rope_last_error();
    double inv_freq[64];
    ASSERT_EQ(rope_context_inv_freq(context, 0, inv_freq, 64), ROPE_OK);
    rope_context_destroy(context);
    const double theta = 10000 * std::pow(alpha, 128.0 / 126);
    for (int i = 0; i < 64; ++i) {
      const double expected = std::pow(theta, -i / 64.0);
      ASSERT_NEAR(inv_freq[i], expected, 1e-6 * expected) << tokens << " tokens, pair " << i;
    }
    int64_t next = 0;
    ASSERT_EQ(rope_config_next_change(&config, tokens, &next), ROPE_OK);
    int64_t last = 2048;
    while (last < tokens) last *= 2;
    EXPECT_EQ(next, last + 1) << tokens;
  }
  int64_t next = 0;
  EXPECT_EQ(rope_config_next_change(&c, INT64_MAX, &next), ROPE_OK);
  EXPECT_EQ(next, INT64_MAX);
}

TEST(ModelTraps, NomicBertIsRefusedWhereItsCodeDiffers) {
  const std::string nomic = R"({"model_type": "nomic_bert", "n_embd": 768, "n_head": 12,
      "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_scale_base": null)";
  EXPECT_EQ(Model(nomic + R"(, "rotary_emb_interleaved": false})").Config().pairing,
            ROPE_PAIRING_HALVES);
  EXPECT_EQ(Model(nomic + R"(, "rotary_emb_interleaved": true})").Config().pairing,
            ROPE_PAIRING_INTERLEAVED);
  EXPECT_EQ(Model(nomic + "}").Config().theta, 1000);
  ExpectRefused(nomic + R"(, "rotary_scaling_factor": 2})", {"rotary_scaling_factor (2)"},
                ROPE_ERROR_UNSUPPORTED);
  ExpectRefused(R"({"model_type": "nomic_bert", "n_embd": 768, "n_head": 12,
                    "rotary_emb_fraction": 0.5})",
                {"rotary_emb_fraction (0.5)"}, ROPE_ERROR_UNSUPPORTED);
  ExpectRefused(R"({"model_type": "nomic_bert", "n_embd": 768, "n_head": 12,
                    "rotary_emb_scale_base": 512})",
                {"rotary_emb_scale_base (512)"}, ROPE_ERROR_UNSUPPORTED);
}

TEST(ModelTraps, DictionariesThatTheClassCompletes) {
  const std::string oss = R"({"model_type": "gpt_oss", "head_dim": 64)";
  EXPECT_EQ(Model(oss + R"(, "rope_theta": 500000})").Config().theta, 500000);
  EXPECT_EQ(Model(oss + R"(, "rope_theta": 500000})").Config().scaling, ROPE_SCALING_YARN);
  EXPECT_EQ(Model(oss + "}").Config().theta, 150000);
  ExpectRefused(oss + R"(, "rope_parameters": {}})", {"rope_parameters says nothing"},
                ROPE_ERROR_UNSUPPORTED);
  ExpectRefused(oss + R"(, "rope_scaling": {}})", {"rope_scaling says nothing"},
                ROPE_ERROR_UNSUPPORTED);
  EXPECT_EQ(Model(R"({"model_type": "cwm", "rope_theta": 1e6})").Config().theta, 1e6);
  ExpectRefused(R"({"model_type": "cwm", "rope_theta": 5})", {"rope_theta (5)"},
                ROPE_ERROR_UNSUPPORTED);
  for (const char* type : {"ministral3", "higgs_audio_v2"}) {
    const std::string head = std::string(R"({"model_type": ")") + type + R"(", "head_dim": 64)";
    EXPECT_NE(Model(head + "}").Config().theta, 10000) << type;
    EXPECT_EQ(Model(head + R"(, "rope_parameters": {"rope_type": "linear", "factor": 8}})")
                  .Config()
                  .theta,
              10000)
        << type;
  }
  const std::string laguna = R"({"model_type": "laguna", "head_dim": 128)";
  EXPECT_EQ(Model(laguna + "}").Config("full_attention").rotary_dim, 64);
  EXPECT_EQ(Model(laguna + R"(, "rope_parameters": {"full_attention": {"rope_theta": 5}}})")
                .Config("full_attention")
                .rotary_dim,
            0);
}

// --- layers whose number the text does not tell
// ---------------------------------------------------

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
  EXPECT_EQ(Model(R"({"model_type": "llama", "head_dim": 64,
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

// GLM-5.3: latent attention in which nothing rotates.
TEST(ModelLayers, LatentAttentionWithoutRotatedChannels) {
  const Model model(R"({"model_type": "glm5_next", "text_config": {"model_type": "glm5_next_text",
      "head_dim": 0, "hidden_size": 4096, "num_attention_heads": 64, "qk_nope_head_dim": 256,
      "qk_rope_head_dim": 0, "num_hidden_layers": 2}})");
  EXPECT_EQ(model.Types(), Names{"nope"});
  EXPECT_EQ(model.Config().head_dim, 256);
  EXPECT_EQ(model.Layers(3), "nn.");
}

// --- dictionaries without a model, models without a name
// --------------------------------------------

TEST(ModelBare, DictionaryAlone) {
  const Model model(R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
      "high_freq_factor": 4, "original_max_position_embeddings": 8192})");
  EXPECT_EQ(model.Types(), Names{"full_attention"});
  const rope_config c = model.Config();
  EXPECT_EQ(c.head_dim, 0);
  EXPECT_EQ(c.pairing, 0);
  EXPECT_EQ(c.theta, 0);
  EXPECT_EQ(c.factor, 8);
  int32_t type = 77;
  EXPECT_EQ(rope_model_layer_type(model.get(), 0, &type), ROPE_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(type, 77);
  EXPECT_EQ(Model(R"({"type": "dynamic", "factor": 2})").Config().max_position_embeddings, 0);
  EXPECT_EQ(Model(R"({"rope_theta": 1e6, "rope_type": "default"})").Config().theta, 1e6);
}

TEST(ModelBare, PartialNeedsTheHead) {
  ExpectRefused(R"({"rope_type": "default", "partial_rotary_factor": 0.25})", {"head_dim"});
  EXPECT_EQ(Model(R"({"partial_rotary_factor": 0.25, "head_dim": 256})").Config().rotary_dim, 64);
}

TEST(ModelBare, NestedDictionariesGiveAKindEach) {
  const Model model(R"({"full_attention": {"rope_type": "proportional", "rope_theta": 1e6,
      "partial_rotary_factor": 0.25, "head_dim": 512}, "sliding_attention": {"rope_theta": 1e4},
      "other": null})");
  EXPECT_EQ(model.Types(), (Names{"full_attention", "other", "sliding_attention"}));
  EXPECT_EQ(model.Config("full_attention").rotary_dim, 128);
  EXPECT_EQ(model.Config("other").scaling, ROPE_SCALING_NOPE);
}

TEST(ModelUnknown, KeysAreReadAndPairingIsLeft) {
  const Model model(R"({"model_type": "brand_new", "hidden_size": 4096, "num_attention_heads": 32,
      "rope_theta": 7, "partial_rotary_factor": 0.5, "num_hidden_layers": 3,
      "layer_types": ["full_attention", "linear_attention", "full_attention"]})");
  EXPECT_EQ(model.Config().pairing, 0);
  EXPECT_EQ(model.Config().rotary_dim, 64);
  EXPECT_EQ(model.Layers(3), "fnf");
  // no class, no default
  ExpectRefused(R"({"model_type": "brand_new", "head_dim": 64, "rope_scaling": null})",
                {"rope_theta is missing"});
}

TEST(ModelUnknown, WithoutAnyKeyOfRope) {
  ExpectRefused(R"({"model_type": "brand_new", "head_dim": 64, "properties": {}})",
                {"model_type (\"brand_new\") is not known", "rope_theta"}, ROPE_ERROR_UNSUPPORTED);
  ExpectRefused(R"({"model_type": "llava", "text_config": {"hidden_size": 64}})",
                {"model_type (\"llava\")"}, ROPE_ERROR_UNSUPPORTED);
  ExpectRefused(R"({"hidden_size": 64, "num_attention_heads": 2})", {"model_type is missing"});
  for (const char* type : {"gpt2", "opt", "bloom", "bert", "t5", "whisper", "xlnet", "albert"}) {
    const std::string text = std::string(R"({"model_type": ")") + type +
                             R"(", "n_embd": 768, "n_head": 12, "rope_theta": 10000.0})";
    ExpectRefused(text, {type, "without RoPE"}, ROPE_ERROR_UNSUPPORTED);
  }
  // the tower of a model whose language model is not known
  const Model tower(R"({"model_type": "inkling2", "text_config": {"model_type": "inkling2_text",
      "head_dim": 128}, "vision_config": {"model_type": "inkling2_vision", "hidden_size": 1024,
      "num_attention_heads": 16}})");
  EXPECT_EQ(tower.Types(), Names{"vision"});
  EXPECT_EQ(tower.LayerName(0), "");
}

}  // namespace
}  // namespace rope::testing
