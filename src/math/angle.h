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
  kDivide,      // position / timescale in f32
  kExact,       // turns, integer positions
  kCoordinate,  // turns, float coordinates
  kGgml,        // ggml's recurrence
};

inline AngleRule AngleRuleOf(rope_angle angle, PositionSource::Type type) {
  if (angle == ROPE_ANGLE_GGML) return AngleRule::kGgml;
  if (angle == ROPE_ANGLE_FLOAT32) return AngleRule::kFloat32;
  if (angle == ROPE_ANGLE_DIVIDE) return AngleRule::kDivide;
  return type == PositionSource::kFloat ? AngleRule::kCoordinate : AngleRule::kExact;
}

// The angle in radians under kFloat32, whose cos and sin are taken.
ROPE_HD float AngleOf(float position, float inv_freq) { return Multiply(position, inv_freq); }

// The same under kDivide.
ROPE_HD float QuotientAngle(float position, float timescale) { return Divide(position, timescale); }

// Under kExact and kCoordinate, where rows hold angles: rounded once.
ROPE_HD float AngleOf(double position, double inv_freq) {
  return static_cast<float>(position * inv_freq);
}

// The angle, rounded to f32 on the way: kFloat32 and kDivide.
template <class Frequency>
ROPE_HD float F32AngleOfPair(AngleRule rule, const Frequency& frequency,
                             const PositionSource& source, const Token& token, int axis) {
  const float position = PositionAsFloat(source, token, axis);
  return rule == AngleRule::kDivide ? QuotientAngle(position, frequency.timescale())
                                    : AngleOf(position, frequency.inv_freq_f32());
}

// cos and sin of a pair for a token, not scaled. `frequency` has what the rules ask for:
// inv_freq_f32(), timescale(), turns_fraction(), turns(), and inv_freq() of f64. Not for kGgml,
// whose pairs need each other (ggml_angles.h).
template <class Frequency>
ROPE_HD CosSin CosSinOfPair(AngleRule rule, const Frequency& frequency,
                            const PositionSource& source, const Token& token, int axis) {
  if (rule == AngleRule::kExact) {
    return CosSinOfPosition(frequency.turns_fraction(), IntegerPosition(source, token, axis));
  }
  if (rule != AngleRule::kCoordinate) {
    return CosSinOfAngle(F32AngleOfPair(rule, frequency, source, token, axis));
  }
  const Turns turns = frequency.turns();
  return CosSinOfCoordinate(turns.whole, turns.fraction, FloatPosition(source, token, axis));
}

// The angle itself, for rows that hold it.
template <class Frequency>
ROPE_HD float AngleOfPair(AngleRule rule, const Frequency& frequency, const PositionSource& source,
                          const Token& token, int axis) {
  if (rule == AngleRule::kFloat32 || rule == AngleRule::kDivide) {
    return F32AngleOfPair(rule, frequency, source, token, axis);
  }
  return AngleOf(PositionAsDouble(source, token, axis), frequency.inv_freq());
}

// --- The general angle: a sum over axes ----------------------------------------------------------
// `frequency` is that of axis 0; OfAxis() gives the others.

// Under kFloat32: each product and each sum rounded.
template <class Frequency>
ROPE_HD float SumOfAngles(const Frequency& frequency, const PositionSource& source,
                          const Token& token, int axes) {
  float sum = AngleOf(PositionAsFloat(source, token, 0), frequency.inv_freq_f32());
  for (int a = 1; a < axes; ++a) {
    sum = Add(sum, AngleOf(PositionAsFloat(source, token, a), frequency.OfAxis(a).inv_freq_f32()));
  }
  return sum;
}

// What an axis adds to the phase of a pair, in 2^-64 turns. kExact, and kCoordinate where it is
// finite.
class AxisPhase {
 public:
  ROPE_HD AxisPhase(AngleRule rule, const PositionSource& source, const Token& token, int axis)
      : is_integer_(rule == AngleRule::kExact),
        position_(is_integer_ ? static_cast<uint64_t>(IntegerPosition(source, token, axis)) : 0),
        coordinate_(is_integer_ ? 0 : FloatPosition(source, token, axis)) {}

  template <class Frequency>
  ROPE_HD uint64_t operator()(const Frequency& frequency) const {
    if (is_integer_) return frequency.turns_fraction() * position_;
    const Turns turns = frequency.turns();
    const uint64_t phase = PhaseOfCoordinate(turns.whole, turns.fraction, coordinate_);
    return FloatBits(coordinate_) >> 31 != 0 ? 0 - phase : phase;
  }

 private:
  bool is_integer_;
  uint64_t position_;
  float coordinate_;
};

// Whether the coordinates of a token are numbers: a phase cannot tell.
ROPE_HD bool HasFinitePosition(const PositionSource& source, const Token& token, int axes) {
  bool finite = true;
  for (int a = 0; a < axes; ++a) finite = finite && IsFinite(FloatPosition(source, token, a));
  return finite;
}

// cos and sin of a phase: opposite phases give exactly opposite sines.
ROPE_HD CosSin CosSinOfSignedPhase(uint64_t phase) {
  return CosSinOfPosition(1, static_cast<int64_t>(phase));
}

template <class Frequency>
ROPE_HD CosSin CosSinOfSum(AngleRule rule, const Frequency& frequency, const PositionSource& source,
                           const Token& token, int axes) {
  if (rule == AngleRule::kFloat32) {
    return CosSinOfAngle(SumOfAngles(frequency, source, token, axes));
  }
  if (rule == AngleRule::kCoordinate && !HasFinitePosition(source, token, axes)) {
    return {QuietNan(), QuietNan()};
  }
  uint64_t phase = 0;
  for (int a = 0; a < axes; ++a) {
    phase += AxisPhase(rule, source, token, a)(frequency.OfAxis(a));
  }
  return CosSinOfSignedPhase(phase);
}

// The sum itself, for rows that hold it.
template <class Frequency>
ROPE_HD float AngleOfSum(AngleRule rule, const Frequency& frequency, const PositionSource& source,
                         const Token& token, int axes) {
  if (rule == AngleRule::kFloat32) return SumOfAngles(frequency, source, token, axes);
  double sum = 0;
  for (int a = 0; a < axes; ++a) {
    sum += PositionAsDouble(source, token, a) * frequency.OfAxis(a).inv_freq();
  }
  return static_cast<float>(sum);
}

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_ANGLE_H_
