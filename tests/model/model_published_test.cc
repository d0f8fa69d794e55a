// Published configurations of models.json: an expectation written by hand for each behaviour.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "testing.h"

namespace rope::testing {
namespace {

using Names = std::vector<std::string>;

TEST(ModelPublished, LeavesNothingButTheLengthOpen) {
  for (const auto& entry : PublishedModels()) {
    const std::string text = entry["config"].dump();
    SCOPED_TRACE(entry["id"].get<std::string>());
    const Model model(text);
    ASSERT_GE(model.Types().size(), 1u);
    for (size_t t = 0; t < model.Types().size(); ++t) {
      const rope_config config = model.Config(static_cast<int32_t>(t));
      EXPECT_EQ(config.struct_size, sizeof(rope_config));
      EXPECT_GE(config.head_dim, 2);
      EXPECT_EQ(config.seq_len, 0);
      EXPECT_EQ(config.device, 0);
      EXPECT_NE(config.pairing, 0);
    }
  }
}

TEST(ModelPublished, Llama3HasItsFourNumbersAndNoOthers) {
  const Model model(Published("meta-llama/Llama-3.1-8B"));
  EXPECT_EQ(model.Types(), Names{"full_attention"});
  const rope_config c = model.Config();
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.rotary_dim, 0);
  EXPECT_EQ(c.theta, 500000);
  EXPECT_EQ(c.pairing, ROPE_PAIRING_HALVES);
  EXPECT_EQ(c.rounding, ROPE_ROUNDING_EAGER);
  EXPECT_EQ(c.scaling, ROPE_SCALING_LLAMA3);
  EXPECT_EQ(c.factor, 8);
  EXPECT_EQ(c.low_freq_factor, 1);
  EXPECT_EQ(c.high_freq_factor, 4);
  EXPECT_EQ(c.original_max_position_embeddings, 8192);
  EXPECT_EQ(c.max_position_embeddings, 0);  // not used by the scaling
  EXPECT_EQ(model.Layers(33), std::string(32, 'f') + ".");
  EXPECT_EQ(Model(Published("meta-llama/Llama-3.2-1B")).Config().head_dim, 64);
  EXPECT_EQ(Model(Published("meta-llama/Llama-3.2-1B")).Config().factor, 32);
}

TEST(ModelPublished, Exaone4HasItsThetaInsideAndAPatternOfLetters) {
  const Model model(Published("LGAI-EXAONE/EXAONE-4.5-33B"));
  EXPECT_EQ(model.Types(), (Names{"sliding_attention", "nope", "vision"}));
  EXPECT_EQ(model.Config().theta, 1000000);
  EXPECT_EQ(model.Config().factor, 16);
  EXPECT_EQ(model.Layers(8), "sssnsssn");
  EXPECT_EQ(model.Config("nope").scaling, ROPE_SCALING_NOPE);
  EXPECT_EQ(model.Config("nope").head_dim, 128);
}

TEST(ModelPublished, DeepseekR1TurnsTheEndOfItsHeadsByYarn) {
  for (const char* id : {"deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3.1"}) {
    const rope_config c = Model(Published(id)).Config();
    EXPECT_EQ(c.head_dim, 192);
    EXPECT_EQ(c.rotary_dim, 64);
    EXPECT_EQ(c.rotary_offset, 128);
    EXPECT_EQ(c.pairing, ROPE_PAIRING_INTERLEAVED_TO_HALVES);
    EXPECT_EQ(c.scaling, ROPE_SCALING_YARN);
    EXPECT_EQ(c.factor, 40);
    EXPECT_EQ(c.beta_fast, 32);
    EXPECT_EQ(c.beta_slow, 1);
    EXPECT_EQ(c.mscale, 1);
    EXPECT_EQ(c.mscale_all_dim, 1);
    EXPECT_EQ(c.original_max_position_embeddings, 4096);
    EXPECT_EQ(c.attention_factor, 0);  // the core's
  }
}

TEST(ModelPublished, IndexersHaveAPairingAndASoftmaxOfTheirOwn) {
  const Model v32(Published("deepseek-ai/DeepSeek-V3.2"));
  EXPECT_EQ(v32.Types(), (Names{"full_attention", "indexer"}));
  const rope_config c = v32.Config("indexer");
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.rotary_dim, 64);
  EXPECT_EQ(c.rotary_offset, 0);
  EXPECT_EQ(c.pairing, ROPE_PAIRING_HALVES);
  EXPECT_EQ(c.mscale_all_dim, 0);  // its softmax is not scaled
  EXPECT_EQ(c.attention_factor, 1);
  EXPECT_EQ(Model(Published("zai-org/GLM-5")).Config("indexer").pairing,
            ROPE_PAIRING_INTERLEAVED_TO_HALVES);
}

TEST(ModelPublished, GptOssDoesNotTruncate) {
  const rope_config c = Model(Published("openai/gpt-oss-120b")).Config();
  EXPECT_EQ(c.yarn_no_truncate, 1);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.theta, 150000);
  EXPECT_EQ(c.factor, 32);
}

TEST(ModelPublished, LagunaHasAShareAndAFactorForEachKind) {
  const Model model(Published("poolside/Laguna-XS.2-FP8"));
  EXPECT_EQ(model.Types(), (Names{"full_attention", "sliding_attention"}));
  const rope_config full = model.Config("full_attention");
  EXPECT_EQ(full.rotary_dim, 64);
  EXPECT_EQ(full.scaling, ROPE_SCALING_YARN);
  EXPECT_EQ(full.attention_factor, 1.4158883083359672);
  EXPECT_EQ(full.beta_fast, 64);
  const rope_config sliding = model.Config("sliding_attention");
  EXPECT_EQ(sliding.rotary_dim, 0);  // 1.0 beside a top-level 0.5
  EXPECT_EQ(sliding.theta, 10000);
  EXPECT_EQ(sliding.scaling, ROPE_SCALING_DEFAULT);
  EXPECT_EQ(model.Layers(5), "fsssf");
}

TEST(ModelPublished, DeepseekV4HasThreeKindsOfRope) {
  const Model model(Published("deepseek-ai/DeepSeek-V4-Flash"));
  EXPECT_EQ(model.Types(), (Names{"main", "compress", "indexer"}));
  const rope_config main = model.Config("main"), compress = model.Config("compress");
  EXPECT_EQ(main.theta, 10000);
  EXPECT_EQ(main.scaling, ROPE_SCALING_DEFAULT);
  EXPECT_EQ(main.head_dim, 512);
  EXPECT_EQ(main.rotary_dim, 64);
  EXPECT_EQ(main.rotary_offset, 448);
  EXPECT_EQ(main.pairing, ROPE_PAIRING_INTERLEAVED);
  EXPECT_EQ(main.rounding, ROPE_ROUNDING_COS_SIN);
  EXPECT_EQ(compress.theta, 160000);
  EXPECT_EQ(compress.factor, 16);
  EXPECT_EQ(compress.attention_factor, 1);
  EXPECT_EQ(compress.original_max_position_embeddings, 65536);
  EXPECT_EQ(model.Config("indexer").rotary_offset, 64);
  EXPECT_EQ(model.Layers(5), "mmccc");
  EXPECT_EQ(Model(Published("RedHatAI/DeepSeek-V4-Flash-NVFP4-FP8")).Config("compress").theta,
            160000);
}

TEST(ModelPublished, LongropeHasBothTablesAndBothLengths) {
  const Model phi35(Published("microsoft/Phi-3.5-mini-instruct"));
  const rope_config mini = phi35.Config();
  EXPECT_EQ(mini.head_dim, 96);
  EXPECT_EQ(mini.scaling, ROPE_SCALING_LONGROPE);
  EXPECT_EQ(mini.original_max_position_embeddings, 4096);
  EXPECT_EQ(mini.max_position_embeddings, 131072);
  EXPECT_EQ(mini.factor, 0);
  EXPECT_EQ(mini.table_length, 48);
  const Model phi4(Published("microsoft/Phi-4-mini-instruct"));
  const rope_config c = phi4.Config();
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.rotary_dim, 96);
  EXPECT_EQ(c.long_factor[0], 1);
  EXPECT_EQ(c.long_factor[1], 1.118320672);
  EXPECT_EQ(c.long_factor[47], 47.77);
  EXPECT_EQ(c.short_factor[47], 1);
}

TEST(ModelPublished, DynamicLeavesTheLengthToTheCaller) {
  const rope_config c = Model(Published("internlm/internlm2_5-7b")).Config();
  EXPECT_EQ(c.scaling, ROPE_SCALING_DYNAMIC);
  EXPECT_EQ(c.factor, 2);
  EXPECT_EQ(c.max_position_embeddings, 32768);
  EXPECT_EQ(c.seq_len, 0);
}

TEST(ModelPublished, Gemma4TurnsAShareOfItsFullHeads) {
  const Model model(Published("google/gemma-4-26B-A4B"));
  EXPECT_EQ(model.Types(), (Names{"full_attention", "sliding_attention", "vision"}));
  const rope_config full = model.Config("full_attention");
  EXPECT_EQ(full.head_dim, 512);
  EXPECT_EQ(full.scaling, ROPE_SCALING_PROPORTIONAL);
  EXPECT_EQ(full.rotary_dim, 128);
  EXPECT_EQ(full.theta, 1e6);
  EXPECT_EQ(model.Config("sliding_attention").head_dim, 256);
  const rope_config vision = model.Config("vision");
  EXPECT_EQ(vision.pairing, ROPE_PAIRING_HALVES_PER_AXIS);
  EXPECT_EQ(vision.head_dim, 72);
  EXPECT_EQ(vision.mrope_section[0], 18);
  EXPECT_EQ(vision.mrope_section[1], 18);
  EXPECT_EQ(vision.table_length, 36);
  EXPECT_NEAR(vision.inv_freq[1], std::pow(100, -2.0 / 36), 1e-7);
  EXPECT_EQ(vision.inv_freq[18], 1);
  EXPECT_EQ(model.Layers(30).back(), 'f');
  // the class's own defaults
  const Model bare(R"({"model_type": "gemma4_text", "num_hidden_layers": 8})");
  EXPECT_EQ(bare.Config("full_attention").rotary_dim, 128);
  EXPECT_EQ(bare.Config("sliding_attention").theta, 10000);
  EXPECT_EQ(bare.Layers(8), "sssssfsf");
}

TEST(ModelPublished, ChunkedSectionsAreToldAsTheyAre) {
  const Model model(Published("Qwen/Qwen2.5-VL-7B-Instruct"));
  const rope_config c = model.Config();
  EXPECT_EQ(c.scaling, ROPE_SCALING_DEFAULT);
  EXPECT_EQ(c.axes, 3);
  EXPECT_EQ(c.mrope_interleaved, 0);
  EXPECT_EQ((Names{std::to_string(c.mrope_section[0]), std::to_string(c.mrope_section[1]),
                   std::to_string(c.mrope_section[2]), std::to_string(c.mrope_section[3])}),
            (Names{"16", "24", "24", "0"}));
  const rope_config vision = model.Config("vision");
  EXPECT_EQ(vision.head_dim, 80);
  EXPECT_EQ(vision.axes, 2);
  EXPECT_EQ(vision.rounding, ROPE_ROUNDING_FLOAT32);
  EXPECT_EQ(vision.table_length, 40);
  EXPECT_EQ(vision.pair_axis[19], 0);
  EXPECT_EQ(vision.pair_axis[20], 1);
  EXPECT_EQ(vision.inv_freq[20], 1);
}

TEST(ModelPublished, InterleavedSectionsFillTheRotatedSpan) {
  const Model model(Published("nvidia/Qwen3.6-27B-NVFP4"));
  EXPECT_EQ(model.Types(), (Names{"full_attention", "nope", "vision"}));
  const rope_config c = model.Config();
  EXPECT_EQ(c.mrope_interleaved, 1);
  EXPECT_EQ(c.rotary_dim, 64);
  EXPECT_EQ(c.head_dim, 256);
  EXPECT_EQ(c.mrope_section[2], 10);
  EXPECT_EQ(model.Layers(8), "nnnfnnnf");
  // The text model alone has no sections in its file and the class default in its code.
  EXPECT_EQ(Model(Published("Qwen/Qwen3.8-2.4T-A95B")).Config().axes, 3);
  const Model defaults(R"({"model_type": "qwen3_vl", "text_config": {"model_type": "qwen3_vl_text"},
                           "vision_config": {}})");
  EXPECT_EQ(defaults.Config().mrope_section[0], 24);
}

TEST(ModelPublished, XdropeHasFourAxesAndAThetaOfAlpha) {
  const rope_config c = Model(Published("tencent/HunyuanOCR (HunYuan-VL text)")).Config();
  EXPECT_NEAR(c.theta, 11158839.92507748, 1e-6);
  EXPECT_EQ(c.scaling, ROPE_SCALING_DEFAULT);
  EXPECT_EQ(c.axes, 4);
  EXPECT_EQ(c.mrope_section[3], 16);
  EXPECT_EQ(c.rounding, ROPE_ROUNDING_COS_SIN);
}

TEST(ModelPublished, EverySpellingOfAShareGivesTheSpan) {
  const std::pair<const char*, int> kExpected[] = {
      {"microsoft/phi-2", 32},      {"stabilityai/stablelm-3b-4e1t", 20},
      {"microsoft/phi-1_5", 32},    {"MiniMaxAI/MiniMax-M2.5", 64},
      {"MiniMaxAI/MiniMax-M3", 64}, {"EleutherAI/gpt-j-6b", 64},
      {"THUDM/chatglm3-6b", 64},    {"zai-org/GLM-4.5", 64}};
  for (const auto& [id, rotary_dim] : kExpected) {
    EXPECT_EQ(Model(Published(id)).Config().rotary_dim, rotary_dim) << id;
  }
  EXPECT_EQ(Model(R"({"model_type": "gpt_neox", "hidden_size": 2048, "num_attention_heads": 16,
                      "rotary_pct": 0.25})")
                .Config()
                .rotary_dim,
            32);
  EXPECT_EQ(Model(R"({"model_type": "qwen3_next"})").Config().rotary_dim, 64);
}

TEST(ModelPublished, EsmRoundsFrequencies) {
  const Model model(Published("facebook/esm2_t6_8M_UR50D"));
  EXPECT_EQ(model.Config().inv_freq_dtype, ROPE_DTYPE_F16);
  EXPECT_EQ(model.Config().rounding, ROPE_ROUNDING_COS_SIN);
  const Model absolute(R"({"model_type": "esm", "hidden_size": 320, "num_attention_heads": 20,
                           "num_hidden_layers": 2, "position_embedding_type": "absolute"})");
  EXPECT_EQ(absolute.Types(), Names{"nope"});
}

TEST(ModelPublished, NemotronHHasNoRope) {
  for (const char* id :
       {"nvidia/Nemotron-H-56B-Base-8K", "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4"}) {
    const Model model(Published(id));
    EXPECT_EQ(model.Types(), Names{"nope"});
    EXPECT_EQ(model.Layers(3), "nnn");
  }
}

TEST(ModelPublished, VisionTowersHaveAnAxisForRowsAndOneForColumns) {
  const Model pixtral(Published("mistral-labs/pixtral-12b"));
  EXPECT_EQ(pixtral.Types(), Names{"vision"});
  const rope_config p = pixtral.Config();
  EXPECT_EQ(p.head_dim, 64);
  EXPECT_NEAR(p.inv_freq[1], std::pow(10000, -4.0 / 64), 1e-7);
  EXPECT_NEAR(p.inv_freq[16], std::pow(10000, -2.0 / 64), 1e-7);
  EXPECT_EQ(p.pair_axis[16], 1);
  EXPECT_EQ(p.rounding, ROPE_ROUNDING_EAGER);

  const Model dinov3(R"({"model_type": "dinov3_vit", "hidden_size": 384,
      "num_attention_heads": 6, "rope_theta": 100.0})");
  const rope_config dino = dinov3.Config();
  EXPECT_NEAR(dino.inv_freq[5], std::pow(100, -20.0 / 64), 1e-7);
  EXPECT_EQ(dino.pair_axis[16], 1);

  const Model llama4(R"({"model_type": "llama4", "text_config": {"model_type": "llama4_text",
      "hidden_size": 5120, "num_attention_heads": 40, "num_hidden_layers": 4},
      "vision_config": {"model_type": "llama4_vision_model", "hidden_size": 1408,
      "num_attention_heads": 16, "rope_theta": 10000}})");
  const rope_config l = llama4.Config("vision");
  EXPECT_EQ(l.head_dim, 88);
  EXPECT_EQ(l.pairing, ROPE_PAIRING_INTERLEAVED);
  EXPECT_NEAR(l.inv_freq[23], std::pow(10000, -2.0 / 44), 1e-7);
  EXPECT_EQ(llama4.Layers(4), "cccn");

  const Model sam2(R"({"model_type": "sam2_video", "vision_config": {"hidden_size": 8},
      "memory_attention_hidden_size": 256, "memory_attention_num_attention_heads": 1,
      "memory_attention_rope_theta": 10000})");
  const rope_config sam = sam2.Config();
  EXPECT_EQ(sam.head_dim, 256);
  EXPECT_EQ(sam.pairing, ROPE_PAIRING_INTERLEAVED);
  EXPECT_NEAR(sam.inv_freq[1], std::pow(10000, -4.0 / 256), 1e-7);

  const Model m3(Published("nvidia/MiniMax-M3-NVFP4"));
  const rope_config minimax = m3.Config("vision");
  EXPECT_EQ(minimax.head_dim, 80);
  EXPECT_EQ(minimax.rotary_dim, 78);
  EXPECT_EQ(minimax.axes, 3);
  EXPECT_EQ(minimax.pair_axis[13], 1);
  EXPECT_NEAR(minimax.inv_freq[14], std::pow(10000, -2.0 / 26), 1e-7);
}

}  // namespace
}  // namespace rope::testing
