// Where the keys of RoPE are looked for, and which of them wins: inside and beside dictionaries, in
// wrappers of the language model, in dictionaries without a model and in models without a name.
#include <string>
#include <vector>

#include "testing.h"

namespace rope::testing {
namespace {

using Names = std::vector<std::string>;

TEST(ModelText, TwoDictionariesSayTheSame) {
  const std::string head = R"({"model_type": "llama", "head_dim": 64, "rope_theta": 1000,
      "rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 1000},
      "rope_scaling": )";
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

// transformers takes rope_scaling, and what it lacks from beside it or from the class.
TEST(ModelText, WhatOneDictionaryAloneHasMustFollowWithoutIt) {
  const auto both = [](const char* type, const char* beside, const char* inside) {
    return R"({"model_type": ")" + std::string(type) + R"(", "head_dim": 64)" + beside +
           R"(, "rope_scaling": {"type": "linear", "factor": 2},
               "rope_parameters": {"rope_type": "linear", "factor": 2, )" +
           inside + "}}";
  };
  const auto differs = [&](const char* type, const char* beside, const char* inside,
                           const char* key) {
    const std::string message = "must say the same, and differ in \"" + std::string(key) + '"';
    ExpectRefused(both(type, beside, inside), {message.c_str()}, ROPE_ERROR_UNSUPPORTED);
  };
  constexpr const char kTheta[] = R"("rope_theta": 500000)",
                       kShare[] = R"("partial_rotary_factor": 0.25)";
  differs("llama", "", kTheta, "rope_theta");
  differs("llama", R"(, "rotary_emb_base": 500000)", kTheta, "rope_theta");
  differs("gpt_neox", R"(, "rope_theta": 500000)", kTheta, "rope_theta");
  differs("nobody_knows", "", kTheta, "rope_theta");
  differs("glm4_moe", "", kShare, "partial_rotary_factor");
  differs("minimax_m2", "", kShare, "partial_rotary_factor");
  EXPECT_EQ(Model(both("llama", R"(, "rope_theta": 5e5)", kTheta)).Config().theta, 5e5);
  EXPECT_EQ(Model(both("nobody_knows", R"(, "rope_theta": 5e5)", kTheta)).Config().theta, 5e5);
  EXPECT_EQ(Model(both("gpt_neox", R"(, "rotary_emb_base": 5e5)", kTheta)).Config().theta, 5e5);
  EXPECT_EQ(Model(both("evolla", "", kTheta)).Config().theta, 5e5);  // the class's own
  EXPECT_EQ(Model(both("stablelm", "", kShare)).Config().rotary_dim, 16);
  EXPECT_EQ(
      Model(both("glm4_moe", R"(, "partial_rotary_factor": 0.25)", kShare)).Config().rotary_dim,
      16);
  EXPECT_EQ(Model(both("minimax_m2", R"(, "rotary_dim": 16)", kShare)).Config().rotary_dim, 16);
  ExpectRefused(both("llama", R"(, "rope_theta": 10000)", kTheta), {"rope_theta (10000)"},
                ROPE_ERROR_UNSUPPORTED);
}

TEST(ModelText, ThetaIsReadInsideThenBesideThenFromTheClass) {
  const auto theta = [](const std::string& rest) {
    return Model(R"({"model_type": "mixtral", "head_dim": 64)" + rest + "}").Config().theta;
  };
  EXPECT_EQ(theta(R"(, "rope_theta": 7, "rope_parameters": {"rope_theta": 7.0})"), 7);
  EXPECT_EQ(theta(R"(, "rope_theta": 5, "rope_parameters": {"rope_type": "default"})"), 5);
  EXPECT_EQ(theta(R"(, "rope_theta": null, "rope_parameters": {"rope_theta": 7.0})"), 7);
  EXPECT_EQ(theta(""), 1e6);
}

// transformers takes None then, and fails.
TEST(ModelText, ThetaThatIsNullIsNotTheDefault) {
  const auto refused = [](const std::string& rest, const char* part) {
    ExpectRefused(R"({"model_type": "mixtral", "head_dim": 64)" + rest + "}", {part},
                  ROPE_ERROR_UNSUPPORTED);
  };
  refused(R"(, "rope_theta": null)", "rope_theta (null) must have a value");
  refused(R"(, "rope_theta": 5, "rope_parameters": {"rope_theta": null, "rope_type": "default"})",
          "rope_parameters.rope_theta (null)");
  ExpectRefused(R"({"model_type": "gpt_neox", "head_dim": 64, "rotary_emb_base": null})",
                {"rotary_emb_base (null)"}, ROPE_ERROR_UNSUPPORTED);
}

TEST(ModelText, TypeAndRopeTypeMeanTheSame) {
  EXPECT_EQ(Model(Llama(R"({"type": "linear", "factor": 2})")).Config().scaling,
            ROPE_SCALING_LINEAR);
  EXPECT_EQ(
      Model(Llama(R"({"rope_type": "linear", "type": "linear", "factor": 2})")).Config().scaling,
      ROPE_SCALING_LINEAR);
  ExpectRefused(Llama(R"({"rope_type": "linear", "type": "yarn", "factor": 2})"),
                {"rope_scaling.type (\"yarn\") must mean the same as rope_type (\"linear\")"});
  ExpectRefused(Llama(R"({"rope_type": "yarn", "type": "telechat3-yarn", "factor": 4,
      "original_max_position_embeddings": 4096})"),
                {"type (\"telechat3-yarn\") must mean the same as rope_type (\"yarn\")"});
  ExpectRefused(Llama(R"({"rope_type": "telechat3-yarn", "type": "yarn", "factor": 4,
      "original_max_position_embeddings": 4096})"),
                {"type (\"yarn\") must mean the same"});
  ExpectRefused(Llama(R"({"rope_type": "default", "type": "xdrope"})"), {"type (\"xdrope\")"});
  EXPECT_EQ(Model(Llama(R"({"rope_type": "yarn", "type": "deepseek_yarn", "factor": 4})"))
                .Config()
                .factor,
            4);
  EXPECT_EQ(Model(Llama(R"({"rope_type": null, "type": "linear", "factor": 2})")).Config().scaling,
            ROPE_SCALING_LINEAR);
  EXPECT_EQ(Model(Llama(R"({"rope_theta": 10000})")).Config().scaling, ROPE_SCALING_DEFAULT);
}

TEST(ModelText, TheTextModelIsFoundInItsWrappers) {
  for (const char* wrap :
       {R"({"model_type": "llava", "text_config": )",
        R"({"model_type": "internvl_chat", "llm_config": )",
        R"({"model_type": "multi_modality", "language_config": )",
        R"({"model_type": "qwen3_omni_moe", "thinker_config": {"text_config": )"}) {
    std::string text = wrap;
    text += R"({"model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28,
                "rope_theta": 1000000.0}})";
    if (text.find("thinker") != std::string::npos) text += "}";
    EXPECT_EQ(Model(text).Config().theta, 1e6) << wrap;
    EXPECT_EQ(Model(text).Config().head_dim, 128) << wrap;
  }
}

TEST(ModelText, IntegersMayBeWrittenAsFloats) {
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

TEST(ModelText, NumbersAbove63BitsAreRefused) {
  ExpectRefused(R"({"model_type": "llama", "head_dim": 18446744073709551615})",
                {"head_dim (1.8446744073709552e+19) must be from 0"});
}

TEST(ModelText, KeysThatNearlyAreOthersAreRefused) {
  ExpectRefused(Llama(R"({"type": "yarn", "factor": 4, "beta_fsat": 16})"),
                {"beta_fsat (16) must be spelt beta_fast"});  // two edits of a long key
  // the right spelling is there as well: still a key that nobody understands
  ExpectRefused(Llama(R"({"type": "linear", "factor": 4, "fctr": 2})"), {"rope_scaling.fctr (2)"},
                ROPE_ERROR_UNSUPPORTED);
  ExpectRefused(Llama(R"({"type": "linear", "factor": 4, "factors": 2})"),
                {"rope_scaling.factors (2)", "the nearest key is factor"}, ROPE_ERROR_UNSUPPORTED);
}

TEST(ModelText, NamesOfKindsArePrintable) {
  ExpectRefused(R"({"model_type": "nobody_knows", "head_dim": 64, "num_hidden_layers": 1,
                    "layer_types": ["full_attention\u0000x"], "rope_parameters":
                    {"full_attention\u0000x": {"rope_theta": 1e4}}})",
                {"printable"});
}

// gemma3's class takes its defaults for a kind that is null, others have none then.
TEST(ModelText, KindsThatAreNullAreRefusedWhereTheClassKnowsThem) {
  const auto refused = [](const char* type, const char* dictionary, const char* part) {
    ExpectRefused(std::string(R"({"model_type": ")") + type +
                      R"(", "head_dim": 64, "num_hidden_layers": 2, "rope_parameters": )" +
                      dictionary + "}",
                  {part, "(null) must be a dictionary"}, ROPE_ERROR_UNSUPPORTED);
  };
  constexpr char kFullNull[] =
      R"({"full_attention": null, "sliding_attention": {"rope_theta": 1e4}})";
  for (const char* type : {"gemma3_text", "olmo3", "laguna"}) {
    refused(type, kFullNull, "rope_parameters.full_attention");
  }
  refused("deepseek_v4", R"({"main": null, "compress": {"rope_theta": 1e4}})", "main");
  for (const char* type : {"llama", "gemma3_text", "nobody_knows"}) {
    refused(type, R"({"full_attention": null, "rope_type": "default", "rope_theta": 5e5})",
            "rope_parameters.full_attention");
    refused(type, R"({"full_attention": null, "sliding_attention": null})", "full_attention");
  }
  ExpectRefused(R"({"full_attention": null, "rope_theta": 1e4})", {"full_attention (null)"},
                ROPE_ERROR_UNSUPPORTED);
}

TEST(ModelText, NanIsNoNameOfAnything) {
  const std::string head = R"({"head_dim": 64, "rope_theta": 1e4, "num_hidden_layers": 2, )";
  ExpectRefused(head + R"("model_type": NaN})", {"model_type (NaN) must be a string"});
  ExpectRefused(head + R"("model_type": "llama", "layer_types": ["full_attention", NaN]})",
                {"layer_types[1] (NaN) must be a string"});
  ExpectRefused(head + R"("\"": "x", "model_type": "llama", "rope_scaling": {"type": -Infinity}})",
                {"rope_scaling.type (-Infinity) must be a string"});
}

TEST(ModelText, NanIsAValueAndNoKey) {
  ExpectRefused(R"({NaN: 1, "model_type": "llama"})", {"the text"});
  EXPECT_EQ(Model(R"({"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4,
                      "limit": [0.0 , NaN , -Infinity]})")
                .Config()
                .head_dim,
            64);
}

TEST(ModelBare, ADictionaryLeavesTheModelOpen) {
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
  EXPECT_EQ(Model(R"({"type": "yarn", "factor": 2})").Config().original_max_position_embeddings, 0);
  EXPECT_EQ(Model(R"({"rope_theta": 1e6, "rope_type": "default"})").Config().theta, 1e6);
}

TEST(ModelBare, ShareNeedsTheHead) {
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

TEST(ModelUnknown, WithoutAnyKeyOfRopeIsRefused) {
  ExpectRefused(R"({"model_type": "brand_new", "head_dim": 64, "properties": {}})",
                {"model_type (\"brand_new\") is not known", "rope_theta"}, ROPE_ERROR_UNSUPPORTED);
  ExpectRefused(R"({"model_type": "llava", "text_config": {"hidden_size": 64}})",
                {"model_type (\"llava\")"}, ROPE_ERROR_UNSUPPORTED);
  ExpectRefused(R"({"hidden_size": 64, "num_attention_heads": 2})", {"model_type is missing"});
  ExpectRefused(R"({"model_type": "detr", "d_model": 256, "position_embedding_type": "sine"})",
                {"model_type (\"detr\")", "there is no key of RoPE"}, ROPE_ERROR_UNSUPPORTED);
  // a part of it has
  ExpectRefused(R"({"model_type": "brand_new", "parts": {"a": {}, "b": {"rope_theta": 1e4}}})",
                {"model_type (\"brand_new\")", "parts.b.rope_theta is a key of a part"},
                ROPE_ERROR_UNSUPPORTED);
  ExpectRefused(R"({"model_type": "qwen2_5_vl", "hidden_size": 1280, "num_attention_heads": 16,
                    "rope_parameters": {"rope_type": "axial", "rope_theta": 1e4}})",
                {"rope_parameters.rope_type (\"axial\")", "vision tower", "whole model"});
  for (const char* type : {"gpt2", "opt", "bloom", "bert", "t5", "whisper", "xlnet", "albert"}) {
    const std::string text = std::string(R"({"model_type": ")") + type +
                             R"(", "n_embd": 768, "n_head": 12, "rope_theta": 10000.0})";
    ExpectRefused(text, {type, "without RoPE"}, ROPE_ERROR_UNSUPPORTED);
  }
  // the tower of a model whose language model is not known
  const Model tower(R"({"model_type": "brand_new", "text_config": {"model_type": "nobody_knows",
      "head_dim": 128}, "vision_config": {"model_type": "inkling2_vision", "hidden_size": 1024,
      "num_attention_heads": 16}})");
  EXPECT_EQ(tower.Types(), Names{"vision"});
  EXPECT_EQ(tower.LayerName(0), "");
}

}  // namespace
}  // namespace rope::testing
