// What a model_type stands for, beside the rows of families.cc: other names of the same code,
// models without RoPE, and where a larger model keeps its language model.
#include <algorithm>
#include <iterator>

#include "model/families.h"

namespace rope::model {
namespace {

// Absolute or learned positions, relative biases, ALiBi, convolutions, state spaces.
constexpr std::string_view kWithoutRope[] = {
    "albert",
    "bart",
    "bert",
    "bert-generation",
    "big_bird",
    "bigbird_pegasus",
    "biogpt",
    "blenderbot",
    "blenderbot-small",
    "bloom",
    "camembert",
    "clip",
    "ctrl",
    "deberta",
    "deberta-v2",
    "distilbert",
    "electra",
    "falcon_mamba",
    "fnet",
    "gpt2",
    "gpt_bigcode",
    "gpt_neo",
    "hubert",
    "jurassic3",
    "led",
    "longformer",
    "longt5",
    "m2m_100",
    "mamba",
    "mamba2",
    "marian",
    "mbart",
    "mpnet",
    "mpt",
    "mt5",
    "nemotron_asr_streaming_encoder",
    "openai-gpt",
    "opt",
    "parakeet_encoder",
    "pegasus",
    "prophetnet",
    "roberta",
    "rwkv",
    "siglip",
    "speech_to_text",
    "switch_transformers",
    "t5",
    "trocr",
    "umt5",
    "vit",
    "wav2vec2",
    "wavlm",
    "whisper",
    "xglm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xlnet",
};

// Other spellings of the same code.
struct Alias {
  std::string_view model_type, same_as;
};

constexpr Alias kAliases[] = {
    {"Keye", "qwen3"},
    {"KeyeVL1_5", "qwen3"},
    {"PanguEmbedded", "pangu_embedded"},
    {"RefinedWeb", "falcon"},
    {"RefinedWebModel", "falcon"},
    {"TeleFLM", "teleflm"},
    {"blt_global_transformer", "blt"},
    {"blt_local_decoder", "blt"},
    {"blt_local_encoder", "blt"},
    {"deci", "nemotron-nas"},
    {"dots_ocr", "qwen2"},
    {"dots_vlm", "deepseek_v3"},
    {"dia_decoder", "dia"},
    {"ernie4_5_moe_vl", "ernie4_5_vl_moe"},
    {"ernie4_5_vl", "ernie4_5_vl_moe"},
    {"EvollaModel", "evolla"},
    {"exaone4_moe", "exaone_moe"},
    {"hunyuan", "hunyuan_v1_moe"},
    {"inkling2", "inkling"},
    {"intern_s2_preview", "qwen3_5_moe"},
    {"interns2_mobius", "qwen3_5_moe"},
    {"iquestcoder", "llama"},
    {"jet_vlm", "jet_nemotron"},
    {"keye", "qwen3"},
    {"kimi_k2", "deepseek_v3"},
    {"lasr_encoder", "lasr"},
    {"llava_llama", "llama"},
    {"locateanything", "qwen2"},
    {"llava_mistral", "mistral"},
    {"llava_qwen", "qwen2"},
    {"mimo", "qwen2"},
    {"minimax_m1", "minimax"},
    {"minimax_m3", "minimax_m3_vl"},
    {"minimax_text_01", "minimax"},
    {"modernbert_decoder", "modernbert-decoder"},
    {"new", "gte"},
    {"phi3_v", "phi3"},
    {"phi4mm", "phi4_multimodal"},
    {"pocket_tts_audio_tokenizer", "pocket_tts"},
    {"sdar_moe", "sdar"},
    {"step3p7", "step3p5"},
    {"t5_gemma_module", "t5gemma"},
    {"t5gemma2_decoder", "t5gemma2"},
    {"wav2vec2_conformer", "wav2vec2-conformer"},
    {"xllm", "k2_horizon"},
};

// Models that have a rotation, and none that a configuration can say or that public code
// establishes.
struct Refused {
  std::string_view model_type;
  const char* reason;
};

constexpr char kRaisesTheta[] =
    "has code of its own that raises theta with the length, where engines do not";

constexpr Refused kRefused[] = {
    {"efficientloftr", "rotates a feature map that it has aggregated, without position ids"},
    {"lightglue", "has weights for frequencies (config.frequency), which no text holds"},
    {"telechat", kRaisesTheta},
    {"telechat2", kRaisesTheta},
    {"vjepa2",
     "turns the two channels of a pair by different angles, which is no rotation: rows of cos and "
     "sin hold it (docs/models.md)"},
};

// What classes around a language model merge into it. GLM-ASR's dictionary hides a rope_theta
// beside it.
constexpr char kGlmAsrText[] =
    R"({"model_type": "llama", "hidden_size": 2048, "num_attention_heads": 16,
        "num_hidden_layers": 28, "max_position_embeddings": 8192,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}})";
constexpr char kPerceptionEncoderText[] =
    R"({"model_type": "modernbert", "hidden_size": 1024, "num_attention_heads": 16,
        "num_hidden_layers": 22})";
constexpr char kVoxtralText[] =
    R"({"model_type": "llama", "hidden_size": 3072, "num_hidden_layers": 30, "head_dim": 128,
        "max_position_embeddings": 131072, "rope_theta": 100000000.0})";
constexpr char kVoxtralRealtimeText[] =
    R"({"model_type": "voxtral_realtime_text", "hidden_size": 3072, "num_attention_heads": 32,
        "num_hidden_layers": 26, "head_dim": 128, "max_position_embeddings": 131072,
        "rope_theta": 1000000.0})";

constexpr OuterModel kOuterModels[] = {
    {"bailing_moe_v3_vl", false, nullptr, nullptr, "bailing_moe_v3_vl"},
    {"bailingmm_moe_v2_lite", false, nullptr, nullptr, "bailingmm_moe_v2_lite"},
    {"dia", false, "decoder_config", nullptr},
    {"esmfold2", false, "esmc_config", nullptr},
    {"glmasr", false, nullptr, nullptr, nullptr, nullptr, kGlmAsrText},
    {"isaac", false, nullptr, nullptr, "isaac"},
    {"lasr", true, "encoder_config", nullptr},
    {"moondream3", false, "config", nullptr, "moondream3", "text"},
    {"musicflamingo", false, nullptr, "rope_parameters"},  // of its audio encoder
    {"openpangu_vl", false, nullptr, nullptr, "openpangu_vl"},
    {"pe_audio", false, nullptr, nullptr, nullptr, nullptr, kPerceptionEncoderText},
    {"pe_audio_video", false, nullptr, nullptr, nullptr, nullptr, kPerceptionEncoderText},
    {"pe_video", false, nullptr, nullptr, nullptr, nullptr, kPerceptionEncoderText},
    {"t5gemma", false, "decoder", nullptr},
    {"t5gemma2", false, "decoder", nullptr},
    {"voxtral", false, nullptr, nullptr, nullptr, nullptr, kVoxtralText},
    {"voxtral_realtime", false, nullptr, nullptr, nullptr, nullptr, kVoxtralRealtimeText},
};

// Classes of larger models that have one class for their language model, whatever it calls itself.
constexpr Alias kTextTypes[] = {
    {"aria", "aria_text"},
    {"clvp", "clvp_encoder"},
    {"cohere_compass", "cohere_compass_text"},
    {"cosmos3_edge", "cosmos3_edge_text"},
    {"deepseek_ocr2", "deepseek_ocr2_text"},
    {"deepseek_vl_v2", "deepseek_v2"},
    {"dia", "dia_decoder"},
    {"diffusion_gemma", "diffusion_gemma_text"},
    {"dots3_note", "dots3_note_text"},
    {"embedding_gemma2", "embedding_gemma2_text"},
    {"emu3", "emu3_text_model"},
    {"ernie4_5_vl_moe", "ernie4_5_vl_moe_text"},
    {"gemma3", "gemma3_text"},
    {"gemma3n", "gemma3n_text"},
    {"gemma4", "gemma4_text"},
    {"gemma4_unified", "gemma4_unified_text"},
    {"glm4v", "glm4v_text"},
    {"glm4v_moe", "glm4v_moe_text"},
    {"glm5_next", "glm5_next_text"},
    {"glm_image", "glm_image_text"},
    {"glm_ocr", "glm_ocr_text"},
    {"granite4_vision", "granite4_vision_text"},
    {"granite_docling", "granite_docling_text"},
    {"hunyuan_vl", "hunyuan_vl_text"},
    {"inkling2", "inkling2_text"},
    {"inkling_mm_model", "inkling_text"},
    {"llama4", "llama4_text"},
    {"minimax_m3_vl", "minimax_m3_vl_text"},
    {"mistral_large4", "mistral_large4_text"},
    {"mllama", "mllama_text_model"},
    {"molmo2", "molmo2_text"},
    {"muse_glimmer", "muse_glimmer_text"},
    {"muse_spark", "muse_spark_text"},
    {"paddleocr_vl", "paddleocr_vl_text"},
    {"qwen2_5_omni", "qwen2_5_omni_text"},
    {"qwen2_5_omni_thinker", "qwen2_5_omni_text"},
    {"qwen2_5_vl", "qwen2_5_vl_text"},
    {"qwen2_vl", "qwen2_vl_text"},
    {"qwen3_5", "qwen3_5_text"},
    {"qwen3_5_moe", "qwen3_5_moe_text"},
    {"qwen3_omni_moe", "qwen3_omni_moe_text"},
    {"qwen3_omni_moe_thinker", "qwen3_omni_moe_text"},
    {"qwen3_vl", "qwen3_vl_text"},
    {"qwen3_vl_moe", "qwen3_vl_moe_text"},
    {"qwen4_exp", "qwen4_exp_text"},
    {"step3_vl", "step3_text"},
    {"step3p7", "step3p5"},
    {"t5gemma2_encoder", "t5gemma2_text"},
    {"unlimited_ocr", "unlimited_ocr_text"},
};

// Words of classes that look like a misspelt one of RoPE.
constexpr struct {
  std::string_view model_type, key;
} kOwnWords[] = {{"step3_text", "max_position_embedding"}};

// Models without RoPE whose remote code has it if the file says so.
constexpr Alias kRotaryVariants[] = {
    {"xlm-roberta", "jina_embeddings_v3"},
};

// Models that have the model_type of others: their architecture tells them.
struct Renamed {
  std::string_view model_type, architecture, same_as;
};

constexpr Renamed kRenamed[] = {
    {"git", "Grok1ForCausalLM", "grok-1"},  // Grok 2
};

const Family* FindExactly(std::string_view model_type) {
  for (const Alias& alias : kAliases) {
    if (alias.model_type == model_type) model_type = alias.same_as;
  }
  return FindRow(model_type);
}

}  // namespace

const Family* FindFamily(std::string_view model_type) {
  const Family* family = FindExactly(model_type);
  for (std::string_view suffix : {"_text_model", "_text"}) {
    if (family != nullptr) break;
    if (EndsWith(model_type, suffix)) {
      family = FindExactly(model_type.substr(0, model_type.size() - suffix.size()));
    }
  }
  return family;
}

const OuterModel& FindOuterModel(std::string_view model_type) {
  static constexpr OuterModel kOther = {"", false, "global_config", nullptr};  // BLT
  for (const OuterModel& outer : kOuterModels) {
    const std::string_view known = outer.model_type;
    const bool begins = model_type.substr(0, known.size()) == known;
    if (model_type == known || (outer.is_prefix && begins)) return outer;
  }
  return kOther;
}

std::string_view TextTypeOf(std::string_view outer_type) {
  for (const Alias& text : kTextTypes) {
    if (text.model_type == outer_type) return text.same_as;
  }
  return "";
}

bool IsOwnWord(std::string_view model_type, std::string_view key) {
  return std::any_of(std::begin(kOwnWords), std::end(kOwnWords), [&](const auto& own) {
    return own.model_type == model_type && own.key == key;
  });
}

std::string_view RotaryVariant(std::string_view model_type) {
  for (const Alias& variant : kRotaryVariants) {
    if (variant.model_type == model_type) return variant.same_as;
  }
  return "";
}

std::string_view RenamedType(std::string_view model_type, std::string_view architecture) {
  for (const Renamed& renamed : kRenamed) {
    const bool same = renamed.model_type == model_type && renamed.architecture == architecture;
    if (same) return renamed.same_as;
  }
  return "";
}

bool IsWithoutRope(std::string_view model_type) {
  return std::find(std::begin(kWithoutRope), std::end(kWithoutRope), model_type) !=
         std::end(kWithoutRope);
}

const char* WhyRefused(std::string_view model_type) {
  for (const Refused& refused : kRefused) {
    if (refused.model_type == model_type) return refused.reason;
  }
  return nullptr;
}

bool EndsWith(std::string_view text, std::string_view suffix) {
  return text.size() > suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

}  // namespace rope::model
