// Finds the parts of a configuration: of the language model and of the vision tower inside that of
// the whole, under the names that different models give them.
#ifndef LIBROPE_SRC_MODEL_LOCATE_H_
#define LIBROPE_SRC_MODEL_LOCATE_H_

#include <memory>
#include <string_view>

#include "model/json.h"

namespace rope::model {

// Where the parts of a configuration are.
struct ConfigParts {
  Dict whole, text, vision;                // whole: what holds the others
  std::string_view text_type, outer_type;  // model_type; empty if absent
  bool text_nested = false;                // `text` is an object of its own
  // What a nested `text` does not say: the defaults of the class around it, and the sizes of its
  // own (model/class_sizes.h). It refers to them.
  std::unique_ptr<Value::Object> unsaid;
};
ConfigParts Locate(const Dict& root);

// The key under which the model itself stands in a larger one; nullptr if it is the larger one.
const char* InnerModel(const Dict& root);

// Whether the language model is of a known family, or its keys speak of RoPE.
bool MayHaveRope(const ConfigParts& parts);

// Throws Error if the language model, or the whole, is of a type that is not offered.
void RejectNotOffered(const ConfigParts& parts);

// Throws Error: neither is the case, nor is there a tower that has RoPE.
[[noreturn]] void RejectWithoutRope(const ConfigParts& parts);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_LOCATE_H_
