// The language model's kinds of RoPE: finds the configuration of the language model inside that of
// the whole, the rope dictionaries inside that, and makes a LayerType of each.
#ifndef LIBROPE_SRC_MODEL_TEXT_H_
#define LIBROPE_SRC_MODEL_TEXT_H_

#include <string_view>
#include <vector>

#include "model/json.h"
#include "model/layer_type.h"

namespace rope::model {

struct Parsed {
  std::vector<LayerType> types;
  std::vector<int32_t> layers;  // type of every layer; empty if their number or kinds are not known
  bool bare = false;            // made from a rope dictionary alone
};

// Whether the text is a rope dictionary and not a model's configuration.
bool IsBareDictionary(const Dict& root);

void AddBareDictionary(const Dict& root, Parsed* out);

// Where the parts of a configuration are.
struct Parts {
  Dict whole, text, vision;                // whole: what holds the others
  std::string_view text_type, outer_type;  // model_type; empty if absent
  bool text_nested = false;                // `text` is an object of its own
};
Parts Locate(const Dict& root);

// Whether the language model is of a known family, or its keys speak of RoPE.
bool MayHaveRope(const Parts& parts);

// Throws Error: neither is the case, nor is there a tower that has RoPE.
[[noreturn]] void RejectWithoutRope(const Parts& parts);

void AddLanguageModel(const Parts& parts, Parsed* out);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_TEXT_H_
