// Blocks of Q8_0, ggml's: 32 channels as int8 behind the f16 that multiplies them. One at a time,
// in arithmetic that gives the same bits everywhere: those of quantize_row_q8_0_ref.
#ifndef LIBROPE_SRC_MATH_Q8_0_H_
#define LIBROPE_SRC_MATH_Q8_0_H_

#include <cstdint>
#include <cstring>

#include "math/code.h"
#include "math/element.h"
#include "math/host_device.h"

namespace rope {

// What a block of numbers is multiplied by, and what is stored of it.
struct Q8Scale {
  float inverse;
  uint16_t stored;
};

// `largest`: SizeForScale of the block.
ROPE_HD Q8Scale Q8ScaleOf(float largest) {
  const float scale = Divide(largest, LargestOf(Code::kInt8));
  return {scale != 0 ? Divide(1.0f, scale) : 0.0f, F16FromFloat(scale)};
}

// Rounded to nearest, halves away from zero, which the codes of F8_* and I8 are not.
ROPE_HD int8_t Q8FromFloat(float value) {
  if ((FloatBits(value) & 0x7fffffffu) > 0x7f800000u) return 0;
  const float most = LargestOf(Code::kInt8);
  const float limited = value < -most ? -most : value > most ? most : value;
  const auto whole = static_cast<int32_t>(limited);  // towards zero
  const float rest = limited - static_cast<float>(whole);
  return static_cast<int8_t>(whole + (rest >= 0.5f) - (rest <= -0.5f));
}

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_Q8_0_H_
