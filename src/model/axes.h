// Several ids per token: mrope_section (xdrope_section) of the rope dictionary to the axis of every
// pair.
#ifndef LIBROPE_SRC_MODEL_AXES_H_
#define LIBROPE_SRC_MODEL_AXES_H_

#include "model/layer_type.h"
#include "model/rope_keys.h"

namespace rope::model {

// Expects the rotated span and the scaling to be set. `named_mrope`: rope_type was "mrope" or
// "xdrope", which requires sections.
void FillAxes(const RopeKeys& keys, bool named_mrope, LayerType* type);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_AXES_H_
