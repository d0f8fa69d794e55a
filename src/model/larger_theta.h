// Scalings that are a larger theta, whatever the length: what a text says in several numbers is one
// field of the configuration, which a note of the model tells (LayerType::follows).
#ifndef LIBROPE_SRC_MODEL_LARGER_THETA_H_
#define LIBROPE_SRC_MODEL_LARGER_THETA_H_

#include "model/json.h"
#include "model/layer_type.h"

namespace rope::model {

// HunYuan: "dynamic" with alpha is a larger theta, once and for all. False without alpha.
bool FoldAlpha(const Dict& dict, LayerType* type);

// "ntk" of GTE's remote code: a larger theta, and all frequencies divided.
void FillNtk(double factor, LayerType* type);

// ChatGLM: the theta of its class times rope_ratio.
void FoldRatio(double ratio, double* theta, std::string* follows);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_LARGER_THETA_H_
