// The language model's kinds of RoPE: a LayerType of each rope dictionary, and the kind of each
// layer.
#ifndef LIBROPE_SRC_MODEL_LANGUAGE_MODEL_H_
#define LIBROPE_SRC_MODEL_LANGUAGE_MODEL_H_

#include "model/locate.h"
#include "model/parsed_model.h"

namespace rope::model {

void AddLanguageModel(const ConfigParts& parts, ParsedModel* out);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_LANGUAGE_MODEL_H_
