#include "model/accept.h"

#include <algorithm>
#include <string>

namespace rope::model {
namespace {

// What a path has left behind its beginning `step`; nullptr if it leads elsewhere.
std::string_view Behind(std::string_view path, std::string_view step) {
  if (path.substr(0, step.size()) != step) return {};
  return path.substr(step.size());
}

// `rest` is what the path ".name" has left below this value; nullptr if it leads elsewhere.
void Mark(const Value& value, std::string_view name, std::string_view rest,
          std::vector<const Value*>* marked) {
  const bool leads = !rest.empty();
  if (const auto* list = value.As<Value::Array>()) {
    for (size_t i = 0; i < list->size(); ++i) {
      Mark((*list)[i], name, leads ? Behind(rest, "[" + std::to_string(i) + "]") : rest, marked);
    }
  }
  const auto* members = value.As<Value::Object>();
  if (members == nullptr) return;
  for (const auto& [key, member] : *members) {
    const std::string_view below = leads ? Behind(rest, "." + key) : std::string_view();
    if (key == name || (below.data() != nullptr && below.empty())) {
      member.accepted = true;
      marked->push_back(&member);
    }
    Mark(member, name, below, marked);
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
    Mark(root, name, "." + std::string(name), &names_.back().keys);
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
