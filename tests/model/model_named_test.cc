// Models by name, a long list of them: each is read as one of a known family, or refused with the
// reason that docs/models.md gives.
#include <string>

#include "oracle_document.h"
#include "testing.h"

namespace rope::testing {
namespace {

constexpr char kSizes[] = R"("hidden_size": 2048, "num_attention_heads": 16,
    "num_hidden_layers": 4, "max_position_embeddings": 8192)";

// `text` is what follows model_type.
struct Named {
  const char* name;  // in docs/models.md
  const char* model_type;
  std::string text;
  const char* refused = nullptr;  // a part of the message; nullptr: it is read
};

const std::string kPlain = ", " + std::string(kSizes) + R"(, "rope_theta": 777)";
const std::string kLatent = kPlain + R"(, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64)";

std::string Nested(const char* model_type, const std::string& entries,
                   const char* key = "text_config") {
  return std::string(", \"") + key + R"(": {"model_type": ")" + model_type + "\"" + entries + "}";
}

const Named kNamed[] = {
    {"alice_ai", "alice_ai", kPlain},
    {"arctic", "arctic", kPlain},
    {"bailing_moe_v3_vl", "bailing_moe_v3_vl", Nested("bailing_hybrid", kLatent)},
    {"bailingmm_moe_v2_lite", "bailingmm_moe_v2_lite",
     Nested("bailing_moe_v2", kPlain, "llm_config")},
    {"deepseek_ocr2's tower", "deepseek_ocr2", Nested("deepseek_ocr2_text", kPlain)},
    {"deepseek_v41", "deepseek_v41",
     Nested("deepseek_v41_text", kPlain + R"(, "head_dim": 512, "qk_rope_head_dim": 64)")},
    {"deepseek_vl_v2", "deepseek_vl_v2", Nested("deepseek_v2", kLatent, "language_config")},
    {"dots_ocr", "dots_ocr", kPlain},
    {"dots_vlm", "dots_vlm", kLatent},
    {"efficientloftr", "efficientloftr", kPlain, "without position ids"},
    {"gigachat3_5", "gigachat3_5", kLatent},
    {"grok-1", "grok-1", kPlain},
    {"grok-2", "git", kPlain + R"(, "architectures": ["Grok1ForCausalLM"])"},
    {"intern_s1_pro", "intern_s1_pro",
     Nested("qwen3_moe", kPlain + R"(, "rope_scaling": {"rope_type": "default",
                                        "fope_init_factor": 0.1, "fope_sep_head": true})"),
     "fope_"},
    {"intern_s2_preview", "intern_s2_preview", Nested("qwen3_5_moe_text", kPlain)},
    {"interns2_mobius", "interns2_mobius", Nested("interns2_mobius_text", kPlain)},
    {"iquest_q1", "iquest_q1", kPlain + R"(, "num_hybrid_layers_block": 0)"},
    {"iquestcoder", "iquestcoder", kPlain},
    {"isaac", "isaac", Nested("qwen3", kPlain)},
    {"jet_nemotron", "jet_nemotron", kPlain},
    {"jet_vlm", "jet_vlm", Nested("jet_nemotron", kPlain)},
    {"jurassic3", "jurassic3", kPlain, "without RoPE only"},
    {"k2_horizon", "k2_horizon", kPlain},
    {"keye", "Keye", kPlain},
    {"kimi_k3's tower", "kimi_k3",
     Nested("kimi_linear", kLatent) + R"(, "vision_config": {"qkv_hidden_size": 1536,
                                           "vt_num_attention_heads": 12})"},
    {"kimi_vl", "kimi_vl", Nested("deepseek_v3", kLatent)},
    {"lightglue", "lightglue", kPlain, "config.frequency"},
    {"llada2_moe", "llada2_moe", kPlain},
    {"locateanything", "locateanything", Nested("qwen2", kPlain)},
    {"mimo", "mimo", kPlain},
    {"mimo_v2", "mimo_v2", kPlain + R"(, "head_dim": 192, "swa_rope_theta": 777)"},
    {"minicpm_sala", "minicpm_sala", kPlain + R"(, "attn_use_rope": false)"},
    {"moondream3", "moondream3", R"(, "config": {})"},
    {"moss_vl", "moss_vl", Nested("moss_vl_text", kPlain)},
    {"musicflamingo", "musicflamingo", Nested("qwen2", kPlain)},
    {"nanbeige", "nanbeige", kPlain},
    {"nemotron_asr_streaming", "nemotron_asr_streaming_encoder", kPlain, "without RoPE only"},
    {"openpangu", "PanguEmbedded", kPlain},
    {"PanguProMoEV2", "PanguProMoEV2", kPlain + R"(, "qk_rope_dim": 64, "qk_nope_dim": 64)",
     "qk_nope_dim"},
    {"pangu_ultra_moe", "pangu_ultra_moe", kLatent},
    {"openpangu_vl", "openpangu_vl",
     Nested("openpangu_vl_text", kPlain + R"(, "rope_scaling": {"mrope_section": [22, 21, 21],
                                                "mrope_interleaved": true})")},
    {"ouro", "ouro", kPlain},
    {"parakeet_encoder", "parakeet_encoder", kPlain, "without RoPE only"},
    {"param2moe", "param2moe", kPlain},
    {"phi3small", "phi3small", ", " + std::string(kSizes)},
    {"plamo2", "plamo2", kPlain},
    {"plamo3", "plamo3", kPlain + R"(, "rope_local_theta": 777)"},
    {"sarvam", "sarvam_mla", kLatent + R"(, "rope_scaling": {"type": "deepseek_yarn", "factor": 4,
                                             "original_max_position_embeddings": 4096})"},
    {"sdar", "sdar", kPlain},
    {"seamless_m4t_v2", "seamless_m4t_v2", ", " + std::string(kSizes), "no key of RoPE"},
    {"solar", "solar", kPlain},
    {"spark2_5", "spark2_5", ", " + std::string(kSizes)},
    {"step3_text", "step3_text", kPlain},
    {"step3_vl", "step3_vl", Nested("step3_text", kPlain)},
    {"teleflm", "teleflm", kPlain},
    {"telechat", "telechat", kPlain, "raises theta"},
    {"telechat2", "telechat2", kPlain, "raises theta"},
    {"telechat3", "telechat3", kPlain},
    {"ultrabert", "ultrabert", ", " + std::string(kSizes)},
    {"vjepa2", "vjepa2", kPlain, "no rotation"},
    {"wav2vec2-bert", "wav2vec2-bert",
     ", " + std::string(kSizes) + R"(, "position_embeddings_type": "rotary")"},
};

TEST(ModelNamed, EachIsReadOrRefusedAsTheGuideSays) {
  const std::string guide = std::string(kRefused);
  const size_t end_of_refused = guide.find("Models of which engines alone");
  ASSERT_NE(end_of_refused, std::string::npos);
  for (const Named& named : kNamed) {
    SCOPED_TRACE(named.name);
    const std::string text =
        R"({"model_type": ")" + std::string(named.model_type) + "\"" + named.text + "}";
    if (named.refused != nullptr) {
      ExpectRefused(text, {named.refused}, ROPE_ERROR_UNSUPPORTED);
      EXPECT_LT(guide.find(named.name), end_of_refused);
      continue;
    }
    const Model model(text);
    if (!model) continue;
    ExpectContexts(model.get(), text);
    const rope_config config = model.Config(0);
    EXPECT_NE(config.pairing, 0);  // of a known family
  }
}

}  // namespace
}  // namespace rope::testing
