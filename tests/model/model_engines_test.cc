// Models whose code transformers does not have, read as that of vLLM, SGLang or the model's own
// repository does it. The sources are named; frequencies are those of the published formula.
#include <cmath>
#include <string>
#include <vector>

#include "testing.h"

namespace rope::testing {
namespace {

struct Case {
  const char* model_type;
  const char* entries;
  int head_dim, rotary_dim, rotary_offset;  // 0: all of the head
  rope_pairing pairing;
  double theta;
  const char* layers;  // of four, by their first letters
};

constexpr rope_pairing kHalves = ROPE_PAIRING_HALVES;

constexpr char kSizes[] = R"("hidden_size": 2048, "num_attention_heads": 16,
    "num_hidden_layers": 4, "max_position_embeddings": 8192)";

const Case kCases[] = {
    // vLLM: models/arctic.py
    {"arctic", R"("rope_theta": 12345)", 128, 0, 0, kHalves, 12345, "ffff"},
    // vLLM: transformers_utils/configs/gigachat3_5.py, DeepSeek-V3's attention in some layers
    {"gigachat3_5",
     R"("qk_nope_head_dim": 96, "qk_rope_head_dim": 32, "full_attention_layers": [3])", 128, 32, 96,
     ROPE_PAIRING_INTERLEAVED_TO_HALVES, 100000, "nnnf"},
    // SGLang: models/grok.py
    {"grok-1", R"("rope_theta": 208533496, "rope_type": "original")", 128, 0, 0, kHalves, 208533496,
     "ffff"},
    // vLLM: models/hunyuan_v1.py
    {"hunyuan", R"("head_dim": 64)", 64, 0, 0, kHalves, 10000, "ffff"},
    // SGLang: configs and models/iquest_q1.py
    {"iquest_q1", R"("layer_types": ["full_attention", "sliding_attention", "sliding_attention",
        "full_attention"])",
     128, 32, 0, kHalves, 1e6, "fssf"},
    // SGLang: models/jet_nemotron.py
    {"jet_nemotron", R"("rope_theta": 1000000, "layer_types": ["jet", "attn", "jet", "swa"])", 128,
     0, 0, kHalves, 1e6, "nfnf"},
    // SGLang: models/llada2.py
    {"llada2_moe", R"("rope_theta": 600000, "partial_rotary_factor": 0.5)", 128, 64, 0, kHalves,
     600000, "ffff"},
    {"llada2_moe", R"("rope_theta": 600000, "rotary_dim": 64)", 128, 64, 0, kHalves, 600000,
     "ffff"},
    // SGLang: configs and models/nanbeige.py
    {"nanbeige", R"("num_loops": 2)", 128, 0, 0, kHalves, 50000, "ffff"},
    // vLLM: models/ouro.py
    {"ouro", R"("rope_theta": 1000000.0, "total_ut_steps": 4)", 128, 0, 0, kHalves, 1e6, "ffff"},
    // vLLM: models/phi3_small.py
    {"phi3small", R"("rope_embedding_base": 777, "rope_position_scale": 1.0)", 128, 0, 0, kHalves,
     777, "ffff"},
    // vLLM: models/plamo3.py
    {"plamo3", R"("head_dim": 64, "rope_theta": 1000000, "rope_local_theta": 10000,
        "sliding_window_pattern": 4)",
     64, 0, 0, kHalves, 1e6, "sssf"},
    // SGLang: models/sdar.py
    {"sdar", R"("rope_theta": 1000000, "head_dim": 128)", 128, 0, 0, kHalves, 1e6, "ffff"},
    {"sdar_moe", R"("rope_theta": 1000000, "head_dim": 128)", 128, 0, 0, kHalves, 1e6, "ffff"},
    // vLLM: models/solar.py
    {"solar", R"("rope_theta": 10000.0)", 128, 0, 0, kHalves, 10000, "ffff"},
    // vLLM: models/step3_text.py
    {"step3_text", R"("rope_theta": 500000)", 256, 0, 0, kHalves, 500000, "ffff"},
    // transformers: wav2vec2_bert, which is wav2vec2_conformer's
    {"wav2vec2-bert", R"("position_embeddings_type": "rotary", "rotary_embedding_base": 777)", 128,
     0, 0, kHalves, 777, "ffff"},
};

std::string Text(const Case& test) {
  return R"({"model_type": ")" + std::string(test.model_type) + R"(", )" + kSizes + ", " +
         test.entries + "}";
}

TEST(ModelEngines, ReadAsTheEnginesDo) {
  for (const Case& test : kCases) {
    SCOPED_TRACE(test.model_type);
    const Model model(Text(test));
    const bool full = model.Types()[0] == "full_attention";
    const rope_config config = model.Config(full ? 0 : 1);
    EXPECT_EQ(config.head_dim, test.head_dim);
    EXPECT_EQ(config.rotary_dim, test.rotary_dim);
    EXPECT_EQ(config.rotary_offset, test.rotary_offset);
    EXPECT_EQ(config.pairing, test.pairing);
    EXPECT_EQ(config.theta, test.theta);
    EXPECT_EQ(model.Layers(4), test.layers);
    const int pairs = (test.rotary_dim != 0 ? test.rotary_dim : test.head_dim) / 2;
    rope_context* context = nullptr;
    ASSERT_EQ(rope_context_create(&config, &context), ROPE_OK) << rope_last_error();
    std::vector<double> frequencies(pairs);
    ASSERT_EQ(rope_context_inv_freq(context, 0, frequencies.data(), pairs), ROPE_OK);
    rope_context_destroy(context);
    for (int i = 0; i < pairs; ++i) {
      const long double exponent = static_cast<long double>(i) / pairs;
      const auto want =
          static_cast<double>(1 / std::pow(static_cast<long double>(test.theta), exponent));
      EXPECT_NEAR(frequencies[i], want, 4e-7 * want) << i;  // the exponent is rounded to f32
    }
  }
}

TEST(ModelEngines, WithoutAKnownDefaultTheFileSaysTheta) {
  for (const char* type : {"arctic", "jet_nemotron", "llada2_moe", "ouro", "solar", "step3_text"}) {
    ExpectRefused(R"({"model_type": ")" + std::string(type) + R"(", )" + kSizes + "}",
                  {"rope_theta is missing", "no default"});
  }
}

TEST(ModelEngines, SomeHaveNoRope) {
  // Jurassic 3 says use_positional_embeddings; a theta stands in its files, too.
  ExpectRefused(
      R"({"model_type": "jurassic3", "rope_theta": 1000000.0, )" + std::string(kSizes) + "}",
      {"jurassic3", "without RoPE only"}, ROPE_ERROR_UNSUPPORTED);
  EXPECT_EQ(Model(R"({"model_type": "wav2vec2-bert", )" + std::string(kSizes) + "}").Types(),
            std::vector<std::string>{"nope"});
}

// vLLM: models/moonvit.py. Pair 2j turns by the column, 2j + 1 by the row, both with frequency j.
TEST(ModelEngines, MoonVitAlternates) {
  const Model model(R"({"model_type": "kimi_vl", "text_config": {"model_type": "deepseek_v3",
      "hidden_size": 2048, "num_attention_heads": 16, "rope_theta": 800000.0},
      "vision_config": {"model_type": "moonvit", "hidden_size": 1152, "num_attention_heads": 16}})");
  const rope_config config = model.Config("vision");
  EXPECT_EQ(config.head_dim, 72);
  EXPECT_EQ(config.pairing, ROPE_PAIRING_INTERLEAVED);
  EXPECT_EQ(config.rounding, ROPE_ROUNDING_FLOAT32);
  ASSERT_EQ(config.table_length, 36);
  for (int pair = 0; pair < 36; ++pair) {
    EXPECT_EQ(config.pair_axis[pair], pair % 2 == 0 ? 1 : 0) << pair;
    const double want = std::pow(10000.0, -4.0 * (pair / 2) / 72);
    EXPECT_NEAR(config.inv_freq[pair], want, 4e-7 * want) << pair;
  }
}

// vLLM: models/dots_ocr.py. A Qwen2 whose tower is that of Qwen2-VL.
TEST(ModelEngines, DotsOcrIsQwen2WithATower) {
  const Model model(R"({"model_type": "dots_ocr", "hidden_size": 1536, "num_attention_heads": 12,
      "num_hidden_layers": 28, "rope_theta": 1000000, "vision_config": {"embed_dim": 1536,
      "num_attention_heads": 12, "hidden_size": 1536}})");
  EXPECT_EQ(model.Config("full_attention").pairing, ROPE_PAIRING_HALVES);
  EXPECT_EQ(model.Config("full_attention").theta, 1e6);
  const rope_config tower = model.Config("vision");
  EXPECT_EQ(tower.head_dim, 128);
  EXPECT_EQ(tower.rounding, ROPE_ROUNDING_FLOAT32);
  ASSERT_EQ(tower.table_length, 64);
  EXPECT_EQ(tower.pair_axis[0], 0);
  EXPECT_EQ(tower.pair_axis[63], 1);
}

}  // namespace
}  // namespace rope::testing
