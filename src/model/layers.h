// Which kind of attention every layer of the language model is, as the label that the configuration
// uses for it ("full_attention", "sliding_attention", ..), or "nope" for a layer whose q and k are
// not rotated: attention without RoPE, and layers that are no attention at all.
#ifndef LIBROPE_SRC_MODEL_LAYERS_H_
#define LIBROPE_SRC_MODEL_LAYERS_H_

#include <map>
#include <string_view>
#include <vector>

#include "model/families.h"
#include "model/json.h"

namespace rope::model {

constexpr std::string_view kFull = "full_attention", kSliding = "sliding_attention", kNope = "nope",
                           kMain = "main", kCompress = "compress";

// One label per layer; they point into `text` or to constants. Without num_hidden_layers a rule
// that needs no count is written out for kMaxLayers layers. Empty if neither the rule nor a list
// tells: then layers cannot be looked up.
std::vector<std::string_view> LayerLabels(const Dict& text, const Family* family);

constexpr int kMaxLayers = 4096;

// What per_layer_config, whose keys are numbers of layers ("05"), says of the layers of each label:
// the entry of the first of them. Throws Error if their head sizes differ.
std::map<std::string_view, Dict> LayerOverrides(const Dict& text,
                                                const std::vector<std::string_view>& labels);

// layer_rope_theta: the base of every layer, 0 where the layer has no RoPE. Empty if absent.
std::vector<double> LayerThetas(const Dict& text, const Family* family);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_LAYERS_H_
