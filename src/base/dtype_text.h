// A dtype in a message: its name, or the number of one that this version does not know.
#ifndef LIBROPE_SRC_BASE_DTYPE_TEXT_H_
#define LIBROPE_SRC_BASE_DTYPE_TEXT_H_

#include <cstdio>
#include <iterator>

#include "librope/rope.h"

namespace rope {

// A temporary: Fail(.., "dtype (%s)", DtypeText(dtype).text).
struct DtypeText {
  char text[24];

  explicit DtypeText(rope_dtype dtype) {
    constexpr const char* kNames[] = {"",        "F32", "F16",  "BF16", "F8_E4M3",
                                      "F8_E5M2", "I8",  "E8M0", "Q8_0"};
    static_assert(std::size(kNames) == ROPE_DTYPE_Q8_0 + 1);
    if (dtype > 0 && dtype <= ROPE_DTYPE_Q8_0) {
      std::snprintf(text, sizeof(text), "ROPE_DTYPE_%s", kNames[dtype]);
    } else {
      std::snprintf(text, sizeof(text), "%d", dtype);
    }
  }
};

}  // namespace rope

#endif  // LIBROPE_SRC_BASE_DTYPE_TEXT_H_
