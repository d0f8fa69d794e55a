// What the keys of a GGUF file mean, and which of them are refused: rules that no published file
// needs to break, on small files made here. Published ones are in model_gguf_oracle_test.
#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "gguf_bytes.h"
#include "testing.h"

namespace rope::testing {
namespace {

using Names = std::vector<std::string>;

class Gguf : public Model {
 public:
  explicit Gguf(const GgufBytes& bytes) : Model(Make(bytes)) {}

 private:
  static rope_model* Make(const GgufBytes& file) {
    const std::string bytes = file.Bytes();
    rope_model* model = nullptr;
    EXPECT_EQ(rope_model_create_gguf(bytes.data(), bytes.size(), &model), ROPE_OK)
        << rope_last_error();
    return model;
  }
};

void ExpectGgufRefused(const GgufBytes& file, std::initializer_list<const char*> parts,
                       rope_status status = ROPE_ERROR_PARSE) {
  const std::string bytes = file.Bytes();
  rope_model* model = nullptr;
  EXPECT_EQ(rope_model_create_gguf(bytes.data(), bytes.size(), &model), status);
  EXPECT_EQ(model, nullptr);
  rope_model_destroy(model);
  ExpectMessage("rope_model_create_gguf", parts);
}

constexpr rope_status kUnsupported = ROPE_ERROR_UNSUPPORTED;

TEST(ModelGguf, TheArchitectureTellsThePairs) {
  const auto pairing = [](const char* architecture) {
    return Gguf(GgufBytes(architecture)).Config().pairing;
  };
  EXPECT_EQ(pairing("llama"), ROPE_PAIRING_INTERLEAVED);
  EXPECT_EQ(pairing("qwen2"), ROPE_PAIRING_HALVES);
  EXPECT_EQ(pairing("command-r"), ROPE_PAIRING_INTERLEAVED);
  EXPECT_EQ(pairing("deepseek2-ocr"),
            ROPE_PAIRING_HALVES);  // its graph's, not llama_model_rope_type's
  ExpectGgufRefused(GgufBytes("new"), {"general.architecture (\"new\") is not known"},
                    kUnsupported);
  ExpectGgufRefused(GgufBytes("bert"), {"(\"bert\") is known to this version without RoPE"},
                    kUnsupported);
  ExpectGgufRefused(GgufBytes("clip"), {"(\"clip\") is a tower"}, kUnsupported);
  ExpectGgufRefused(GgufBytes(), {"general.architecture is missing"});
  ExpectGgufRefused(GgufBytes("llama").String("general.type", "adapter"),
                    {"general.type (\"adapter\") must be \"model\""}, kUnsupported);
}

TEST(ModelGguf, HeadsAreGivenOrFollow) {
  EXPECT_EQ(Gguf(GgufBytes("qwen3")).Config().head_dim, 64);
  EXPECT_EQ(Gguf(GgufBytes("qwen3").Uint("attention.key_length", 128)).Config().head_dim, 128);
  const rope_config half = Gguf(GgufBytes("stablelm").Uint("rope.dimension_count", 16)).Config();
  EXPECT_EQ(half.head_dim, 64);
  EXPECT_EQ(half.rotary_dim, 16);
  EXPECT_EQ(half.rotary_offset, 0);
  ExpectGgufRefused(GgufBytes("qwen3").Uint("rope.dimension_count", 32),
                    {"qwen3.rope.dimension_count (32) must be the width of a head (64)"});
  ExpectGgufRefused(GgufBytes("stablelm").Uint("rope.dimension_count", 128), {"at most the width"});
  ExpectGgufRefused(GgufBytes("stablelm").Uint("rope.dimension_count", 15), {"must be even"});
  ExpectGgufRefused(GgufBytes("qwen3").Uint("attention.head_count", 7),
                    {"no even width of a head"});
  ExpectGgufRefused(GgufBytes("qwen3").Uint("attention.key_length", 0), {"must be from 2 to"});
  ExpectGgufRefused(GgufBytes("mimo2")
                        .Uint("attention.sliding_window", 128)
                        .List("attention.sliding_window_pattern", {1, 1, 1, 0})
                        .Uint("attention.key_length_swa", 32),
                    {"key_length_swa (32) must be absent"}, kUnsupported);
}

TEST(ModelGguf, LatentHeadsTurnTheirLastChannels) {
  const GgufBytes file = GgufBytes("deepseek2")
                             .Uint("attention.key_length", 576)
                             .Uint("attention.key_length_mla", 192)
                             .Uint("rope.dimension_count", 64)
                             .Word("rope.scaling.type", "yarn")
                             .Float("rope.scaling.factor", 40)
                             .Float("rope.scaling.yarn_log_multiplier", 0.1f);
  const rope_config config = Gguf(file).Config();
  EXPECT_EQ(config.head_dim, 192);
  EXPECT_EQ(config.rotary_dim, 64);
  EXPECT_EQ(config.rotary_offset, 128);
  EXPECT_EQ(config.mscale, 1);
  EXPECT_EQ(config.mscale_all_dim, 1);
  // DeepSeek-V2-Lite: mscale is mscale_all_dim
  const rope_config lite =
      Gguf(GgufBytes(file).Float("rope.scaling.yarn_log_multiplier", 0.0707f)).Config();
  EXPECT_NEAR(lite.mscale, 0.707, 1e-6);
  EXPECT_EQ(lite.mscale, lite.mscale_all_dim);
}

TEST(ModelGguf, TheIndexerHasHeadsOfItsOwn) {
  const Gguf model(GgufBytes("deepseek32")
                       .Uint("attention.key_length_mla", 192)
                       .Uint("rope.dimension_count", 64)
                       .Uint("attention.indexer.key_length", 128));
  EXPECT_EQ(model.Types(), (Names{"full_attention", "indexer"}));
  EXPECT_EQ(model.Config("indexer").head_dim, 128);
  EXPECT_EQ(model.Config("indexer").rotary_offset, 0);
  EXPECT_EQ(model.Config("indexer").pairing, ROPE_PAIRING_HALVES);
  EXPECT_EQ(model.Layers(5), "ffff.");
}

TEST(ModelGguf, LayersWithAWindowHaveABaseOfTheirOwn) {
  const Gguf gemma(GgufBytes("gemma3")
                       .Uint("block_count", 7)
                       .Uint("attention.sliding_window", 1024)
                       .Float("rope.freq_base", 1e6f)
                       .Float("rope.scaling.factor", 8));
  EXPECT_EQ(gemma.Layers(8), "sssssfs.");
  EXPECT_EQ(gemma.Config("sliding_attention").theta, 10000);
  EXPECT_EQ(gemma.Config("sliding_attention").scaling, ROPE_SCALING_DEFAULT);
  EXPECT_EQ(gemma.Config("full_attention").theta, 1e6);
  EXPECT_EQ(gemma.Config("full_attention").factor, 8);
  // a file may say the period, or every layer, or its own base
  const GgufBytes windows =
      GgufBytes("gemma3").Uint("attention.sliding_window", 1024).Float("rope.freq_base", 1e6f);
  EXPECT_EQ(Gguf(GgufBytes(windows).Uint("attention.sliding_window_pattern", 2)).Layers(4), "sfsf");
  EXPECT_EQ(Gguf(GgufBytes(windows).List("attention.sliding_window_pattern", {0, 1, 1, 0},
                                         GgufBytes::kBool))
                .Layers(4),
            "fssf");
  // alike: one kind
  EXPECT_EQ(Gguf(GgufBytes("gpt-oss").Uint("attention.sliding_window", 128)).Types(),
            Names{"full_attention"});
  EXPECT_EQ(Gguf(GgufBytes("gemma3")).Types(), Names{"full_attention"});
  ExpectGgufRefused(GgufBytes("gemma3n"), {"gemma3n.attention.sliding_window is missing"});
  // the first files of Gemma 2 do not say it
  EXPECT_EQ(Gguf(GgufBytes("gemma2")).Types(), Names{"full_attention"});
  EXPECT_EQ(Gguf(GgufBytes("gemma2").Float("rope.freq_base_swa", 5000)).Layers(4), "sfsf");
  ExpectGgufRefused(GgufBytes(windows).List("attention.sliding_window_pattern", {0, 1}),
                    {"sliding_window_pattern has 2 entries and must have from 4 to 4"});
  ExpectGgufRefused(GgufBytes("qwen2").Float("rope.freq_base_swa", 5000),
                    {"freq_base_swa (5000) must be rope.freq_base"}, kUnsupported);
}

TEST(ModelGguf, LayersWithoutRope) {
  EXPECT_EQ(Gguf(GgufBytes("smollm3").Uint("block_count", 8)).Layers(8), "fffnfffn");
  const Gguf cohere(GgufBytes("cohere2").Uint("attention.sliding_window", 4096));
  EXPECT_EQ(cohere.Types(), (Names{"sliding_attention", "nope"}));
  EXPECT_EQ(cohere.Layers(4), "sssn");
  EXPECT_EQ(cohere.Config("nope").scaling, ROPE_SCALING_NOPE);
  EXPECT_EQ(Gguf(GgufBytes("llama4")).Layers(4), "sssn");
  ExpectGgufRefused(GgufBytes("llama4").Uint("attention.sliding_window", 0), {"must not be 0"},
                    kUnsupported);
  // smallthinker: the first of four sees everything, and has no RoPE
  EXPECT_EQ(Gguf(GgufBytes("smallthinker").Uint("attention.sliding_window", 4096)).Layers(4),
            "nsss");
  EXPECT_EQ(Gguf(GgufBytes("cohere2moe").Uint("attention.sliding_window", 4096)).Layers(4), "nsss");
  EXPECT_EQ(Gguf(GgufBytes("exaone4").Uint("block_count", 30)).Layers(4), "ffff");
  EXPECT_EQ(Gguf(GgufBytes("exaone4").Uint("block_count", 64)).Layers(4), "sssn");
  EXPECT_EQ(Gguf(GgufBytes("granite").Bool("rope.scaling.finetuned", false)).Types(),
            Names{"nope"});
  EXPECT_EQ(Gguf(GgufBytes("llama").Bool("rope.scaling.finetuned", false)).Types(),
            Names{"full_attention"});
  EXPECT_EQ(Gguf(GgufBytes("lfm2").List("attention.head_count_kv", {0, 8, 0, 8})).Layers(4),
            "nfnf");
  EXPECT_EQ(Gguf(GgufBytes("qwen3next").Uint("rope.dimension_count", 16)).Layers(4), "nnnf");
  EXPECT_EQ(Gguf(GgufBytes("qwen3next").Uint("full_attention_interval", 2)).Layers(4), "nfnf");
}

TEST(ModelGguf, BaichuanIsToldByItsLayers) {
  EXPECT_EQ(Gguf(GgufBytes("baichuan").Uint("block_count", 32)).Config().pairing,
            ROPE_PAIRING_INTERLEAVED);
  for (int layers : {31, 40}) {
    ExpectGgufRefused(GgufBytes("baichuan").Uint("block_count", layers),
                      {"baichuan.block_count", "must be 32", "ALiBi"}, kUnsupported);
  }
}

TEST(ModelGguf, BlocksThatPredictFurtherTokensAreNoLayers) {
  EXPECT_EQ(Gguf(GgufBytes("glm4moe").Uint("nextn_predict_layers", 1)).Layers(4), "fff.");
  ExpectGgufRefused(GgufBytes("glm4moe").Uint("nextn_predict_layers", 4), {"must be from 0 to 3"});
}

TEST(ModelGguf, Sections) {
  const Gguf qwen(GgufBytes("qwen2vl").List("rope.dimension_sections", {8, 12, 12, 0}));
  EXPECT_EQ(qwen.Config().axes, 3);
  EXPECT_EQ(qwen.Config().mrope_section[2], 12);
  EXPECT_EQ(qwen.Config().mrope_interleaved, 0);
  EXPECT_EQ(Gguf(GgufBytes("qwen3vl").List("rope.dimension_sections", {12, 10, 10}))
                .Config()
                .mrope_interleaved,
            1);
  // glm4 has neighbours without sections, and halves with them
  EXPECT_EQ(Gguf(GgufBytes("glm4")).Config().pairing, ROPE_PAIRING_INTERLEAVED);
  const rope_config vision =
      Gguf(GgufBytes("glm4").List("rope.dimension_sections", {8, 12, 12, 0})).Config();
  EXPECT_EQ(vision.pairing, ROPE_PAIRING_HALVES);
  EXPECT_EQ(vision.axes, 3);
  ExpectGgufRefused(GgufBytes("qwen2vl"), {"qwen2vl.rope.dimension_sections is missing"});
  ExpectGgufRefused(GgufBytes("qwen2vl").List("rope.dimension_sections", {8, 8, 8, 0}),
                    {"adds up to 24", "number of pairs (32)"}, kUnsupported);
  ExpectGgufRefused(GgufBytes("qwen2vl").List("rope.dimension_sections", {-8, 20, 20, 0}),
                    {"entries from 0"});
  ExpectGgufRefused(GgufBytes("qwen3").List("rope.dimension_sections", {8, 12, 12, 0}),
                    {"qwen3.rope.dimension_sections ([..]) speaks of RoPE"}, kUnsupported);
}

TEST(ModelGguf, LinearScaling) {
  EXPECT_EQ(Gguf(GgufBytes("llama").Float("rope.scaling.factor", 4)).Config().scaling,
            ROPE_SCALING_LINEAR);
  EXPECT_EQ(Gguf(GgufBytes("llama").Float("rope.scale_linear", 4)).Config().factor, 4);
  EXPECT_EQ(Gguf(GgufBytes("llama").Float("rope.scaling.factor", 0)).Config().scaling,
            ROPE_SCALING_DEFAULT);
  EXPECT_EQ(Gguf(GgufBytes("llama").Word("rope.scaling.type", "none")).Config().scaling,
            ROPE_SCALING_DEFAULT);
  ExpectGgufRefused(
      GgufBytes("llama").Float("rope.scaling.factor", 4).Float("rope.scale_linear", 2),
      {"llama.rope.scale_linear (2) must be rope.scaling.factor (4)"});
  ExpectGgufRefused(
      GgufBytes("llama").Float("rope.scaling.factor", 4).Word("rope.scaling.type", "none"),
      {"llama.rope.scaling.factor (4) must be 1 with the scaling type \"none\""});
  ExpectGgufRefused(
      GgufBytes("llama").Word("rope.scaling.type", "dynamic"),
      {"rope.scaling.type (\"dynamic\") must be one of none, linear, yarn, longrope"});
  ExpectGgufRefused(GgufBytes("llama").Float("rope.scaling.factor", -1), {"must not be negative"});
}

TEST(ModelGguf, Yarn) {
  const GgufBytes yarn = GgufBytes("qwen2")
                             .Word("rope.scaling.type", "yarn")
                             .Float("rope.scaling.factor", 4)
                             .Uint("rope.scaling.original_context_length", 2048);
  const rope_config config = Gguf(yarn).Config();
  EXPECT_EQ(config.scaling, ROPE_SCALING_YARN);
  EXPECT_EQ(config.original_max_position_embeddings, 2048);
  EXPECT_EQ(config.attention_factor, 0);
  EXPECT_EQ(config.yarn_no_truncate, 0);
  EXPECT_EQ(Gguf(GgufBytes(yarn).Float("rope.scaling.yarn_beta_fast", 16)).Config().beta_fast, 16);
  const double follows = 0.1 * std::log(4.0) + 1;
  EXPECT_DOUBLE_EQ(
      Gguf(GgufBytes(yarn).Float("rope.scaling.attn_factor", 0.5)).Config().attention_factor,
      follows * 0.5);
  EXPECT_EQ(
      Gguf(GgufBytes(yarn).Float("rope.scaling.yarn_attn_factor", static_cast<float>(follows)))
          .Config()
          .attention_factor,
      0);
  ExpectGgufRefused(GgufBytes(yarn).Float("rope.scaling.yarn_attn_factor", 1),
                    {"yarn_attn_factor (1) must be 1.13862"}, kUnsupported);
  ExpectGgufRefused(GgufBytes(yarn).Float("rope.scaling.yarn_ext_factor", 0.5),
                    {"yarn_ext_factor (0.5) must be 1"}, kUnsupported);
  ExpectGgufRefused(GgufBytes(yarn).Float("rope.scaling.yarn_log_multiplier", 0.1f),
                    {"this architecture does not take it"}, kUnsupported);
  ExpectGgufRefused(GgufBytes(yarn).Float("rope.scaling.yarn_beta_fast", 0.5),
                    {"yarn_beta_fast (0.5) must not be below yarn_beta_slow (1)"});
  ExpectGgufRefused(GgufBytes("qwen2").Word("rope.scaling.type", "yarn"),
                    {"rope.scaling.factor is missing"});
  ExpectGgufRefused(GgufBytes("qwen2").Float("rope.scaling.yarn_beta_fast", 32),
                    {"yarn_beta_fast (32) speaks of RoPE"}, kUnsupported);
}

TEST(ModelGguf, FactorsOfPairs) {
  const std::vector<float> ones(32, 1), twos(32, 2);
  const rope_config freqs = Gguf(GgufBytes("llama").Tensor("rope_freqs.weight", twos)).Config();
  EXPECT_EQ(freqs.table_length, 32);
  const Gguf phi(GgufBytes("phi3")
                     .Uint("rope.scaling.original_context_length", 2048)
                     .Float("rope.scaling.attn_factor", 1.25)
                     .Tensor("rope_factors_long.weight", twos)
                     .Tensor("rope_factors_short.weight", ones));
  const rope_config config = phi.Config();
  EXPECT_EQ(config.scaling, ROPE_SCALING_LONGROPE);
  EXPECT_EQ(config.attention_factor, 1.25);
  EXPECT_EQ(config.original_max_position_embeddings, 2048);
  ASSERT_NE(config.long_factor, nullptr);
  EXPECT_EQ(config.long_factor[31], 2);
  ExpectContexts(phi.get(), "phi3");
  ExpectGgufRefused(GgufBytes("llama").Tensor("rope_freqs.weight", {1, 1}),
                    {"rope_freqs.weight\" has 2 values", "each of 32 pairs"});
  ExpectGgufRefused(GgufBytes("llama").Tensor("rope_freqs.weight", std::vector<float>(32, 0)),
                    {"freq_factors[0] (0) must be finite and positive"});
  ExpectGgufRefused(GgufBytes("qwen2").Tensor("rope_freqs.weight", twos),
                    {"rope_freqs.weight\" is in the file, and does not count"}, kUnsupported);
  ExpectGgufRefused(GgufBytes("phi3").Tensor("rope_factors_long.weight", twos),
                    {"rope_factors_short.weight\" is missing"});
  ExpectGgufRefused(GgufBytes("llama").Word("rope.scaling.type", "longrope"),
                    {"rope_factors_long.weight\" is missing"});
  ExpectGgufRefused(GgufBytes("llama").Tensor("rope_other", twos), {"rope_other\" is in the file"},
                    kUnsupported);
}

TEST(ModelGguf, PartsOfAModelMayHideFactors) {
  const auto split = [](GgufBytes file) {
    return file.Add(GgufBytes::kU16, "split.count", Raw<uint16_t>(2));
  };
  ExpectGgufRefused(split(GgufBytes("llama")), {"split.count (2) must be 1, or the tensors"},
                    kUnsupported);
  EXPECT_EQ(Gguf(split(GgufBytes("qwen2"))).Config().theta, 10000);
  EXPECT_EQ(Gguf(split(GgufBytes("llama")).Tensor("rope_freqs.weight", std::vector<float>(32, 1)))
                .Config()
                .table_length,
            32);
}

TEST(ModelGguf, AlphaMakesTheBaseLarger) {
  const Gguf model(GgufBytes("hunyuan_vl").Float("rope.scaling.alpha", 1000));
  EXPECT_DOUBLE_EQ(model.Config().theta, 10000 * std::pow(1000.0, 64.0 / 62));
  ExpectGgufRefused(GgufBytes("llama").Float("rope.scaling.alpha", 1000), {"speaks of RoPE"},
                    kUnsupported);
}

TEST(ModelGguf, EveryKeyOfRopeIsReadOrRefused) {
  ExpectGgufRefused(GgufBytes("llama").Float("rope.freq_bsae", 5e5f),
                    {"llama.rope.freq_bsae (500000) speaks of RoPE"}, kUnsupported);
  ExpectGgufRefused(GgufBytes("llama").Uint("attention.use_rope", 0), {"attention.use_rope (0)"},
                    kUnsupported);
  ExpectGgufRefused(GgufBytes("llama").Add(GgufBytes::kF32, "qwen2.rope.freq_base", Raw(1e6f)),
                    {"qwen2.rope.freq_base (1000000) speaks of RoPE"}, kUnsupported);
}

TEST(ModelGguf, TheWordsOfRopeAreThoseOfConfigJson) {
  const auto file = [](const char* key) {
    return GgufBytes("llama").Add(GgufBytes::kF32, key, Raw(3.0f));
  };
  for (const char* key :
       {"llama.nope_layer_interval", "llama.ntk_alpha", "ntk_alpha", "theta", "yarn_x",
        "llama.xpos", "llama.RoPE.base", "llama.inv_freq", "llama.position_embedding_type"}) {
    ExpectGgufRefused(file(key), {key, "(3) speaks of RoPE"}, kUnsupported);
  }
}

// llama.cpp has ALiBi where the greatest bias is above 0.
TEST(ModelGguf, AlibiIsRefusedUnlessItIsOff) {
  const auto bias = [](float value) {
    return GgufBytes("llama").Float("attention.max_alibi_bias", value);
  };
  ExpectGgufRefused(bias(8), {"llama.attention.max_alibi_bias (8)"}, kUnsupported);
  EXPECT_TRUE(Gguf(bias(0)));
  ExpectGgufRefused(GgufBytes("llama").Bool("use_alibi", true), {"use_alibi (true)"}, kUnsupported);
  EXPECT_TRUE(Gguf(GgufBytes("llama").Bool("use_alibi", false)));
}

// No file of llama.cpp has factors of one layer, and its loader refuses what no graph takes.
TEST(ModelGguf, TensorsOfRopeInALayerAreRefused) {
  for (const char* name : {"blk.0.rope_freqs.weight", "blk.3.rope_factors_long.weight",
                           "rope.freqs", "blk.0.attn.rotary_emb.inv_freq"}) {
    ExpectGgufRefused(GgufBytes("llama").Tensor(name, std::vector<float>(32, 2)),
                      {name, "does not count"}, kUnsupported);
  }
  EXPECT_TRUE(Gguf(GgufBytes("llama").Tensor("blk.0.attn_rot_embd.weight", {1, 2}))) << "not read";
}

TEST(ModelGguf, WordsThatContainRopeByChanceAreHarmless) {
  EXPECT_EQ(Gguf(GgufBytes("llama")
                     .String("general.dataset.0.name", "x")
                     .String("general.european", "x")
                     .String("tokenizer.chat_template.proper_rope", "x"))
                .Config()
                .theta,
            10000);
}

TEST(ModelGguf, TypesAreThoseOfTheKeys) {
  ExpectGgufRefused(GgufBytes("llama").Uint("rope.freq_base", 10000),
                    {"llama.rope.freq_base (10000) must be a number of type float32 or float64"});
  ExpectGgufRefused(GgufBytes("llama").Float("rope.dimension_count", 64),
                    {"rope.dimension_count (64) must be an integer"});
  ExpectGgufRefused(GgufBytes("llama").Uint("rope.scaling.type", 1), {"(1) must be a string"});
  ExpectGgufRefused(GgufBytes("llama").Uint("rope.scaling.finetuned", 1),
                    {"must be true or false"});
  ExpectGgufRefused(GgufBytes("llama").Own<uint8_t>(GgufBytes::kBool, "rope.scaling.finetuned", 2),
                    {"must consist of bytes 0 and 1"});
  ExpectGgufRefused(GgufBytes("llama").Own<int32_t>(GgufBytes::kI32, "block_count", -1),
                    {"llama.block_count (-1) must be from 1"});
  ExpectGgufRefused(GgufBytes("llama").Own<uint64_t>(GgufBytes::kU64, "block_count", UINT64_MAX),
                    {"block_count (18446744073709551615) must be less than 2^63"});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  ExpectGgufRefused(GgufBytes("llama").Float("rope.freq_base", nan), {"(nan) must be finite"});
  ExpectGgufRefused(GgufBytes("llama").Float("rope.freq_base", -1), {"(-1) must be positive"});
  const float infinite = std::numeric_limits<float>::infinity();
  ExpectGgufRefused(GgufBytes("llama").Float("rope.scaling.factor", infinite), {"(inf)"});
  // integers of any width, and doubles, are what they say
  EXPECT_EQ(Gguf(GgufBytes("llama")
                     .Own<uint8_t>(GgufBytes::kU8, "block_count", 2)
                     .Own<double>(GgufBytes::kF64, "rope.freq_base", 500000))
                .Config()
                .theta,
            500000);
}

}  // namespace
}  // namespace rope::testing
