// The width of a head, which of its channels rotate, in which pairs, and which axis each pair
// belongs to: given, divided or left to the class, and refused where two keys disagree.
#include <string>

#include "testing.h"

namespace rope::testing {
namespace {

TEST(ModelHead, WidthIsGivenElseDividedElseFromTheClass) {
  const std::string head =
      R"({"model_type": "qwen3", "hidden_size": 2560, "num_attention_heads": 32)";
  EXPECT_EQ(Model(head + R"(, "head_dim": 96})").Config().head_dim, 96);
  EXPECT_EQ(Model(head + R"(, "head_dim": 0})").Config().head_dim, 80);
  ExpectRefused(head + R"(, "head_dim": null})", {"head_dim (null)"}, ROPE_ERROR_UNSUPPORTED);
  EXPECT_EQ(Model(head + "}").Config().head_dim, 128);
}

TEST(ModelHead, CountMustDivideTheWidth) {
  ExpectRefused(R"({"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 33})",
                {"num_attention_heads (33) must divide hidden_size (4096)"});
  EXPECT_EQ(Model(R"({"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 33,
                      "head_dim": 128})")
                .Config()
                .head_dim,
            128);
}

// The class takes its default beside the words of others, and other programs do not.
TEST(ModelHead, SizesAreInTheWordsOfTheClass) {
  const auto with = [](const char* type, const std::string& sizes) {
    return R"({"model_type": ")" + std::string(type) + R"(", "rope_theta": 1e4, )" + sizes + "}";
  };
  const std::string hidden = R"("hidden_size": 1280, )", heads = R"("num_attention_heads": 16)";
  for (const char* word : {"n_head", "n_heads", "num_heads", "decoder_num_attention_heads"}) {
    const std::string text = hidden + '"' + word + R"(": 16)";
    ExpectRefused(with("llama", text), {"num_attention_heads is missing"});
    EXPECT_EQ(Model(with("nobody_knows", text)).Config().head_dim, 80);
  }
  for (const char* word : {"n_embd", "d_model", "dim"}) {
    const std::string text = '"' + std::string(word) + R"(": 1280, )" + heads;
    ExpectRefused(with("llama", text), {"hidden_size is missing"});
    ExpectRefused(R"({"model_type": "llava", "text_config": )" + with("llama", text) + "}",
                  {"text_config.hidden_size is missing"});
    EXPECT_EQ(Model(with("nobody_knows", text)).Config().head_dim, 80);
  }
  EXPECT_EQ(Model(with("phi-msft", R"("n_embd": 1280, "n_head": 16)")).Config().head_dim, 80);
  const Model moonshine(with("moonshine", hidden + R"("decoder_num_attention_heads": 16)"));
  EXPECT_EQ(moonshine.Config().head_dim, 80);
}

std::string Latent(const char* type, const std::string& entry) {
  return R"({"model_type": ")" + std::string(type) +
         R"(", "hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 4,
         "rope_theta": 1e4, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, )" +
         entry + "}";
}

// Of transformers 5.23: those whose attention asks "if self.config.rope_interleave", and those that
// call apply_rotary_pos_emb_interleave whatever the text says. The last four are of engines.
TEST(ModelHead, PairsOfLatentAttentionAreToldByAKeyWhereTheClassReadsIt) {
  for (const char* type : {"axk1", "deepseek_v3", "glm4_moe_lite", "kimi_k2", "mistral4", "youtu",
                           "bailing_moe_v3_vl", "gigachat3_5", "pangu_ultra_moe", "sarvam_mla"}) {
    const auto pairing = [type](const char* entry) {
      return Model(Latent(type, entry)).Config().pairing;
    };
    EXPECT_EQ(pairing(R"("rope_interleave": false)"), ROPE_PAIRING_HALVES) << type;
    EXPECT_EQ(pairing(R"("rope_interleave": true)"), ROPE_PAIRING_INTERLEAVED_TO_HALVES) << type;
    EXPECT_EQ(pairing(R"("x": 1)"), ROPE_PAIRING_INTERLEAVED_TO_HALVES) << type;
    ExpectRefused(Latent(type, R"("rope_interleave": null)"),
                  {"rope_interleave (null) must have a value"}, ROPE_ERROR_UNSUPPORTED);
  }
  for (const char* type : {"axk2", "bailing_hybrid", "deepseek_v32", "dots3_note", "glm_moe_dsa",
                           "longcat_flash", "mistral_large4"}) {
    EXPECT_EQ(Model(Latent(type, R"("rope_interleave": true)")).Config().pairing,
              ROPE_PAIRING_INTERLEAVED_TO_HALVES);
    ExpectRefused(Latent(type, R"("rope_interleave": false)"),
                  {"rope_interleave (false) is not true of this model, whose pairs are neighbours"},
                  ROPE_ERROR_UNSUPPORTED);
    ExpectRefused(Latent(type, R"("rope_interleave": null)"),
                  {"rope_interleave (null) must have a value"}, ROPE_ERROR_UNSUPPORTED);
  }
}

// Engines read the key, and transformers' classes do not.
TEST(ModelHead, PairsOfAnIndexerAreThoseOfItsClass) {
  const auto with = [](const char* type, const char* said) {
    return Latent(type,
                  R"("index_head_dim": 128, "indexer_rope_interleave": )" + std::string(said));
  };
  for (const char* type : {"dots3_note", "glm_moe_dsa", "mistral_large4"}) {
    EXPECT_EQ(Model(with(type, "true")).Config("indexer").pairing,
              ROPE_PAIRING_INTERLEAVED_TO_HALVES);
    ExpectRefused(with(type, "false"),
                  {"indexer_rope_interleave (false)", "whose indexer's pairs are neighbours"},
                  ROPE_ERROR_UNSUPPORTED);
    ExpectRefused(with(type, "null"), {"indexer_rope_interleave (null) must have a value"},
                  ROPE_ERROR_UNSUPPORTED);
  }
  for (const char* type : {"axk2", "deepseek_v32"}) {
    for (const char* said : {"false", "null"}) {
      EXPECT_EQ(Model(with(type, said)).Config("indexer").pairing, ROPE_PAIRING_HALVES);
    }
    ExpectRefused(with(type, "true"),
                  {"indexer_rope_interleave (true)", "whose indexer's pairs are of two halves"},
                  ROPE_ERROR_UNSUPPORTED);
  }
}

// DeepSeek-V2's own code has both kinds of attention; other classes have one, and do not ask.
TEST(ModelHead, UseMlaIsDeepSeekV2s) {
  const auto with = [](const char* type, const char* entries) {
    return R"({"model_type": ")" + std::string(type) +
           R"(", "hidden_size": 512, "num_attention_heads": 4, )" + entries + "}";
  };
  EXPECT_EQ(Model(with("deepseek_v2", R"("use_mla": false)")).Config().head_dim, 128);
  EXPECT_EQ(Model(with("deepseek_v2", R"("use_mla": true)")).Config().head_dim, 192);
  for (const char* type : {"deepseek_v3", "glm_moe_dsa", "minicpm3"}) {
    ExpectRefused(with(type, R"("use_mla": false)"),
                  {"use_mla (false) is not true of a", "latent attention alone"},
                  ROPE_ERROR_UNSUPPORTED);
    EXPECT_TRUE(Model(with(type, R"("use_mla": true)")));
  }
  EXPECT_TRUE(Model(with("hunyuan_v1_moe", R"("use_mla": false)")));
  ExpectRefused(with("llama", R"("use_mla": true)"), {"use_mla (true)", "no latent attention"},
                ROPE_ERROR_UNSUPPORTED);
}

// MiniMax turns rotary_dim channels, or the whole head: its class reads no share in the dictionary.
TEST(ModelHead, ShareOfMiniMaxIsItsRotaryDim) {
  const auto with = [](const std::string& entries) {
    return R"({"model_type": "minimax", "head_dim": 128, )" + entries + "}";
  };
  const std::string share = R"("rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": )";
  EXPECT_EQ(Model(with(R"("rotary_dim": 64)")).Config().rotary_dim, 64);
  EXPECT_EQ(Model(with(share + R"(0.5}, "rotary_dim": 64)")).Config().rotary_dim, 64);
  EXPECT_EQ(Model(with(share + "1.0}")).Config().rotary_dim, 0);
  ExpectRefused(with(share + "0.5}"), {"rope_parameters.partial_rotary_factor (0.5)"},
                ROPE_ERROR_UNSUPPORTED);
}

TEST(ModelHead, WidthsAreEvenAndInRange) {
  ExpectRefused(R"({"model_type": "llama", "head_dim": 1026})", {"given or hidden_size", "1024"});
  ExpectRefused(R"({"model_type": "deepseek_v3", "qk_rope_head_dim": 63, "qk_nope_head_dim": 129})",
                {"qk_rope_head_dim (63) must be even"});
  ExpectRefused(R"({"model_type": "deepseek_v4", "qk_rope_head_dim": 63})",
                {"qk_rope_head_dim (63) must be even and from 2"});
  const std::string v32 = R"({"model_type": "deepseek_v32", "index_head_dim": )";
  EXPECT_EQ(Model(v32 + "64}").Config("indexer").head_dim, 64);
  ExpectRefused(v32 + "62}", {"index_head_dim (62)", "at least qk_rope_head_dim (64)"});
  ExpectRefused(v32 + "65}", {"index_head_dim (65) must be even"});
}

TEST(ModelHead, WidthsOfTowersAreMultiplesOfFour) {
  EXPECT_EQ(Model(R"({"model_type": "sam2_video", "memory_attention_hidden_size": 256,
                      "memory_attention_num_attention_heads": 1,
                      "memory_attention_downsample_rate": 2})")
                .Config()
                .head_dim,
            128);
  for (const char* head_dim : {"4", "10", "1028"}) {
    ExpectRefused(std::string(R"({"model_type": "pixtral", "head_dim": )") + head_dim + "}",
                  {"given or width / heads", "multiple of 4 from 8 to 1024"});
  }
  EXPECT_EQ(Model(R"({"model_type": "pixtral", "head_dim": 8})").Config().head_dim, 8);
}

TEST(ModelHead, OfLatentAttentionEndsInItsRotatedChannels) {
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

TEST(ModelHead, ShareOfLatentAttentionMustBeThatOfItsWidths) {
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

// transformers turns the whole head then, or fails where frequencies are scaled, and other programs
// turn half of it.
TEST(ModelHead, ShareIsRefusedInClassesThatDoNotReadIt) {
  ExpectRefused(Llama(R"({"rope_type": "default", "partial_rotary_factor": 0.5})"),
                {"rope_scaling.partial_rotary_factor (0.5)"}, ROPE_ERROR_UNSUPPORTED);
  EXPECT_EQ(
      Model(Llama(R"({"rope_type": "default", "partial_rotary_factor": 1})")).Config().rotary_dim,
      0);
  ExpectRefused(Llama(R"({"rope_type": "linear", "factor": 2, "partial_rotary_factor": 0.5})"),
                {"rope_scaling.partial_rotary_factor (0.5) must be 1 for model_type \"llama\""},
                ROPE_ERROR_UNSUPPORTED);
}

TEST(ModelHead, ShareInsideAndBesideAgree) {
  const auto glm = [](const char* beside) {
    return std::string(R"({"model_type": "glm4_moe", "head_dim": 128, )") + beside +
           R"("rope_parameters": {"partial_rotary_factor": 0.25}})";
  };
  EXPECT_EQ(Model(glm("")).Config().rotary_dim, 32);
  EXPECT_EQ(Model(glm(R"("partial_rotary_factor": 0.25, )")).Config().rotary_dim, 32);
  ExpectRefused(glm(R"("partial_rotary_factor": 0.5, )"), {"partial_rotary_factor (0.5)"},
                ROPE_ERROR_UNSUPPORTED);
}

TEST(ModelHead, RotaryDimAloneIsTheSpan) {  // MiniMax-M2.5
  EXPECT_EQ(Model(R"({"model_type": "minimax_m2", "head_dim": 128, "rotary_dim": 64})")
                .Config()
                .rotary_dim,
            64);
}

TEST(ModelHead, RotaryDimAndShareMustAgree) {
  const std::string head = R"({"model_type": "minimax_m2", "head_dim": 128, "rotary_dim": 64)";
  EXPECT_EQ(Model(head + R"(, "partial_rotary_factor": 0.5})").Config().rotary_dim, 64);
  ExpectRefused(head + R"(, "partial_rotary_factor": 0.25})", {"rotary_dim", "agree"});
}

TEST(ModelHead, ProportionalRoundsDownToPairs) {
  EXPECT_EQ(
      Model(R"({"rope_type": "proportional", "partial_rotary_factor": 0.13, "head_dim": 256})")
          .Config()
          .rotary_dim,
      32);  // 16.64 pairs
}

TEST(ModelHead, OfClvpRotatesItsFirstChannels) {
  const std::string encoder = R"({"model_type": "clvp_encoder", "hidden_size": 768,
      "num_attention_heads": 12, "num_hidden_layers": 2)";
  EXPECT_EQ(Model(encoder + R"(, "projection_dim": 768})").Config().rotary_dim, 32);
  EXPECT_EQ(Model(encoder + R"(, "projection_dim": 960})").Config().rotary_dim, 40);
  EXPECT_EQ(Model(encoder + R"(, "projection_dim": 768, "use_rotary_embedding": false})").Layers(2),
            "nn");
  ExpectRefused(encoder + "}", {"projection_dim"});
  ExpectRefused(encoder + R"(, "projection_dim": 999})", {"projection_dim"});
}

TEST(ModelHead, SectionsBeyondTheirLimitsAreRefused) {
  const auto sections = [](const char* type, const char* rest) {
    return std::string(R"({"model_type": ")") + type +
           R"(", "head_dim": 128, "rope_parameters": {)" + rest + "}}";
  };
  for (const char* type : {"qwen3_vl", "ernie4_5_vl_moe"}) {
    ExpectRefused(sections(type, R"("mrope_section": [16, 16, 16, 16])"),
                  {"mrope_section has 4 entries", "from 1 to 3"});
  }
  ExpectRefused(sections("llama", R"("mrope_section": [16, 16, 16, 8, 8])"),
                {"mrope_section has 5 entries", "from 1 to 4"});
  ExpectRefused(
      sections("llama", R"("mrope_interleaved": true, "mrope_section": [16, 16, 16, 16])"),
      {"mrope_section has 4 entries", "at most 3 if interleaved"}, ROPE_ERROR_UNSUPPORTED);
  ExpectRefused(R"({"mrope_section": [513, 1]})", {"mrope_section[0] (513)", "from 0 to 512"});
  // pairs of PROPORTIONAL span the head
  const rope_config c = Model(sections("llama", R"("rope_type": "proportional",
      "partial_rotary_factor": 0.5, "mrope_section": [32, 16, 16])"))
                            .Config();
  EXPECT_EQ(c.rotary_dim, 64);
  EXPECT_EQ(c.mrope_section[0], 32);
}

TEST(ModelHead, OfNeommeAlternatesTwoIds) {
  const rope_config c = Model(R"({"model_type": "neomme", "num_hidden_layers": 1,
      "layer_types": ["full_attention"]})")
                            .Config("full_attention");
  EXPECT_EQ(c.axes, 2);
  EXPECT_EQ(c.rotary_dim, 16);
  EXPECT_EQ(c.table_length, 8);
}

}  // namespace
}  // namespace rope::testing
