// From the keys of a GGUF file to the kinds of RoPE of its model, and which layer has which.
//
// What is read is the rotation of the model that the file holds: llama.cpp's, but for the three
// places where llama.cpp is known to rotate in another way than the model does (docs/gguf.md).
#ifndef LIBROPE_SRC_MODEL_GGUF_H_
#define LIBROPE_SRC_MODEL_GGUF_H_

#include "model/gguf_file.h"
#include "model/parsed_model.h"

namespace rope::model {

// Throws Error.
void ReadGguf(const GgufFile& file, ParsedModel* out);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_GGUF_H_
