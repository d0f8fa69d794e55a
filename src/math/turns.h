// A frequency in turns per position, as 128-bit fixed point. Host and device.
#ifndef LIBROPE_SRC_MATH_TURNS_H_
#define LIBROPE_SRC_MATH_TURNS_H_

#include <cstdint>

namespace rope {

struct Turns {
  int64_t whole;      // rounded down
  uint64_t fraction;  // 2^-64 turns
};

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_TURNS_H_
