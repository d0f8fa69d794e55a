#include "model/axes.h"

#include <string>

#include "base/limits.h"
#include "context/scaling_rules.h"

namespace rope::model {
namespace {

// ERNIE 4.5 VL lists its sections as h, w, t, alternates h and w pair by pair, and ends with t.
// Ids are in the usual order t, h, w.
void FillErnie(const int32_t (&section)[4], LayerType* type) {
  const int alternating = section[0] + section[1];
  for (int i = 0; i < alternating + section[2]; ++i) {
    type->pair_axis.push_back(i >= alternating ? 0 : i % 2 == 0 ? 1 : 2);
  }
}

// The channels in which pairs lie, 0 if a bare dictionary leaves that to the caller. The pairs of
// PROPORTIONAL span the whole head, also those that stand still.
int PairSpan(const rope_config& config) {
  return config.rotary_dim != 0 && !kScalingRules[config.scaling].Is(kWholeHead) ? config.rotary_dim
                                                                                 : config.head_dim;
}

// A class that orders its sections in one way must not be told another one.
bool IsInterleaved(const RopeKeys& keys, Axes rule) {
  const bool of_class = rule == Axes::kInterleaved;
  if (rule == Axes::kOne) return keys.dict.Bool("mrope_interleaved").value_or(false);
  for (const char* key : {"mrope_interleaved", "interleaved"}) {  // Qwen3-Omni has the second
    if (keys.dict.Bool(key).value_or(of_class) == of_class) continue;
    RejectValue(keys.dict.Path(key), *keys.dict.Find(key),
                of_class ? "be true in this model" : "be false in this model");
  }
  return of_class;
}

// Even pairs turn by the first id, odd ones by the second.
void FillAlternating(LayerType* type) {
  type->config.axes = 2;
  for (int i = 0; i < PairSpan(type->config) / 2; ++i) {
    type->pair_axis.push_back(static_cast<uint8_t>(i % 2));
  }
}

}  // namespace

void FillAxes(const RopeKeys& keys, bool named_mrope, LayerType* type) {
  rope_config& config = type->config;
  const Family* family = keys.family;
  const Axes rule = family != nullptr ? family->axes : Axes::kOne;
  int32_t section[4] = {};
  int axes = 0;
  if (rule == Axes::kAlternating) {
    FillAlternating(type);
    return;
  }

  const char* key =
      keys.dict.Find("xdrope_section") != nullptr ? "xdrope_section" : "mrope_section";
  if (const Value::Array* list = keys.dict.Array(key)) {
    axes = static_cast<int>(list->size());
    const int most = rule == Axes::kInterleaved || rule == Axes::kErnie ? 3 : 4;
    if (axes < 1 || axes > most) {
      Reject(ROPE_ERROR_PARSE, "%s has %d entries and must have from 1 to %d",
             keys.dict.Path(key).c_str(), axes, most);
    }
    for (int a = 0; a < axes; ++a) {
      const std::string path = keys.dict.Path(key) + "[" + std::to_string(a) + "]";
      section[a] = static_cast<int32_t>(ToInteger(path, (*list)[a], 0, kMaxPairs));
    }
  } else if (family != nullptr && family->section[0] != 0) {
    axes = 3;
    for (int a = 0; a < 3; ++a) section[a] = family->section[a];
  } else if (named_mrope || (rule != Axes::kOne)) {
    // An alias in rope_type, or a class that cannot run without sections.
    keys.dict.RejectMissing("mrope_section", "it tells which id turns which pairs");
  }
  if (rule != Axes::kOne && !keys.text.Bool("rope_3d").value_or(true)) {
    RejectValue(keys.text.Path("rope_3d"), *keys.text.Find("rope_3d"), "be true in this model");
  }
  const int span = PairSpan(config);
  const int sum = section[0] + section[1] + section[2] + section[3];
  if (axes != 0 && span != 0 && sum != span / 2) {
    Reject(ROPE_ERROR_PARSE, "%s adds up to %d and must add up to the number of pairs, %d",
           keys.dict.Path(key).c_str(), sum, span / 2);
  }
  if (axes < 2) return;
  if (rule == Axes::kErnie) {
    if (config.scaling != ROPE_SCALING_DEFAULT) {
      Reject(ROPE_ERROR_UNSUPPORTED, "%s: this model has no scaled rope_type",
             keys.dict.Path("rope_type").c_str());
    }
    config.axes = 3;
    FillErnie(section, type);
    return;
  }
  config.axes = axes;
  config.mrope_interleaved = IsInterleaved(keys, rule) ? 1 : 0;
  if (config.mrope_interleaved != 0 && axes > 3) {
    Reject(ROPE_ERROR_UNSUPPORTED, "%s has %d entries and must have at most 3 if interleaved",
           keys.dict.Path(key).c_str(), axes);
  }
  for (int a = 0; a < axes; ++a) config.mrope_section[a] = section[a];
}

}  // namespace rope::model
