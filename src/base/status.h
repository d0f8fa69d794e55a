// The status codes' texts and the message of each thread's last error. Reporting an error cannot
// fail: without memory for the message the status still says what is wrong.
#ifndef LIBROPE_SRC_BASE_STATUS_H_
#define LIBROPE_SRC_BASE_STATUS_H_

#include "librope/rope.h"

namespace rope {

// Records the message of this thread's last error and returns `status`, so that a check reads
// `return Fail(ROPE_ERROR_INVALID_ARGUMENT, "rope_apply_qk: args->batch (%lld) must be ...", n)`.
// Form of a message: function, field, value in brackets, rule.
__attribute__((cold, format(printf, 2, 3))) rope_status Fail(rope_status status,
                                                             const char* format, ...);

}  // namespace rope

#endif  // LIBROPE_SRC_BASE_STATUS_H_
