// The parser's own limits and rules at their edges: numbers just beyond a range, lists of the wrong
// length, keys that nearly are others, and layers beyond the last. Each message is that of the
// parser, which names the key; the core would refuse some of these later in other words.
#include <string>
#include <vector>

#include "testing.h"

namespace rope::testing {
namespace {

using nlohmann::json;

// --- numbers and keys ---------------------------------------------------------------------------

TEST(ModelEdges, NumbersAbove63Bits) {
  ExpectRefused(R"({"model_type": "llama", "head_dim": 18446744073709551615})",
                {"head_dim (1.8446744073709552e+19) must be from 0"});
}

TEST(ModelEdges, KeysThatNearlyAreOthers) {
  ExpectRefused(Llama(R"({"type": "yarn", "factor": 4, "beta_fsat": 16})"),
                {"beta_fsat (16) must be spelt beta_fast"});  // two edits of a long key
  // the right spelling is there as well: still a key that nobody understands
  ExpectRefused(Llama(R"({"type": "linear", "factor": 4, "fctr": 2})"), {"rope_scaling.fctr (2)"},
                ROPE_ERROR_UNSUPPORTED);
  ExpectRefused(Llama(R"({"type": "linear", "factor": 4, "factors": 2})"),
                {"rope_scaling.factors (2)", "the nearest key is factor"}, ROPE_ERROR_UNSUPPORTED);
}

// --- scaling ------------------------------------------------------------------------------------

std::string Lists(size_t below, size_t above) {
  return R"("short_factor": )" + json(std::vector<int>(below, 1)).dump() + R"(, "long_factor": )" +
         json(std::vector<int>(above, 2)).dump();
}

TEST(ModelEdges, YarnThatMeansLongrope) {
  // by the family alone, and by the lists alone
  ExpectRefused(R"({"model_type": "phi3", "head_dim": 64, "max_position_embeddings": 64,
                    "rope_scaling": {"type": "yarn", "factor": 4}})",
                {"rope_scaling.short_factor is missing"});
  EXPECT_EQ(
      Model(Llama(R"({"type": "yarn", "factor": 4, )" + Lists(64, 64) + "}")).Config().scaling,
      ROPE_SCALING_LONGROPE);
}

// Phi3Config has a default of its own, which transformers prefers to the dictionary's entry.
TEST(ModelEdges, Phi3TakesItsOriginalLengthFromBesideTheDictionary) {
  const auto phi3 = [](const std::string& beside, const std::string& inside) {
    return R"({"model_type": "phi3", "head_dim": 64, "max_position_embeddings": 131072, )" +
           beside + R"("rope_scaling": {"type": "longrope", )" + inside + Lists(32, 32) + "}}";
  };
  const std::string key = R"("original_max_position_embeddings": )";
  const auto original = [](const std::string& text) {
    return Model(text).Config().original_max_position_embeddings;
  };
  EXPECT_EQ(original(phi3("", "")), 4096);
  EXPECT_EQ(original(phi3("", key + "4096, ")), 4096);
  EXPECT_EQ(original(phi3(key + "8192, ", "")), 8192);
  EXPECT_EQ(original(phi3(key + "8192, ", key + "8192, ")), 8192);
  ExpectRefused(phi3("", key + "8192, "),
                {"rope_scaling.original_max_position_embeddings (8192) must stand beside", "4096"});
}

// Not ChatGLM2, whose model_type it has.
TEST(ModelEdges, TheFirstChatGlmIsRefused) {
  const std::string text = R"({"model_type": "chatglm", "hidden_size": 4096,
                               "num_attention_heads": 32, "num_layers": 28, )";
  ExpectRefused(text + R"("position_encoding_2d": true})", {"position_encoding_2d", "two ids"},
                ROPE_ERROR_UNSUPPORTED);
  ExpectRefused(text + R"("inner_hidden_size": 16384})", {"inner_hidden_size", "two ids"},
                ROPE_ERROR_UNSUPPORTED);
  EXPECT_EQ(Model(text + R"("kv_channels": 128})").Config().rotary_dim, 64);
}

TEST(ModelEdges, InternLm1HasADictionaryOfItsOwn) {
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

TEST(ModelEdges, NamesOfKindsAreText) {
  ExpectRefused(R"({"model_type": "gpt_oss", "head_dim": 64, "num_hidden_layers": 1,
                    "layer_types": ["full_attention\u0000x"], "rope_parameters":
                    {"full_attention\u0000x": {"rope_type": "default"}}})",
                {"printable"});
}

TEST(ModelEdges, NanIsAValueAndNoKey) {
  ExpectRefused(R"({NaN: 1, "model_type": "llama"})", {"the text"});
  EXPECT_EQ(Model(R"({"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4,
                      "limit": [0.0 , NaN , -Infinity]})")
                .Config()
                .head_dim,
            64);
}

TEST(ModelEdges, FactorListsOfADictionaryAlone) {
  const std::string longrope = R"({"type": "longrope", "factor": 4, )";
  EXPECT_EQ(Model(longrope + Lists(2, 2) + "}").Config().table_length, 2);
  EXPECT_EQ(Model(longrope + Lists(512, 512) + "}").Config().table_length, 512);
  ExpectRefused(longrope + Lists(0, 0) + "}", {"short_factor has 0 entries", "from 1 to 512"});
  ExpectRefused(longrope + Lists(513, 513) + "}",
                {"short_factor has 513 entries", "from 1 to 512"});
  ExpectRefused(longrope + Lists(2, 3) + "}",
                {"long_factor has 3 entries", "as many as short_factor, 2"});
}

TEST(ModelEdges, ProportionalRoundsDownToPairs) {
  EXPECT_EQ(
      Model(R"({"rope_type": "proportional", "partial_rotary_factor": 0.13, "head_dim": 256})")
          .Config()
          .rotary_dim,
      32);  // 16.64 pairs
}

TEST(ModelEdges, GivenAttentionFactorWinsAndIsRefusedElsewhere) {
  EXPECT_EQ(Model(Llama(R"({"type": "yarn", "factor": 4, "attention_factor": 1.5, "mscale": 1,
                            "mscale_all_dim": 0.5})"))
                .Config()
                .attention_factor,
            1.5);
  ExpectRefused(Llama(R"({"type": "linear", "factor": 4, "attention_factor": 1.5})"),
                {"rope_scaling.attention_factor (1.5)"}, ROPE_ERROR_UNSUPPORTED);
  EXPECT_EQ(Model(Llama(R"({"type": "linear", "factor": 4, "attention_factor": 1})"))
                .Config()
                .attention_factor,
            0);
}

TEST(ModelEdges, NegativeBetas) {
  ExpectRefused(Llama(R"({"type": "yarn", "factor": 4, "beta_fast": -1})"),
                {"beta_fast (-1) must not be negative"});
  ExpectRefused(Llama(R"({"type": "yarn", "factor": 4, "beta_slow": -1})"),
                {"beta_slow (-1) must not be negative"});
}

TEST(ModelEdges, Llama3FactorsInTheWrongOrder) {
  ExpectRefused(Llama(R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
                          "high_freq_factor": 1, "original_max_position_embeddings": 8192})"),
                {"rope_scaling.high_freq_factor (1)", "low_freq_factor (4)"});
}

TEST(ModelEdges, Alpha) {
  const auto hunyuan = [](const char* head_dim, const char* alpha) {
    return std::string(R"({"model_type": "hunyuan_v1_dense", "head_dim": )") + head_dim +
           R"(, "rope_scaling": {"type": "dynamic", "alpha": )" + alpha + "}}";
  };
  EXPECT_GT(Model(hunyuan("4", "1000")).Config().theta, 1e9);
  ExpectRefused(hunyuan("2", "1000"), {"alpha (1000) needs a head_dim above 2"});
  ExpectRefused(hunyuan("4", "1e300"), {"alpha (1e+300) must keep theta finite"});
}

// --- axes ---------------------------------------------------------------------------------------

TEST(ModelEdges, Sections) {
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

// --- layers -------------------------------------------------------------------------------------

TEST(ModelEdges, LayersBeyondTheLast) {  // extra layers, of multi-token prediction
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
      "99999": {"head_dim": 64}, "1/": {"head_dim": 64}, "+1": {"head_dim": 64}, "": {"head_dim": 64},
      "18446744073709551617": {"head_dim": 64}, "0001": {"head_dim": 128}}})");
  EXPECT_EQ(gemma.Config("full_attention").head_dim, 128);
}

TEST(ModelEdges, LayerCounts) {
  EXPECT_EQ(Model(R"({"model_type": "longcat_flash", "num_hidden_layers": 2})").Layers(3), "ff.");
  EXPECT_EQ(Model(R"({"model_type": "exaone4", "head_dim": 64, "num_hidden_layers": 6,
                      "sliding_window_pattern": "LLLG"})")
                .Layers(6),
            "sssnsn");  // the last is full, whatever the letters say
  ExpectRefused(R"({"model_type": "llama", "head_dim": 64, "layer_types": []})",
                {"layer_types has 0 entries"});
}

// --- heads and towers ---------------------------------------------------------------------------

TEST(ModelEdges, WidthsOfHeads) {
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

TEST(ModelEdges, Towers) {
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

}  // namespace
}  // namespace rope::testing
