// Keys that the caller knows to change nothing (rope_model_create_accepting).
#ifndef LIBROPE_SRC_MODEL_ACCEPT_H_
#define LIBROPE_SRC_MODEL_ACCEPT_H_

#include <string>
#include <string_view>
#include <vector>

#include "model/json.h"

namespace rope::model {

// The end of a refusal that the caller may overrule.
constexpr char kAcceptIt[] = "accept it by name if it has no effect";

// Whether the caller has accepted a key that would be refused: it is read as if it were not there.
bool IsSpared(const Value& value);

class AcceptedKeys {
 public:
  // Marks the keys of `root` that are named: by themselves, wherever they stand, or by their path.
  AcceptedKeys(const Value& root, const std::vector<std::string_view>& names);

  // After reading. Throws Error if a name has spared no key from being refused.
  void RejectIdle() const;

 private:
  struct Name {
    std::string_view text;
    std::vector<const Value*> keys;
  };
  std::vector<Name> names_;
};

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_ACCEPT_H_
