// From the keys of a GGUF file to the kinds of RoPE of its model, and which layer has which.
//
// What is read is the rotation of the model that the file holds: llama.cpp's, but for the three
// places where llama.cpp is known to rotate in another way than the model does (docs/gguf.md).
#ifndef LIBROPE_SRC_MODEL_GGUF_H_
#define LIBROPE_SRC_MODEL_GGUF_H_

#include "model/gguf_file.h"
#include "model/parsed_model.h"

namespace rope::model {

// How many parts the model has, if the tensors of RoPE may be in another part than this one; else
// 0.
int64_t PartsToSearch(const GgufFile& file);

// Throws Error if the file is not this part (from 1) of a model of so many.
void CheckPart(const GgufFile& file, int64_t part, int64_t count);

// Throws Error.
void ReadGguf(const GgufFile& file, ParsedModel* out);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_GGUF_H_
