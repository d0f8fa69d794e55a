// Misspelt keys. An unknown key of a rope dictionary is usually harmless (files carry the keys of
// other engines), but one that nearly is a key we read means that a number is silently missing.
#ifndef LIBROPE_SRC_MODEL_TYPO_H_
#define LIBROPE_SRC_MODEL_TYPO_H_

#include <string>
#include <string_view>

#include "model/json.h"

namespace rope::model {

bool IsRopeKey(std::string_view key);

// A key without case, dashes and underscores.
std::string Letters(std::string_view key);

// Throws Error if a key of the rope dictionary `dict` is not one we read but within one edit (keys
// of eight letters or more: two) of one that is absent, or if there are too many.
void RejectTypos(const Dict& dict);

// The same for the keys that a model's configuration has for RoPE at its top level, where most
// other keys are none of ours: only one that differs in case, dashes or an edit or two, and whose
// value is of the kind of the absent key's, and that is no word of the class itself. So for the
// keys by which the class tells its layers apart.
void RejectTyposOfModel(const Dict& dict, std::string_view model_type);

// The key that we read which is most like `key`; empty if none is, or if it is `key` itself.
std::string_view NearestKey(std::string_view key);

// Throws Error if `dict` has more than kMaxEntries keys.
void RejectTooMany(const Dict& dict);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_TYPO_H_
