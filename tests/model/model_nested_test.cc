// A language model that is a part of a larger configuration, and says its sizes where they differ
// from its class alone: each class against what transformers makes of it (tests/oracle/classes.py).
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "answer.h"
#include "testing.h"

namespace rope::testing {
namespace {

using nlohmann::json;

std::string Inside(const std::string& text_config, const char* outer = "llava") {
  return R"({"model_type": ")" + std::string(outer) + R"(", "text_config": )" + text_config + "}";
}

int LayerCount(const Model& model) {
  int32_t count = 0, type;
  while (rope_model_layer_type(model.get(), count, &type) == ROPE_OK) ++count;
  return count;
}

TEST(ModelNested, PublishedOnesAreReadWithTheSizesOfTheirClass) {
  // llava-hf/llava-1.5-7b-hf
  const Model llava(Inside(R"({"architectures": ["LlamaForCausalLM"], "max_position_embeddings":
      4096, "model_type": "llama", "rms_norm_eps": 1e-05, "vocab_size": 32064})"));
  EXPECT_EQ(llava.Config().head_dim, 128);
  EXPECT_EQ(llava.Config().theta, 10000);
  EXPECT_EQ(LayerCount(llava), 32);
  // llava-hf/llava-v1.6-34b-hf says its heads
  const Model large(
      Inside(R"({"model_type": "llama", "hidden_size": 7168, "num_attention_heads": 56,
      "num_hidden_layers": 60, "num_key_value_heads": 8, "rope_theta": 5000000.0})"));
  EXPECT_EQ(large.Config().head_dim, 128);
  EXPECT_EQ(LayerCount(large), 60);
  // deepseek-ai/Janus-Pro-7B
  const Model janus(R"({"model_type": "multi_modality", "language_config": {"model_type": "llama",
      "max_position_embeddings": 16384, "num_hidden_layers": 30, "vocab_size": 102400}})");
  EXPECT_EQ(janus.Config().head_dim, 128);
  EXPECT_EQ(LayerCount(janus), 30);
}

TEST(ModelNested, ItsListsAndWordsGoBeforeTheClass) {
  EXPECT_EQ(Model(Inside(R"({"model_type": "gptj", "n_embd": 512, "n_head": 4, "n_layer": 3})"))
                .Config()
                .head_dim,
            128);
  const std::string listed = R"({"model_type": "gemma3_text", "layer_types":
      ["sliding_attention", "full_attention", "sliding_attention"]})";
  EXPECT_EQ(LayerCount(Model(Inside(listed))), 3);
  ExpectRefused(Inside(R"({"model_type": "llama", "hidden_size": null})"),
                {"text_config.hidden_size is missing"});
}

TEST(ModelNested, OnItsOwnItMustSayItsSizes) {
  ExpectRefused(R"({"model_type": "llama"})", {"hidden_size is missing"});
  ExpectRefused(Inside(R"({"model_type": "nobody_knows", "rope_theta": 1e4})"),
                {"text_config.hidden_size is missing"});
}

// transformers makes it so whatever its text says: published ones have types that do not exist.
TEST(ModelNested, ItsClassIsThatOfTheWhole) {
  const auto text = [](const char* outer, const char* type) {
    return Inside(R"({"hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 4,
        "max_position_embeddings": 32768, "model_type": ")" +
                      std::string(type) + "\"}",
                  outer);
  };
  constexpr struct {
    const char *outer, *type;
  } kClasses[] = {{"aria", "aria_text"},
                  {"gemma3", "gemma3_text"},
                  {"llama4", "llama4_text"},
                  {"qwen2_vl", "qwen2_vl_text"},
                  {"qwen3_5", "qwen3_5_text"},
                  {"minimax_m3_vl", "minimax_m3_vl_text"},
                  {"muse_spark", "muse_spark_text"},
                  {"ernie4_5_vl_moe", "ernie4_5_vl_moe_text"}};
  for (const auto& known : kClasses) {
    const std::string answer = Answer(text(known.outer, known.type));
    EXPECT_NE(answer, "") << rope_last_error();
    for (const char* other : {"llama", "qwen2", "gemma2", "modernbert", "aria_moe_lm", "gpt2"}) {
      EXPECT_EQ(Answer(text(known.outer, other)), answer) << known.outer << " " << other;
    }
  }
  EXPECT_NE(Answer(text("llava", "gemma2")), Answer(text("llava", "llama")));  // goes by the text
}

// Retrievers and robots are built on a model that stands in vlm_config.
TEST(ModelNested, BackbonesAreReadAsTheModelsThatTheyAre) {
  const std::string text = R"({"model_type": "gemma", "hidden_size": 2048,
      "num_attention_heads": 8, "num_hidden_layers": 3, "rope_theta": 7e4})";
  const std::string vlm =
      R"("vlm_config": {"model_type": "paligemma", "text_config": )" + text + "}";
  const Model pi0(R"({"model_type": "pi0", "dit_config": {"model_type": "gemma"}, )" + vlm + "}");
  EXPECT_EQ(pi0.Config().theta, 7e4);
  EXPECT_EQ(pi0.Config().pairing, ROPE_PAIRING_HALVES);
  EXPECT_EQ(pi0.Layers(4), "fff.");
  // older files of ColPali repeat the language model
  EXPECT_TRUE(Model(R"({"model_type": "colpali", "text_config": )" + text + ", " + vlm + "}"));
  ExpectRefused(R"({"model_type": "colpali", "text_config": {"rope_theta": 5}, )" + vlm + "}",
                {"text_config.rope_theta (5)"}, ROPE_ERROR_UNSUPPORTED);
  const Model qwen(R"({"model_type": "colqwen2", "vlm_config": {"model_type": "qwen2_vl",
      "hidden_size": 1536, "num_attention_heads": 12, "rope_scaling": {"type": "mrope",
      "mrope_section": [16, 24, 24]}, "vision_config": {"embed_dim": 1280, "num_heads": 16}}})");
  EXPECT_EQ(qwen.Types(), (std::vector<std::string>{"full_attention", "vision"}));
  EXPECT_EQ(qwen.Config("full_attention").theta, 1e6);
  ExpectRefused(R"({"model_type": "colpali", "vlm_config": {}})",
                {"vlm_config.model_type is missing"});
  EXPECT_EQ(Model("{" + vlm + "}").Config().theta, 7e4);  // no dictionary of kinds
}

// Classes that are not read so: parts that are no language model, and defaults that do not fit
// together or say too little.
const std::set<std::string> kUnread = {"blt_patcher",
                                       "clvp_encoder",
                                       "cohere_compass_vision",
                                       "deepseek_ocr2_encoder",
                                       "dia_encoder",
                                       "dinov3_vit",
                                       "dots3_note_audio_encoder",
                                       "dots3_note_vision_encoder",
                                       "eomt_dinov3",
                                       "ernie4_5_vl_moe_vision",
                                       "exaone4_5_vision",
                                       "gemma4_vision",
                                       "glm4_moe",
                                       "glm4v_moe_text",
                                       "glm4v_moe_vision",
                                       "glm4v_text",
                                       "glm4v_vision",
                                       "glm5_next_vision",
                                       "glm_image_text",
                                       "glm_ocr_vision",
                                       "glmasr_encoder",
                                       "hunyuan_vl_text",
                                       "inkling2_vision",
                                       "iquestcoder",
                                       "kimi_k25_vision",
                                       "lfm3_vl_vision",
                                       "llama4_vision_model",
                                       "mimi_decoder",
                                       "mimi_encoder",
                                       "minimax_m3_vl_vision",
                                       "mlcd",
                                       "mlcd_vision_model",
                                       "muse_glimmer_vision",
                                       "muse_spark_vision",
                                       "nemotron3_5_transcribe_asr_audio",
                                       "nemotron3_5_transcribe_word_timestamp",
                                       "nemotron3_diarization_audio",
                                       "paddleocr_vl_vision",
                                       "pe_audio_encoder",
                                       "pe_audio_video_encoder",
                                       "pe_video_encoder",
                                       "pixtral",
                                       "pocket_tts_audio_tokenizer_decoder",
                                       "pocket_tts_audio_tokenizer_encoder",
                                       "qwen2_5_omni_dit",
                                       "qwen2_5_omni_talker",
                                       "qwen2_5_omni_vision_encoder",
                                       "qwen2_5_vl_vision",
                                       "qwen2_vl_vision",
                                       "qwen3_5_moe_vision",
                                       "qwen3_5_vision",
                                       "qwen3_omni_moe_talker_code_predictor",
                                       "qwen3_omni_moe_talker_text",
                                       "qwen3_omni_moe_text",
                                       "qwen3_omni_moe_vision_encoder",
                                       "qwen3_vl_moe_vision",
                                       "qwen3_vl_vision",
                                       "qwen4_exp_text",
                                       "qwen4_exp_vision",
                                       "sam3_vit_model",
                                       "sapiens2",
                                       "seamless_m4t",
                                       "step3p5_vision",
                                       "ultrabert",
                                       "video_llama_3_vision",
                                       "wav2vec2-bert"};

// HRM's number of layers is its class's; LFM 2 MoE is not made without a list of them.
const std::set<std::string> kUnlisted = {"hrm_text", "lfm2_moe"};

TEST(ModelNested, EveryClassHasItsSizes) {
  std::set<std::string> unread, unlisted;
  const json classes = LoadJson("classes.json");
  for (const auto& [model_type, sizes] : classes["classes"].items()) {
    const std::string text = Inside(json{{"model_type", model_type}}.dump());
    rope_model* made = nullptr;
    if (Create(text, &made) != ROPE_OK) {
      unread.insert(model_type);
      continue;
    }
    rope_model_destroy(made);
    const Model model(text);
    const int layers = LayerCount(model);
    if (layers == 0)
      unlisted.insert(model_type);
    else
      EXPECT_EQ(layers, sizes["num_hidden_layers"].get<int>()) << model_type;
    const std::vector<std::string> types = model.Types();
    bool found = false;
    for (const std::string& type : types) {
      const rope_config config = model.Config(type);
      const bool other_width = config.rotary_offset != 0 || config.scaling == ROPE_SCALING_NOPE;
      found |= config.head_dim == sizes["head_dim"] || other_width;
    }
    EXPECT_TRUE(found) << model_type << ": no head of " << sizes["head_dim"];
    for (int layer = 0; sizes.contains("layer_types") && layer < layers; ++layer) {
      const std::string theirs = sizes["layer_types"][layer];
      const bool has = std::find(types.begin(), types.end(), theirs) != types.end();
      const std::string ours = model.LayerName(layer);
      if (has && ours != "nope") {
        EXPECT_EQ(ours, theirs) << model_type << " " << layer;
      }
    }
  }
  EXPECT_EQ(unread, kUnread);
  EXPECT_EQ(unlisted, kUnlisted);
}

}  // namespace
}  // namespace rope::testing
