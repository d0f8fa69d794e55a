// Mistral's params.json, which comes with the consolidated weights.
//
// Sources: mistral_inference/{args,rope,vision_encoder}.py of the package mistral-inference 1.6.0,
// and for YaRN and latent attention, which that does not have, vLLM's
// transformers_utils/configs/mistral.py. Pairs are neighbours (view_as_complex), in f32, whatever
// the weights are in.
#include <string>
#include <utility>

#include "base/limits.h"
#include "model/axes.h"
#include "model/dialects.h"
#include "model/layers.h"
#include "model/unread.h"

namespace rope::model {
namespace {

bool IsMistralParams(const Dict& root) {
  const Value* kind = root.Peek("model_type");
  const auto* name = kind != nullptr ? kind->As<std::string>() : nullptr;
  if (kind != nullptr && (name == nullptr || *name != "transformer")) return false;
  const bool sizes = root.Peek("dim") != nullptr && root.Peek("n_layers") != nullptr &&
                     root.Peek("n_heads") != nullptr;
  return sizes && root.Peek("hidden_dim") != nullptr;
}

// {"factor", "original_max_position_embeddings", "beta", "alpha", "apply_scale"}
void FillYarn(const Dict& root, bool latent, rope_config* config) {
  if (root.Find("yarn") == nullptr) return;
  const Dict yarn = root.Child("yarn");
  const auto number = [&yarn](const char* key) {
    const auto value = yarn.Positive(key);
    if (!value) yarn.RejectMissing(key, "the scaling needs it");
    return *value;
  };
  config->scaling = ROPE_SCALING_YARN;
  config->factor = number("factor");
  config->original_max_position_embeddings =
      Required(yarn, "original_max_position_embeddings", 1, kMaxLength, "the scaling needs it");
  config->beta_fast = number("beta");
  config->beta_slow = number("alpha");
  const auto scales = yarn.Bool("apply_scale");
  if (!scales) yarn.RejectMissing("apply_scale", "it decides the attention factor");
  if (*scales && latent) {
    RejectValue(yarn.Path("apply_scale"), *yarn.Find("apply_scale"),
                "be false with latent attention in this version");
  }
  if (!*scales) config->attention_factor = 1;
  RejectUnreadOfRope(yarn, false);
}

// Latent attention has keys of its own, which other models have with the value null.
bool FillHead(const Dict& root, rope_config* config) {
  const auto rotated = root.Integer("qk_rope_head_dim", 2, kMaxHeadDim);
  const auto still = root.Integer("qk_nope_head_dim", 1, kMaxHeadDim);
  if (!rotated && !still) {
    config->head_dim = HeadOf(root, "head_dim", "dim", "n_heads");
    return false;
  }
  if (!rotated) root.RejectMissing("qk_rope_head_dim", "qk_nope_head_dim is there");
  if (!still) root.RejectMissing("qk_nope_head_dim", "qk_rope_head_dim is there");
  if (*rotated % 2 != 0 || *rotated + *still > kMaxHeadDim) {
    RejectValue(root.Path("qk_rope_head_dim"), *root.Find("qk_rope_head_dim"),
                "be even, and with qk_nope_head_dim at most " + std::to_string(kMaxHeadDim));
  }
  config->head_dim = static_cast<int32_t>(*rotated + *still);
  config->rotary_dim = static_cast<int32_t>(*rotated);
  config->rotary_offset = static_cast<int32_t>(*still);
  return true;
}

// A tower of pixtral's kind: rows turn the first half of the pairs, by every other frequency,
// columns the second half, by the others. multimodal.vision_encoder_args is the newer place.
void AddTower(const Dict& tower, ParsedModel* out) {
  if (!tower.exists()) return;
  LayerType type;
  type.name = "vision";
  rope_config& config = type.config;
  config.head_dim = QuotientOf(tower, "hidden_size", "num_attention_heads");
  if (config.head_dim % 4 != 0) {
    Reject(ROPE_ERROR_PARSE, "%s / num_attention_heads (%d) must be a multiple of 4",
           tower.Path("hidden_size").c_str(), config.head_dim);
  }
  config.pairing = ROPE_PAIRING_INTERLEAVED;
  config.theta = tower.Positive("rope_theta").value_or(10000);
  const int pairs = config.head_dim / 2, half = pairs / 2;
  const auto all = DefaultFrequencies(type.name, config.theta, config.head_dim);
  for (int i = 0; i < pairs; ++i) {
    type.inv_freq.push_back(all[static_cast<size_t>(i < half ? 2 * i : 2 * (i - half) + 1)]);
  }
  config.table_length = pairs;
  SetImageAxes(2, &config);
  config.mrope_section[0] = config.mrope_section[1] = half;
  RejectUnread(tower);
  out->types.push_back(std::move(type));
}

void Read(const Dict& root, ParsedModel* out) {
  LayerType type;
  type.name = kFull;
  rope_config& config = type.config;
  const bool latent = FillHead(root, &config);
  config.pairing = ROPE_PAIRING_INTERLEAVED;
  // The code's default has been 10000 and is 1000000; Mistral 7B v0.1 has no such key.
  const auto theta = root.Positive("rope_theta");
  if (!theta)
    root.RejectMissing("rope_theta", "versions of Mistral's code have different defaults");
  config.theta = *theta;
  FillYarn(root, latent, &config);
  out->types.push_back(std::move(type));
  const int64_t layers = Required(root, "n_layers", 1, kMaxLayers, "it counts the layers");
  out->layers.assign(static_cast<size_t>(layers), 0);
  const Dict multimodal = root.Child("multimodal");
  const Dict older = root.Child("vision_encoder");
  const Dict newer = multimodal.Child("vision_encoder_args");
  if (older.exists() && newer.exists()) {
    Reject(ROPE_ERROR_UNSUPPORTED, "%s and %s must not both be there: the model has one tower",
           older.Name().c_str(), newer.Name().c_str());
  }
  AddTower(older, out);
  AddTower(newer, out);
  RejectUnread(root.Child("moe"), root);
  if (multimodal.exists()) RejectUnread(multimodal, root);
  if (multimodal.Peek("whisper_model_args") != nullptr) {
    out->notes.push_back(multimodal.Path("whisper_model_args") +
                         " is not used: it is of the audio tower, which is not read");
  }
}

}  // namespace

const Dialect kMistralParams = {"Mistral's params.json",
                                ": pairs are neighbours, as in Mistral's consolidated weights",
                                &IsMistralParams, &Read};

}  // namespace rope::model
