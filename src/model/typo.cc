#include "model/typo.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <vector>

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

}  // namespace

bool IsRopeKey(std::string_view key) {
  return std::find(std::begin(kKeys), std::end(kKeys), key) != std::end(kKeys);
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

}  // namespace rope::model
