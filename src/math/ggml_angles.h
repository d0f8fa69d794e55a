// ROPE_ANGLE_GGML: angles as ggml makes them, one pair's from the other's, each operation in f32
// (ggml_rope_cache_init and rope_yarn in ggml-cpu/ops.cpp). Host and device.
#ifndef LIBROPE_SRC_MATH_GGML_ANGLES_H_
#define LIBROPE_SRC_MATH_GGML_ANGLES_H_

#include <cstdint>

#include "math/host_device.h"
#include "math/sincos.h"

namespace rope {

struct GgmlNumbers {
  float theta_scale;          // from one pair's angle to the next
  float freq_scale;           // 1 / factor
  const float* freq_factors;  // of each pair; null: none
  const float* extrapolated;  // YaRN: the share of the unscaled angle; null: none
};

// The angles of all pairs of a token in radians. `theta`: the positions on the axes, which are
// overwritten. `pair_axis`: the axis of each pair; not read with one axis.
ROPE_HD void GgmlAngles(const GgmlNumbers& numbers, int axes, const uint8_t* pair_axis, int pairs,
                        float* theta, float* angles) {
  for (int i = 0; i < pairs; ++i) {
    float extrapolated = theta[axes > 1 ? pair_axis[i] : 0];
    if (numbers.freq_factors != nullptr) extrapolated = extrapolated / numbers.freq_factors[i];
    float angle = Multiply(numbers.freq_scale, extrapolated);
    if (numbers.extrapolated != nullptr) {
      const float share = numbers.extrapolated[i];
      angle = Add(Multiply(angle, Add(1, -share)), Multiply(extrapolated, share));
    }
    angles[i] = angle;
    for (int a = 0; a < axes; ++a) theta[a] = Multiply(theta[a], numbers.theta_scale);
  }
}

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_GGML_ANGLES_H_
