// From a configuration to the frequencies of its pairs and the attention factor: every scaling
// rule.
#ifndef LIBROPE_SRC_CONTEXT_FREQUENCIES_H_
#define LIBROPE_SRC_CONTEXT_FREQUENCIES_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "context/config.h"
#include "math/ggml_angles.h"
#include "math/turns.h"

namespace rope {

// GgmlNumbers with the memory of their tables.
struct GgmlTables {
  float theta_scale = 0;
  float freq_scale = 1;
  std::vector<float> freq_factors;  // empty: none
  std::vector<float> extrapolated;  // empty: none

  GgmlNumbers numbers() const {
    return {theta_scale, freq_scale, freq_factors.empty() ? nullptr : freq_factors.data(),
            extrapolated.empty() ? nullptr : extrapolated.data()};
  }
};

struct Frequencies {
  std::vector<double> inv_freq;  // radians per position; f32 values under FLOAT32. Of each pair, or
                                 // all of config.frequency
  std::vector<float> timescale;  // DIVIDE: positions per radian, of which inv_freq is the inverse
  std::vector<Turns> turns;      // EXACT: the same in turns per position, modulo nothing; else 0
  double attention_factor = 1;
  double softmax_factor = 1;
  GgmlTables ggml;  // under ROPE_ANGLE_GGML
};

// FLOAT32 follows the f32 steps of transformers, DIVIDE those of JAX code (timescale.h); EXACT
// computes the same formulas as FLOAT32 in DoubleDouble.
rope_status ComputeFrequencies(const char* function, const Config& config, Frequencies* out);

// The lengths of sequences, first and last, that have one and the same frequencies.
inline constexpr int64_t kAnyLength = std::numeric_limits<int64_t>::max();
struct LengthRange {
  int64_t first, last;

  int64_t End() const { return last == kAnyLength ? kAnyLength : last + 1; }
};
LengthRange LengthsLike(const Config& config, int64_t seq_len);

}  // namespace rope

#endif  // LIBROPE_SRC_CONTEXT_FREQUENCIES_H_
