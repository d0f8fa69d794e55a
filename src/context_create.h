// Making a context: from checked configurations to the immutable object.
#ifndef LIBROPE_SRC_CONTEXT_CREATE_H_
#define LIBROPE_SRC_CONTEXT_CREATE_H_

#include <memory>

#include "context.h"

namespace rope {

// Every configs[i] may be NULL or invalid. May throw std::bad_alloc.
rope_status CreateContext(const char* function, const rope_config* const* configs, int32_t count,
                          std::unique_ptr<rope_context>* out);

}  // namespace rope

#endif  // LIBROPE_SRC_CONTEXT_CREATE_H_
