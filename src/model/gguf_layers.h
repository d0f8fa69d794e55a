// Which layers of a GGUF file's model have a rotation of their own, and which have none.
#ifndef LIBROPE_SRC_MODEL_GGUF_LAYERS_H_
#define LIBROPE_SRC_MODEL_GGUF_LAYERS_H_

#include <vector>

#include "model/gguf_architectures.h"
#include "model/gguf_keys.h"

namespace rope::model {

enum class GgufLayer : uint8_t { kFull, kWindow, kUnrotated };

// One for each layer of the model: its blocks without those that predict further tokens, which come
// last. Throws Error.
std::vector<GgufLayer> GgufLayers(const GgufKeys& keys, const GgufArchitecture& architecture);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_GGUF_LAYERS_H_
