#include "context/config.h"

#include <cmath>
#include <cstddef>
#include <iterator>

#include "base/aligned.h"
#include "base/decimal.h"
#include "base/dtype_text.h"
#include "base/limits.h"
#include "base/struct_size.h"
#include "context/backend.h"
#include "math/element.h"
#include "math/pairing.h"
#include "math/rounding.h"

namespace rope {
namespace {

struct Number {
  const char* name;
  double value;
  ScalingNumbers bit;
};

rope_status CheckNumbers(const char* function, const rope_config& c) {
  const ScalingRule& rule = kScalingRules[c.scaling];
  const Number numbers[] = {
      {"factor", c.factor, kFactor},
      {"max_position_embeddings", static_cast<double>(c.max_position_embeddings), kMaxPosition},
      {"original_max_position_embeddings", static_cast<double>(c.original_max_position_embeddings),
       kOriginal},
      {"beta_fast", c.beta_fast, kYarnNumbers},
      {"beta_slow", c.beta_slow, kYarnNumbers},
      {"mscale", c.mscale, kYarnNumbers},
      {"mscale_all_dim", c.mscale_all_dim, kYarnNumbers},
      {"low_freq_factor", c.low_freq_factor, kLlamaNumbers},
      {"high_freq_factor", c.high_freq_factor, kLlamaNumbers},
      {"yarn_no_truncate", static_cast<double>(c.yarn_no_truncate), kYarnNumbers},
  };
  for (const Number& n : numbers) {
    if (!std::isfinite(n.value) || n.value < 0) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: config->%s (%s) must be finite and not negative", function, n.name,
                  Decimal(n.value).text);
    }
    if (n.value != 0 && (rule.uses & n.bit) == 0) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: config->%s (%s) must be 0, because ROPE_SCALING_%s does not use it",
                  function, n.name, Decimal(n.value).text, rule.name);
    }
    if (n.value == 0 && (rule.needs & n.bit) != 0) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: config->%s (0) must be positive, because ROPE_SCALING_%s requires it",
                  function, n.name, rule.name);
    }
  }
  // A fact about the sequence, not about the model: engines may set it for every kind of layer.
  if (c.seq_len < 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: config->seq_len (%lld) must not be negative",
                function, static_cast<long long>(c.seq_len));
  }
  if (c.seq_len == 0 && (rule.needs & kSeqLen) != 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: config->seq_len (0) must be positive, because ROPE_SCALING_%s requires it",
                function, rule.name);
  }
  if (rule.Is(kHasTables) && c.factor == 0 && c.max_position_embeddings == 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: config->factor (0) and config->max_position_embeddings (0) must not both be 0 "
                "with ROPE_SCALING_LONGROPE",
                function);
  }
  if (c.yarn_no_truncate > 1) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: config->yarn_no_truncate (%d) must be 0 or 1",
                function, c.yarn_no_truncate);
  }
  if (!std::isfinite(c.attention_factor) || c.attention_factor < 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: config->attention_factor (%s) must be finite and not negative", function,
                Decimal(c.attention_factor).text);
  }
  if (c.attention_factor != 0 && rule.Is(kStill)) {
    return Fail(
        ROPE_ERROR_INVALID_ARGUMENT,
        "%s: config->attention_factor (%s) must be 0, because ROPE_SCALING_NOPE leaves values "
        "as they are",
        function, Decimal(c.attention_factor).text);
  }
  const double fast = BetaFastOf(c), slow = BetaSlowOf(c);
  if (c.scaling == ROPE_SCALING_YARN && fast < slow) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: config->beta_fast (%s) must be at least beta_slow (%s)", function,
                Decimal(fast).text, Decimal(slow).text);
  }
  if (c.scaling == ROPE_SCALING_LLAMA3 && c.high_freq_factor < c.low_freq_factor) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: config->high_freq_factor (%s) must be at least low_freq_factor (%s)", function,
                Decimal(c.high_freq_factor).text, Decimal(c.low_freq_factor).text);
  }
  return ROPE_OK;
}

// An enum field: `required` makes 0 an error, above `last` is a later version's.
rope_status CheckEnum(const char* function, const char* name, int32_t value, bool required,
                      int32_t last) {
  if (value == 0 && required) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: config->%s (0) is required", function, name);
  }
  if (value < 0 || value > last) {
    return Fail(ROPE_ERROR_UNSUPPORTED, "%s: config->%s (%d) is not known to this version",
                function, name, value);
  }
  return ROPE_OK;
}

rope_status CheckGgml(const char* function, const rope_config& c) {
  const bool scaling = kScalingRules[c.scaling].Is(kHasGgml);
  const Backend* backend = FindBackend(c.device);
  const bool device = backend == nullptr || backend->has_ggml;  // null: refused by name below
  if (scaling && c.inv_freq == nullptr && device) return ROPE_OK;
  return Fail(ROPE_ERROR_UNSUPPORTED,
              "%s: config->angle (ROPE_ANGLE_GGML) needs the CPU, scaling DEFAULT, LINEAR or YARN "
              "(others as freq_factors), and no inv_freq",
              function);
}

// JAX code divides by the timescales of these scalings alone, and rounds no frequencies.
rope_status CheckDivide(const char* function, const rope_config& c) {
  const bool scaling = kScalingRules[c.scaling].Is(kHasTimescale);
  if (scaling && c.freq_factors == nullptr && c.inv_freq_dtype == 0) return ROPE_OK;
  return Fail(ROPE_ERROR_UNSUPPORTED,
              "%s: config->angle (ROPE_ANGLE_DIVIDE) needs scaling DEFAULT, LINEAR, LLAMA3 or "
              "PROPORTIONAL (others as inv_freq), and no freq_factors or inv_freq_dtype",
              function);
}

rope_status CheckSpan(const char* function, const rope_config& c) {
  if (c.head_dim < 2 || c.head_dim > kMaxHeadDim || c.head_dim % 2 != 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: config->head_dim (%d) must be even and from 2 to %d", function, c.head_dim,
                kMaxHeadDim);
  }
  if (c.rotary_dim < 0 || c.rotary_dim > c.head_dim || c.rotary_dim % 2 != 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: config->rotary_dim (%d) must be even and from 0 to head_dim (%d)", function,
                c.rotary_dim, c.head_dim);
  }
  const int span = SpanOf(c);
  if (c.rotary_offset < 0 || c.rotary_offset > c.head_dim - span) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: config->rotary_offset (%d) must be from 0 to head_dim - rotary_dim (%d)",
                function, c.rotary_offset, c.head_dim - span);
  }
  if (kScalingRules[c.scaling].Is(kWholeHead) && c.rotary_offset != 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: config->rotary_offset (%d) must be 0 with ROPE_SCALING_PROPORTIONAL, whose "
                "pairs span the whole head",
                function, c.rotary_offset);
  }
  return ROPE_OK;
}

// What the general angle replaces, and what it cannot be.
rope_status CheckFrequency(const char* function, const rope_config& c) {
  if (c.freq_heads < 0 || c.freq_heads > kMaxFrequencyHeads ||
      (c.frequency == nullptr && c.freq_heads != 0)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: config->freq_heads (%d) must be from 0 to %d%s",
                function, c.freq_heads, c.frequency != nullptr ? kMaxFrequencyHeads : 0,
                c.frequency != nullptr ? "" : " without frequency");
  }
  if (c.frequency == nullptr) return ROPE_OK;
  const char* replaced = c.scaling != ROPE_SCALING_DEFAULT ? "scaling"
                         : c.inv_freq != nullptr           ? "inv_freq"
                         : c.freq_factors != nullptr       ? "freq_factors"
                         : c.pair_axis != nullptr          ? "pair_axis"
                         : c.mrope_interleaved != 0        ? "mrope_interleaved"
                                                           : nullptr;
  for (const int32_t pairs : c.mrope_section) {
    if (pairs != 0) replaced = "mrope_section";
  }
  if (replaced != nullptr) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: config->%s must be 0 with frequency, which replaces it", function, replaced);
  }
  const char* without = c.angle == ROPE_ANGLE_GGML            ? "ROPE_ANGLE_GGML"
                        : c.angle == ROPE_ANGLE_DIVIDE        ? "ROPE_ANGLE_DIVIDE"
                        : kPairings[c.pairing].block_per_axis ? "the pairing HALVES_PER_AXIS"
                                                              : nullptr;
  if (without != nullptr) {
    return Fail(ROPE_ERROR_UNSUPPORTED, "%s: config->frequency must be NULL with %s", function,
                without);
  }
  return ROPE_OK;
}

rope_status CheckAxes(const char* function, const rope_config& c, int pairs, int axes) {
  if (c.axes < 0 || c.axes > kMaxAxes) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: config->axes (%d) must be from 0 to %d", function,
                c.axes, kMaxAxes);
  }
  if (c.mrope_interleaved != 0 && c.mrope_interleaved != 1) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: config->mrope_interleaved (%d) must be 0 or 1",
                function, c.mrope_interleaved);
  }
  int64_t sum = 0;
  bool sections = false;
  for (int a = 0; a < kMaxSections; ++a) {
    if (c.mrope_section[a] < 0 || (a >= axes && c.mrope_section[a] != 0)) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: config->mrope_section[%d] (%d) must not be negative, and 0 beyond axes (%d)",
                  function, a, c.mrope_section[a], axes);
    }
    sections |= c.mrope_section[a] != 0;
    sum += c.mrope_section[a];
  }
  if (sections && axes > kMaxSections) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: config->axes (%d) must be at most %d with mrope_section: more axes need "
                "pair_axis",
                function, axes, kMaxSections);
  }
  if (axes > 1 && c.frequency == nullptr && sections == (c.pair_axis != nullptr)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: config->axes (%d) needs either mrope_section or pair_axis, and not both, or "
                "frequency",
                function, c.axes);
  }
  if (c.ids_per_axis != 0 && (c.ids_per_axis != 1 || axes == 1)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: config->ids_per_axis (%d) must be 0 or 1, and 0 with one axis", function,
                c.ids_per_axis);
  }
  if (axes == 1 && (sections || c.mrope_interleaved != 0 || c.pair_axis != nullptr)) {
    return Fail(
        ROPE_ERROR_INVALID_ARGUMENT,
        "%s: config->mrope_section, mrope_interleaved and pair_axis must be 0 with one axis",
        function);
  }
  if (sections && sum != pairs) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: config->mrope_section adds up to %lld, and must add up to the number of pairs "
                "(%d)",
                function, static_cast<long long>(sum), pairs);
  }
  if (c.mrope_interleaved != 0 && (!sections || axes > 3)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: config->mrope_interleaved (1) needs mrope_section and at most 3 axes",
                function);
  }
  if (kPairings[c.pairing].block_per_axis && (!sections || c.mrope_interleaved != 0)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: config->pairing (HALVES_PER_AXIS) needs axes > 1 with mrope_section, not "
                "interleaved",
                function);
  }
  return ROPE_OK;
}

// `positive`: a divisor; else any finite value up to kMaxInvFreq.
rope_status CheckTable(const char* function, const char* name, const double* table, int length,
                       bool positive) {
  if (!IsAligned(table, alignof(double))) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: config->%s (%p) must be aligned to %zu bytes",
                function, name, static_cast<const void*>(table), alignof(double));
  }
  for (int i = 0; table != nullptr && i < length; ++i) {
    const bool good =
        std::isfinite(table[i]) && (positive ? table[i] > 0 : std::fabs(table[i]) <= kMaxInvFreq);
    if (!good) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: config->%s[%d] (%s) must be finite and %s",
                  function, name, i, Decimal(table[i]).text,
                  positive ? "positive" : "at most 2^32");
    }
  }
  return ROPE_OK;
}

rope_status CheckTables(const char* function, const rope_config& c, int pairs, int axes) {
  const bool longrope = kScalingRules[c.scaling].Is(kHasTables);
  if (longrope && (c.short_factor == nullptr || c.long_factor == nullptr)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: config->%s (NULL) is required by ROPE_SCALING_LONGROPE", function,
                c.short_factor == nullptr ? "short_factor" : "long_factor");
  }
  if (!longrope && (c.short_factor != nullptr || c.long_factor != nullptr)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: config->%s must be NULL, because only ROPE_SCALING_LONGROPE uses it", function,
                c.short_factor != nullptr ? "short_factor" : "long_factor");
  }
  if (c.inv_freq != nullptr && c.scaling != ROPE_SCALING_DEFAULT) {
    return Fail(
        ROPE_ERROR_INVALID_ARGUMENT,
        "%s: config->scaling (ROPE_SCALING_%s) must be DEFAULT with inv_freq, which replaces "
        "it",
        function, kScalingRules[c.scaling].name);
  }
  const bool tables = c.short_factor != nullptr || c.freq_factors != nullptr ||
                      c.inv_freq != nullptr || c.pair_axis != nullptr || c.frequency != nullptr;
  if (tables ? c.table_length != pairs : c.table_length != 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: config->table_length (%d) must be %d, the number of pairs%s", function,
                c.table_length, tables ? pairs : 0, tables ? "" : " in tables: there is no table");
  }
  // Tables are read from here on, and not before: their length is known to be right.
  for (int i = 0; c.pair_axis != nullptr && i < pairs; ++i) {
    if (c.pair_axis[i] >= axes) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: config->pair_axis[%d] (%d) must be below axes (%d)", function, i,
                  c.pair_axis[i], axes);
    }
  }
  if (rope_status s = CheckTable(function, "short_factor", c.short_factor, pairs, true)) return s;
  if (rope_status s = CheckTable(function, "long_factor", c.long_factor, pairs, true)) return s;
  if (rope_status s = CheckTable(function, "freq_factors", c.freq_factors, pairs, true)) return s;
  const int frequencies = axes * std::max(c.freq_heads, 1) * pairs;
  if (rope_status s = CheckTable(function, "frequency", c.frequency, frequencies, false)) return s;
  return CheckTable(function, "inv_freq", c.inv_freq, pairs, false);
}

}  // namespace

rope_status CheckConfig(const char* function, const rope_config* config, Config* out,
                        SeqLen seq_len) {
  rope_config& c = out->given;
  if (rope_status s = CopyStruct(function, "config", config, &c)) return s;
  if (seq_len == SeqLen::kAny) c.seq_len = DependsOnLength(c.scaling) ? 1 : 0;
  if (c.reserved != nullptr || c.reserved2 != 0) {
    return Fail(ROPE_ERROR_UNSUPPORTED, "%s: config->%s must be 0 in this version", function,
                c.reserved != nullptr ? "reserved" : "reserved2");
  }
  if (rope_status s =
          CheckEnum(function, "scaling", c.scaling, false, std::size(kScalingRules) - 1)) {
    return s;
  }
  const ScalingRule& rule = kScalingRules[c.scaling];
  const bool nope = rule.Is(kStill);
  if (rope_status s = CheckSpan(function, c)) return s;
  if (rope_status s = CheckEnum(function, "pairing", c.pairing, !nope, std::size(kPairings) - 1)) {
    return s;
  }
  if (rope_status s = CheckEnum(function, "angle", c.angle, false, ROPE_ANGLE_DIVIDE)) return s;
  if (nope) c.angle = ROPE_ANGLE_FLOAT32;  // there is no angle, and so no policy
  if (rope_status s =
          CheckEnum(function, "rounding", c.rounding, false, std::size(kRoundings) - 1)) {
    return s;
  }
  if (c.inv_freq_dtype != 0 && !IsDtype(c.inv_freq_dtype)) {
    return Fail(ROPE_ERROR_UNSUPPORTED,
                "%s: config->inv_freq_dtype (%s) must be 0, F32, F16 or BF16 in this version",
                function, DtypeText(c.inv_freq_dtype).text);
  }
  if (c.angle == ROPE_ANGLE_GGML) {
    if (rope_status s = CheckGgml(function, c)) return s;
  }
  if (c.angle == ROPE_ANGLE_DIVIDE) {
    if (rope_status s = CheckDivide(function, c)) return s;
  }
  if (rope_status s = CheckFrequency(function, c)) return s;
  const bool theta_optional = nope || c.inv_freq != nullptr || c.frequency != nullptr;
  if (!std::isfinite(c.theta) || c.theta < 0 || (c.theta == 0 && !theta_optional)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: config->theta (%s) is required, and must be finite and positive", function,
                Decimal(c.theta).text);
  }
  if (rope_status s = CheckNumbers(function, c)) return s;

  out->rotary_dim = rule.Is(kWholeHead) ? c.head_dim : SpanOf(c);
  out->rotating_pairs = SpanOf(c) / 2;
  out->axes = c.axes != 0 ? c.axes : 1;
  out->freq_heads = c.freq_heads != 0 ? c.freq_heads : 1;
  if (out->rotary_dim < rule.least_dim) {
    return Fail(
        ROPE_ERROR_INVALID_ARGUMENT,
        "%s: config->rotary_dim (%d) must be at least %d with ROPE_SCALING_%s, whose formula "
        "divides by rotary_dim - 2",
        function, out->rotary_dim, rule.least_dim, rule.name);
  }
  if (rope_status s = CheckAxes(function, c, out->pairs(), out->axes)) return s;
  if (rope_status s = CheckTables(function, c, out->pairs(), out->axes)) return s;
  const Backend* backend = FindBackend(c.device);
  if (backend == nullptr) {
    return Fail(ROPE_ERROR_UNSUPPORTED, "%s: config->device (%d) is not known to this version",
                function, c.device);
  }
  if (!backend->is_numbered && c.device_index != 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: config->device_index (%d) must be 0 on the %s",
                function, c.device_index, backend->name);
  }
  if (c.device_index < 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: config->device_index (%d) must not be negative",
                function, c.device_index);
  }
  return ROPE_OK;
}

}  // namespace rope
