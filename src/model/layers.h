// Which kind of attention every layer of the language model is, as the label that the configuration
// uses for it ("full_attention", "sliding_attention", ..), or "nope" for a layer whose q and k are
// not rotated: attention without RoPE, and layers that are no attention at all.
#ifndef LIBROPE_SRC_MODEL_LAYERS_H_
#define LIBROPE_SRC_MODEL_LAYERS_H_

#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "model/families.h"
#include "model/json.h"

namespace rope::model {

constexpr std::string_view kFull = "full_attention", kSliding = "sliding_attention", kNope = "nope",
                           kMain = "main", kCompress = "compress",
                           kLightning = "lightning_attention";

constexpr int kMaxLayers = 4096;

// Whether a label is one by which files call attention, with RoPE where the model has one kind of
// it: another one may say that the layer has none.
bool IsKnownAttention(std::string_view label);

// Whether full_attention layers are those without RoPE.
bool IsFullNope(Layers rule);

struct LayerLabels {
  // One per layer; they point into the text or to constants. Where the text does not tell how many
  // layers there are, a rule that needs no count is written out for kMaxLayers, so that every kind
  // occurs. Empty if neither a rule nor a list tells the kinds.
  std::vector<std::string_view> labels;
  bool counted = false;  // the text tells how many layers there are
};
LayerLabels LabelLayers(const Dict& text, const Family* family);

// What per_layer_config, whose keys are numbers of layers ("05"), says of the layers of each label:
// the entry of the first of them. Throws Error if their head sizes differ.
std::map<std::string_view, Dict> LayerOverrides(const Dict& text,
                                                const std::vector<std::string_view>& labels);

// A list of layers by number. Those beyond the last layer are extra ones (multi-token prediction).
std::set<int64_t> ListedLayers(const Dict& text, std::string_view key);

// A list with a number for every layer, such as layer_rope_theta: not negative, 0 also for null.
// Empty if absent.
std::vector<double> LayerNumbers(const Dict& text, const Family* family, std::string_view key);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_LAYERS_H_
