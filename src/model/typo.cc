#include "model/typo.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "model/families.h"
#include "model/layer_keys.h"

namespace rope::model {
namespace {

constexpr std::string_view kKeys[] = {
    "alpha",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "high_freq_factor",
    "long_factor",
    "long_mscale",
    "low_freq_factor",
    "mrope_section",
    "max_position_embeddings",
    "mrope_interleaved",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "rope_theta",
    "partial_rotary_factor",
    "rope_type",
    "short_factor",
    "short_mscale",
    "truncate",
    "xdrope_section",
    "type",
};

// At the top level: numbers, and dictionaries.
constexpr std::string_view kModelNumbers[] = {
    "head_dim",
    "hidden_size",
    "max_position_embeddings",
    "num_attention_heads",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
};
constexpr std::string_view kModelDicts[] = {"rope_parameters", "rope_scaling"};

// Levenshtein's distance: insertions, deletions and replacements.
size_t Edits(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1] ? 1 : 0);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

bool IsNear(std::string_view key, std::string_view known) {
  const size_t allowed = known.size() > 8 ? 2 : 1;
  const size_t longer = std::max(known.size(), key.size());
  if (longer - std::min(known.size(), key.size()) > allowed) return false;
  return Edits(key, known) <= allowed || Letters(key) == Letters(known);
}

}  // namespace

std::string Letters(std::string_view key) {
  std::string letters;
  for (const char c : key) {
    if (c != '_' && c != '-')
      letters += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return letters;
}

bool IsRopeKey(std::string_view key) {
  return std::find(std::begin(kKeys), std::end(kKeys), key) != std::end(kKeys);
}

std::string_view NearestKey(std::string_view key) {
  std::string_view nearest;
  constexpr size_t kLongest = 64;  // of a key that somebody has typed
  if (key.size() > kLongest) return nearest;
  constexpr std::pair<std::string_view, std::string_view> kOthers[] = {
      // of other programs
      {"attn_factor", "attention_factor"},
      {"base", "rope_theta"},
      {"freq_base", "rope_theta"},
      {"rope_base", "rope_theta"},
      {"rope_embedding_base", "rope_theta"},
      {"rope_factor", "factor"},
      {"rope_freq_base", "rope_theta"},
      {"rope_freq_constant", "rope_theta"},
      {"rope_percent", "partial_rotary_factor"},
      {"rope_percentage", "partial_rotary_factor"},
      {"rope_scale", "factor"},
      {"rotary_base", "rope_theta"},
      {"rotary_percent", "partial_rotary_factor"},
      {"rotary_percentage", "partial_rotary_factor"},
      {"theta", "rope_theta"},
  };
  for (const auto& [other, ours] : kOthers) {
    if (key == other) return ours;
  }
  size_t least = std::min<size_t>(key.size() / 3, 3) + 1;
  const auto compare = [&](std::string_view known) {
    const size_t edits = Edits(key, known);
    if (edits >= least) return;
    least = edits;
    nearest = edits != 0 ? known : "";
  };
  for (std::string_view known : kKeys) compare(known);
  for (std::string_view known : kModelNumbers) compare(known);
  for (std::string_view known : kModelDicts) compare(known);
  return nearest;
}

void RejectTooMany(const Dict& dict) {
  const size_t entries = dict.members().size();
  if (entries <= kMaxEntries) return;
  Reject(ROPE_ERROR_UNSUPPORTED, "%s has %zu keys and must have at most %zu", dict.Name().c_str(),
         entries, kMaxEntries);
}

void RejectTypos(const Dict& dict) {
  RejectTooMany(dict);
  for (const auto& [key, value] : dict.members()) {
    if (IsRopeKey(key)) continue;
    for (std::string_view known : kKeys) {
      const size_t allowed = known.size() >= 8 ? 2 : 1;
      const size_t longer = std::max(known.size(), key.size());
      if (longer - std::min(known.size(), key.size()) > allowed || dict.Mentions(known)) continue;
      if (Edits(key, known) <= allowed) {
        RejectValue(dict.Path(key), value, "be spelt " + std::string(known));
      }
    }
  }
}

void RejectTyposOfModel(const Dict& dict, std::string_view model_type) {
  if (!dict.exists()) return;
  const Family* family = FindFamily(model_type);
  const LayerRule& layers = family != nullptr ? *family->layers : kAllLayers;
  for (const auto& [key, value] : dict.members()) {
    if (IsOwnWord(model_type, key)) continue;
    const auto check = [&dict, &key = key, &value = value](std::string_view known) {
      if (key == known || dict.Mentions(known) || !IsNear(key, known)) return;
      RejectValue(dict.Path(key), value, "be spelt " + std::string(known));
    };
    if (value.As<int64_t>() != nullptr || value.As<double>() != nullptr) {
      for (std::string_view known : kModelNumbers) check(known);
    } else if (value.As<Value::Object>() != nullptr) {
      for (std::string_view known : kModelDicts) check(known);
    }
    for (const char* own : layers.keys) {
      if (own == nullptr || FindLayerKey(key) != nullptr) continue;  // that is a word, too
      const bool is_list = value.As<Value::Array>() != nullptr;
      const bool is_period =
          value.As<int64_t>() != nullptr || value.As<std::string>() != nullptr;  // letters
      const LayerKey& rule = *FindLayerKey(own);
      const bool either = rule.form == Form::kBlocks && (is_list || is_period);
      if (either || (rule.IsList() ? is_list : is_period)) check(own);
    }
  }
}

}  // namespace rope::model
