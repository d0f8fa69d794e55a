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

// The frequencies of one set, one value per pair, as the kernels read them. Those that are read as
// vectors are PaddedPairs(pairs) long, and 0 behind the last pair.
struct FrequencySet {
  std::vector<float> inv_freq_f32;   // padded. FLOAT32; GGML: all 1, positions are angles
  std::vector<uint32_t> turns_high;  // padded. EXACT: the fraction of a turn per position
  std::vector<uint32_t> turns_low;   // padded. Its lower 32 bits
  std::vector<int64_t> turns_whole;  // EXACT with float coordinates
  std::vector<double> inv_freq;
  float max_inv_freq;  // largest |inv_freq|, rounded up
  double attention_factor, softmax_factor;
  int64_t valid_from, valid_below;  // lengths, and so positions, that it is right for
  GgmlTables ggml;                  // GGML

  Turns TurnsOf(size_t pair) const {
    return {turns_whole[pair], static_cast<uint64_t>(turns_high[pair]) << 32 | turns_low[pair]};
  }
};

// That of one pair, as math/angle.h asks for it.
struct PairFrequency {
  const FrequencySet& set;
  size_t pair;

  float inv_freq_f32() const { return set.inv_freq_f32[pair]; }
  uint64_t turns_fraction() const { return turns().fraction; }
  Turns turns() const { return set.TurnsOf(pair); }
  double inv_freq() const { return set.inv_freq[pair]; }
};

}  // namespace rope

struct rope_context {
  int32_t head_dim, rotary_dim, rotary_offset, pairs, axes;
  rope_pairing pairing;
  rope_angle angle;
  rope::RoundingRule rounding;
  bool nope;  // values stay
  std::vector<rope::Segment> segments;
  std::vector<uint8_t> pair_axis;  // empty with one axis
  std::vector<rope::FrequencySet> sets;
  int64_t valid_below;  // the least of the sets'
  int32_t device_index;
  const rope::Backend* backend;
  const void* backend_data;  // the backend's own: CPU kernels of the chosen target, device facts
  int64_t streaming_bytes;   // CPU: what the last cache keeps
  char backend_name[48];

  const rope::FrequencySet& SetOf(const rope::PositionSource& source, int64_t sequence) const {
    const auto count = static_cast<int32_t>(sets.size());
    return sets[static_cast<size_t>(rope::FrequencySetOf(source, sequence, count))];
  }
  int AxisOf(int pair) const { return axes > 1 ? pair_axis[static_cast<size_t>(pair)] : 0; }
};

namespace rope {

// Makes a context of checked configurations. Every configs[i] may be NULL or invalid. May throw
// std::bad_alloc.
rope_status CreateContext(const char* function, const rope_config* const* configs, int32_t count,
                          std::unique_ptr<rope_context>* out);

}  // namespace rope

#endif  // LIBROPE_SRC_CONTEXT_CONTEXT_H_
