// Single families of models: what their own classes do with the keys that others read, too.
#include <cmath>
#include <string>
#include <vector>

#include "testing.h"

namespace rope::testing {
namespace {

using Names = std::vector<std::string>;

TEST(ModelFamilies, Gemma3ScalesItsFullLayersAlone) {
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

TEST(ModelFamilies, ModernBertScalesBothKinds) {
  const Model model(R"({"model_type": "modernbert", "hidden_size": 768, "num_attention_heads": 12,
      "global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "num_hidden_layers": 6,
      "global_attn_every_n_layers": 3, "rope_scaling": {"type": "linear", "factor": 2}})");
  EXPECT_EQ(model.Config("full_attention").theta, 160000);
  EXPECT_EQ(model.Config("sliding_attention").theta, 10000);
  EXPECT_EQ(model.Config("sliding_attention").factor, 2);
  EXPECT_EQ(model.Layers(6), "fssfss");
}

TEST(ModelFamilies, Olmo3SlidingFallsBackToTheClass) {
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

TEST(ModelFamilies, OfNestedDictionariesHaveDefaults) {
  const Model zaya(R"({"model_type": "zaya", "layer_types": ["hybrid", "hybrid_sliding"]})");
  EXPECT_EQ(zaya.Config("hybrid").theta, 5e6);
  EXPECT_EQ(zaya.Config("hybrid").rotary_dim, 64);
  EXPECT_EQ(zaya.Config("hybrid_sliding").theta, 1e4);
  const Model laguna(R"({"model_type": "laguna"})");
  EXPECT_EQ(laguna.Config("full_attention").rotary_dim, 64);
  EXPECT_EQ(laguna.Config("sliding_attention").rotary_dim, 0);
  EXPECT_EQ(laguna.LayerName(0), "");  // no rule tells
  ExpectRefused(R"({"model_type": "mellum", "rope_scaling": {"type": "yarn", "factor": 2}})",
                {"rope_scaling", "full_attention", "mellum"}, ROPE_ERROR_UNSUPPORTED);
}

TEST(ModelFamilies, MimoHasWidthsAndThetasOfTwoKinds) {
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

TEST(ModelFamilies, OlderNamesOfThetaAndShareAreRead) {
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

TEST(ModelFamilies, BaichuanIsToldByItsVocabulary) {  // 1 and 2 share all keys of RoPE
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
  ExpectRefused(R"({"model_type": "baichuan", "hidden_size": 0, "num_attention_heads": 32})",
                {"hidden_size (0) must be from 1 to 1048576"});
}

TEST(ModelFamilies, OtherNamesOfTheSameCode) {
  const auto named = [](const char* type, const std::string& entries) {
    return R"({"model_type": ")" + std::string(type) + R"(", )" + entries + "}";
  };
  const Model falcon(named("RefinedWebModel", R"("hidden_size": 4544, "n_head": 71, "n_layer": 32,
      "alibi": false, "multi_query": true)"));  // tiiuae/falcon-7b, as first published
  EXPECT_EQ(falcon.Config().head_dim, 64);
  EXPECT_EQ(falcon.Config().pairing, ROPE_PAIRING_HALVES);
  const std::string sizes =
      R"("hidden_size": 4096, "num_attention_heads": 32, "rope_theta": 640000)";
  for (const char* type : {"llava_llama", "llava_mistral", "llava_qwen", "mimo", "iquestcoder"}) {
    EXPECT_EQ(Model(named(type, sizes)).Config().pairing, ROPE_PAIRING_HALVES) << type;
    EXPECT_EQ(Model(named(type, sizes)).Config().theta, 640000) << type;
  }
}

TEST(ModelFamilies, RobertaRotatesIfItSaysSo) {  // jinaai/jina-embeddings-v3
  const auto roberta = [](const std::string& entries) {
    return R"({"model_type": "xlm-roberta", "hidden_size": 1024, "num_attention_heads": 16)" +
           entries + "}";
  };
  const rope_config config =
      Model(roberta(R"(, "position_embedding_type": "rotary", "rotary_emb_base": 20000.0)"))
          .Config();
  EXPECT_EQ(config.theta, 20000);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.pairing, ROPE_PAIRING_HALVES);
  ExpectRefused(roberta(R"(, "position_embedding_type": "rotary")"),
                {"rotary_emb_base is missing"});
  ExpectRefused(roberta(R"(, "position_embedding_type": "absolute")"),
                {"known to this version without RoPE only"}, ROPE_ERROR_UNSUPPORTED);
}

TEST(ModelFamilies, UltrabertHasAThetaPerWindow) {  // in the words of its files
  const auto ultra = [](const std::string& thetas) {
    return R"({"model_type": "ultrabert", "hidden_size": 768, "num_attention_heads": 12,
        "num_hidden_layers": 3, "attention_windows": [128, null, 0], "rope_theta": )" +
           thetas + "}";
  };
  const Model model(ultra("[20000.0, 1280000.0, 1280000.0]"));
  EXPECT_EQ(model.Layers(3), "sff");
  EXPECT_EQ(model.Config("full_attention").theta, 1280000);
  EXPECT_EQ(model.Config("sliding_attention").theta, 20000);
  ExpectRefused(ultra("[20000.0, 1280000.0, 2560000.0]"), {"rope_theta[2]"},
                ROPE_ERROR_UNSUPPORTED);
  EXPECT_EQ(Model(R"({"model_type": "ultrabert", "hidden_size": 768, "num_attention_heads": 12,
      "num_hidden_layers": 6})")
                .Config("full_attention")
                .theta,
            2560000);
}

TEST(ModelFamilies, NomicBertIsRefusedWhereItsCodeDiffers) {
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

TEST(ModelFamilies, CompleteDictionariesThatSayLittle) {
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
  EXPECT_EQ(Model(laguna + R"(, "rope_parameters": {"full_attention": {"rope_theta": 5},
                                                 "sliding_attention": {"rope_theta": 5}}})")
                .Config("full_attention")
                .rotary_dim,
            0);
}

// Not ChatGLM2, whose model_type it has.
TEST(ModelFamilies, TheFirstChatGlmIsRefused) {
  const std::string text = R"({"model_type": "chatglm", "hidden_size": 4096,
                               "num_attention_heads": 32, "num_layers": 28, )";
  ExpectRefused(text + R"("position_encoding_2d": true})", {"position_encoding_2d", "two ids"},
                ROPE_ERROR_UNSUPPORTED);
  ExpectRefused(text + R"("inner_hidden_size": 16384})", {"inner_hidden_size", "two ids"},
                ROPE_ERROR_UNSUPPORTED);
  EXPECT_EQ(Model(text + R"("kv_channels": 128})").Config().rotary_dim, 64);
}

TEST(ModelFamilies, InternLm1HasADictionaryOfItsOwn) {
  const auto internlm = [](const std::string& rotary) {
    return R"({"model_type": "internlm", "hidden_size": 256, "num_attention_heads": 4,
              "num_hidden_layers": 2, "max_position_embeddings": 2048, "rotary": )" +
           rotary + "}";
  };
  const rope_config origin = Model(internlm(R"({"base": 1000000, "type": "origin"})")).Config();
  EXPECT_EQ(origin.theta, 1e6);
  EXPECT_EQ(origin.scaling, ROPE_SCALING_DEFAULT);
  const rope_config dynamic = Model(internlm(R"({"base": 10000, "type": "dynamic"})")).Config();
  EXPECT_EQ(dynamic.scaling, ROPE_SCALING_DYNAMIC);
  EXPECT_EQ(dynamic.factor, 1);
  EXPECT_EQ(dynamic.max_position_embeddings, 2048);
  EXPECT_EQ(Model(internlm(R"({"type": "dynamic", "scaling_factor": 2.0})")).Config().factor, 2);
  ExpectRefused(internlm(R"({"base": 10000, "type": "linear"})"), {"rotary.type (\"linear\")"});
  ExpectRefused(internlm("7"), {"rotary (7) must be an object"});
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

TEST(ModelFamilies, DeepseekV2TurnsAdjacentPairsInF32) {
  const Model model(R"({"model_type": "deepseek_v2", "qk_rope_head_dim": 64,
      "qk_nope_head_dim": 128, "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 0.707,
      "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096}})");
  EXPECT_EQ(model.Config().pairing, ROPE_PAIRING_INTERLEAVED);
  EXPECT_EQ(model.Config().rounding, ROPE_ROUNDING_FLOAT32);
  EXPECT_EQ(model.Config().mscale, 0.707);
  const Model plain(R"({"model_type": "deepseek_v2", "qk_rope_head_dim": 0, "use_mla": false,
      "hidden_size": 1280, "num_attention_heads": 10})");  // DeepSeek-OCR
  EXPECT_EQ(plain.Config().pairing, ROPE_PAIRING_HALVES);
  EXPECT_EQ(plain.Config().head_dim, 128);
  EXPECT_EQ(plain.Config().rotary_dim, 0);
}

TEST(ModelFamilies, ErnieAlternatesTheAxesOfPairs) {
  const Model model(R"({"model_type": "ernie4_5_vl_moe", "text_config": {
      "model_type": "ernie4_5_vl_moe_text", "hidden_size": 2560, "num_attention_heads": 20},
      "vision_config": {"hidden_size": 1280, "num_heads": 16}})");
  const rope_config c = model.Config();
  EXPECT_EQ(c.pairing, ROPE_PAIRING_INTERLEAVED);
  EXPECT_EQ(c.rounding, ROPE_ROUNDING_FLOAT32);
  EXPECT_EQ(c.axes, 3);
  EXPECT_EQ(c.ids_per_axis, 0);  // text has one id for all three
  EXPECT_EQ(model.Config("vision").ids_per_axis, 1);
  EXPECT_EQ(c.table_length, 64);
  EXPECT_EQ(c.pair_axis[0], 1);
  EXPECT_EQ(c.pair_axis[43], 2);
  EXPECT_EQ(c.pair_axis[44], 0);
}

TEST(ModelFamilies, Glm4vInterleavesPairsAndNotSections) {
  const Model model(R"({"model_type": "glm4v", "text_config": {"model_type": "glm4v_text",
      "hidden_size": 4096, "num_attention_heads": 32, "partial_rotary_factor": 0.5,
      "rope_scaling": {"type": "default", "mrope_section": [8, 12, 12]}}})");
  const rope_config c = model.Config();
  EXPECT_EQ(c.pairing, ROPE_PAIRING_INTERLEAVED);
  EXPECT_EQ(c.rotary_dim, 64);
  EXPECT_EQ(c.mrope_interleaved, 0);
  EXPECT_EQ(c.mrope_section[0], 8);
}

TEST(ModelFamilies, HaveTheirPairingAndRounding) {
  struct Expected {
    const char* model_type;
    rope_pairing pairing;
    rope_rounding rounding;
  };
  const Expected kExpected[] = {
      {"llama", ROPE_PAIRING_HALVES, ROPE_ROUNDING_EAGER},
      {"olmo2", ROPE_PAIRING_HALVES, ROPE_ROUNDING_FLOAT32},
      {"modernbert", ROPE_PAIRING_HALVES, ROPE_ROUNDING_COS_SIN},
      {"cohere2", ROPE_PAIRING_INTERLEAVED, ROPE_ROUNDING_COS_SIN},
      {"ernie4_5", ROPE_PAIRING_INTERLEAVED, ROPE_ROUNDING_FLOAT32},
      {"helium", ROPE_PAIRING_INTERLEAVED, ROPE_ROUNDING_EAGER},
      {"glm4", ROPE_PAIRING_INTERLEAVED, ROPE_ROUNDING_EAGER},
      {"llama4_text", ROPE_PAIRING_INTERLEAVED, ROPE_ROUNDING_FLOAT32},
      {"roformer", ROPE_PAIRING_INTERLEAVED, ROPE_ROUNDING_EAGER},
      {"minicpm", ROPE_PAIRING_HALVES, ROPE_ROUNDING_FLOAT32},
      {"phi-msft", ROPE_PAIRING_HALVES, ROPE_ROUNDING_COS_SIN},
      {"baichuan", ROPE_PAIRING_HALVES, ROPE_ROUNDING_EAGER},
  };
  for (const Expected& e : kExpected) {
    const Model model(std::string(R"({"model_type": ")") + e.model_type +
                      R"(", "hidden_size": 1024, "num_attention_heads": 8})");
    EXPECT_EQ(model.Config().pairing, e.pairing) << e.model_type;
    EXPECT_EQ(model.Config().rounding, e.rounding) << e.model_type;
    EXPECT_EQ(model.Config().angle,
              std::string(e.model_type) == "roformer" ? ROPE_ANGLE_EXACT : ROPE_ANGLE_FLOAT32);
  }
}

TEST(ModelFamilies, NanoChatTurnsBackwards) {
  const Model model(R"({"model_type": "nanochat", "hidden_size": 768, "num_attention_heads": 6})");
  const rope_config c = model.Config();
  ASSERT_EQ(c.table_length, 64);
  EXPECT_EQ(c.theta, 0);
  EXPECT_EQ(c.inv_freq[0], -1);
  EXPECT_NEAR(c.inv_freq[1], -std::pow(10000, -1.0 / 64), 1e-7);
  // Its frequencies are a table, which is one for all lengths.
  const auto scaled = [](const std::string& dictionary) {
    return R"({"model_type": "nanochat", "hidden_size": 768, "num_attention_heads": 6,
               "max_position_embeddings": 2048, "rope_scaling": )" +
           dictionary + "}";
  };
  const Model linear(scaled(R"({"type": "linear", "factor": 2})"));
  EXPECT_EQ(linear.Config().inv_freq[0], -0.5);
  std::string ones = "[1";
  for (int i = 1; i < 64; ++i) ones += ", 1";
  ones += "]";
  for (const std::string& by_length : {std::string(R"({"type": "dynamic", "factor": 2})"),
                                       R"({"type": "longrope", "factor": 2, "short_factor": )" +
                                           ones + R"(, "long_factor": )" + ones + "}"}) {
    ExpectRefused(scaled(by_length), {"rope_type", "do not depend on the length"},
                  ROPE_ERROR_UNSUPPORTED);
  }
}

// The files of OLMo 1 in its own program's words: olmo/model.py of allenai/OLMo at 59a53e3f68e5.
TEST(ModelFamilies, OlmoOfItsOwnProgramTurnsIfItSaysSo) {
  const auto olmo = [](const std::string& entries) {
    return R"({"model_type": "hf_olmo", "d_model": 4096, "n_heads": 32, "n_layers": 4,
        "max_sequence_length": 2048, "alibi_bias_max": 8.0, "multi_query_attention": false)" +
           entries + "}";
  };
  const Model model(olmo(R"(, "alibi": false, "rope": true, "rope_full_precision": true)"));
  EXPECT_EQ(model.Config().theta, 1e4);
  EXPECT_EQ(model.Config().head_dim, 128);
  EXPECT_EQ(model.Config().pairing, ROPE_PAIRING_HALVES);
  EXPECT_EQ(model.Config().rounding, ROPE_ROUNDING_FLOAT32);
  EXPECT_EQ(model.Layers(5), "ffff.");
  const Model other(olmo(R"(, "rope": true, "rope_full_precision": false, "rope_theta": 500000)"));
  EXPECT_EQ(other.Config().theta, 5e5);
  EXPECT_EQ(other.Config().rounding, ROPE_ROUNDING_EAGER);
  for (const char* learned : {"", R"(, "rope": false)", R"(, "alibi": true)"}) {
    EXPECT_EQ(Model(olmo(learned)).Layers(4), "nnnn");
  }
  ExpectRefused(olmo(R"(, "rope": true, "alibi": true)"), {"alibi (true)"}, ROPE_ERROR_UNSUPPORTED);
}

// Phi-4-mini-flash: neither its own code nor vLLM's rotates; files that were saved again have a
// theta.
TEST(ModelFamilies, Phi4FlashHasNoRope) {
  for (const char* theta : {"", R"("rope_theta": 10000.0, )"}) {
    const Model model(R"({"model_type": "phi4flash", "hidden_size": 2560, "num_attention_heads": 40,
        "max_position_embeddings": 262144, "sliding_window": 512, )" +
                      std::string(theta) + R"("num_hidden_layers": 4, "mb_per_layer": 2})");
    EXPECT_EQ(model.Types(), std::vector<std::string>{"nope"});
    EXPECT_EQ(model.Config().head_dim, 64);
  }
}

}  // namespace
}  // namespace rope::testing
