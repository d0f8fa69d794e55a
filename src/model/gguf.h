// From the keys of a GGUF file to the kinds of RoPE of its model, and which layer has which.
//
// What is read is the rotation of the model that the file holds: llama.cpp's, but for the three
// places where llama.cpp is known to rotate in another way than the model does (docs/gguf.md).
#ifndef LIBROPE_SRC_MODEL_GGUF_H_
#define LIBROPE_SRC_MODEL_GGUF_H_

#include "model/gguf_file.h"
#include "model/parsed_model.h"

namespace rope::model {

// The parts of a model, of which this file is the first. Its keys count; tensors of RoPE may be in
// any part.
struct GgufParts {
  int64_t count = 1;
  bool needed = false;  // the architecture may have such tensors, and none is in the first part
};
GgufParts PartsOf(const GgufFile& file);

// Throws Error if the file is not this part (from 1) of a model of so many.
void CheckPart(const GgufFile& file, int64_t part, int64_t count);

// Throws Error.
void ReadGguf(const GgufFile& file, ParsedModel* out);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_GGUF_H_
