// From the position of a token to the angle of a pair: which rule, and what angles are where they
// are asked for. Host and device.
#ifndef LIBROPE_SRC_MATH_ANGLE_H_
#define LIBROPE_SRC_MATH_ANGLE_H_

#include <cstdint>

#include "librope/rope.h"
#include "math/host_device.h"
#include "math/sincos.h"
#include "math/token_position.h"

namespace rope {

enum class AngleRule : int32_t {
  kFloat32,     // position * inv_freq in f32
  kExact,       // turns, integer positions
  kCoordinate,  // turns, float coordinates
  kGgml,        // ggml's recurrence
};

inline AngleRule AngleRuleOf(rope_angle angle, PositionSource::Type type) {
  if (angle == ROPE_ANGLE_GGML) return AngleRule::kGgml;
  if (angle == ROPE_ANGLE_FLOAT32) return AngleRule::kFloat32;
  return type == PositionSource::kFloat ? AngleRule::kCoordinate : AngleRule::kExact;
}

// The angle in radians under kFloat32, whose cos and sin are taken.
ROPE_HD float AngleOf(float position, float inv_freq) { return Multiply(position, inv_freq); }

// Under kExact and kCoordinate, where rows hold angles: rounded once.
ROPE_HD float AngleOf(double position, double inv_freq) {
  return static_cast<float>(position * inv_freq);
}

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_ANGLE_H_
