// Every family has words of its own for theta, for the share of the head that turns and for the
// form of its rope dictionary: they are read, and those of other families are refused unless they
// repeat what is used. Which words are whose was measured on transformers' classes.
#include <algorithm>
#include <string>
#include <vector>

#include "answer.h"
#include "testing.h"

namespace rope::testing {
namespace {

std::string With(const std::string& model_type, const std::string& entries) {
  return R"({"model_type": ")" + model_type +
         R"(", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 4,
           "max_position_embeddings": 8192)" +
         (entries.empty() ? "" : ", ") + entries + "}";
}

std::string Entry(const std::string& key, const std::string& value) {
  return '"' + key + "\": " + value;
}

struct Word {
  const char *key, *value;  // one that no class has as its default
};

constexpr Word kWords[] = {
    {"rope_theta", "54321.0"},
    {"rotary_emb_base", "54321.0"},
    {"rotary_embedding_base", "54321"},
    {"rope_embedding_base", "54321"},
    {"rope_local_base_freq", "54321"},
    {"global_rope_theta", "54321"},
    {"local_rope_theta", "54321.0"},
    {"swa_rope_theta", "54321.0"},
    {"compress_rope_theta", "54321"},
    {"rope_ratio", "2"},
    {"partial_rotary_factor", "0.75"},
    {"rotary_pct", "0.75"},
    {"rope_pct", "0.75"},
    {"rotary_dim", "48"},
};

struct Family {
  const char* model_type;
  std::vector<std::string> reads;
  std::string needs;  // to have RoPE at all
};

const Family kFamilies[] = {
    {"llama", {"rope_theta"}, ""},
    {"mistral", {"rope_theta"}, ""},
    {"granite", {"rope_theta"}, ""},
    {"olmo2", {"rope_theta"}, ""},
    {"qwen3", {"rope_theta"}, ""},
    {"bamba", {"rope_theta"}, R"("attn_layer_indices": [1])"},
    {"cohere2_moe", {"rope_theta"}, ""},
    {"glm4", {"rope_theta", "partial_rotary_factor"}, ""},
    {"nemotron", {"rope_theta", "partial_rotary_factor"}, ""},
    {"phi", {"rope_theta", "partial_rotary_factor"}, ""},
    {"qwen3_next", {"rope_theta", "partial_rotary_factor"}, ""},
    {"stablelm", {"rope_theta", "partial_rotary_factor"}, ""},
    {"stablelm_epoch", {"rope_theta", "rope_pct"}, ""},
    {"gpt_neox", {"rotary_emb_base", "rotary_pct"}, ""},
    {"gpt_neox_japanese", {"rotary_emb_base", "rotary_pct"}, ""},
    {"nomic_bert", {"rope_theta", "rotary_emb_base"}, ""},
    {"wav2vec2-bert", {"rotary_embedding_base"}, R"("position_embeddings_type": "rotary")"},
    {"phi3small", {"rope_embedding_base"}, ""},
    {"chatglm", {"rope_ratio"}, ""},
    {"gptj", {"rotary_dim"}, ""},
    {"codegen", {"rotary_dim"}, ""},
    {"minimax_m2", {"rope_theta", "partial_rotary_factor", "rotary_dim"}, ""},
    {"roformer", {}, ""},
    {"cosmos3_edge", {}, ""},
    {"moonshine_streaming", {}, ""},
    {"muse_spark", {}, ""},
    {"beam", {}, ""},
    {"gemma3", {"rope_theta", "rope_local_base_freq"}, ""},
    {"modernbert", {"global_rope_theta", "local_rope_theta"}, ""},
    {"olmo3", {"rope_theta"}, ""},
    {"neomme", {"rope_theta"}, ""},
    {"deepseek_v4",
     {"rope_theta", "compress_rope_theta"},
     R"("compress_ratios": [0, 4, 0, 4], "qk_rope_head_dim": 64)"},
    {"step3p5", {"rope_theta"}, R"("rope_scaling": null)"},
    {"gemma4", {}, ""},
    {"gemma4_unified", {}, ""},
    {"diffusion_gemma", {}, ""},
    {"embedding_gemma2", {}, ""},
    {"laguna", {}, ""},
    {"lfm3", {}, ""},
    {"mellum", {}, ""},
    {"zaya", {}, ""},
};

std::string Joined(const std::string& a, const std::string& b) {
  return a + (a.empty() || b.empty() ? "" : ", ") + b;
}

TEST(ModelWords, AFamilyReadsItsOwn) {
  for (const Family& family : kFamilies) {
    const std::string before = Answer(With(family.model_type, family.needs));
    EXPECT_NE(before, "") << family.model_type << ": " << rope_last_error();
    for (const Word& word : kWords) {
      SCOPED_TRACE(std::string(family.model_type) + ", " + word.key);
      const std::string text =
          With(family.model_type, Joined(family.needs, Entry(word.key, word.value)));
      const auto& reads = family.reads;
      if (std::find(reads.begin(), reads.end(), word.key) == reads.end()) {
        ExpectRefused(text, {word.key}, ROPE_ERROR_UNSUPPORTED);
      } else {
        const std::string after = Answer(text);
        EXPECT_NE(after, "") << rope_last_error();
        EXPECT_NE(after, before);
      }
    }
  }
}

// transformers hands None on. rotary_dim may be null: all of the head.
TEST(ModelWords, NullIsNoDefault) {
  for (const Family& family : kFamilies) {
    for (const std::string& key : family.reads) {
      if (key == "rotary_dim") continue;
      const std::string name = key + " (null)";
      ExpectRefused(With(family.model_type, Joined(family.needs, Entry(key, "null"))),
                    {name.c_str()}, ROPE_ERROR_UNSUPPORTED);
    }
  }
}

TEST(ModelWords, OthersMayRepeatWhatIsUsed) {
  const std::string llama = Answer(With("llama", ""));
  for (const char* entry :
       {R"("rotary_emb_base": 10000)", R"("rotary_embedding_base": 1e4)", R"("theta": 10000)",
        R"("partial_rotary_factor": 1)", R"("rotary_pct": 1.0)", R"("rotary_dim": 128)"}) {
    EXPECT_EQ(Answer(With("llama", entry)), llama) << rope_last_error();
  }
  const std::string neox = Answer(With("gpt_neox", ""));
  for (const char* entry : {R"("rope_theta": 10000)", R"("partial_rotary_factor": 0.25)",
                            R"("rope_pct": 0.25)", R"("rotary_dim": 32)"}) {
    EXPECT_EQ(Answer(With("gpt_neox", entry)), neox) << rope_last_error();
  }
  EXPECT_EQ(Answer(With("gemma4", R"("rope_theta": 1e6)")), Answer(With("gemma4", "")));
}

// A family that is not known may read any of them.
TEST(ModelWords, UnknownFamiliesReadThemAll) {
  const std::string base = R"("head_dim": 64, )";
  EXPECT_EQ(Model(With("nobody_knows", base + R"("rotary_emb_base": 777)")).Config().theta, 777);
  EXPECT_EQ(Model(With("nobody_knows", base + R"("rotary_embedding_base": 777)")).Config().theta,
            777);
  const std::string theta = base + R"("rope_theta": 777, )";
  for (const char* share : {"partial_rotary_factor", "rotary_pct", "rope_pct"}) {
    EXPECT_EQ(Model(With("nobody_knows", theta + Entry(share, "0.5"))).Config().rotary_dim, 32);
  }
  EXPECT_EQ(Model(With("nobody_knows", theta + R"("rotary_dim": 16)")).Config().rotary_dim, 16);
}

// --- dictionaries
// ---------------------------------------------------------------------------------

constexpr char kKinds[] = R"({"full_attention": {"rope_type": "default", "rope_theta": 54321},
    "sliding_attention": {"rope_type": "default", "rope_theta": 65432}})";
constexpr char kLinear[] = R"({"rope_type": "linear", "factor": 3})";

TEST(ModelWords, DictionariesOfKindsAreRefusedWhereTheClassReadsOneForAll) {
  for (const char* type : {"llama", "mistral", "granite", "olmo2", "phi", "qwen3_next", "smollm3",
                           "gpt_oss", "cohere2", "gemma2", "apertus", "mixtral"}) {
    for (const char* key : {"rope_parameters", "rope_scaling"}) {
      ExpectRefused(With(type, Entry(key, kKinds)), {key, "for all layers"},
                    ROPE_ERROR_UNSUPPORTED);
    }
  }
}

TEST(ModelWords, DictionariesForAllAreRefusedWhereTheClassReadsKinds) {
  for (const char* type :
       {"gemma4", "laguna", "lfm3", "mellum", "zaya", "embedding_gemma2", "beam", "cohere_compass",
        "neomme", "gemma3", "olmo3", "modernbert", "dots3_note"}) {
    ExpectRefused(With(type, Entry("rope_parameters", kLinear)), {"rope_parameters", "each kind"},
                  ROPE_ERROR_UNSUPPORTED);
  }
  for (const char* type : {"gemma3", "olmo3", "modernbert"}) {  // read the older one
    EXPECT_TRUE(Model(With(type, Entry("rope_scaling", kLinear))));
    ExpectRefused(With(type, Entry("rope_scaling", kKinds)), {"rope_scaling"},
                  ROPE_ERROR_UNSUPPORTED);
  }
}

// Where the class has others for a file without a dictionary.
TEST(ModelWords, DefaultsInsideAKindAreThoseOfAllClasses) {
  const std::string kinds = R"("rope_parameters": {"full_attention": {"rope_theta": 54321},
      "sliding_attention": {"rope_theta": 54321}})";
  for (const char* type : {"gemma4", "diffusion_gemma", "lfm3", "laguna"}) {
    const rope_config c = Model(With(type, kinds)).Config("full_attention");
    EXPECT_EQ(c.scaling, ROPE_SCALING_DEFAULT) << type;
    EXPECT_EQ(c.rotary_dim, 0) << type;
  }
}

TEST(ModelWords, KindsWithoutThetaHaveNoneWhereTheClassReadsNoneBeside) {
  const std::string kinds = R"("layer_types": ["sliding_attention", "sliding_attention",
      "sliding_attention", "full_attention"], )";
  for (const char* type : {"gemma4", "laguna", "lfm3", "mellum", "olmo3"}) {
    ExpectRefused(With(type, kinds + R"("rope_theta": 1e4, "rope_parameters": {
                      "full_attention": {"rope_theta": 54321},
                      "sliding_attention": {"rope_type": "default"}})"),
                  {"sliding_attention.rope_theta is missing"});
    EXPECT_TRUE(Model(With(type, Entry("rope_parameters", kKinds))));
  }
  ExpectRefused(With("cohere_compass", R"("rope_parameters": {"full_attention": {
                    "rope_type": "yarn", "factor": 4, "mrope_section": [24, 20, 20]}})"),
                {"full_attention.rope_theta is missing"});
}

TEST(ModelWords, DictionariesThatTheClassDoesNotReadAreRefused) {
  for (const char* type : {"gptj", "codegen", "roformer", "clvp_encoder"}) {
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      const std::string sizes = R"("projection_dim": 4096, )";
      ExpectRefused(With(type, sizes + Entry(key, kLinear)), {key}, ROPE_ERROR_UNSUPPORTED);
      EXPECT_TRUE(Model(With(type, sizes + Entry(key, R"({"rope_type": "default"})"))));
    }
  }
  for (const char* type : {"cohere2_moe", "cohere_compass"}) {
    ExpectRefused(With(type, Entry("rope_scaling", kLinear)), {"rope_scaling"},
                  ROPE_ERROR_UNSUPPORTED);
  }
}

TEST(ModelWords, ScalingsThatTheClassDoesNotKnowAreRefused) {
  for (const char* type : {"phi3", "phimoe", "recurrent_gemma"}) {
    ExpectRefused(With(type, Entry("rope_scaling", kLinear)), {"linear", "default"},
                  ROPE_ERROR_UNSUPPORTED);
  }
  for (const char* type : {"cosmos3_edge", "ernie4_5_vl_moe"}) {
    ExpectRefused(With(type, R"("rope_scaling": {"rope_type": "linear", "factor": 3,
                      "mrope_section": [22, 22, 20]})"),
                  {"linear", "default"}, ROPE_ERROR_UNSUPPORTED);
  }
}

// --- one by one
// -----------------------------------------------------------------------------------

TEST(ModelWords, AnAttentionFactorOfDeepSeekV4IsTheFiles) {
  const auto v4 = [](const std::string& dictionary) {
    return R"({"model_type": "deepseek_v4", "head_dim": 512, "compress_ratios": [0, 4],
               "max_position_embeddings": 8192, "rope_scaling": )" +
           dictionary + "}";
  };
  const std::string yarn =
      R"("rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 4096)";
  const Model plain(v4("{" + yarn + "}"));
  EXPECT_EQ(plain.Config("compress").attention_factor, 1);
  EXPECT_EQ(plain.Config("main").attention_factor, 0);
  EXPECT_EQ(
      Model(v4("{" + yarn + R"(, "attention_factor": 0.625})")).Config("compress").attention_factor,
      0.625);
  const auto kinds = [&](const std::string& more) {
    return v4(R"({"main": {"rope_theta": 1e4}, "compress": {"rope_theta": 160000, )" + yarn + more +
              "}}");
  };
  EXPECT_EQ(Model(kinds(R"(, "attention_factor": 0.625)")).Config("compress").attention_factor,
            0.625);
  ExpectRefused(kinds(""), {"compress.attention_factor is missing"});
}

// A share that qk_rope_head_dim is of the indexer's heads (64 of 128) is not that of the model's.
TEST(ModelWords, TheShareOfAnIndexersHeadIsNotThatOfTheModels) {
  const auto text = [](const std::string& more) {
    return R"({"model_type": "deepseek_v4", "head_dim": 512, "qk_rope_head_dim": 64,
               "index_head_dim": 128, "compress_ratios": [0, 4], )" +
           more + "}";
  };
  for (const char* share : {R"("partial_rotary_factor": )", R"("rotary_pct": )"}) {
    EXPECT_EQ(Model(text(share + std::string("0.125"))).Config("main").rotary_dim, 64);
    ExpectRefused(text(share + std::string("0.5")), {"(0.5)"}, ROPE_ERROR_UNSUPPORTED);
  }
  const auto kinds = [&](const char* share) {
    return text(R"("rope_parameters": {"main": {"rope_theta": 1e4, "partial_rotary_factor": 0.125},
        "compress": {"rope_theta": 160000, "partial_rotary_factor": )" +
                std::string(share) + "}}");
  };
  EXPECT_EQ(Model(kinds("0.125")).Config("compress").rotary_dim, 64);
  EXPECT_EQ(Model(kinds("0.125")).Config("indexer").rotary_offset, 64);
  ExpectRefused(kinds("0.5"), {"rope_parameters.compress.partial_rotary_factor (0.5)"},
                ROPE_ERROR_UNSUPPORTED);
}

TEST(ModelWords, HeadsFollowFromOtherKeys) {
  for (const char* type : {"recurrent_gemma", "deepseek_ocr2_text", "unlimited_ocr_text", "falcon",
                           "roformer", "jetmoe"}) {
    EXPECT_TRUE(Model(With(type, R"("head_dim": 128)")));
    ExpectRefused(With(type, R"("head_dim": 96)"), {"head_dim (96) must be 128"},
                  ROPE_ERROR_UNSUPPORTED);
  }
}

TEST(ModelWords, AHeadThatIsNullIsNotGuessed) {
  ExpectRefused(With("gemma2", R"("head_dim": null)"), {"head_dim (null)"}, ROPE_ERROR_UNSUPPORTED);
  EXPECT_EQ(Model(With("llama", R"("head_dim": null)")).Config().head_dim, 128);
}

TEST(ModelWords, Inkling2HasNoRopeWhateverItSays) {
  EXPECT_EQ(Model(With("inkling2_text", R"("rope_theta": 54321)")).Types(),
            std::vector<std::string>{"nope"});
}

TEST(ModelWords, KindsThatNoLayerIsOfAreRefused) {
  ExpectRefused(With("gemma3", R"("rope_parameters": {"full_attention": {"rope_theta": 54321},
                    "indexed_attention": {"rope_theta": 77}})"),
                {"indexed_attention.rope_theta (77)"}, ROPE_ERROR_UNSUPPORTED);
}

// Other configuration classes around it have other defaults.
TEST(ModelWords, VoxtralsThetaIsThatOfItsWhole) {
  EXPECT_EQ(Model(With("voxtral_realtime_text", "")).Config().theta, 1e4);
  const auto whole = [](const char* type, const char* text) {
    return R"({"model_type": ")" + std::string(type) + R"(", "text_config": )" + text + "}";
  };
  const char* const nothing = R"({"vocab_size": 131072})";
  const rope_config voxtral = Model(whole("voxtral", nothing)).Config();
  EXPECT_EQ(voxtral.theta, 1e8);
  EXPECT_EQ(voxtral.head_dim, 128);
  EXPECT_EQ(voxtral.pairing, ROPE_PAIRING_HALVES);
  EXPECT_EQ(Model(whole("voxtral", nothing)).Layers(31), std::string(30, 'f') + ".");
  EXPECT_EQ(Model(whole("voxtral", R"({"head_dim": null})")).Config().head_dim, 96);
  EXPECT_EQ(Model(whole("voxtral", R"({"rope_theta": 77})")).Config().theta, 77);
  ExpectRefused(whole("voxtral", R"({"rope_theta": null})"), {"text_config.rope_theta (null)"},
                ROPE_ERROR_UNSUPPORTED);
  EXPECT_EQ(Model(whole("voxtral", R"({"rope_parameters": {"rope_type": "linear", "factor": 2}})"))
                .Config()
                .theta,
            1e8);
  const Model realtime(whole("voxtral_realtime", R"({"model_type": "voxtral_realtime_text"})"));
  EXPECT_EQ(realtime.Config().theta, 1e6);
  EXPECT_EQ(realtime.Config().head_dim, 128);
  EXPECT_EQ(realtime.Layers(27), std::string(26, 'f') + ".");
  const Model encoder(whole("pe_audio", R"({"num_attention_heads": 8})"));
  EXPECT_EQ(encoder.Config("full_attention").head_dim, 128);
}

// Its dictionary hides a theta beside it, unless there is another dictionary.
TEST(ModelWords, GlmAsrDoesNotReadATheta) {
  const auto whole = [](const char* entries) {
    return R"({"model_type": "glmasr", "text_config": {"model_type": "llama")" +
           std::string(entries) + "}}";
  };
  const Model plain(whole(""));
  EXPECT_EQ(plain.Config().theta, 1e4);
  EXPECT_EQ(plain.Config().head_dim, 128);
  EXPECT_EQ(plain.Layers(29), std::string(28, 'f') + ".");
  EXPECT_TRUE(Model(whole(R"(, "rope_theta": 10000.0)")));
  ExpectRefused(whole(R"(, "rope_theta": 77)"), {"text_config.rope_theta (77)"},
                ROPE_ERROR_UNSUPPORTED);
  for (const char* dictionary :
       {R"(, "rope_theta": 77, "rope_parameters": {"rope_type": "default"})",
        R"(, "rope_theta": 77, "rope_scaling": {"type": "linear", "factor": 2})",
        R"(, "rope_parameters": {"rope_theta": 77})"}) {
    EXPECT_EQ(Model(whole(dictionary)).Config().theta, 77) << dictionary;
  }
}

}  // namespace
}  // namespace rope::testing
