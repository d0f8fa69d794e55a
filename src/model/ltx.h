// The reader of LTX-Video's and LTX-2's transformer/config.json: their frequencies run through all
// heads, so that each head has its own.
#ifndef LIBROPE_SRC_MODEL_LTX_H_
#define LIBROPE_SRC_MODEL_LTX_H_

#include <string_view>

#include "model/json.h"
#include "model/parsed_model.h"

namespace rope::model {

// Whether a class of diffusers is one of the two.
bool IsLtx(std::string_view class_name);

// Throws Error.
void AddLtx(const Dict& root, std::string_view class_name, ParsedModel* out);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_LTX_H_
