// The sizes that a configuration class of transformers falls back to. A language model that is a
// part of a larger configuration (text_config) is published as its differences from the class, so
// these are what it means where it does not say them: LLaVA 1.5 names a Llama, its length and its
// vocabulary, and nothing else. A configuration on its own says its sizes, or is refused.
#ifndef LIBROPE_SRC_MODEL_CLASS_SIZES_H_
#define LIBROPE_SRC_MODEL_CLASS_SIZES_H_

#include <string_view>

namespace rope::model {

struct ClassSizes {
  std::string_view model_type;
  int hidden_size, num_attention_heads, num_hidden_layers;
};

// nullptr if unknown.
const ClassSizes* FindClassSizes(std::string_view model_type);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_CLASS_SIZES_H_
