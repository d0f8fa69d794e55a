// From the position of a token to the angle of a pair, and to its cos and sin: which rule, and what
// angles are where they are asked for. Host and device.
#ifndef LIBROPE_SRC_MATH_ANGLE_H_
#define LIBROPE_SRC_MATH_ANGLE_H_

#include <cstdint>

#include "librope/rope.h"
#include "math/host_device.h"
#include "math/sincos.h"
#include "math/token_position.h"
#include "math/turns.h"

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

// cos and sin of a pair for a token, not scaled. `frequency` has what the rules ask for:
// inv_freq_f32(), turns_fraction(), turns(), and inv_freq() of f64. Not for kGgml, whose pairs need
// each other (ggml_angles.h).
template <class Frequency>
ROPE_HD CosSin CosSinOfPair(AngleRule rule, const Frequency& frequency,
                            const PositionSource& source, const Token& token, int axis) {
  if (rule == AngleRule::kExact) {
    return CosSinOfPosition(frequency.turns_fraction(), IntegerPosition(source, token, axis));
  }
  if (rule == AngleRule::kFloat32) {
    return CosSinOfAngle(AngleOf(PositionAsFloat(source, token, axis), frequency.inv_freq_f32()));
  }
  const Turns turns = frequency.turns();
  return CosSinOfCoordinate(turns.whole, turns.fraction, FloatPosition(source, token, axis));
}

// The angle itself, for rows that hold it.
template <class Frequency>
ROPE_HD float AngleOfPair(AngleRule rule, const Frequency& frequency, const PositionSource& source,
                          const Token& token, int axis) {
  return rule == AngleRule::kFloat32
             ? AngleOf(PositionAsFloat(source, token, axis), frequency.inv_freq_f32())
             : AngleOf(PositionAsDouble(source, token, axis), frequency.inv_freq());
}

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_ANGLE_H_
