// The keys of a GGUF file that the program has parsed already, as if they had been read from its
// bytes: rope_model_create_gguf_values.
#ifndef LIBROPE_SRC_MODEL_GGUF_GIVEN_H_
#define LIBROPE_SRC_MODEL_GGUF_GIVEN_H_

#include <cstdint>
#include <deque>
#include <string>

#include "librope/model.h"
#include "model/gguf_file.h"

namespace rope::model {

// Owns what the file points into beside the caller's memory.
struct GivenGguf {
  GgufFile file;
  std::deque<std::string> swapped;  // numbers in the order of the format
};

// Throws Error (ROPE_ERROR_INVALID_ARGUMENT: a pair is none) or std::bad_alloc. The result points
// into the arguments.
void TakeGgufValues(const rope_gguf_value* values, int32_t count, const rope_gguf_factors* factors,
                    int32_t factor_count, GivenGguf* out);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_GGUF_GIVEN_H_
