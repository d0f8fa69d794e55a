// Reads a GGUF file from a disk: what stands before the weights, and no more; and of a model in
// several parts the tensors of RoPE, in whichever part they are.
#ifndef LIBROPE_SRC_MODEL_GGUF_PARTS_H_
#define LIBROPE_SRC_MODEL_GGUF_PARTS_H_

#include "model/parsed_model.h"

namespace rope::model {

// The path is kept in messages. Throws Error (ROPE_ERROR_INVALID_ARGUMENT: a file cannot be read)
// or std::bad_alloc.
void LoadGguf(const char* path, ParsedModel* out);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_GGUF_PARTS_H_
