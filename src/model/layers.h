// Which kind of attention every layer of the language model is, as the label that the configuration
// uses for it ("full_attention", "sliding_attention", ..), or "nope" for a layer whose q and k are
// not rotated: attention without RoPE, and layers that are no attention at all.
//
// Every class has keys of its own for that (model/class_layers.h). One of another class is refused,
// unless it says what is so anyway.
#ifndef LIBROPE_SRC_MODEL_LAYERS_H_
#define LIBROPE_SRC_MODEL_LAYERS_H_

#include <map>
#include <string_view>
#include <vector>

#include "model/families.h"
#include "model/json.h"
#include "model/layer_keys.h"

namespace rope::model {

struct LayerLabels {
  // One per layer; they point into the text or to constants. Where the text does not tell how many
  // layers there are, a rule that needs no count is written out for kMaxLayers, so that every kind
  // occurs. Empty if neither a rule nor a list tells the kinds.
  std::vector<std::string_view> labels;
  bool counted = false;  // the text tells how many layers there are
};
// `by_kind`: the rope dictionary has one for each kind of layer.
LayerLabels LabelLayers(const Dict& text, const Family* family, bool by_kind);

// num_hidden_layers in the words of all families, 0 if absent. Attention layers, that is: LongCat's
// num_layers are two of them each, and HRM goes through its two stacks H_cycles * (L_cycles + 1)
// times, with a key and value cache for each.
int LayerCount(const Dict& text, const Family* family);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_LAYERS_H_
