// The reader of diffusers: transformer/config.json of a pipeline, which names its class and not a
// model_type.
#ifndef LIBROPE_SRC_MODEL_DIFFUSION_H_
#define LIBROPE_SRC_MODEL_DIFFUSION_H_

#include "model/json.h"
#include "model/parsed_model.h"

namespace rope::model {

// Whether a text is one of diffusers: it has a _class_name.
bool IsDiffusion(const Dict& root);

// Throws Error.
void AddDiffusion(const Dict& root, ParsedModel* out);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_DIFFUSION_H_
