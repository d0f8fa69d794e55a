#include "model/own_keys.h"

#include <string>

#include "context/scaling_rules.h"

namespace rope::model {
namespace {

// Qwen 1: theta grows in steps with the length of the sequence, unless the file says otherwise.
void FillSteps(const Dict& text, rope_config* config) {
  if (!text.Bool("use_dynamic_ntk").value_or(true)) return;
  if (config->scaling != ROPE_SCALING_DEFAULT) {
    Reject(ROPE_ERROR_UNSUPPORTED, "%s (true) must be false beside a rope_type",
           text.Path("use_dynamic_ntk").c_str());
  }
  const auto length = text.Integer("seq_length", 1, kMaxLength);
  if (!length) text.RejectMissing("seq_length", "use_dynamic_ntk is true, or absent");
  config->scaling = ROPE_SCALING_DYNAMIC_STEPS;
  config->factor = 2;
  config->max_position_embeddings = *length;
}

// InternLM 1 has a dictionary of its own: {"base": 10000, "type": "dynamic", "scaling_factor":
// 1}. Without it, it is read as the Llama that engines run it as.
void FillRotary(const Dict& text, rope_config* config) {
  if (text.Find("rotary") == nullptr) return;
  const Dict rotary = text.Child("rotary");
  if (config->scaling != ROPE_SCALING_DEFAULT) {
    Reject(ROPE_ERROR_UNSUPPORTED, "%s must be absent beside a rope_type",
           text.Path("rotary").c_str());
  }
  const auto type = rotary.String("type");
  if (!type) rotary.RejectMissing("type", "it decides the scaling");
  if (*type != "origin" && *type != "dynamic") {
    RejectValue(rotary.Path("type"), *rotary.Find("type"), "be \"origin\" or \"dynamic\"");
  }
  if (const auto base = rotary.Positive("base")) config->theta = *base;
  if (*type == "origin") return;
  const auto length = text.Integer("max_position_embeddings", 1, kMaxLength);
  if (!length) text.RejectMissing("max_position_embeddings", "rotary.type is \"dynamic\"");
  config->scaling = ROPE_SCALING_DYNAMIC;
  config->factor = rotary.Positive("scaling_factor").value_or(1);
  config->max_position_embeddings = *length;
}

// Grok: the numbers beside "original" are of its other types.
void CheckOriginalType(const Dict& text) {
  constexpr char kType[] = "rope_type";
  for (const char* key :
       {"scaling_factor", "extrapolation_factor", "attn_factor", "beta_fast", "beta_slow"}) {
    text.Find(key);
  }
  if (text.String(kType).value_or("original") == "original") return;
  Reject(ROPE_ERROR_UNSUPPORTED, "%s (%s) must be \"original\" in this version",
         text.Path(kType).c_str(), Show(*text.Find(kType)).c_str());
}

// K2 Horizon: pairs of the whole head, of which the first ones turn, by the frequencies of a head
// that has no others.
void FillRopeHeadDim(const Dict& text, LayerType* type) {
  constexpr char kKey[] = "rope_head_dim";
  rope_config& config = type->config;
  const int head_dim = config.head_dim;
  const auto width = text.Integer(kKey, 2, head_dim);
  if (!width || *width == head_dim) return;
  if (*width % 2 != 0) RejectValue(text.Path(kKey), *text.Find(kKey), "be even");
  if (DependsOnLength(config.scaling)) {
    Reject(ROPE_ERROR_UNSUPPORTED,
           "%s (%lld) below head_dim (%d) is offered for rope types that do not depend on the "
           "length",
           text.Path(kKey).c_str(), static_cast<long long>(*width), head_dim);
  }
  config.rotary_dim = static_cast<int32_t>(*width);
  TabulateFrequencies(type, false);
  config.rotary_dim = 0;
  type->inv_freq.resize(static_cast<size_t>(head_dim) / 2);
}

}  // namespace

void FinishAsFamily(const Dict& text, const Dict& dict, const Family& family, LayerType* type) {
  if (family.own_keys == OwnKeys::kDynamicNtk) FillSteps(text, &type->config);
  if (family.own_keys == OwnKeys::kRotary) FillRotary(text, &type->config);
  if (family.own_keys == OwnKeys::kOriginalType) CheckOriginalType(text);
  if (family.own_keys == OwnKeys::kRopeHeadDim) FillRopeHeadDim(text, type);
  type->config.inv_freq_dtype = family.inv_freq_dtype;
  if (family.style == Style::kHalvesNegated) {
    if (DependsOnLength(type->config.scaling)) {
      Reject(ROPE_ERROR_UNSUPPORTED,
             "%s: this model's angles are negative, which this version "
             "offers for rope types that do not depend on the length",
             dict.Path("rope_type").c_str());
    }
    TabulateFrequencies(type, true);
  }
}

}  // namespace rope::model
