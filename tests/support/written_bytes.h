// All memory of a call, compared with what is wanted there: what belongs there, or what was there.
#ifndef LIBROPE_TESTS_SUPPORT_WRITTEN_BYTES_H_
#define LIBROPE_TESTS_SUPPORT_WRITTEN_BYTES_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "librope/rope.h"
#include "support/elements.h"

namespace rope::testing {

// A number that the call writes.
struct WrittenNumber {
  rope_dtype dtype;
  size_t at;
};

inline void ExpectBytes(const std::vector<char>& memory, const std::vector<WrittenNumber>& written,
                        std::vector<char> want) {
  for (const WrittenNumber& w : written) {  // which NaN is not part of the contract
    char* const at = &want[w.at];
    if (IsSame(w.dtype, at, &memory[w.at], 0)) std::memcpy(at, &memory[w.at], SizeOf(w.dtype));
  }
  const auto differ = std::mismatch(want.begin(), want.end(), memory.begin()).first;
  ASSERT_TRUE(differ == want.end()) << "byte " << differ - want.begin();
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_WRITTEN_BYTES_H_
