#include "model/accept.h"

#include <algorithm>

namespace rope::model {
namespace {

// `rest` is what the path `name` has left below this object; empty if it leads elsewhere.
void Mark(const Value& object, std::string_view name, std::string_view rest,
          std::vector<const Value*>* marked) {
  const auto* members = object.As<Value::Object>();
  if (members == nullptr) return;
  for (const auto& [key, value] : *members) {
    if (key == name || key == rest) {
      value.accepted = true;
      marked->push_back(&value);
    }
    const bool leads =
        rest.size() > key.size() && rest[key.size()] == '.' && rest.substr(0, key.size()) == key;
    Mark(value, name, leads ? rest.substr(key.size() + 1) : "", marked);
  }
}

}  // namespace

bool IsSpared(const Value& value) {
  value.spared = value.accepted;
  return value.spared;
}

AcceptedKeys::AcceptedKeys(const Value& root, const std::vector<std::string_view>& names) {
  for (const std::string_view name : names) {
    names_.push_back({name, {}});
    Mark(root, name, name, &names_.back().keys);
  }
}

void AcceptedKeys::RejectIdle() const {
  for (size_t i = 0; i < names_.size(); ++i) {
    const std::vector<const Value*>& keys = names_[i].keys;
    if (std::any_of(keys.begin(), keys.end(), [](const Value* key) { return key->spared; })) {
      continue;
    }
    Reject(ROPE_ERROR_INVALID_ARGUMENT,
           "accepted_keys[%zu] (\"%s\") must name a key that is refused otherwise, and this one %s",
           i, Printable(names_[i].text).c_str(),
           keys.empty() ? "is not in the text" : "is read, or known to change nothing");
  }
}

}  // namespace rope::model
