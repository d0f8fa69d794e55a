// Blocks of Q8_0 by ggml's definition: 34 bytes, an f16 d and 32 int8 q, for numbers d * q; and
// what channels take in memory. Unlike anything in src/.
#ifndef LIBROPE_TESTS_SUPPORT_Q8_0_H_
#define LIBROPE_TESTS_SUPPORT_Q8_0_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "support/elements.h"

namespace rope::testing {

inline constexpr int64_t kBlock = 32, kBlockBytes = 34;

// Of so many channels of any dtype, whole blocks of them in Q8_0.
inline int64_t BytesInMemory(rope_dtype dtype, int64_t channels) {
  if (dtype == ROPE_DTYPE_Q8_0) return channels / kBlock * kBlockBytes;
  return dtype < ROPE_DTYPE_F8_E4M3 ? channels * SizeOf(dtype) : channels;
}

inline float ReadFromBlocks(const char* blocks, int64_t channel) {
  const char* const block = blocks + channel / kBlock * kBlockBytes;
  const auto d = static_cast<float>(ReadElement(ROPE_DTYPE_F16, block));
  return d * static_cast<float>(static_cast<int8_t>(block[2 + channel % kBlock]));
}

// quantize_row_q8_0_ref, of numbers that it is defined for. NaN counts as 0, infinity as the
// largest float.
inline void WriteBlock(const float* x, char* block) {
  float largest = 0;
  for (int i = 0; i < kBlock; ++i) {
    if (std::isnan(x[i])) continue;
    largest = std::fmax(largest, std::fmin(std::fabs(x[i]), std::numeric_limits<float>::max()));
  }
  const float d = largest / 127, id = d != 0 ? 1 / d : 0;
  WriteElement(ROPE_DTYPE_F16, block, d);
  for (int i = 0; i < kBlock; ++i) {
    const float q = std::round(x[i] * id);
    const auto code = std::isnan(q) ? 0 : static_cast<int>(std::fmin(std::fmax(q, -127), 127));
    block[2 + i] = static_cast<char>(code);
  }
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_Q8_0_H_
