#include "model/layers.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <string>
#include <system_error>
#include <utility>

#include "model/unread.h"

namespace rope::model {
namespace {

// num_hidden_layers in the words of all families, 0 if absent. Attention layers, that is: LongCat's
// num_layers are two of them each, and HRM goes through its two stacks H_cycles * (L_cycles + 1)
// times, with a key and value cache for each.
int LayerCount(const Dict& text, const Family* family) {
  int64_t times = 1;
  if (family != nullptr && text.Find("num_hidden_layers") == nullptr) times = family->layers_each;
  const bool cycles = family != nullptr && family->own_keys == OwnKeys::kCycles;
  if (cycles && text.Find("num_layers_per_stack") == nullptr) {
    constexpr int64_t kMaxCycles = 256;
    times = text.Integer("H_cycles", 1, kMaxCycles).value_or(2) *
            (text.Integer("L_cycles", 1, kMaxCycles).value_or(3) + 1);
  }
  const int64_t count = times * text.FirstInteger({"num_hidden_layers", "n_layer", "n_layers",
                                                   "num_layers", "decoder_num_hidden_layers"},
                                                  1, kMaxLayers)
                                    .value_or(0);
  if (count > kMaxLayers) {
    Reject(ROPE_ERROR_PARSE, "%s gives %lld attention layers and must give at most %d",
           text.Path(text.Find("num_hidden_layers") ? "num_hidden_layers" : "num_layers").c_str(),
           static_cast<long long>(count), kMaxLayers);
  }
  return static_cast<int>(count);
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
  if (count == 0 && list.size() > kMaxLayers) {
    Reject(ROPE_ERROR_PARSE, "%s has %zu entries and must have at most %d", text.Path(key).c_str(),
           list.size(), kMaxLayers);
  }
  if (count == 0) count = static_cast<int>(list.size());
  if (count == 0 || list.size() < static_cast<size_t>(count)) {
    Reject(ROPE_ERROR_PARSE, "%s has %zu entries and must have one for each of %d layers",
           text.Path(key).c_str(), list.size(), std::max(count, 1));
  }
  return count;
}

bool IsAttention(std::string_view label) {
  for (std::string_view other :
       {"linear_attention", "conv", "jet", "mamba", "mamba2", "recurrent", "mlp", "moe",
        "gated_deltanet", "lightning_attention", "gla", "kda"}) {
    if (label == other) return false;
  }
  return true;
}

// A list of layers by number, such as the layers that are attention or cross-attention.
void MarkListed(const Dict& text, std::string_view key, bool listed_are_nope,
                std::vector<std::string_view>* labels) {
  if (text.Array(key) == nullptr) return;
  const std::set<int64_t> listed = ListedLayers(text, key);
  for (size_t i = 0; i < labels->size(); ++i) {
    if ((listed.count(static_cast<int64_t>(i)) != 0) == listed_are_nope) (*labels)[i] = kNope;
  }
}

// The pattern of sliding and full layers. `count` 0: unknown.
std::vector<std::string_view> PatternLabels(const Dict& text, const Family* family, int count) {
  std::vector<std::string_view> labels(count != 0 ? count : kMaxLayers, kFull);
  const auto set = [&labels](auto is_full) {
    for (size_t i = 0; i < labels.size(); ++i) labels[i] = is_full(i) ? kFull : kSliding;
  };
  size_t period = family->period;
  for (const char* key :
       {"sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers",
        "full_attention_interval", "layer_group_size"}) {
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

// UltraBERT: windows of so many tokens, none in layers that see all.
std::vector<std::string_view> WindowLabels(const Dict& text, std::string_view key,
                                           const Value::Array& list, int count) {
  std::vector<std::string_view> labels(Covered(text, key, list, count));
  for (size_t i = 0; i < labels.size(); ++i) {
    const bool window =
        !list[i].IsNull() && ToInteger(Entry(text, key, i), list[i], 0, kMaxLength) != 0;
    labels[i] = window ? kSliding : kFull;
  }
  return labels;
}

// no_rope_layers: despite the name 1 means that the layer has RoPE.
std::vector<std::string_view> NoRopeLabels(const Dict& text, const Family* family, int count) {
  const auto by_interval = [](int64_t interval, size_t layers) {
    std::vector<std::string_view> labels(layers, kFull);
    for (size_t i = 0; interval != 0 && i < labels.size(); ++i) {
      if ((i + 1) % static_cast<size_t>(interval) == 0) labels[i] = kNope;
    }
    return labels;
  };
  constexpr char kInterval[] = "no_rope_layer_interval";
  const auto interval = text.Integer(kInterval, 1, kMaxLayers);
  const Value::Array* list = text.Array("no_rope_layers");
  if (list == nullptr || list->empty()) {
    const int64_t class_default = family != nullptr ? family->period : 0;
    return by_interval(interval.value_or(class_default), count != 0 ? count : kMaxLayers);
  }
  std::vector<std::string_view> labels =
      FlaggedLabels(text, "no_rope_layers", *list, count, kFull, kNope);
  if (interval && labels != by_interval(*interval, labels.size())) {  // models take the list
    RejectValue(text.Path(kInterval), *text.Find(kInterval), "say the same as no_rope_layers");
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

// PLaMo 2: Mamba, but one layer of each step; the last one where there is no whole step.
std::vector<std::string_view> MambaStepLabels(const Dict& text, int count) {
  std::vector<std::string_view> labels(static_cast<size_t>(count), kFull);
  if (!text.Bool("mamba_enabled").value_or(true)) return labels;
  const auto step = static_cast<size_t>(text.Integer("mamba_step", 2, kMaxLayers).value_or(2));
  const bool last = labels.size() <= step / 2;
  for (size_t i = 0; i < labels.size(); ++i) {
    const bool attention = last ? i + 1 == labels.size() : i % step == step / 2;
    if (!attention) labels[i] = kNope;
  }
  return labels;
}

// MiniCPM-SALA: a list of mixers, which begins again where it is too short.
std::vector<std::string_view> MixerLabels(const Dict& text, int count) {
  constexpr char kKey[] = "mixer_types";
  const bool attention_turns = text.Bool("attn_use_rope").value_or(true);
  const bool lightning_turns = text.Bool("lightning_use_rope").value_or(true);
  std::vector<std::string_view> labels(static_cast<size_t>(count), kFull);
  const Value::Array* mixers = text.Array(kKey);
  if (mixers != nullptr && static_cast<int>(mixers->size()) > count) {
    Reject(ROPE_ERROR_PARSE, "%s has %zu entries and must have at most one for each of %d layers",
           text.Path(kKey).c_str(), mixers->size(), count);
  }
  const bool listed = mixers != nullptr && !mixers->empty();
  for (size_t i = 0; i < labels.size(); ++i) {
    const size_t entry = listed ? i % mixers->size() : 0;
    const std::string_view mixer = listed ? StringAt(text, kKey, *mixers, entry) : "minicpm4";
    const auto is = [mixer](std::initializer_list<std::string_view> names) {
      return std::find(names.begin(), names.end(), mixer) != names.end();
    };
    const bool lightning = is({"lightning", "lightning_attn", "lightning-attn"});
    if (!lightning && !is({"minicpm4", "minicpm", "standard", "attention", "attn"})) {
      RejectValue(Entry(text, kKey, entry), (*mixers)[entry], "be minicpm4 or lightning-attn");
    }
    const bool turns = lightning ? lightning_turns : attention_turns;
    labels[i] = !turns ? kNope : lightning ? kLightning : kFull;
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

bool IsKnownAttention(std::string_view label) {
  // transformers' and its older names; then those of remote code.
  static constexpr std::string_view kKnown[] = {
      kFull,
      kSliding,
      "chunked_attention",
      "window_attention",
      "indexed_attention",
      "compressed_sparse_attention",
      "heavily_compressed_attention",
      "minimax_m3_sparse",
      "hybrid",
      "hybrid_sliding",
      "reference_sliding_attention",
      "sparse",
      "dense",
      "attention",
      "deepseek_sparse_attention",
      "qwen_sparse_attention",
      "attn",
      "swa",
      "full",
      "sliding",
      "sliding_window",
      "global",
      "local",
      "global_attention",
      "local_attention",
      "sliding_window_attention",
      "sparse_attention",
      "self_attention",
  };
  return std::find(std::begin(kKnown), std::end(kKnown), label) != std::end(kKnown);
}

std::map<std::string_view, Dict> LayerOverrides(const Dict& text,
                                                const std::vector<std::string_view>& labels) {
  std::map<std::string_view, Dict> overrides;
  const Dict all = text.Child("per_layer_config");
  if (!all.exists()) return overrides;
  constexpr const char* kWidths[] = {"head_dim", "qk_nope_head_dim", "qk_rope_head_dim"};
  std::map<size_t, Dict> layers;
  for (const auto& [key, value] : all.members()) {
    size_t layer = 0;
    const char* end = key.data() + key.size();
    const auto [stop, error] = std::from_chars(key.data(), end, layer);
    const bool of_layer = error == std::errc() && stop == end && !value.IsNull();
    if (!of_layer && value.As<Value::Object>() == nullptr) continue;
    const Dict own = all.Child(key);
    for (const char* width : kWidths) own.Find(width);
    RejectUnread(own);
    if (of_layer) layers[layer] = own;
  }
  // What a layer's entry does not say is what the model says of all layers.
  const auto width = [&text](const Dict& own, const char* key) {
    const auto given = own.Integer(key, 1, kMaxWidth);
    return given ? given : text.Integer(key, 0, kMaxWidth);
  };
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] == kNope) continue;
    const Dict& own = layers[i];
    const Dict& first = overrides.emplace(labels[i], own).first->second;
    for (const char* key : kWidths) {
      if (width(own, key) == width(first, key)) continue;
      Reject(ROPE_ERROR_UNSUPPORTED, "%s must give all layers of the type \"%s\" the same %s",
             text.Path("per_layer_config").c_str(), Printable(labels[i]).c_str(), key);
    }
  }
  return overrides;
}

std::set<int64_t> ListedLayers(const Dict& text, std::string_view key) {
  std::set<int64_t> layers;
  const Value::Array* list = text.Array(key);
  for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
    layers.insert(ToInteger(Entry(text, key, i), (*list)[i], 0, kMaxLayers));
  }
  return layers;
}

std::vector<double> LayerNumbers(const Dict& text, const Family* family, std::string_view key) {
  const Value::Array* list = text.Array(key);
  std::vector<double> numbers;
  if (list == nullptr) return numbers;
  numbers.resize(Covered(text, key, *list, LayerCount(text, family)));
  for (size_t i = 0; i < numbers.size(); ++i) {
    const std::string path = Entry(text, key, i);
    numbers[i] = (*list)[i].IsNull() ? 0 : ToNumber(path, (*list)[i]);
    if (numbers[i] < 0) RejectValue(path, (*list)[i], "be positive, or 0 for a layer without RoPE");
  }
  return numbers;
}

bool IsFullNope(Layers rule) {
  return rule == Layers::kFullIsNope || rule == Layers::kFullIsNopeBesideWindows;
}

LayerLabels LabelLayers(const Dict& text, const Family* family) {
  const int count = LayerCount(text, family);
  const Layers rule = family != nullptr ? family->layers : Layers::kUniform;
  LayerLabels layers;
  layers.counted = count != 0;
  std::vector<std::string_view>& labels = layers.labels;
  if (rule == Layers::kNone) {
    const Value::Array* blocks = text.Array("layers_block_type");  // of Nemotron-H
    layers.counted = layers.counted || blocks != nullptr;
    const int told = blocks != nullptr ? Covered(text, "layers_block_type", *blocks, count) : count;
    labels.assign(told != 0 ? told : kMaxLayers, kNope);
    return layers;
  }
  if (rule == Layers::kFromLast) {
    labels = FromLastLabels(family, count);
    return layers;
  }
  if (rule == Layers::kMambaStep) {
    labels = MambaStepLabels(text, count);
    return layers;
  }
  if (rule == Layers::kMixers) {
    labels = MixerLabels(text, count);
    return layers;
  }
  if (rule == Layers::kCompressed) {
    labels = CompressedLabels(text, count);
    layers.counted = !labels.empty();
    return layers;
  }
  const bool no_rope_list = family == nullptr && text.Find("no_rope_layers") != nullptr;
  if (rule == Layers::kNoRopeLayers || no_rope_list) {
    const Value::Array* list = text.Array("no_rope_layers");
    layers.counted = layers.counted || (list != nullptr && !list->empty());
    labels = NoRopeLabels(text, family, count);
    if (const Value::Array* types = text.Array("layer_types")) {  // kinds of those with RoPE
      const auto kinds = ListedLabels(text, "layer_types", *types, count, false);
      for (size_t i = 0; i < std::min(kinds.size(), labels.size()); ++i) {
        if (labels[i] != kNope) labels[i] = kinds[i];
      }
    }
    return layers;
  }

  // A list with an entry per layer tells their number, too.
  const auto listed = [&layers](std::vector<std::string_view> from_list) {
    layers.labels = std::move(from_list);
    layers.counted = true;
  };
  const Value::Array* flags = nullptr;
  if (const Value::Array* list = text.Array("layer_types")) {
    listed(ListedLabels(text, "layer_types", *list, count, false));
  } else if (const Value::Array* blocks = text.Array("layers_block_type")) {
    listed(ListedLabels(text, "layers_block_type", *blocks, count, false));
  } else if (const Value::Array* cycle = text.Array("block_types")) {  // RecurrentGemma
    labels = ListedLabels(text, "block_types", *cycle, count != 0 ? count : kMaxLayers, true);
  } else if (rule == Layers::kFirstAndLast && (flags = text.Array("hybrid_layer_pattern"))) {
    listed(FlaggedLabels(text, "hybrid_layer_pattern", *flags, count, kSliding, kFull));
  } else if (rule == Layers::kWindows && (flags = text.Array("attention_windows"))) {
    listed(WindowLabels(text, "attention_windows", *flags, count));
  } else if ((flags = text.Array("attn_type_list"))) {  // MiniMax-Text-01
    listed(FlaggedLabels(text, "attn_type_list", *flags, count, kFull, kNope));
  } else if (rule == Layers::kFullListed) {
    labels.assign(count != 0 ? count : kMaxLayers, kFull);
    MarkListed(text, "full_attention_layers", false, &labels);
  } else if (rule != Layers::kUniform && rule != Layers::kListed) {
    labels = PatternLabels(text, family, count);
  } else {
    labels.assign(count != 0 ? count : kMaxLayers, kFull);
    MarkListed(text, "attn_layer_indices", false, &labels);
    if (rule == Layers::kListed && text.Find("attn_layer_indices") == nullptr) {
      std::fill(labels.begin(), labels.end(), kNope);
    }
    MarkListed(text, "full_attn_idxs", false, &labels);         // LFM2
    MarkListed(text, "cross_attention_layers", true, &labels);  // Llama 3.2 Vision
  }
  const bool no_window = rule == Layers::kFullIsNopeBesideWindows &&
                         text.Mentions("sliding_window") && text.Find("sliding_window") == nullptr;
  if (no_window) {
    std::fill(labels.begin(), labels.end(), kSliding);
  } else if (IsFullNope(rule)) {
    std::replace(labels.begin(), labels.end(), kFull, kNope);
  }
  if (rule == Layers::kLinearHybrid) {
    std::replace(labels.begin(), labels.end(), kSliding, kNope);  // the pattern's other layers
  }
  return layers;
}

}  // namespace rope::model
