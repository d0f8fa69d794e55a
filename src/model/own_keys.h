// What one family's code alone makes of its kinds of RoPE, beside what all have: keys of its own
// (OwnKeys), angles that are negative, frequencies that a checkpoint rounds.
#ifndef LIBROPE_SRC_MODEL_OWN_KEYS_H_
#define LIBROPE_SRC_MODEL_OWN_KEYS_H_

#include "model/families.h"
#include "model/json.h"
#include "model/layer_type.h"

namespace rope::model {

// After the keys that all families have. `dict` is the rope dictionary of the text.
void FinishAsFamily(const Dict& text, const Dict& dict, const Family& family, LayerType* type);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_OWN_KEYS_H_
