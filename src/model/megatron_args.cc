// The arguments of Megatron-LM: `args` of a checkpoint, or a run's yaml, as JSON
// (json.dump(vars(args), default=str)). They are complete: Megatron writes its defaults, too.
//
// Source: megatron/core of the package megatron-core 0.16.1 (models/common/embeddings/,
// transformer/attention.py and multi_latent_attention.py, models/gpt/gpt_model.py), and the parser
// of Megatron-LM at d98e8a64. Where rotary_seq_len_interpolation_factor is no power of two,
// Megatron's angles, of positions times its inverse, differ from those of LINEAR in the last bits.
#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "model/dialects.h"
#include "model/layers.h"

namespace rope::model {
namespace {

bool IsMegatronArgs(const Dict& root) {
  const Value* kind = root.Peek("model_type");  // ModelType.encoder_or_decoder, in some form
  const auto* name = kind != nullptr ? kind->As<std::string>() : nullptr;
  if (name != nullptr && name->substr(0, 10) != "ModelType.") return false;
  return root.Mentions("tensor_model_parallel_size") || root.Mentions("rotary_base");
}

// Arguments that Megatron has for other kinds of RoPE than this model's: written in any case, and
// not looked at.
void IgnoreOf(const Dict& root, std::initializer_list<const char*> keys) {
  for (const char* key : keys) root.Find(key);
}

constexpr char kNeeded[] = "Megatron's arguments have it";

double Number(const Dict& root, const char* key) {
  const auto number = root.Number(key);
  if (!number) root.RejectMissing(key, kNeeded);
  return *number;
}

double Positive(const Dict& root, const char* key) {
  const auto number = root.Positive(key);
  if (!number) root.RejectMissing(key, kNeeded);
  return *number;
}

double YarnScale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

// With a prefix, outside of latent attention: it takes null for both mscales.
void FillYarn(const Dict& root, rope_config* config) {
  config->scaling = ROPE_SCALING_YARN;
  config->factor = Positive(root, "yarn_rotary_scaling_factor");
  config->original_max_position_embeddings =
      Required(root, "yarn_original_max_position_embeddings", 1, kMaxLength, kNeeded);
  config->beta_fast = Positive(root, "yarn_beta_fast");
  config->beta_slow = Positive(root, "yarn_beta_slow");
  const auto mscale = root.Number("yarn_mscale"), all = root.Number("yarn_mscale_all_dim");
  config->attention_factor =
      mscale && all ? YarnScale(config->factor, *mscale) / YarnScale(config->factor, *all)
                    : YarnScale(config->factor, 1);
}

// Megatron's parser has no such argument, so that the length is the default of the configuration
// class: since megatron-core 0.14. Before it was max_position_embeddings, which every run gives.
int64_t LengthOfLatentYarn(const Dict& root, double factor) {
  constexpr char kKey[] = "original_max_position_embeddings", kBefore[] = "max_position_embeddings";
  constexpr int64_t kDefault = 4096;
  if (const auto given = root.Integer(kKey, 1, kMaxLength)) return *given;
  root.RejectNull(kKey);
  if (factor == 1) return kDefault;  // all frequencies stay as they are
  if (root.Integer(kBefore, 1, kMaxLength) == kDefault) return kDefault;
  root.RejectMissing(kKey, "it is " + std::to_string(kDefault) +
                               " since megatron-core 0.14, and was max_position_embeddings before");
}

void FillLatentYarn(const Dict& root, rope_config* config) {
  config->scaling = ROPE_SCALING_YARN;
  config->factor = Positive(root, "rotary_scaling_factor");
  config->original_max_position_embeddings = LengthOfLatentYarn(root, config->factor);
  // No arguments of the parser, either.
  config->beta_fast = root.Positive("beta_fast").value_or(32);
  config->beta_slow = root.Positive("beta_slow").value_or(1);
  for (const char* key : {"beta_fast", "beta_slow"}) root.RejectNull(key);
  config->mscale = Number(root, "mscale");
  config->mscale_all_dim = Number(root, "mscale_all_dim");  // scales the softmax
  config->attention_factor =
      YarnScale(config->factor, config->mscale) / YarnScale(config->factor, config->mscale_all_dim);
}

// Latent attention: channels at the end of a head, neighbours that are written as halves.
void FillLatent(const Dict& root, rope_config* config) {
  const int64_t still = Required(root, "qk_head_dim", 1, kMaxHeadDim, kNeeded);
  const int64_t rotated = Required(root, "qk_pos_emb_head_dim", 2, kMaxHeadDim, kNeeded);
  if (rotated % 2 != 0 || still + rotated > kMaxHeadDim) {
    RejectValue(root.Path("qk_pos_emb_head_dim"), *root.Find("qk_pos_emb_head_dim"),
                "be even, and with qk_head_dim at most " + std::to_string(kMaxHeadDim));
  }
  config->head_dim = static_cast<int32_t>(still + rotated);
  config->rotary_dim = static_cast<int32_t>(rotated);
  config->rotary_offset = static_cast<int32_t>(still);
  config->pairing = ROPE_PAIRING_INTERLEAVED_TO_HALVES;
  const std::string_view type = root.String("rope_type").value_or("yarn");
  if (type != "rope" && type != "yarn") {
    RejectValue(root.Path("rope_type"), *root.Find("rope_type"), "be \"rope\" or \"yarn\"");
  }
  if (root.Peek("no_rope_freq") != nullptr) {
    RejectValue(root.Path("no_rope_freq"), *root.Find("no_rope_freq"),
                "be null with latent attention, which rotates in every layer");
  }
  IgnoreOf(root, {"rotary_interleaved", "rotary_seq_len_interpolation_factor", "use_rope_scaling",
                  "rope_scaling_factor", "mrope_section"});
  if (type == "rope") {
    IgnoreOf(root, {"mscale", "beta_fast", "beta_slow"});
    if (Positive(root, "rotary_percent") != 1) {
      RejectValue(root.Path("rotary_percent"), *root.Find("rotary_percent"),
                  "be 1 with latent attention in this version");
    }
    // Megatron scales the softmax by these even without YaRN.
    const double scale =
        YarnScale(Positive(root, "rotary_scaling_factor"), Number(root, "mscale_all_dim"));
    if (scale != 1) {
      RejectValue(root.Path("mscale_all_dim"), *root.Find("mscale_all_dim"),
                  "be 0 with rope_type \"rope\" in this version");
    }
    return;
  }
  IgnoreOf(root, {"rotary_percent"});
  FillLatentYarn(root, config);
}

void FillSpan(const Dict& root, rope_config* config) {
  const double percent = Positive(root, "rotary_percent");
  if (percent > 1) {
    RejectValue(root.Path("rotary_percent"), *root.Find("rotary_percent"), "be at most 1");
  }
  const int span = static_cast<int>(config->head_dim * percent);
  if (span < 2 || span % 2 != 0) {
    Reject(ROPE_ERROR_PARSE, "%s (%s) gives %d rotated channels, which must be even and at least 2",
           root.Path("rotary_percent").c_str(), ToText(percent).c_str(), span);
  }
  if (span != config->head_dim) config->rotary_dim = span;
}

void FillSections(const Dict& root, rope_config* config) {
  for (const char* key : {"rotary_interleaved", "use_rope_scaling"}) {
    if (!root.Bool(key).value_or(false)) continue;
    RejectValue(root.Path(key), *root.Find(key),
                "be false with position_embedding_type \"mrope\", whose code does not do both");
  }
  const Value::Array* sections = root.Array("mrope_section");
  if (sections == nullptr) {
    root.RejectMissing("mrope_section", "position_embedding_type is \"mrope\"");
  }
  if (sections->size() != 3) {
    RejectValue(root.Path("mrope_section"), *root.Find("mrope_section"), "have 3 entries");
  }
  config->axes = 3;
  for (size_t a = 0; a < sections->size(); ++a) {
    config->mrope_section[a] =
        static_cast<int32_t>(ToInteger(root.Path("mrope_section"), (*sections)[a], 0, kMaxPairs));
  }
}

void FillScaling(const Dict& root, rope_config* config) {
  const auto interpolation = root.Positive("rotary_seq_len_interpolation_factor").value_or(1);
  const bool llama = root.Bool("use_rope_scaling").value_or(false);
  const auto factor = root.Positive("rope_scaling_factor");
  if (llama && interpolation != 1) {
    Reject(ROPE_ERROR_UNSUPPORTED, "%s (true) must be false beside %s in this version",
           root.Path("use_rope_scaling").c_str(), "rotary_seq_len_interpolation_factor");
  }
  if (interpolation != 1) {
    config->scaling = ROPE_SCALING_LINEAR;
    config->factor = interpolation;
  }
  if (!llama) return;
  if (!factor) root.RejectMissing("rope_scaling_factor", "use_rope_scaling is true");
  config->scaling = ROPE_SCALING_LLAMA3;
  config->factor = *factor;
  config->low_freq_factor = 1;
  config->high_freq_factor = 4;
  config->original_max_position_embeddings = 8192;
}

void FillHead(const Dict& root, std::string_view kind, rope_config* config) {
  config->head_dim = HeadOf(root, "kv_channels", "hidden_size", "num_attention_heads");
  const bool neighbours = root.Bool("rotary_interleaved").value_or(false);
  config->pairing = neighbours ? ROPE_PAIRING_INTERLEAVED : ROPE_PAIRING_HALVES;
  IgnoreOf(root, {"rope_type", "rotary_scaling_factor", "mscale", "mscale_all_dim", "beta_fast",
                  "beta_slow"});  // of latent attention
  FillSpan(root, config);
  if (kind != "yarn") {
    FillScaling(root, config);
    if (kind == "mrope") {
      FillSections(root, config);
    } else {
      IgnoreOf(root, {"mrope_section"});
    }
    return;
  }
  IgnoreOf(root, {"use_rope_scaling", "rope_scaling_factor", "rotary_seq_len_interpolation_factor",
                  "mrope_section"});
  if (config->rotary_dim != 0 || neighbours) {
    Reject(ROPE_ERROR_UNSUPPORTED, "%s (\"yarn\") must go with rotary_percent 1, in halves",
           root.Path("position_embedding_type").c_str());
  }
  constexpr char kFactor[] = "yarn_rotary_scaling_factor";
  if (root.Find(kFactor) == nullptr) {
    root.RejectMissing(kFactor,
                       "position_embedding_type is \"yarn\", and rotary_scaling_factor is "
                       "of multi_latent_attention");
  }
  FillYarn(root, config);
  const auto rounds = root.Bool("yarn_correction_range_round_to_int");
  if (!rounds) root.RejectMissing("yarn_correction_range_round_to_int", kNeeded);
  config->yarn_no_truncate = *rounds ? 0 : 1;
}

// Layers that are no attention, or another kind of it.
void RejectHybrids(const Dict& root) {
  if (root.Bool("is_hybrid_model").value_or(false)) {
    Reject(ROPE_ERROR_UNSUPPORTED,
           "%s (true) must be false: hybrid models are not read in this version",
           root.Path("is_hybrid_model").c_str());
  }
  for (const char* key :
       {"hybrid_override_pattern", "hybrid_layer_pattern", "experimental_attention_variant"}) {
    if (root.Peek(key) == nullptr) continue;
    Reject(ROPE_ERROR_UNSUPPORTED,
           "%s (%s) must be null: hybrid models are not read in this version",
           root.Path(key).c_str(), Show(*root.Peek(key)).c_str());
  }
}

// One layer in so many, or a list with 1 for each layer without RoPE.
std::vector<bool> LayersWithoutRope(const Dict& root) {
  constexpr char kKey[] = "no_rope_freq";
  const int64_t layers = Required(root, "num_layers", 1, kMaxLayers, kNeeded);
  const Value* given = root.Find(kKey);
  const auto* list = given != nullptr ? given->As<Value::Array>() : nullptr;
  if (list == nullptr) return LastOf(root.Integer(kKey, 0, kMaxLayers).value_or(0), layers);
  if (list->size() != static_cast<size_t>(layers)) {
    Reject(ROPE_ERROR_PARSE, "%s must have an entry for each of num_layers (%lld)",
           root.Path(kKey).c_str(), static_cast<long long>(layers));
  }
  std::vector<bool> without;
  for (const Value& entry : *list) {
    without.push_back(ToInteger(root.Path(kKey), entry, 0, 1) != 0);
  }
  return without;
}

void Read(const Dict& root, ParsedModel* out) {
  constexpr char kKind[] = "position_embedding_type";
  const auto kind = root.String(kKind);
  if (!kind) root.RejectMissing(kKind, kNeeded);
  const bool latent = root.Bool("multi_latent_attention").value_or(false);
  if (*kind != "rope" && (latent || (*kind != "yarn" && *kind != "mrope"))) {
    RejectValue(root.Path(kKind), *root.Find(kKind),
                latent ? "be \"rope\" with multi_latent_attention"
                       : "be \"rope\", \"yarn\" or \"mrope\": other kinds do not rotate");
  }
  RejectHybrids(root);
  IgnoreOf(root, {"dsa_indexer_rope_interleaved"});  // of a variant, which is refused
  // An older word for position_embedding_type, which goes before it.
  if (root.Bool("use_rotary_position_embeddings").value_or(false) && *kind != "rope") {
    RejectValue(root.Path("use_rotary_position_embeddings"),
                *root.Find("use_rotary_position_embeddings"),
                "be false beside position_embedding_type \"" + std::string(*kind) + "\"");
  }
  LayerType type;
  type.name = kFull;
  rope_config& config = type.config;
  config.theta = Positive(root, "rotary_base");
  if (latent) {
    FillLatent(root, &config);
  } else {
    FillHead(root, *kind, &config);
  }
  // Transformer Engine's kernel rounds once. Megatron has it for "rope" alone, and the kernels of
  // latent attention were not looked at.
  const bool fused = root.Bool("apply_rope_fusion").value_or(true) && !latent && *kind == "rope";
  config.rounding = fused ? ROPE_ROUNDING_FLOAT32 : ROPE_ROUNDING_EAGER;
  out->types.push_back(std::move(type));
  AssignLayers(LayersWithoutRope(root), out);
}

}  // namespace

const Dialect kMegatronArgs = {"Megatron-LM's arguments", "", &IsMegatronArgs, &Read};

}  // namespace rope::model
