// The scaling of a GGUF file's frequencies: its keys rope.scaling.*, and its tensors of factors.
#ifndef LIBROPE_SRC_MODEL_GGUF_SCALING_H_
#define LIBROPE_SRC_MODEL_GGUF_SCALING_H_

#include "model/gguf_architectures.h"
#include "model/gguf_file.h"
#include "model/gguf_keys.h"
#include "model/layer_type.h"

namespace rope::model {

// Expects head, span and theta to be set. `window`: of layers with a sliding window. Throws Error.
void FillGgufScaling(const GgufFile& file, const GgufKeys& keys,
                     const GgufArchitecture& architecture, bool window, LayerType* type);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_GGUF_SCALING_H_
