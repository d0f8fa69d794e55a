// The digest of a model: of one kind of RoPE, or of its layers and whatever else it rotates.
#ifndef LIBROPE_SRC_MODEL_DIGEST_H_
#define LIBROPE_SRC_MODEL_DIGEST_H_

#include <cstdint>
#include <string>

#include "librope/rope.h"
#include "model/parsed_model.h"

namespace rope::model {

// `type` is that of a kind, or below 0 for the whole model. May throw std::bad_alloc.
rope_status DigestOfModel(const char* function, const ParsedModel& parsed, int32_t type,
                          rope_digest same, std::string* digest);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_DIGEST_H_
