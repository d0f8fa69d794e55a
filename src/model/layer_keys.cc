#include "model/layer_keys.h"

#include <algorithm>
#include <iterator>

namespace rope::model {
namespace {

constexpr LayerKey kKeys[] = {
    {"no_rope_layers", Form::kRopeFlags, Tells::kRope, true},
    {"layer_types", Form::kLabels, Tells::kAttention, true},
    {"layers_block_type", Form::kLabels, Tells::kAttention, true},
    {"block_types", Form::kCycle, Tells::kAttention, true},
    {"attn_type_list", Form::kFullFlags, Tells::kAttention, true},
    {"attn_layer_indices", Form::kFullNumbers, Tells::kAttention, true},
    {"full_attn_idxs", Form::kFullNumbers, Tells::kAttention, true},
    {"cross_attention_layers", Form::kOtherNumbers, Tells::kAttention, true},
    {"full_attention_layers", Form::kFullNumbers, Tells::kAttention},
    {"hybrid_layer_ids", Form::kFullNumbers, Tells::kAttention},
    {"mixer_types", Form::kMixers, Tells::kAttention},
    {"hybrid_layers_types_block", Form::kBlocks, Tells::kAttention},
    {"num_hybrid_layers_block", Form::kBlocks, Tells::kAttention},
    {"first_layers_types", Form::kBlocks, Tells::kAttention},
    {"last_layers_types", Form::kBlocks, Tells::kAttention},
    {"compress_ratios", Form::kRatios, Tells::kAttention},
    {"hybrid_layer_pattern", Form::kSlidingFlags, Tells::kWindows},
    {"attention_windows", Form::kWindows, Tells::kWindows},
    {"layer_rope_theta", Form::kThetas, Tells::kRope},
    {"no_rope_layer_interval", Form::kPeriod, Tells::kRope},
    {"sliding_window_pattern", Form::kPeriod, Tells::kWindows},
    {"_sliding_window_pattern", Form::kPeriod, Tells::kWindows},
    {"global_attn_every_n_layers", Form::kPeriod, Tells::kWindows},
    {"full_attention_interval", Form::kPeriod, Tells::kAttention},
    {"layer_group_size", Form::kPeriod, Tells::kAttention},
    {"mamba_step", Form::kPeriod, Tells::kAttention},
    // Of classes without RoPE: Jamba, Nemotron-H, Kimi Linear.
    {"attn_layer_period", Form::kOpaque, Tells::kAttention},
    {"hybrid_override_pattern", Form::kOpaque, Tells::kAttention},
    {"linear_attn_config", Form::kOpaque, Tells::kAttention},
};

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

std::vector<std::string_view> Listed(const Dict& text, std::string_view key,
                                     const Value::Array& list, int count, bool cyclic) {
  if (cyclic && count == 0) count = kMaxLayers;
  const int covered = cyclic && !list.empty() ? count : Covered(text, key, list, count);
  std::vector<std::string_view> labels(static_cast<size_t>(covered));
  for (size_t i = 0; i < labels.size(); ++i) {
    const std::string_view label = StringAt(text, key, list, i % list.size());
    labels[i] = IsAttention(label) ? label : kNope;
  }
  return labels;
}

// A list of layers by number, such as those that are attention or cross-attention.
std::vector<std::string_view> Numbered(const Dict& text, std::string_view key, int count,
                                       std::string_view if_listed, std::string_view if_not) {
  const std::set<int64_t> listed = ListedLayers(text, key);
  std::vector<std::string_view> labels(count != 0 ? count : kMaxLayers, if_not);
  for (size_t i = 0; i < labels.size(); ++i) {
    if (listed.count(static_cast<int64_t>(i)) != 0) labels[i] = if_listed;
  }
  return labels;
}

// A list with an entry for every layer.
template <class IsSet>
std::vector<std::string_view> Flagged(const Dict& text, std::string_view key,
                                      const Value::Array& list, int count, std::string_view if_set,
                                      std::string_view if_not, const IsSet& is_set) {
  std::vector<std::string_view> labels(Covered(text, key, list, count));
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = is_set(i) ? if_set : if_not;
  return labels;
}

}  // namespace

LayerKeys AllLayerKeys() { return {std::begin(kKeys), std::end(kKeys)}; }

const LayerKey* FindLayerKey(std::string_view key) {
  for (const LayerKey& known : kKeys) {
    if (known.key == key) return &known;
  }
  return nullptr;
}

bool IsAttention(std::string_view label) {
  for (std::string_view other : {"linear_attention", "conv", "jet", "mamba", "mamba2", "recurrent",
                                 "mlp", "moe", "gated_deltanet", "lightning_attention", "lightning",
                                 "lightning_attn", "lightning-attn", "gla", "kda"}) {
    if (label == other) return false;
  }
  return true;
}

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

std::string Entry(const Dict& text, std::string_view key, size_t i) {
  return text.Path(key) + "[" + std::to_string(i) + "]";
}

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

std::set<int64_t> ListedLayers(const Dict& text, std::string_view key) {
  std::set<int64_t> layers;
  const Value::Array* list = text.Array(key);
  for (size_t i = 0; list != nullptr && i < list->size(); ++i) {
    layers.insert(ToInteger(Entry(text, key, i), (*list)[i], 0, kMaxLayers));
  }
  return layers;
}

std::vector<double> LayerNumbers(const Dict& text, std::string_view key, int count) {
  const Value::Array* list = text.Array(key);
  std::vector<double> numbers;
  if (list == nullptr) return numbers;
  numbers.resize(Covered(text, key, *list, count));
  for (size_t i = 0; i < numbers.size(); ++i) {
    const std::string path = Entry(text, key, i);
    numbers[i] = (*list)[i].IsNull() ? 0 : ToNumber(path, (*list)[i]);
    if (numbers[i] < 0) RejectValue(path, (*list)[i], "be positive, or 0 for a layer without RoPE");
  }
  return numbers;
}

std::vector<std::string_view> LabelsOf(const Dict& text, const LayerKey& key, int count) {
  const Value::Array& list = *text.Array(key.key);
  const auto flagged = [&](std::string_view if_set, std::string_view if_not, const auto& is_set) {
    return Flagged(text, key.key, list, count, if_set, if_not, is_set);
  };
  const auto flag = [&](size_t i) { return FlagAt(text, key.key, list, i); };
  const auto number_up_to = [&](int64_t most) {
    return [&, most](size_t i) {
      return !list[i].IsNull() && ToInteger(Entry(text, key.key, i), list[i], 0, most) != 0;
    };
  };
  switch (key.form) {
    case Form::kCycle: return Listed(text, key.key, list, count, true);
    case Form::kRopeFlags:  // despite the name of the key 1 means that the layer has RoPE
    case Form::kFullFlags: return flagged(kFull, kNope, flag);
    case Form::kSlidingFlags: return flagged(kSliding, kFull, flag);
    case Form::kWindows: return flagged(kSliding, kFull, number_up_to(kMaxLength));
    case Form::kFullNumbers: return Numbered(text, key.key, count, kFull, kNope);
    case Form::kOtherNumbers: return Numbered(text, key.key, count, kNope, kFull);
    case Form::kRatios: return flagged(kCompress, kMain, number_up_to(1 << 30));
    case Form::kThetas: {
      const std::vector<double> numbers = LayerNumbers(text, key.key, count);
      return flagged(kFull, kNope, [&](size_t i) { return numbers[i] != 0; });
    }
    default: return Listed(text, key.key, list, count, false);
  }
}

}  // namespace rope::model
