// per_layer_config: what single layers say instead of the model, by their numbers ("05"). Only
// widths of heads may differ; a key of RoPE in an entry is refused like any other (model/unread.h).
#ifndef LIBROPE_SRC_MODEL_PER_LAYER_H_
#define LIBROPE_SRC_MODEL_PER_LAYER_H_

#include <cstddef>
#include <map>
#include <string_view>
#include <vector>

#include "model/json.h"
#include "model/parsed_model.h"

namespace rope::model {

class PerLayer {
 public:
  // Throws Error if an entry is none of a layer, or says what heads follow from.
  explicit PerLayer(const Dict& text);

  // Which layers are of which label.
  void Label(const std::vector<std::string_view>& labels);

  // The entry of the first layer of a label; none if the model's own keys count there.
  Dict OfLabel(std::string_view label) const;

  // Throws Error unless all layers of each type have the widths that OfLabel gave it. `latent`:
  // those of latent attention are in use.
  void CheckTypes(const ParsedModel& parsed, bool latent) const;

 private:
  // What a layer's entry does not say is what the model says of all layers.
  bool AreAlike(const Dict& a, const Dict& b, const char* width) const;
  void RejectOthers(const Dict& entry) const;

  const Dict& text_;
  std::map<size_t, Dict> layers_;
  std::map<std::string_view, Dict> of_label_;
};

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_PER_LAYER_H_
