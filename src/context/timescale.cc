#include "context/timescale.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "math/strict_math.h"

namespace rope {
namespace {

constexpr float k2Pi = 6.28318530717958647693f;

// The frequencies of Llama 3.1 by the steps of MaxText's _apply_scaling_factor: those between the
// two wavelengths are a mixture.
float ScaledForLlama3(const rope_config& c, float frequency) {
  const double original = static_cast<double>(c.original_max_position_embeddings);
  const float wavelength = k2Pi / frequency, per_factor = 1 / static_cast<float>(c.factor);
  if (wavelength < static_cast<float>(original / c.high_freq_factor)) return frequency;
  if (wavelength > static_cast<float>(original / c.low_freq_factor)) return frequency * per_factor;
  const float per_range = 1 / static_cast<float>(c.high_freq_factor - c.low_freq_factor);
  const float turns = static_cast<float>(original) / wavelength;
  const float smooth = (turns - static_cast<float>(c.low_freq_factor)) * per_range;
  return (1 - smooth) * frequency * per_factor + smooth * frequency;
}

}  // namespace

std::vector<float> Timescales(const Config& config) {
  const rope_config& c = config.given;
  std::vector<float> timescales(static_cast<size_t>(config.pairs()),
                                std::numeric_limits<float>::infinity());
  if (c.inv_freq != nullptr) {
    std::transform(c.inv_freq, c.inv_freq + config.pairs(), timescales.begin(),
                   [](double inv_freq) { return static_cast<float>(1 / inv_freq); });
    return timescales;
  }
  const auto theta = static_cast<float>(c.theta);
  const float per_channel = 1 / static_cast<float>(config.rotary_dim);
  for (int i = 0; i < config.rotating_pairs; ++i) {
    float timescale = std::pow(theta, static_cast<float>(2 * i) * per_channel);
    if ((kScalingRules[c.scaling].needs & kLlamaNumbers) != 0) {
      timescale = 1 / ScaledForLlama3(c, 1 / timescale);
    } else if (c.factor != 0) {  // of all other scalings it divides frequencies
      timescale = timescale * static_cast<float>(c.factor);
    }
    timescales[static_cast<size_t>(i)] = timescale;
  }
  return timescales;
}

}  // namespace rope
