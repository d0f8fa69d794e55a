#include "context/context.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/limits.h"
#include "base/status.h"
#include "context/config.h"
#include "context/frequencies.h"

namespace rope {
namespace {

std::vector<Segment> Segments(const Config& config) {
  if (!kPairings[config.given.pairing].block_per_axis) return {{0, 0, config.pairs()}};
  std::vector<Segment> segments;
  int first_pair = 0;
  for (int a = 0; a < config.axes; ++a) {
    const int pairs = config.given.mrope_section[a];
    if (pairs > 0) segments.push_back({2 * first_pair, first_pair, pairs});
    first_pair += pairs;
  }
  return segments;
}

// The axis of each pair. Interleaved sections (Qwen3-VL): pair i belongs to axis i mod 3 while that
// axis has pairs left by its section, else to axis 0.
std::vector<uint8_t> PairAxes(const Config& config) {
  const rope_config& c = config.given;
  const int pairs = config.pairs();
  if (config.axes == 1 || c.frequency != nullptr) return {};
  if (c.pair_axis != nullptr) return {c.pair_axis, c.pair_axis + pairs};
  std::vector<uint8_t> axes(pairs, 0);
  if (c.mrope_interleaved != 0) {
    for (int a = 1; a < config.axes; ++a) {
      for (int i = a; i < std::min(pairs, config.axes * c.mrope_section[a]); i += config.axes) {
        axes[i] = static_cast<uint8_t>(a);
      }
    }
    return axes;
  }
  int i = 0;
  for (int a = 0; a < kMaxSections; ++a) {
    for (int n = 0; n < c.mrope_section[a]; ++n) axes[i++] = static_cast<uint8_t>(a);
  }
  return axes;
}

rope_status MakeSet(const char* function, const Config& config, FrequencySet* set) {
  Frequencies frequencies;
  if (rope_status s = ComputeFrequencies(function, config, &frequencies)) return s;
  for (size_t i = 0; i < frequencies.inv_freq.size(); ++i) {
    const double value = frequencies.inv_freq[i];
    const Turns& turns = frequencies.turns[i];
    const bool ggml = config.given.angle == ROPE_ANGLE_GGML;
    set->inv_freq_f32.push_back(ggml ? 1 : static_cast<float>(value));
    set->turns_high.push_back(static_cast<uint32_t>(turns.fraction >> 32));
    set->turns_low.push_back(static_cast<uint32_t>(turns.fraction));
    set->turns_whole.push_back(turns.whole);
    set->max_inv_freq = std::max(set->max_inv_freq, std::fabs(set->inv_freq_f32.back()));
  }
  set->timescale = std::move(frequencies.timescale);
  const auto padded =
      std::max(frequencies.inv_freq.size(), static_cast<size_t>(PaddedPairs(config.pairs())));
  set->inv_freq_f32.resize(padded);
  if (!set->timescale.empty()) {
    set->timescale.resize(padded, 1.0f);
    set->max_inv_freq *= 1 + 0x1p-20f;  // no angle is above position * max_inv_freq
  }
  set->turns_high.resize(padded);
  set->turns_low.resize(padded);
  set->inv_freq = std::move(frequencies.inv_freq);
  set->attention_factor = frequencies.attention_factor;
  set->softmax_factor = frequencies.softmax_factor;
  const LengthRange lengths = LengthsLike(config, config.given.seq_len);
  set->valid_from = lengths.first;
  set->valid_below = lengths.End();
  set->ggml = std::move(frequencies.ggml);
  return ROPE_OK;
}

// 1 radian per position, and 2^-64 turns.
FrequencySet Units() {
  constexpr size_t padded = PaddedPairs(kMaxPairs);
  FrequencySet units{};
  units.inv_freq_f32.assign(padded, 1);
  units.turns_high.assign(padded, 0);
  units.turns_low.assign(padded, 1);
  units.max_inv_freq = 1;
  return units;
}

// Sets may differ in what decides frequencies and attention factor, and in nothing else.
rope_status CheckSameShape(const char* function, int index, const Config& a, const Config& b) {
  const rope_config &x = a.given, &y = b.given;
  const char* field = nullptr;
  if (x.head_dim != y.head_dim) field = "head_dim";
  if (a.rotary_dim != b.rotary_dim) field = "rotary_dim";
  if (x.rotary_offset != y.rotary_offset) field = "rotary_offset";
  if (x.pairing != y.pairing) field = "pairing";
  if (x.angle != y.angle) field = "angle";
  if (x.rounding != y.rounding) field = "rounding";
  if (kScalingRules[x.scaling].Is(kStill) != kScalingRules[y.scaling].Is(kStill)) {
    field = "scaling (NOPE)";
  }
  if (a.axes != b.axes) field = "axes";
  if (x.ids_per_axis != y.ids_per_axis) field = "ids_per_axis";
  if (PairAxes(a) != PairAxes(b)) field = "mrope_section or pair_axis";
  if ((x.frequency != nullptr) != (y.frequency != nullptr)) field = "frequency (NULL)";
  if (a.freq_heads != b.freq_heads) field = "freq_heads";
  if (FindBackend(x.device) != FindBackend(y.device) || x.device_index != y.device_index)
    field = "device";
  if (field == nullptr) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: configs[%d]->%s must be that of configs[0]: sets differ in frequencies only",
              function, index, field);
}

}  // namespace

rope_status ResolveContext(const char* function, const rope_config* const* configs, int32_t count,
                           rope_context* context) {
  context->valid_below = INT64_MAX;
  Config first;
  for (int32_t n = 0; n < count; ++n) {
    Config config;
    if (rope_status s = CheckConfig(function, configs[n], &config)) return s;
    if (n == 0) {
      first = config;
    } else if (rope_status s = CheckSameShape(function, n, first, config)) {
      return s;
    }
    FrequencySet set{};
    if (rope_status s = MakeSet(function, config, &set)) return s;
    context->valid_below = std::min(context->valid_below, set.valid_below);
    context->sets.push_back(std::move(set));
  }
  const rope_config& c = first.given;
  context->head_dim = c.head_dim;
  context->rotary_dim = first.rotary_dim;
  context->rotary_offset = c.rotary_offset;
  context->pairs = first.pairs();
  context->axes = first.axes;
  context->ids_per_axis = c.ids_per_axis != 0;
  context->freq_heads = first.freq_heads;
  context->sums = c.frequency != nullptr;
  // Of all contexts, and for as long as any: threads may rotate while the program ends.
  static const FrequencySet* const kUnits = new FrequencySet(Units());
  context->units = kUnits;
  context->pairing = c.pairing;
  context->angle = c.angle;
  context->rounding = kRoundings[c.rounding];
  context->nope = kScalingRules[c.scaling].Is(kStill);
  context->segments = Segments(first);
  context->pair_axis = PairAxes(first);
  context->device_index = c.device_index;
  context->backend = FindBackend(c.device);
  context->has_one_row = context->axes == 1 && context->sets.size() == 1 &&
                         context->freq_heads == 1 && !context->ids_per_axis &&
                         context->valid_below == INT64_MAX && context->backend->host_memory;
  return ROPE_OK;
}

rope_status CreateContext(const char* function, const rope_config* const* configs, int32_t count,
                          std::unique_ptr<rope_context>* out) {
  auto context = std::make_unique<rope_context>();
  if (rope_status s = ResolveContext(function, configs, count, context.get())) return s;
  if (rope_status s = context->backend->attach(function, context.get())) return s;
  *out = std::move(context);
  return ROPE_OK;
}

}  // namespace rope
