// One formula per scaling, written once as a template over the arithmetic: float repeats the f32
// steps that transformers takes (each operation rounds; a Python number that meets an f32 tensor is
// rounded to f32 first), DoubleDouble gives the true value to about 100 bits.
//
// Sources: transformers' modeling_rope_utils.py (all rules); YaRN, arXiv 2309.00071; LongRoPE,
// arXiv 2402.13753; ggml's rope_yarn for freq_factors.
#include "context/frequencies.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>

#include "base/decimal.h"
#include "base/limits.h"
#include "base/status.h"
#include "context/double_double.h"
#include "context/timescale.h"
#include "context/torch_pow.h"
#include "math/element.h"

namespace rope {
namespace {

constexpr double kPi = 3.14159265358979323846;
constexpr DoubleDouble kInverse2Pi(0x1.45f306dc9c883p-3, -0x1.6b01ec5417056p-57);
constexpr DoubleDouble k2Pi(0x1.921fb54442d18p+2, 0x1.1a62633145c07p-52);

// theta^(2i / dim) for i = 0, 1, .., count - 1
template <class Real>
class Powers;

template <>
class Powers<float> {
 public:
  Powers(DoubleDouble theta, int dim, int count)
      : pow_(static_cast<float>(static_cast<double>(theta)), count), dim_(dim) {}
  float operator()(int i) const {
    return pow_(i, static_cast<float>(2 * i) / static_cast<float>(dim_));
  }

 private:
  TorchPow pow_;
  int dim_;
};

template <>
class Powers<DoubleDouble> {
 public:
  Powers(DoubleDouble theta, int dim, int) : root_(Root(theta, dim / 2)) {}
  DoubleDouble operator()(int i) const { return Power(root_, i); }

 private:
  DoubleDouble root_;
};

// Fixed point is for EXACT alone.
Turns TurnsOf(double) { return {}; }
Turns TurnsOf(DoubleDouble inv_freq) { return ToFixedTurns(inv_freq * kInverse2Pi); }

double ToDouble(double value) { return value; }
double ToDouble(DoubleDouble value) { return static_cast<double>(value); }

template <class Real>
Real FromDouble(double value) {
  return static_cast<Real>(value);
}

double AttentionScale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double LongropeFactor(const rope_config& c) {
  return c.factor != 0 ? c.factor
                       : static_cast<double>(c.max_position_embeddings) /
                             static_cast<double>(c.original_max_position_embeddings);
}

double AttentionFactor(const rope_config& c) {
  if (c.attention_factor != 0) return c.attention_factor;
  if (c.scaling == ROPE_SCALING_YARN) {
    if (c.mscale != 0 && c.mscale_all_dim != 0) {
      return AttentionScale(c.factor, c.mscale) / AttentionScale(c.factor, c.mscale_all_dim);
    }
    return AttentionScale(c.factor, 1);
  }
  if (c.scaling == ROPE_SCALING_LONGROPE) {
    const double factor = LongropeFactor(c);
    const auto original = static_cast<double>(c.original_max_position_embeddings);
    return factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(original));
  }
  return 1;
}

// DeepSeek multiplies the softmax scale by the square of YaRN's scale for mscale_all_dim.
double SoftmaxFactor(const rope_config& c) {
  if (c.scaling != ROPE_SCALING_YARN || c.mscale_all_dim == 0) return 1;
  const double scale = AttentionScale(c.factor, c.mscale_all_dim);
  return scale * scale;
}

// Those of DYNAMIC and DYNAMIC_STEPS.
LengthRange DynamicLengths(const rope_config& c, int64_t seq_len) {
  LengthRange range = {0, c.max_position_embeddings};
  if (seq_len <= range.last) return range;
  if (kScalingRules[c.scaling].lengths == Lengths::kEach) return {seq_len, seq_len};
  while (range.last < seq_len) {  // max_position_embeddings times 1, 2, 4, ..
    range.first = range.last + 1;
    range.last = range.last > kAnyLength / 2 ? kAnyLength : 2 * range.last;
  }
  return range;
}

LengthRange LongRopeLengths(const Config& config, int64_t seq_len) {
  const rope_config& c = config.given;
  const int64_t last = c.original_max_position_embeddings;
  const bool same = std::equal(c.short_factor, c.short_factor + config.pairs(), c.long_factor);
  if (same) return {0, kAnyLength};
  return seq_len <= last ? LengthRange{0, last} : LengthRange{last + 1, kAnyLength};
}

// NTK-aware base of a sequence of s tokens, the most with its frequencies:
// theta * (f s / S - (f - 1))^(D / (D - 2)).
// With f = 2 the steps are those of Qwen 1: 2^ceil(log2(seq_len / S) + 1) - 1.
template <class Real>
DoubleDouble DynamicTheta(const rope_config& c, int dim) {
  const auto trained = static_cast<double>(c.max_position_embeddings);
  const auto length = static_cast<double>(DynamicLengths(c, c.seq_len).last);
  if constexpr (std::is_same_v<Real, float>) {
    const double exponent = static_cast<double>(dim) / (dim - 2);
    if (kScalingRules[c.scaling].lengths == Lengths::kEach && length > trained) {
      // transformers has such a length in a tensor, which makes all of it f32, but for the exponent
      const float growth =
          static_cast<float>(c.factor) * static_cast<float>(length) / static_cast<float>(trained) -
          static_cast<float>(c.factor - 1);
      const double power = std::pow(static_cast<double>(growth), exponent);
      return static_cast<double>(static_cast<float>(c.theta) * static_cast<float>(power));
    }
    const double growth = c.factor * length / trained - (c.factor - 1);  // Python's numbers
    return c.theta * std::pow(growth, exponent);
  } else {
    const DoubleDouble growth =
        DoubleDouble(c.factor) * length / trained - (DoubleDouble(c.factor) - 1.0);
    return DoubleDouble(c.theta) * growth * Root(growth, (dim - 2) / 2);
  }
}

// What scalars are computed in before they become a Real: Python's doubles, or DoubleDouble.
template <class Real>
using Scalar = std::conditional_t<std::is_same_v<Real, float>, double, DoubleDouble>;

double Circles(double rotations) { return rotations * 2 * kPi; }
DoubleDouble Circles(DoubleDouble rotations) { return rotations * k2Pi; }

// The pair at which a frequency makes `rotations` turns over the original context.
template <class Number>
Number CorrectionPair(const rope_config& c, int dim, double rotations) {
  const Number channels = static_cast<double>(dim);
  const Number original = static_cast<double>(c.original_max_position_embeddings);
  return channels * Log(original / Circles(Number(rotations))) / (Log(Number(c.theta)) * 2.0);
}

// Between these pairs YaRN goes over from extrapolation to interpolation.
template <class Number>
struct YarnRange {
  Number low, high;
};

template <class Number>
YarnRange<Number> YarnRangeOf(const rope_config& c, int dim) {
  Number low = CorrectionPair<Number>(c, dim, BetaFastOf(c));
  Number high = CorrectionPair<Number>(c, dim, BetaSlowOf(c));
  if (c.yarn_no_truncate == 0) low = Floor(low), high = -Floor(-high);
  const Number first = 0.0, last = static_cast<double>(dim - 1);
  return {low < first ? first : low, last < high ? last : high};
}

// The scalings. Each fills the frequencies of all pairs, which are 0 before.

// theta^(-2i / rotary_dim) for the pairs that rotate.
template <class Real>
void FillPowers(const Config& config, DoubleDouble theta, std::vector<Real>* inv_freq) {
  const Powers<Real> power(theta, config.rotary_dim, config.rotating_pairs);
  for (int i = 0; i < config.rotating_pairs; ++i) {
    (*inv_freq)[i] = FromDouble<Real>(1) / power(i);
  }
}

template <class Real>
void Default(const Config& config, std::vector<Real>* inv_freq) {
  const rope_config& c = config.given;
  if (c.inv_freq == nullptr) return FillPowers(config, c.theta, inv_freq);
  std::transform(c.inv_freq, c.inv_freq + config.pairs(), inv_freq->begin(), FromDouble<Real>);
}

template <class Real>
void Linear(const Config& config, std::vector<Real>* inv_freq) {
  FillPowers(config, config.given.theta, inv_freq);
  for (Real& f : *inv_freq) f = f / FromDouble<Real>(config.given.factor);
}

// DYNAMIC_STEPS, too: the two differ in their lengths.
template <class Real>
void Dynamic(const Config& config, std::vector<Real>* inv_freq) {
  FillPowers(config, DynamicTheta<Real>(config.given, config.rotary_dim), inv_freq);
}

template <class Real>
void Yarn(const Config& config, std::vector<Real>* inv_freq) {
  const rope_config& c = config.given;
  const int dim = config.rotary_dim;
  auto [low, high] = YarnRangeOf<Scalar<Real>>(c, dim);
  // As transformers, against a division by zero.
  if (!(low < high) && !(high < low)) high = high + 0.001;
  const Powers<Real> power(c.theta, dim, dim / 2);
  const Real one = FromDouble<Real>(1);
  for (int i = 0; i < dim / 2; ++i) {
    Real ramp = (FromDouble<Real>(i) - static_cast<Real>(low)) / static_cast<Real>(high - low);
    if (ToDouble(ramp) < 0) ramp = FromDouble<Real>(0);
    if (ToDouble(ramp) > 1) ramp = one;
    const Real extrapolated_share = one - ramp;
    const Real wavelength = power(i);  // of a turn by one radian
    const Real extrapolation = one / wavelength;
    const Real interpolation = one / (FromDouble<Real>(c.factor) * wavelength);
    (*inv_freq)[i] =
        interpolation * (one - extrapolated_share) + extrapolation * extrapolated_share;
  }
}

template <class Real>
void Longrope(const Config& config, std::vector<Real>* inv_freq) {
  const rope_config& c = config.given;
  const Powers<Real> power(c.theta, config.rotary_dim, config.rotating_pairs);
  const double* factors =
      c.seq_len > c.original_max_position_embeddings ? c.long_factor : c.short_factor;
  for (int i = 0; i < config.rotating_pairs; ++i) {
    (*inv_freq)[i] = FromDouble<Real>(1) / (FromDouble<Real>(factors[i]) * power(i));
  }
}

template <class Real>
Real TwoPi();
template <>
float TwoPi<float>() {
  return static_cast<float>(2 * kPi);
}
template <>
DoubleDouble TwoPi<DoubleDouble>() {
  return k2Pi;
}

template <class Real>
void Llama3(const Config& config, std::vector<Real>* inv_freq) {
  const rope_config& c = config.given;
  FillPowers(config, c.theta, inv_freq);
  const auto original = static_cast<double>(c.original_max_position_embeddings);
  const Real one = FromDouble<Real>(1), factor = FromDouble<Real>(c.factor);
  const double longest_kept = ToDouble(FromDouble<Real>(original / c.high_freq_factor));
  const double shortest_scaled = ToDouble(FromDouble<Real>(original / c.low_freq_factor));
  for (Real& f : *inv_freq) {
    const Real wavelength = one / f * TwoPi<Real>();
    if (ToDouble(wavelength) > shortest_scaled) {
      f = f / factor;
    } else if (ToDouble(wavelength) >= longest_kept) {
      const Real smooth =
          (one / wavelength * FromDouble<Real>(original) - FromDouble<Real>(c.low_freq_factor)) /
          static_cast<Real>(Scalar<Real>(c.high_freq_factor) - Scalar<Real>(c.low_freq_factor));
      f = (one - smooth) * f / factor + smooth * f;
    }
  }
}

template <class Real>
void Proportional(const Config& config, std::vector<Real>* inv_freq) {
  return config.given.factor != 0 ? Linear(config, inv_freq)
                                  : FillPowers(config, config.given.theta, inv_freq);
}

template <class Real>
void Nope(const Config&, std::vector<Real>*) {}

// By number, as kScalingRules.
template <class Real>
constexpr void (*kScalings[])(const Config&, std::vector<Real>*) = {
    Default<Real>, Linear<Real>,       Dynamic<Real>, Yarn<Real>,    Longrope<Real>,
    Llama3<Real>,  Proportional<Real>, Nope<Real>,    Dynamic<Real>,
};
static_assert(std::size(kScalings<float>) == std::size(kScalingRules));

template <class Real>
std::vector<Real> InvFreq(const Config& config) {
  const rope_config& c = config.given;
  std::vector<Real> inv_freq(config.pairs(), FromDouble<Real>(0));
  if (c.frequency != nullptr) {
    inv_freq.resize(static_cast<size_t>(config.axes * config.freq_heads * config.pairs()));
    std::transform(c.frequency, c.frequency + inv_freq.size(), inv_freq.begin(), FromDouble<Real>);
  } else {
    kScalings<Real>[c.scaling](config, &inv_freq);
  }
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    if (c.freq_factors != nullptr) inv_freq[i] = inv_freq[i] / FromDouble<Real>(c.freq_factors[i]);
    if (c.inv_freq_dtype != 0) {
      const auto single = static_cast<float>(ToDouble(inv_freq[i]));
      inv_freq[i] = FromDouble<Real>(RoundTo(c.inv_freq_dtype, single));
    }
  }
  return inv_freq;
}

// inv_freq as doubles: those of f32 steps.
std::vector<double> Doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

std::vector<double> Inverses(const std::vector<float>& values) {
  std::vector<double> inverses;
  for (float value : values) inverses.push_back(1.0 / value);
  return inverses;
}

template <class Real>
rope_status Fill(const char* function, const Config& config, const std::vector<Real>& inv_freq,
                 Frequencies* out) {
  out->inv_freq.clear();
  out->turns.clear();
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const double value = ToDouble(inv_freq[i]);
    if (!(std::fabs(value) <= kMaxInvFreq)) {  // also NaN
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: config->theta (%s) and the scaling's numbers give inv_freq[%zu] = %s, which "
                  "must be finite and at most 2^32",
                  function, Decimal(config.given.theta).text, i, Decimal(value).text);
    }
    out->inv_freq.push_back(value);
    out->turns.push_back(TurnsOf(inv_freq[i]));
  }
  out->attention_factor = AttentionFactor(config.given);
  out->softmax_factor = SoftmaxFactor(config.given);
  if (!std::isfinite(out->softmax_factor)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: config->mscale_all_dim (%s) gives no finite softmax_factor", function,
                Decimal(config.given.mscale_all_dim).text);
  }
  // INVERSE multiplies by the inverse: both must be normal numbers of f32.
  if (!(out->attention_factor >= 0x1p-126 && out->attention_factor <= 0x1p126)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: config->attention_factor: the scaling's numbers give %s, which must be from "
                "2^-126 to 2^126",
                function, Decimal(out->attention_factor).text);
  }
  return ROPE_OK;
}

GgmlTables GgmlTablesOf(const Config& config) {
  const rope_config& c = config.given;
  GgmlTables ggml;
  ggml.theta_scale =
      std::pow(static_cast<float>(c.theta), -2.0f / static_cast<float>(config.rotary_dim));
  if (c.factor != 0) ggml.freq_scale = static_cast<float>(1 / c.factor);
  if (c.freq_factors != nullptr) {
    ggml.freq_factors.assign(c.freq_factors, c.freq_factors + config.pairs());
  }
  if (c.scaling == ROPE_SCALING_YARN) {
    const auto range = YarnRangeOf<double>(c, config.rotary_dim);
    const auto low = static_cast<float>(range.low), high = static_cast<float>(range.high);
    for (int i = 0; i < config.pairs(); ++i) {
      const float ramp = (static_cast<float>(i) - low) / std::max(0.001f, high - low);
      ggml.extrapolated.push_back(1 - std::min(1.0f, std::max(0.0f, ramp)));
    }
  }
  return ggml;
}

}  // namespace

rope_status ComputeFrequencies(const char* function, const Config& config, Frequencies* out) {
  const rope_angle angle = config.given.angle;
  if (angle == ROPE_ANGLE_EXACT) return Fill(function, config, InvFreq<DoubleDouble>(config), out);
  if (angle == ROPE_ANGLE_DIVIDE) {
    out->timescale = Timescales(config);
    return Fill(function, config, Inverses(out->timescale), out);
  }
  if (angle == ROPE_ANGLE_GGML) out->ggml = GgmlTablesOf(config);
  return Fill(function, config, Doubles(InvFreq<float>(config)), out);
}

LengthRange LengthsLike(const Config& config, int64_t seq_len) {
  switch (kScalingRules[config.given.scaling].lengths) {
    case Lengths::kOne: return {0, kAnyLength};
    case Lengths::kTwo: return LongRopeLengths(config, seq_len);
    case Lengths::kSteps:
    case Lengths::kEach: break;
  }
  return DynamicLengths(config.given, seq_len);
}

}  // namespace rope
