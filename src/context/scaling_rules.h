// What each scaling takes and how it behaves: a row for each. The formulas are in frequencies.cc,
// in a table of the same order.
#ifndef LIBROPE_SRC_CONTEXT_SCALING_RULES_H_
#define LIBROPE_SRC_CONTEXT_SCALING_RULES_H_

#include <cstdint>
#include <iterator>

#include "librope/rope.h"

namespace rope {

// Numbers of a rope_config, as bits.
enum ScalingNumbers : uint32_t {
  kFactor = 1,
  kMaxPosition = 2,  // max_position_embeddings
  kOriginal = 4,     // original_max_position_embeddings
  kSeqLen = 8,
  kYarnNumbers = 16,   // beta_*, mscale*, yarn_no_truncate
  kLlamaNumbers = 32,  // *_freq_factor
};

// The lengths of sequences with frequencies of their own.
enum class Lengths : uint8_t { kOne, kTwo, kSteps, kEach };

enum ScalingTraits : uint32_t {
  kStill = 1,      // values stay as they are
  kHasGgml = 2,    // offered with ROPE_ANGLE_GGML, where a factor divides; ggml bakes the others
                   // into freq_factors
  kHasTables = 4,  // short_factor and long_factor
  kHasTimescale = 16,  // offered with ROPE_ANGLE_DIVIDE
  kWholeHead = 8,      // pairs span the whole head, of which rotary_dim channels turn
};

struct ScalingRule {
  const char* name;
  uint32_t uses, needs;  // ScalingNumbers; seq_len may be given to all, whatever their layers need
  Lengths lengths;
  uint32_t traits;
  int least_dim = 2;  // of the rotated span

  constexpr bool Is(ScalingTraits trait) const { return (traits & trait) != 0; }
};

// By number. DYNAMIC's formula divides by rotary_dim - 2.
inline constexpr ScalingRule kScalingRules[] = {
    {"DEFAULT", 0, 0, Lengths::kOne, kHasGgml | kHasTimescale},
    {"LINEAR", kFactor, kFactor, Lengths::kOne, kHasGgml | kHasTimescale},
    {"DYNAMIC", kFactor | kMaxPosition, kFactor | kMaxPosition | kSeqLen, Lengths::kEach, 0, 4},
    {"YARN", kFactor | kOriginal | kYarnNumbers, kFactor | kOriginal, Lengths::kOne, kHasGgml},
    {"LONGROPE", kFactor | kMaxPosition | kOriginal, kOriginal | kSeqLen, Lengths::kTwo,
     kHasTables},
    {"LLAMA3", kFactor | kOriginal | kLlamaNumbers, kFactor | kOriginal | kLlamaNumbers,
     Lengths::kOne, kHasTimescale},
    {"PROPORTIONAL", kFactor, 0, Lengths::kOne, kWholeHead | kHasTimescale},
    {"NOPE", 0, 0, Lengths::kOne, kStill},
    {"DYNAMIC_STEPS", kFactor | kMaxPosition, kFactor | kMaxPosition | kSeqLen, Lengths::kSteps, 0,
     4},
};
static_assert(std::size(kScalingRules) == ROPE_SCALING_DYNAMIC_STEPS + 1);

// Whether the frequencies depend on the length of the sequence; false for an unknown scaling.
inline bool DependsOnLength(rope_scaling scaling) {
  return scaling >= 0 && scaling < static_cast<rope_scaling>(std::size(kScalingRules)) &&
         kScalingRules[scaling].lengths != Lengths::kOne;
}

// The channels in which pairs turn.
inline int SpanOf(const rope_config& config) {
  return config.rotary_dim != 0 ? config.rotary_dim : config.head_dim;
}

// YaRN's defaults.
inline constexpr double kYarnBetaFast = 32, kYarnBetaSlow = 1;
inline double BetaFastOf(const rope_config& config) {
  return config.beta_fast != 0 ? config.beta_fast : kYarnBetaFast;
}
inline double BetaSlowOf(const rope_config& config) {
  return config.beta_slow != 0 ? config.beta_slow : kYarnBetaSlow;
}

}  // namespace rope

#endif  // LIBROPE_SRC_CONTEXT_SCALING_RULES_H_
