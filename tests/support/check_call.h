// Whether a random call did what reference.h says, and touched nothing else: every byte of its
// memory is accounted for.
#ifndef LIBROPE_TESTS_SUPPORT_CHECK_CALL_H_
#define LIBROPE_TESTS_SUPPORT_CHECK_CALL_H_

#include <vector>

#include "support/random_call.h"

namespace rope::testing {

// `before`: the call's buffers, when it was made. The call is one of RandomCall::kComputable.
void ExpectAsComputed(const RandomCall& call, const rope_context* context,
                      const std::vector<RandomCall::Buffer>& before);

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_CHECK_CALL_H_
