// The immutable context behind a handle: resolved frequencies, the pairs of a head, the backend;
// and how it is made.
#ifndef LIBROPE_SRC_CONTEXT_CONTEXT_H_
#define LIBROPE_SRC_CONTEXT_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "context/backend.h"
#include "context/frequencies.h"
#include "librope/rope.h"
#include "math/pairing.h"
#include "math/rounding.h"
#include "math/token_position.h"
#include "math/turns.h"

namespace rope {

namespace cpu {
struct Caches;
}

// The frequencies of one set, one value per pair, as the kernels read them. Those that are read as
// vectors are PaddedPairs(pairs) long, and 0 behind the last pair. Of the general angle: values for
// [axis][head][pair], which the kernels do not read.
struct FrequencySet {
  std::vector<float> inv_freq_f32;   // padded. FLOAT32; GGML: all 1, positions are angles
  std::vector<float> timescale;      // padded by 1. DIVIDE; else empty
  std::vector<uint32_t> turns_high;  // padded. EXACT: the fraction of a turn per position
  std::vector<uint32_t> turns_low;   // padded. Its lower 32 bits
  std::vector<int64_t> turns_whole;  // EXACT with float coordinates
  std::vector<double> inv_freq;
  float max_inv_freq;  // largest |inv_freq|, rounded up
  double attention_factor, softmax_factor;
  int64_t valid_from, valid_below;  // lengths, and so positions, that it is right for
  GgmlTables ggml;                  // GGML

  uint64_t TurnsFraction(size_t pair) const {
    return static_cast<uint64_t>(turns_high[pair]) << 32 | turns_low[pair];
  }
  Turns TurnsOf(size_t pair) const { return {turns_whole[pair], TurnsFraction(pair)}; }
};

// That of one pair, as math/angle.h asks for it.
struct PairFrequency {
  const FrequencySet& set;
  size_t pair;
  size_t axis_step = 0;  // of the general angle: from one axis to the next

  float inv_freq_f32() const { return set.inv_freq_f32[pair]; }
  float timescale() const { return set.timescale[pair]; }
  uint64_t turns_fraction() const { return set.TurnsFraction(pair); }
  Turns turns() const { return set.TurnsOf(pair); }
  double inv_freq() const { return set.inv_freq[pair]; }
  PairFrequency OfAxis(int axis) const {
    return {set, pair + static_cast<size_t>(axis) * axis_step, axis_step};
  }
};

}  // namespace rope

struct rope_context {
  int32_t head_dim, rotary_dim, rotary_offset, pairs, axes;
  int32_t freq_heads;  // heads with frequencies of their own
  bool sums;           // the general angle: a sum over axes
  rope_pairing pairing;
  rope_angle angle;
  rope::RoundingRule rounding;
  bool nope;  // values stay
  bool ids_per_axis;
  std::vector<rope::Segment> segments;
  std::vector<uint8_t> pair_axis;  // empty with one axis, and with sums
  std::vector<rope::FrequencySet> sets;
  // A token has one position and one row, whatever its sequence, and the position may be any; the
  // backend works in main memory.
  bool has_one_row;
  const rope::FrequencySet* units;  // one for all pairs, whose positions are angles or phases
  int64_t valid_below;              // the least of the sets'
  int32_t device_index;
  const rope::Backend* backend;
  const void* backend_data;  // the backend's own: CPU kernels of the chosen target, device facts
  const rope::cpu::Caches* caches;  // CPU
  char backend_name[48];

  const rope::FrequencySet& SetOf(const rope::PositionSource& source, int64_t sequence) const {
    const auto count = static_cast<int32_t>(sets.size());
    return sets[static_cast<size_t>(rope::FrequencySetOf(source, sequence, count))];
  }
  // Of a pair on axis 0.
  rope::PairFrequency SummedFrequency(const rope::FrequencySet& set, int head, int pair) const {
    return {set, static_cast<size_t>(head) * static_cast<size_t>(pairs) + static_cast<size_t>(pair),
            static_cast<size_t>(freq_heads) * static_cast<size_t>(pairs)};
  }
  int AxisOf(int pair) const { return axes > 1 ? pair_axis[static_cast<size_t>(pair)] : 0; }
};

namespace rope {

// Fills all of a context but what belongs to its device: what the configurations mean. Every
// configs[i] may be NULL or invalid. May throw std::bad_alloc.
rope_status ResolveContext(const char* function, const rope_config* const* configs, int32_t count,
                           rope_context* context);

// Makes a context of checked configurations, with its device.
rope_status CreateContext(const char* function, const rope_config* const* configs, int32_t count,
                          std::unique_ptr<rope_context>* out);

}  // namespace rope

#endif  // LIBROPE_SRC_CONTEXT_CONTEXT_H_
