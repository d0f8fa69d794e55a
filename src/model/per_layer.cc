#include "model/per_layer.h"

#include <charconv>
#include <optional>
#include <string>
#include <system_error>

#include "model/class_layers.h"
#include "model/layer_keys.h"

namespace rope::model {
namespace {

constexpr char kKey[] = "per_layer_config";
constexpr const char kWidth[] = "head_dim";
constexpr const char* kLatentWidths[] = {"qk_nope_head_dim", "qk_rope_head_dim"};

// Widths in words of single classes, which read them for all layers.
constexpr const char* kOtherWidths[] = {
    "attention_head_dim", "global_head_dim",    "hidden_size_per_head", "index_head_dim",
    "kv_channels",        "lightning_head_dim", "projection_dim",       "swa_head_dim"};

// What head_dim follows from where it is not said.
constexpr const char* kOfQuotient[] = {"hidden_size", "num_attention_heads"};

std::optional<size_t> NumberOf(std::string_view key) {
  size_t number = 0;
  const char* end = key.data() + key.size();
  const auto [stop, error] = std::from_chars(key.data(), end, number);
  return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

}  // namespace

PerLayer::PerLayer(const Dict& text) : text_(text) {
  const Dict all = text.Child(kKey);
  for (const auto& [key, value] : all.members()) {
    const auto layer = NumberOf(key);
    if (value.IsNull() || (!layer && value.As<Value::Object>() == nullptr)) continue;
    if (!layer) RejectValue(all.Path(key), value, "have the number of a layer for its key");
    const Dict entry = all.Child(key);
    RejectOthers(entry);
    if (layers_.emplace(*layer, entry).second) continue;
    Reject(ROPE_ERROR_PARSE, "%s has two entries of layer %zu, and must have one",
           text.Path(kKey).c_str(), *layer);
  }
}

void PerLayer::RejectOthers(const Dict& entry) const {
  const auto check = [&](const char* key, const std::string& rule) {
    const Value *own = entry.Peek(key), *all = text_.Peek(key);
    if (own == nullptr || (all != nullptr && Same(*own, *all))) return;
    Reject(ROPE_ERROR_UNSUPPORTED, "%s (%s) must be that of all layers%s", entry.Path(key).c_str(),
           Show(*own).c_str(), rule.c_str());
  };
  for (const char* key : kOtherWidths) check(key, "");
  if (text_.Peek(kWidth) != nullptr || entry.Peek(kWidth) != nullptr) return;
  for (const char* key : kOfQuotient) check(key, ", as head_dim is not given");
}

void PerLayer::Label(const std::vector<std::string_view>& labels) {
  for (size_t i = 0; i < labels.size() && !layers_.empty(); ++i) {
    const auto entry = layers_.find(i);
    if (labels[i] != kNope) {
      of_label_.emplace(labels[i], entry != layers_.end() ? entry->second : Dict());
    }
  }
}

Dict PerLayer::OfLabel(std::string_view label) const {
  const auto found = of_label_.find(label);
  return found != of_label_.end() ? found->second : Dict();
}

bool PerLayer::AreAlike(const Dict& a, const Dict& b, const char* width) const {
  const auto of = [this, width](const Dict& entry) {
    const auto given = entry.Integer(width, 1, kMaxWidth);
    return given ? given : text_.Integer(width, 0, kMaxWidth);
  };
  return of(a) == of(b);
}

void PerLayer::CheckTypes(const ParsedModel& parsed, bool latent) const {
  if (layers_.empty()) return;
  const auto reject = [this](const std::string& of, const char* width) {
    Reject(ROPE_ERROR_UNSUPPORTED, "%s must give all layers %s the same %s",
           text_.Path(kKey).c_str(), of.c_str(), width);
  };
  const auto check = [&](const Dict& entry, const Dict& type, const std::string& of) {
    if (!AreAlike(entry, type, kWidth)) reject(of, kWidth);
    for (const char* width : kLatentWidths) {
      if (latent && !AreAlike(entry, type, width)) reject(of, width);
    }
  };
  for (size_t i = 0; i < parsed.layers.size(); ++i) {
    const LayerType& type = parsed.types[static_cast<size_t>(parsed.layers[i])];
    if (type.config.scaling == ROPE_SCALING_NOPE) continue;
    const auto entry = layers_.find(i);
    check(entry != layers_.end() ? entry->second : Dict(), OfLabel(type.name),
          "of the type \"" + Printable(type.name) + "\"");
  }
  for (const auto& [layer, entry] : layers_) {
    for (const char* width : kLatentWidths) {
      if (latent) entry.Find(width);  // of layers beyond the last, and of those that do not turn
    }
    if (parsed.layers.empty()) check(entry, Dict(), "whose kinds the text does not tell");
  }
}

}  // namespace rope::model
