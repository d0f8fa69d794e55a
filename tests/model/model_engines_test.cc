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
  std::string entries;
  int head_dim, rotary_dim, rotary_offset;  // 0: all of the head
  rope_pairing pairing;
  double theta;
  const char* layers;  // of four, by their first letters
};

constexpr rope_pairing kHalves = ROPE_PAIRING_HALVES;

constexpr char kSizes[] = R"("hidden_size": 2048, "num_attention_heads": 16,
    "num_hidden_layers": 4, "max_position_embeddings": 8192)";

const Case kCases[] = {
    // vLLM: models/alice_ai.py, whose attention is that of Qwen3-Next, its other layers KDA
    {"alice_ai", R"("layer_types": ["linear_attention", "linear_attention", "linear_attention",
        "full_attention"], "rope_parameters": {"rope_type": "default", "rope_theta": 777,
        "partial_rotary_factor": 0.25})",
     128, 32, 0, kHalves, 777, "nnnf"},
    // vLLM: models/arctic.py
    {"arctic", R"("rope_theta": 12345)", 128, 0, 0, kHalves, 12345, "ffff"},
    // SGLang: models/dots_vlm.py, whose language model is DeepSeek's
    {"dots_vlm", R"("qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_theta": 777)", 192, 64,
     128, ROPE_PAIRING_INTERLEAVED_TO_HALVES, 777, "ffff"},
    // vLLM: transformers_utils/configs/gigachat3_5.py, DeepSeek-V3's attention in some layers
    {"gigachat3_5",
     R"("qk_nope_head_dim": 96, "qk_rope_head_dim": 32, "full_attention_layers": [3])", 128, 32, 96,
     ROPE_PAIRING_INTERLEAVED_TO_HALVES, 100000, "nnnf"},
    // SGLang: models/grok.py
    {"grok-1", R"("rope_theta": 208533496, "rope_type": "original")", 128, 0, 0, kHalves, 208533496,
     "ffff"},
    // The same: Grok 2 has the model_type of another model
    {"git", R"("architectures": ["Grok1ForCausalLM"], "rope_theta": 208533496, "rope_type":
        "original", "scaling_factor": 16.0)",
     128, 0, 0, kHalves, 208533496, "ffff"},
    // vLLM: models/hunyuan_v1.py
    {"hunyuan", R"("head_dim": 64)", 64, 0, 0, kHalves, 10000, "ffff"},
    // SGLang: configs and models/iquest_q1.py; vLLM: models/iquest_q1
    {"iquest_q1", R"("first_layers_types": [], "hybrid_layers_types_block": ["full_attention",
        "sliding_attention"], "num_hybrid_layers_block": 1, "last_layers_types":
        ["sliding_attention", "full_attention"])",
     128, 32, 0, kHalves, 1e6, "fssf"},
    // SGLang: models/jet_nemotron.py
    {"jet_nemotron", R"("rope_theta": 1000000, "layer_types": ["jet", "attn", "jet", "swa"])", 128,
     0, 0, kHalves, 1e6, "nfnf"},
    // SGLang: configs/jet_vlm.py, a JetNemotron
    {"jet_vlm", R"("rope_theta": 1000000, "layer_types": ["jet", "attn", "jet", "swa"])", 128, 0, 0,
     kHalves, 1e6, "nfnf"},
    // vLLM: models/k2_horizon.py; SGLang: models/xllm.py
    {"k2_horizon", R"("rope_head_dim": 128, "rope_parameters": {"rope_type": "default",
        "rope_theta": 777})",
     128, 0, 0, kHalves, 777, "ffff"},
    // vLLM: models/keye.py, a Qwen3
    {"KeyeVL1_5", R"("rope_theta": 777)", 128, 0, 0, kHalves, 777, "ffff"},
    // SGLang: models/llada2.py
    {"llada2_moe", R"("rope_theta": 600000, "partial_rotary_factor": 0.5)", 128, 64, 0, kHalves,
     600000, "ffff"},
    {"llada2_moe", R"("rope_theta": 600000, "rotary_dim": 64)", 128, 64, 0, kHalves, 600000,
     "ffff"},
    // SGLang: configs/locate_anything.py, a Qwen2
    {"locateanything", R"("rope_theta": 777)", 128, 0, 0, kHalves, 777, "ffff"},
    // vLLM: models/mimo_v2.py
    {"mimo_v2", R"("head_dim": 192, "swa_head_dim": 128, "partial_rotary_factor": 0.334,
        "rope_theta": 777, "swa_rope_theta": 10000, "hybrid_layer_pattern": [0, 1, 1, 0])",
     192, 64, 0, kHalves, 777, "fssf"},
    // SGLang: configs and models/minicpm.py
    {"minicpm_sala", R"("rope_theta": 777, "lightning_head_dim": 64, "lightning_use_rope": false,
        "mixer_types": ["minicpm4", "lightning-attn"])",
     128, 0, 0, kHalves, 777, "fnfn"},
    // SGLang: models/moss_vl.py
    {"moss_vl", R"("rope_theta": 777)", 128, 0, 0, kHalves, 777, "ffff"},
    // SGLang: configs and models/nanbeige.py
    {"nanbeige", R"("num_loops": 2)", 128, 0, 0, kHalves, 50000, "ffff"},
    // vLLM: models/ouro.py
    {"ouro", R"("rope_theta": 1000000.0, "total_ut_steps": 4)", 128, 0, 0, kHalves, 1e6, "ffff"},
    // vLLM: models/openpangu.py
    {"PanguEmbedded", R"("rope_theta": 777)", 128, 0, 0, kHalves, 777, "ffff"},
    {"pangu_ultra_moe", R"("qk_nope_head_dim": 96, "qk_rope_head_dim": 32)", 128, 32, 96,
     ROPE_PAIRING_INTERLEAVED_TO_HALVES, 10000, "ffff"},
    // vLLM: models/param2moe.py
    {"param2moe", R"("rope_theta": 777)", 128, 0, 0, kHalves, 777, "ffff"},
    // vLLM: models/phi3_small.py
    {"phi3small", R"("rope_embedding_base": 777, "rope_position_scale": 1.0)", 128, 0, 0, kHalves,
     777, "ffff"},
    // mlx-lm: models/plamo2.py
    {"plamo2", R"("hidden_size_per_head": 64, "mamba_step": 4)", 64, 0, 0, kHalves, 10000, "nnfn"},
    {"plamo2", R"("mamba_step": 8)", 128, 0, 0, kHalves, 10000, "nnnf"},
    {"plamo2", R"("mamba_enabled": false)", 128, 0, 0, kHalves, 10000, "ffff"},
    // vLLM: models/plamo3.py
    {"plamo3", R"("head_dim": 64, "rope_theta": 1000000, "rope_local_theta": 10000,
        "sliding_window_pattern": 4)",
     64, 0, 0, kHalves, 1e6, "sssf"},
    // vLLM: models/sarvam.py, models/bailing_moe.py
    {"sarvam_mla", R"("qk_nope_head_dim": 96, "qk_rope_head_dim": 32, "rope_theta": 777)", 128, 32,
     96, ROPE_PAIRING_INTERLEAVED_TO_HALVES, 777, "ffff"},
    {"sarvam_moe", R"("rope_theta": 777, "partial_rotary_factor": 0.5)", 128, 64, 0, kHalves, 777,
     "ffff"},
    // SGLang: models/sdar.py
    {"sdar", R"("rope_theta": 1000000, "head_dim": 128)", 128, 0, 0, kHalves, 1e6, "ffff"},
    {"sdar_moe", R"("rope_theta": 1000000, "head_dim": 128)", 128, 0, 0, kHalves, 1e6, "ffff"},
    // vLLM: models/solar.py
    {"solar", R"("rope_theta": 10000.0)", 128, 0, 0, kHalves, 10000, "ffff"},
    // SGLang: configs/spark2_5.py
    {"spark2_5", "\"vocab_size\": 1", 256, 64, 0, kHalves, 5e6, "sssf"},
    {"spark2_5", R"("head_dim": 128, "rope_parameters": {"full_attention": {"rope_theta": 777},
        "sliding_attention": {"rope_theta": 10000}})",
     128, 0, 0, kHalves, 777, "sssf"},
    // vLLM: models/step3_text.py
    {"step3_text", R"("rope_theta": 500000)", 256, 0, 0, kHalves, 500000, "ffff"},
    // vLLM: models/teleflm.py, a Llama
    {"TeleFLM", R"("rope_theta": 777)", 128, 0, 0, kHalves, 777, "ffff"},
    // mlx-lm: models/telechat3.py
    {"telechat3", R"("rope_theta": 777)", 128, 0, 0, kHalves, 777, "ffff"},
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
  for (const char* type : {"PanguEmbedded", "TeleFLM", "alice_ai", "arctic", "jet_nemotron",
                           "k2_horizon", "llada2_moe", "mimo_v2", "moss_vl", "ouro", "param2moe",
                           "sarvam_moe", "solar", "step3_text", "telechat3"}) {
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

// The same tower in other models; Kimi K3's heads are wider than its hidden state.
TEST(ModelEngines, TowersThatAlternate) {
  const Model located(R"({"model_type": "locateanything", "text_config": {"model_type": "qwen2",
      "hidden_size": 2048, "num_attention_heads": 16, "rope_theta": 777},
      "vision_config": {"model_type": "moonvit", "hidden_size": 1152, "num_attention_heads": 16}})");
  EXPECT_EQ(located.Config("full_attention").theta, 777);
  EXPECT_EQ(located.Config("vision").head_dim, 72);
  const std::string kimi = R"({"model_type": "kimi_k3", "text_config": {"model_type": "kimi_linear",
      "hidden_size": 7168, "num_attention_heads": 64, "qk_nope_head_dim": 128,
      "qk_rope_head_dim": 64}, "vision_config": {)";
  const Model model(kimi + R"("qkv_hidden_size": 1152, "vt_num_attention_heads": 12,
      "vt_hidden_size": 1024}})");
  const rope_config config = model.Config("vision");
  EXPECT_EQ(config.head_dim, 96);
  EXPECT_EQ(config.pairing, ROPE_PAIRING_INTERLEAVED);
  EXPECT_EQ(config.pair_axis[0], 1);
  EXPECT_EQ(config.pair_axis[1], 0);
  const Model published(kimi + R"("pos_emb_type": "divided_fixed", "init_pos_emb_height": 64,
      "init_pos_emb_time": 4, "pos_emb_interpolation_mode": "bilinear", "depth": 27}})");
  EXPECT_EQ(published.Config("vision").head_dim, 128);
  ExpectRefused(kimi + R"("vt_num_attention_heads": 12, "vt_hidden_size": 1024}})",
                {"vision_config.qkv_hidden_size is missing"});
}

// vLLM and SGLang: deepseek_v41, keye, mimo_v2_omni, moss_vl, dots_vlm and the towers of Qwen3-VL.
TEST(ModelEngines, TowersOfRowsAndColumns) {
  struct Tower {
    const char *model_type, *sizes;
    int head_dim;
    const char* text = "";
  };
  for (const Tower& test : {
           Tower{"Keye", R"("hidden_size": 1152, "num_attention_heads": 16)", 72},
           Tower{"KeyeVL1_5", R"("hidden_size": 1152, "num_attention_heads": 16)", 72},
           Tower{"dots_vlm", R"("embed_dim": 1536, "num_attention_heads": 12)", 128},
           Tower{"intern_s2_preview", R"("hidden_size": 1152, "num_heads": 16)", 72},
           Tower{"interns2_mobius", R"("hidden_size": 1152, "num_heads": 16)", 72},
           Tower{"mimo_v2", R"("hidden_size": 1280, "num_heads": 32)", 64,
                 R"("swa_rope_theta": 1, )"},
           Tower{"mimo_v2", R"("hidden_size": 1280, "num_heads": 32, "qk_channels": 48)", 48,
                 R"("swa_rope_theta": 1, )"},
           Tower{"moss_vl", R"("hidden_size": 1152, "num_heads": 16)", 72},
       }) {
    SCOPED_TRACE(test.model_type);
    const Model model(R"({"model_type": ")" + std::string(test.model_type) + R"(", )" + kSizes +
                      R"(, "rope_theta": 1000000.0, )" + test.text + R"("vision_config": {)" +
                      test.sizes + "}}");
    const rope_config tower = model.Config("vision");
    EXPECT_EQ(tower.head_dim, test.head_dim);
    EXPECT_EQ(tower.pairing, ROPE_PAIRING_HALVES);
    EXPECT_EQ(tower.rounding, ROPE_ROUNDING_FLOAT32);
    ASSERT_EQ(tower.table_length, test.head_dim / 2);
    for (int pair = 0; pair < tower.table_length; ++pair) {
      const int half = tower.table_length / 2;
      EXPECT_EQ(tower.pair_axis[pair], pair / half);
      const double want = std::pow(10000.0, -4.0 * (pair % half) / test.head_dim);
      EXPECT_NEAR(tower.inv_freq[pair], want, 4e-7 * want) << pair;
    }
  }
}

// vLLM: configs/deepseek_v41.py; mlx-lm: models/deepseek_v41.py. As DeepSeek-V4, in f32.
TEST(ModelEngines, DeepseekV41IsV4InF32) {
  const Model model(R"({"model_type": "deepseek_v41", "text_config": {"model_type":
      "deepseek_v41_text", "hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 4,
      "head_dim": 512, "qk_rope_head_dim": 64, "index_head_dim": 128, "rope_theta": 777,
      "compress_rope_theta": 7777, "compress_ratios": [0, 1, 2, 128], "max_position_embeddings":
      65536, "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings":
      4096}}, "vision_config": {"hidden_size": 1024, "num_attention_heads": 16, "rope_theta": 77}})");
  EXPECT_EQ(model.Layers(4), "mccc");
  for (const char* name : {"main", "compress"}) {
    const rope_config config = model.Config(name);
    EXPECT_EQ(config.head_dim, 512);
    EXPECT_EQ(config.rotary_dim, 64);
    EXPECT_EQ(config.rotary_offset, 448);
    EXPECT_EQ(config.pairing, ROPE_PAIRING_INTERLEAVED);
    EXPECT_EQ(config.rounding, ROPE_ROUNDING_FLOAT32);
    EXPECT_EQ(config.theta, name == std::string("main") ? 777 : 7777);
  }
  EXPECT_EQ(model.Config("main").scaling, ROPE_SCALING_DEFAULT);
  EXPECT_EQ(model.Config("compress").scaling, ROPE_SCALING_YARN);
  EXPECT_EQ(model.Config("compress").attention_factor, 1);
  EXPECT_EQ(model.Config("indexer").head_dim, 128);
  EXPECT_EQ(model.Config("indexer").rotary_offset, 64);
  EXPECT_EQ(model.Config("vision").head_dim, 64);
  const double want = std::pow(77.0, -4.0 / 64);
  EXPECT_NEAR(model.Config("vision").inv_freq[1], want, 4e-7 * want);
}

std::vector<int> AxesOf(const rope_config& config) {
  if (config.pair_axis == nullptr) return {};
  return std::vector<int>(config.pair_axis, config.pair_axis + config.table_length);
}

// vLLM and SGLang: rotary_embedding/bailing_mrope.py. h and w pair by pair, then t; the sections
// stand around the language model.
TEST(ModelEngines, BailingAlternatesRowsAndColumns) {
  const std::string text = R"("text_config": {"model_type": "bailing_hybrid", "hidden_size": 2048,
      "num_attention_heads": 16, "num_hidden_layers": 4, "layer_group_size": 2, "rope_theta": 777,
      "qk_nope_head_dim": 32, "qk_rope_head_dim": 16)";
  const auto model_of = [&text](const std::string& around, const std::string& inside) {
    return R"({"model_type": "bailing_moe_v3_vl", )" + around + text + inside + "}}";
  };
  const Model model(model_of(R"("mrope_section": [2, 3, 3], )", ""));
  const rope_config config = model.Config("full_attention");
  EXPECT_EQ(config.pairing, ROPE_PAIRING_INTERLEAVED_TO_HALVES);
  EXPECT_EQ(config.theta, 777);
  EXPECT_EQ(config.axes, 3);
  EXPECT_EQ(AxesOf(config), std::vector<int>({1, 2, 1, 2, 1, 2, 0, 0}));
  EXPECT_EQ(model.Layers(4), "nfnf");
  // In the dictionary, or beside it; but not differing, and not of unequal h and w.
  const std::string same = R"(, "mrope_section": [2, 3, 3])";
  const Model repeated(model_of(R"("mrope_section": [2, 3, 3], )", same));
  EXPECT_EQ(AxesOf(repeated.Config("full_attention")), AxesOf(config));
  const Model inside(model_of("", R"(, "rope_scaling": {"mrope_section": [2, 3, 3]})"));
  EXPECT_EQ(AxesOf(inside.Config("full_attention")), AxesOf(config));
  ExpectRefused(model_of(R"("mrope_section": [4, 2, 2], )", same),
                {"mrope_section", "be that of text_config.mrope_section"});
  ExpectRefused(model_of(R"("mrope_section": [2, 4, 2], )", ""), {"the same number of pairs"},
                ROPE_ERROR_UNSUPPORTED);
  // The same in halves, and without heads of latent attention.
  const Model lite(R"({"model_type": "bailingmm_moe_v2_lite", "llm_config": {"model_type":
      "bailing_moe_v2", "hidden_size": 2048, "num_attention_heads": 16, "rope_theta": 777}})");
  const rope_config halves = lite.Config("full_attention");
  EXPECT_EQ(halves.pairing, ROPE_PAIRING_HALVES);
  EXPECT_EQ(halves.rotary_dim, 64);
  const std::vector<int> axes = AxesOf(halves);
  ASSERT_EQ(axes.size(), 32U);
  EXPECT_EQ(axes[0], 1);
  EXPECT_EQ(axes[23], 2);
  EXPECT_EQ(axes[24], 0);
}

// vLLM: models/isaac.py. The sections follow from the head.
TEST(ModelEngines, IsaacHasHalfOfItsPairsForTime) {
  const std::string text = R"({"model_type": "isaac", "text_config": {"model_type": "qwen3",
      "hidden_size": 2048, "num_attention_heads": 16, "head_dim": 128, "rope_theta": 777)";
  const rope_config config = Model(text + "}}").Config("full_attention");
  EXPECT_EQ(config.axes, 3);
  EXPECT_EQ(config.mrope_section[0], 32);
  EXPECT_EQ(config.mrope_section[1], 16);
  EXPECT_EQ(config.mrope_section[2], 16);
  EXPECT_EQ(config.mrope_interleaved, 0);
  EXPECT_EQ(config.theta, 777);
  EXPECT_EQ(Model(text + R"(, "rope_scaling": {"mrope_interleaved": true}}})")
                .Config("full_attention")
                .mrope_interleaved,
            1);
  ExpectRefused(text + R"(, "rope_scaling": {"mrope_section": [24, 20, 20]}}})",
                {"mrope_section", "follows from head_dim"});
}

// vLLM: models/k2_horizon.py. The first 8 channels of each half of a head turn.
TEST(ModelEngines, K2HorizonTurnsTheFirstPairsOfTheHead) {
  const std::string sizes = R"({"model_type": "k2_horizon", "hidden_size": 512,
      "num_attention_heads": 16, "max_position_embeddings": 16384)";
  const Model model(sizes + R"(, "rope_head_dim": 16, "rope_theta": 777})");
  const rope_config config = model.Config("full_attention");
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_EQ(config.rotary_dim, 0);
  EXPECT_EQ(config.pairing, ROPE_PAIRING_HALVES);
  ASSERT_EQ(config.table_length, 16);
  for (int pair = 0; pair < 16; ++pair) {
    const double want = pair < 8 ? std::pow(777.0, -2.0 * pair / 16) : 0;
    EXPECT_NEAR(config.inv_freq[pair], want, 4e-7 * want) << pair;
  }
  const Model scaled(sizes + R"(, "rope_head_dim": 16, "rope_parameters": {"rope_type": "yarn",
      "rope_theta": 777, "factor": 4, "original_max_position_embeddings": 4096}})");
  const rope_config yarn = scaled.Config("full_attention");
  EXPECT_NEAR(yarn.attention_factor, 0.1 * std::log(4.0) + 1, 1e-7);
  const double mixed = 0.8 / 4 + 0.2;  // pair 7 of a range from 3 to 8
  EXPECT_NEAR(yarn.inv_freq[7], std::pow(777.0, -14.0 / 16) * mixed, 1e-9);
  EXPECT_EQ(yarn.inv_freq[8], 0);
  ExpectRefused(sizes + R"(, "rope_head_dim": 15, "rope_theta": 777})",
                {"rope_head_dim (15)", "even"});
  ExpectRefused(sizes + R"(, "rope_head_dim": 64, "rope_theta": 777})", {"rope_head_dim"});
  ExpectRefused(sizes + R"(, "rope_head_dim": 16, "rope_theta": 777, "rope_scaling":
      {"rope_type": "dynamic", "factor": 2}})",
                {"rope_head_dim (16) below head_dim (32)"}, ROPE_ERROR_UNSUPPORTED);
}

// SGLang: models/minicpm.py. Each of the two mixers has heads and a switch of its own.
TEST(ModelEngines, MiniCpmSalaHasTwoMixers) {
  const std::string text = R"({"model_type": "minicpm_sala", )" + std::string(kSizes) +
                           R"(, "lightning_head_dim": 64, "mixer_types": ["attn", "lightning"])";
  const Model both(text + "}");
  EXPECT_EQ(both.Layers(4), "flfl");
  EXPECT_EQ(both.Config("full_attention").head_dim, 128);
  EXPECT_EQ(both.Config("lightning_attention").head_dim, 64);
  EXPECT_EQ(both.Config("lightning_attention").theta, 10000);
  EXPECT_EQ(both.Config("full_attention").rounding, ROPE_ROUNDING_FLOAT32);
  const Model lightning(text + R"(, "attn_use_rope": false})");
  EXPECT_EQ(lightning.Layers(4), "nlnl");
  EXPECT_EQ(lightning.Types(), (std::vector<std::string>{"lightning_attention", "nope"}));
  EXPECT_EQ(Model(text + R"(, "attn_use_rope": false, "lightning_use_rope": false})").Types(),
            std::vector<std::string>{"nope"});
  ExpectRefused(
      R"({"model_type": "minicpm_sala", )" + std::string(kSizes) + R"(, "mixer_types": ["mamba"]})",
      {"mixer_types[0]", "minicpm4 or lightning-attn"});
  ExpectRefused(R"({"model_type": "minicpm_sala", )" + std::string(kSizes) +
                    R"(, "mixer_types": ["attn", "attn", "attn", "attn", "attn"]})",
                {"mixer_types has 5 entries", "4 layers"});
}

// vLLM: configs/moondream3.py, models/moondream3.py. Published configurations are empty.
TEST(ModelEngines, Moondream3TurnsHalfOfItsHeads) {
  for (const char* text :
       {R"({"model_type": "moondream3", "config": {}})", R"({"model_type": "moondream3"})",
        R"({"model_type": "moondream3", "config": {"text": {"dim": 2048,
                               "n_heads": 32, "n_layers": 24, "rope_theta": 1500000}}})"}) {
    const Model model(text);
    const rope_config config = model.Config("full_attention");
    EXPECT_EQ(config.head_dim, 64);
    EXPECT_EQ(config.rotary_dim, 32);
    EXPECT_EQ(config.theta, 1.5e6);
    EXPECT_EQ(config.pairing, ROPE_PAIRING_HALVES);
    EXPECT_EQ(model.Layers(25), std::string(24, 'f') + ".");
  }
  EXPECT_EQ(Model(R"({"model_type": "moondream3", "config": {"text": {"rope_theta": 777}}})")
                .Config("full_attention")
                .theta,
            777);
}

// vLLM: rotary_embedding/mrope_interleaved.py.
TEST(ModelEngines, OpenPanguPlacesItsAxesEvenly) {
  const std::string text = R"({"model_type": "openpangu_vl", "text_config": {"hidden_size": 128,
      "num_attention_heads": 8, "rope_theta": 777, "rope_scaling": )";
  const auto axes_of = [&text](const char* sections) {
    const Model model(text + R"({"mrope_interleaved": true, "mrope_section": )" + sections + "}}}");
    return AxesOf(model.Config("full_attention"));
  };
  // 2 of t, 3 of h, 2 of w, and t at the end: shares 0 0 0, then the smallest, never twice in a row
  EXPECT_EQ(axes_of("[3, 3, 2]"), std::vector<int>({0, 1, 2, 1, 0, 2, 1, 0}));
  EXPECT_EQ(axes_of("[2, 5, 1]"), std::vector<int>({0, 1, 2, 1, 1, 1, 1, 0}));
  // The second h has the share of w, and would be followed by another if it were not the last one.
  EXPECT_EQ(axes_of("[2, 4, 2]"), std::vector<int>({0, 1, 2, 1, 2, 1, 1, 0}));
  ExpectRefused(text + R"({"mrope_section": [3, 3, 2]}}})", {"mrope_interleaved must be true"},
                ROPE_ERROR_UNSUPPORTED);
  ExpectRefused(text + R"({"mrope_section": [1, 4, 3], "mrope_interleaved": true}}})",
                {"mrope_section[0] (1) must be at least 2"});
  ExpectRefused(text + R"({"mrope_section": [4, 4], "mrope_interleaved": true}}})",
                {"2 entries", "from 3 to 3"});
}

// vLLM: transformers_utils/config.py.
TEST(ModelEngines, NamesOfYarn) {
  const std::string yarn = R"("factor": 32, "original_max_position_embeddings": 4096)";
  const auto factor_of = [](const std::string& text) {
    rope_config config = Model(text).Config();
    rope_context* context = nullptr;
    EXPECT_EQ(rope_context_create(&config, &context), ROPE_OK) << rope_last_error();
    rope_info info = ROPE_INIT(rope_info);
    EXPECT_EQ(rope_context_info(context, 0, &info), ROPE_OK);
    rope_context_destroy(context);
    return info.attention_factor;
  };
  EXPECT_NEAR(factor_of(Llama(R"({"rope_type": "telechat3-yarn", )" + yarn + "}")),
              0.07 * std::log(32.0) + 1, 1e-7);
  EXPECT_EQ(factor_of(Llama(R"({"rope_type": "deepseek_yarn", )" + yarn + "}")),
            factor_of(Llama(R"({"rope_type": "yarn", )" + yarn + "}")));
  ExpectRefused(Llama(R"({"rope_type": "telechat3-yarn", "factor": 32})"),
                {"original_max_position_embeddings is missing"});
  ExpectRefused(Llama(R"({"rope_type": "telechat3-yarn", "attention_factor": 1.5, )" + yarn + "}"),
                {"attention_factor (1.5)", "follows from factor"});
}

// vLLM and SGLang: Qwen3.5-MoE by other names.
TEST(ModelEngines, InternS2IsQwen35Moe) {
  for (const char* type : {"intern_s2_preview", "interns2_mobius"}) {
    const Model model(R"({"model_type": ")" + std::string(type) + R"(", "text_config":
        {"model_type": ")" +
                      type + R"(_text", "hidden_size": 2048, "num_attention_heads": 16,
         "num_hidden_layers": 4, "rope_theta": 777, "rope_parameters": {"rope_theta": 777,
         "mrope_section": [11, 11, 10], "mrope_interleaved": true}}})");
    const rope_config config = model.Config("full_attention");
    EXPECT_EQ(config.head_dim, 256);
    EXPECT_EQ(config.rotary_dim, 64);
    EXPECT_EQ(config.mrope_interleaved, 1);
    EXPECT_EQ(model.Layers(4), "nnnf");
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

// vLLM: transformers_utils/configs/{deepseek_vl2,step3_vl}.py make their text so whatever it says.
TEST(ModelEngines, TextIsOfTheClassOfTheWhole) {
  const Model ocr(R"({"model_type": "deepseek_vl_v2", "language_config": {"hidden_size": 1280,
      "num_attention_heads": 10, "num_hidden_layers": 12, "max_position_embeddings": 8192,
      "use_mla": false, "kv_lora_rank": null, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0,
      "v_head_dim": 0}, "hidden_size": 1280, "num_attention_heads": 10, "num_hidden_layers": 12,
      "max_position_embeddings": 8192, "use_mla": false, "qk_nope_head_dim": 0,
      "qk_rope_head_dim": 0})");  // DeepSeek-OCR
  EXPECT_EQ(ocr.Config().head_dim, 128);
  EXPECT_EQ(ocr.Config().theta, 10000);
  EXPECT_EQ(ocr.Config().pairing, ROPE_PAIRING_HALVES);
  const std::string step = R"({"hidden_size": 7168, "num_attention_heads": 64, "head_dim": 256,
      "num_hidden_layers": 61, "rope_theta": 500000, "max_position_embedding": 65536})";
  const Model whole("{\"model_type\": \"step3_vl\", \"text_config\": " + step + "}");
  EXPECT_EQ(whole.Config().pairing, ROPE_PAIRING_HALVES);
  ExpectRefused("{\"model_type\": \"internvl_chat\", \"llm_config\": " + step + "}",
                {"max_position_embedding (65536) must be spelt"});  // a word of Step 3's class
}

// Its file says both, and its code (transformers' and its own) reads neither.
TEST(ModelEngines, PaddleOcrSaysThatItsRopeHasThreeAxes) {
  const auto file = [](const char* flags) {
    return R"({"model_type": "paddleocr_vl", "head_dim": 128, "hidden_size": 1024,
        "num_attention_heads": 16, "num_hidden_layers": 18, "max_position_embeddings": 131072,
        "rope_theta": 500000, "rope_scaling": {"mrope_section": [16, 24, 24], "type": "default",
        "rope_type": "default"}, )" +
           std::string(flags) + "}";
  };
  const Model model(file(R"("use_3d_rope": true, "rope_is_neox_style": true)"));
  EXPECT_EQ(model.Config().axes, 3);
  EXPECT_EQ(model.Config().pairing, ROPE_PAIRING_HALVES);
  ExpectRefused(file(R"("use_3d_rope": false)"), {"use_3d_rope (false) must be true"});
  ExpectRefused(file(R"("rope_is_neox_style": false)"), {"rope_is_neox_style (false)"},
                ROPE_ERROR_UNSUPPORTED);
}

}  // namespace
}  // namespace rope::testing
