#include "model/layers.h"

#include <algorithm>
#include <map>
#include <string>

namespace rope::model {
namespace {

// num_hidden_layers in the words of all families, 0 if absent. Attention layers, that is: LongCat's
// num_layers are two of them each, and HRM goes through its two stacks H_cycles * (L_cycles + 1)
// times, with a key and value cache for each.
int LayerCount(const Dict& text, const Family* family) {
  const std::string_view name = family != nullptr ? family->model_type : "";
  int64_t times = 1;
  if (name == "longcat_flash" && text.Find("num_hidden_layers") == nullptr) times = 2;
  if (name == "hrm_text" && text.Find("num_layers_per_stack") == nullptr) {
    constexpr int64_t kMaxCycles = 256;
    times = text.Integer("H_cycles", 1, kMaxCycles).value_or(2) *
            (text.Integer("L_cycles", 1, kMaxCycles).value_or(3) + 1);
  }
  const int64_t count = text.FirstInteger({"num_hidden_layers", "n_layer", "n_layers", "num_layers",
                                           "decoder_num_hidden_layers"},
                                          1, kMaxLayers)
                            .value_or(0);
  return static_cast<int>(std::min<int64_t>(times * count, kMaxLayers));
}

std::string Entry(const Dict& text, std::string_view key, size_t i) {
  return text.Path(key) + "[" + std::to_string(i) + "]";
}

std::string_view StringAt(const Dict& text, std::string_view key, const Value::Array& list,
                          size_t i) {
  const auto* label = list[i].As<std::string>();
  if (label == nullptr) RejectValue(Entry(text, key, i), list[i], "be a string");
  return *label;
}

// 0 or 1, or false or true.
bool FlagAt(const Dict& text, std::string_view key, const Value::Array& list, size_t i) {
  if (const auto* flag = list[i].As<bool>()) return *flag;
  return ToInteger(Entry(text, key, i), list[i], 0, 1) != 0;
}

// A list with an entry for each of `count` layers; entries beyond them belong to extra layers
// (multi-token prediction) and are ignored. `count` 0: the list decides.
int Covered(const Dict& text, std::string_view key, const Value::Array& list, int count) {
  if (count == 0) count = static_cast<int>(std::min<size_t>(list.size(), kMaxLayers));
  if (count == 0 || list.size() < static_cast<size_t>(count)) {
    Reject(ROPE_ERROR_PARSE, "%s has %zu entries and must have one for each of %d layers",
           text.Path(key).c_str(), list.size(), std::max(count, 1));
  }
  return count;
}

bool IsAttention(std::string_view label) {
  for (std::string_view other : {"linear_attention", "conv", "mamba", "mamba2", "recurrent", "mlp",
                                 "moe", "gated_deltanet", "lightning_attention"}) {
    if (label == other) return false;
  }
  return true;
}

// A list of layers by number, such as the layers that are attention or cross-attention.
void MarkListed(const Dict& text, std::string_view key, bool listed_are_nope,
                std::vector<std::string_view>* labels) {
  const Value::Array* list = text.Array(key);
  if (list == nullptr) return;
  std::vector<bool> listed(labels->size());
  for (size_t i = 0; i < list->size(); ++i) {
    const auto layer =
        static_cast<size_t>(ToInteger(Entry(text, key, i), (*list)[i], 0, kMaxLayers));
    if (layer < listed.size()) listed[layer] = true;
  }
  for (size_t i = 0; i < listed.size(); ++i) {
    if (listed[i] == listed_are_nope) (*labels)[i] = kNope;
  }
}

// EXAONE 4 without a sliding window has RoPE in every layer.
bool HasNoWindow(const Dict& text, const Family* family) {
  return std::string_view(family->model_type).substr(0, 6) == "exaone" &&
         text.Mentions("sliding_window") && text.Find("sliding_window") == nullptr;
}

// The pattern of sliding and full layers. `count` 0: unknown.
std::vector<std::string_view> PatternLabels(const Dict& text, const Family* family, int count) {
  std::vector<std::string_view> labels(count != 0 ? count : kMaxLayers, kFull);
  const auto set = [&labels](auto is_full) {
    for (size_t i = 0; i < labels.size(); ++i) labels[i] = is_full(i) ? kFull : kSliding;
  };
  size_t period = family->period;
  for (const char* key : {"sliding_window_pattern", "_sliding_window_pattern",
                          "global_attn_every_n_layers", "full_attention_interval"}) {
    const Value* value = text.Find(key);
    if (value == nullptr) continue;
    if (const auto* letters =
            value->As<std::string>()) {  // "LLLG": local, global; the last is full
      if (letters->empty() || letters->find_first_not_of("LG") != std::string::npos) {
        RejectValue(text.Path(key), *value, "consist of the letters L and G");
      }
      if (count == 0) return {};
      set([&](size_t i) {
        return i + 1 == labels.size() || (*letters)[i % letters->size()] == 'G';
      });
      return labels;
    }
    period = static_cast<size_t>(ToInteger(text.Path(key), *value, 1, kMaxLayers));
    break;
  }
  if (period == 0 || (family->layers == Layers::kLastForced && count == 0)) return {};
  switch (family->layers) {
    case Layers::kFirstOfPeriod: set([period](size_t i) { return i % period == 0; }); break;
    case Layers::kFirstAndLast:
      set([period](size_t i) { return i == 0 || (i + 1) % period == 0; });
      break;
    case Layers::kFirstTwo: set([period](size_t i) { return i == 0 || i % period == 1; }); break;
    case Layers::kLastForced:
      set([&](size_t i) { return (i + 1) % period == 0 || i + 1 == labels.size(); });
      break;
    default: set([period](size_t i) { return (i + 1) % period == 0; }); break;
  }
  return labels;
}

std::vector<std::string_view> ListedLabels(const Dict& text, std::string_view key,
                                           const Value::Array& list, int count, bool cyclic) {
  const int covered =
      cyclic && !list.empty() ? std::max(count, 1) : Covered(text, key, list, count);
  std::vector<std::string_view> labels(covered);
  for (size_t i = 0; i < labels.size(); ++i) {
    const std::string_view label = StringAt(text, key, list, i % list.size());
    labels[i] = IsAttention(label) ? label : kNope;
  }
  return labels;
}

std::vector<std::string_view> FlaggedLabels(const Dict& text, std::string_view key,
                                            const Value::Array& list, int count,
                                            std::string_view if_set, std::string_view if_not) {
  std::vector<std::string_view> labels(Covered(text, key, list, count));
  for (size_t i = 0; i < labels.size(); ++i) {
    labels[i] = FlagAt(text, key, list, i) ? if_set : if_not;
  }
  return labels;
}

// no_rope_layers: despite the name 1 means that the layer has RoPE.
std::vector<std::string_view> NoRopeLabels(const Dict& text, const Family* family, int count) {
  const Value::Array* list = text.Array("no_rope_layers");
  if (list != nullptr && !list->empty()) {
    return FlaggedLabels(text, "no_rope_layers", *list, count, kFull, kNope);
  }
  const int64_t class_default = family != nullptr ? family->period : 0;
  const int64_t interval =
      text.Integer("no_rope_layer_interval", 1, kMaxLayers).value_or(class_default);
  std::vector<std::string_view> labels(count != 0 ? count : kMaxLayers, kFull);
  for (size_t i = 0; interval != 0 && i < labels.size(); ++i) {
    if ((i + 1) % static_cast<size_t>(interval) == 0) labels[i] = kNope;
  }
  return labels;
}

// Muse: the pattern counts from the last layer.
std::vector<std::string_view> FromLastLabels(const Family* family, int count) {
  std::vector<std::string_view> labels(static_cast<size_t>(count), kFull);
  for (size_t i = 0; i < labels.size(); ++i) {
    if ((labels.size() - 1 - i) % static_cast<size_t>(family->period) == 0) labels[i] = kNope;
  }
  return labels;
}

// DeepSeek-V4: compress_ratios, or the names that transformers gives the layers.
std::vector<std::string_view> CompressedLabels(const Dict& text, int count) {
  const Value::Array* ratios = text.Array("compress_ratios");
  const Value::Array* types = text.Array("layer_types");
  if (ratios == nullptr && types == nullptr) return {};
  const std::string_view key = ratios != nullptr ? "compress_ratios" : "layer_types";
  const Value::Array& list = ratios != nullptr ? *ratios : *types;
  std::vector<std::string_view> labels(Covered(text, key, list, count));
  for (size_t i = 0; i < labels.size(); ++i) {
    const bool compressed = ratios != nullptr
                                ? ToInteger(Entry(text, key, i), list[i], 0, 1 << 30) != 0
                                : StringAt(text, key, list, i) != kSliding;
    labels[i] = compressed ? kCompress : kMain;
  }
  return labels;
}

}  // namespace

std::map<std::string_view, Dict> LayerOverrides(const Dict& text,
                                                const std::vector<std::string_view>& labels) {
  std::map<std::string_view, Dict> overrides;
  const Dict all = text.Child("per_layer_config");
  if (!all.exists()) return overrides;
  std::vector<Dict> layers(labels.size());
  for (const auto& [key, value] : all.members()) {
    size_t layer = 0;
    bool number = !key.empty() && key.size() < 6;
    for (char c : key) {
      number = number && c >= '0' && c <= '9';
      layer = layer * 10 + static_cast<size_t>(c - '0');
    }
    if (number && layer < layers.size() && !value.IsNull()) layers[layer] = all.Child(key);
  }
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] == kNope) continue;
    const Dict& first = overrides.emplace(labels[i], layers[i]).first->second;
    for (const char* key : {"head_dim", "qk_nope_head_dim", "qk_rope_head_dim"}) {
      if (layers[i].Integer(key, 1, kMaxLayers) == first.Integer(key, 1, kMaxLayers)) continue;
      Reject(ROPE_ERROR_UNSUPPORTED, "%s must give all layers of the type \"%s\" the same %s",
             text.Path("per_layer_config").c_str(), Printable(labels[i]).c_str(), key);
    }
  }
  return overrides;
}

std::vector<double> LayerThetas(const Dict& text, const Family* family) {
  const Value::Array* list = text.Array("layer_rope_theta");
  std::vector<double> thetas;
  if (list == nullptr) return thetas;
  thetas.resize(Covered(text, "layer_rope_theta", *list, LayerCount(text, family)));
  for (size_t i = 0; i < thetas.size(); ++i) {
    const std::string path = Entry(text, "layer_rope_theta", i);
    thetas[i] = (*list)[i].IsNull() ? 0 : ToNumber(path, (*list)[i]);
    if (thetas[i] < 0) RejectValue(path, (*list)[i], "be positive, or 0 for a layer without RoPE");
  }
  return thetas;
}

std::vector<std::string_view> LayerLabels(const Dict& text, const Family* family) {
  const int count = LayerCount(text, family);
  const Layers rule = family != nullptr ? family->layers : Layers::kUniform;
  if (rule == Layers::kNone) {
    return std::vector<std::string_view>(count != 0 ? count : kMaxLayers, kNope);
  }
  if (rule == Layers::kFromLast) return FromLastLabels(family, count);
  if (rule == Layers::kCompressed) return CompressedLabels(text, count);
  const bool no_rope_list = family == nullptr && text.Find("no_rope_layers") != nullptr;
  if (rule == Layers::kNoRopeLayers || no_rope_list) return NoRopeLabels(text, family, count);

  std::vector<std::string_view> labels;
  const Value::Array* flags = nullptr;
  const bool pattern = rule != Layers::kUniform;
  if (const Value::Array* list = text.Array("layer_types")) {
    labels = ListedLabels(text, "layer_types", *list, count, false);
  } else if (const Value::Array* blocks = text.Array("layers_block_type")) {
    labels = ListedLabels(text, "layers_block_type", *blocks, count, false);
  } else if (const Value::Array* cycle = text.Array("block_types")) {  // RecurrentGemma
    labels = ListedLabels(text, "block_types", *cycle, count != 0 ? count : kMaxLayers, true);
  } else if (rule == Layers::kFirstAndLast && (flags = text.Array("hybrid_layer_pattern"))) {
    labels = FlaggedLabels(text, "hybrid_layer_pattern", *flags, count, kSliding, kFull);
  } else if ((flags = text.Array("attn_type_list"))) {  // MiniMax-Text-01
    labels = FlaggedLabels(text, "attn_type_list", *flags, count, kFull, kNope);
  } else if (pattern) {
    labels = PatternLabels(text, family, count);
  } else {
    labels.assign(count != 0 ? count : kMaxLayers, kFull);
    MarkListed(text, "attn_layer_indices", false, &labels);  // Bamba, whose other layers are Mamba
    if (family != nullptr && std::string_view(family->model_type) == "bamba" &&
        text.Find("attn_layer_indices") == nullptr) {
      std::fill(labels.begin(), labels.end(), kNope);
    }
    MarkListed(text, "full_attn_idxs", false, &labels);         // LFM2
    MarkListed(text, "cross_attention_layers", true, &labels);  // Llama 3.2 Vision
  }
  if (rule == Layers::kFullIsNope) {
    const bool no_window = HasNoWindow(text, family);
    for (std::string_view& label : labels) {
      if (no_window)
        label = kSliding;
      else if (label == kFull)
        label = kNope;
    }
  }
  if (rule == Layers::kLinearHybrid) {
    std::replace(labels.begin(), labels.end(), kSliding, kNope);  // the pattern's other layers
  }
  return labels;
}

}  // namespace rope::model
