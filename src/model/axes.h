// Several ids per token: mrope_section (xdrope_section) of the rope dictionary to the axis of every
// pair.
#ifndef LIBROPE_SRC_MODEL_AXES_H_
#define LIBROPE_SRC_MODEL_AXES_H_

#include "model/layer_type.h"
#include "model/rope_keys.h"

namespace rope::model {

// Of images and video: rows, columns and frames, which no token has alike.
inline void SetImageAxes(int axes, rope_config* config) {
  config->axes = axes;
  config->ids_per_axis = axes > 1 ? 1 : 0;
}

// Expects the rotated span and the scaling to be set. `named_mrope`: rope_type was "mrope" or
// "xdrope", which requires sections.
void FillAxes(const RopeKeys& keys, bool named_mrope, LayerType* type);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_AXES_H_
