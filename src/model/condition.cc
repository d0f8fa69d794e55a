#include "model/condition.h"

#include <string_view>

namespace rope::model {

namespace {

// Olmo Hybrid without RoPE is published so. Without a dictionary the classes of its different
// versions differ: the theta of all models, or no RoPE.
bool HasNullTheta(const Dict& text, const char* key) {
  if (text.Mentions(key) && text.Find(key) == nullptr && text.Find("rope_theta") == nullptr) {
    Reject(ROPE_ERROR_UNSUPPORTED,
           "%s (null) must be a dictionary: {\"rope_theta\": null} for a model without RoPE",
           text.Path(key).c_str());
  }
  const Dict dict = text.Child(key);
  return dict.Mentions("rope_theta") && dict.Find("rope_theta") == nullptr;
}

}  // namespace

bool Holds(const Condition& condition, const Dict& text) {
  const char* key = condition.key;
  if (key == nullptr) return false;
  switch (condition.says) {
    case Says::kTrue: return text.Bool(key).value_or(false);
    case Says::kNotTrue: return !text.Bool(key).value_or(false);
    case Says::kFalse: return !text.Bool(key).value_or(true);
    case Says::kNot: return text.String(key).value_or("") != condition.word;
    case Says::kNumber: return text.Integer(key, 1, kMaxWidth).value_or(0) == condition.number;
    case Says::kAbove: return text.Integer(key, 1, kMaxWidth).value_or(0) > condition.number;
    case Says::kNullTheta: return HasNullTheta(text, key);
  }
  return false;
}

}  // namespace rope::model
