// The norm of a head: in which order its sums are added, and what becomes of a channel. Host and
// device; the reference for every backend. The vector code of the CPU does the same operations in
// the same order, so that targets with fused multiply-add give the same bits
// (tests/cpu/norm_sums_test.cc holds them to it).
#ifndef LIBROPE_SRC_MATH_NORM_H_
#define LIBROPE_SRC_MATH_NORM_H_

#include <cmath>
#include <cstdint>
#include <iterator>

#include "librope/rope.h"
#include "math/host_device.h"
#include "math/root.h"
#include "math/sincos.h"
#include "math/tensor.h"

namespace rope {

struct NormRule {
  bool has_weight, one_plus;  // 1 + weight
  bool has_mean, has_bias;
};

// By number.
inline constexpr NormRule kNormRules[] = {
    {},
    {true, false, false, false},   // RMS
    {true, true, false, false},    // RMS_ONE_PLUS
    {false, false, false, false},  // RMS_PLAIN
    {true, false, true, false},    // LAYER
    {true, false, true, true},     // LAYER_BIAS
};
static_assert(std::size(kNormRules) == ROPE_NORM_KIND_LAYER_BIAS + 1);

// What BACKWARD is told about a norm, and writes.
struct NormGradients {
  const char* x;  // what FORWARD has normed
  HeadStrides x_strides;
  float *weight, *bias;  // null: not wanted
  int32_t parts;         // 0: neither is
  int64_t weights;       // of a part
};

// The norm of one tensor of a call.
struct Norm {
  NormRule rule;
  float eps;
  const char *weight, *bias;  // null: none
  rope_dtype weight_dtype;
  rope_norm_span span;
  rope_norm_rounding rounding;
  bool after;             // the rotation
  bool in_f32;            // nothing is rounded where no kernel norms and rotates in one pass
  int32_t channels;       // of a head
  int64_t weight_stride;  // bytes from head to head; 0: all share a row
  const float* rstd;      // GIVEN, of each token
  NormGradients gradients;
};

// Term c belongs to sum c modulo this: the least number with which vectors of all CPUs, and words
// of two bf16 in them, add each channel where it lies (docs/serving.md, "Choice 1").
inline constexpr int kRunningSums = 32;

// The values from the first one on that lie so far apart, of kCount: those twice as far apart, and
// those between them.
template <int kApart, int kCount>
ROPE_HD float SumOfEach(const float* values) {
  if constexpr (kApart == kCount) {
    return *values;
  } else {
    return Add(SumOfEach<2 * kApart, kCount>(values),
               SumOfEach<2 * kApart, kCount>(values + kApart));
  }
}

// Adds the upper half of the running sums to the lower one, until one is left. In two steps, which
// take few registers.
ROPE_HD float AddHalves(float* sums) {
  constexpr int kLeft = 8;
  ROPE_LOOP
  for (int j = 0; j < kLeft; ++j) sums[j] = SumOfEach<kLeft, kRunningSums>(sums + j);
  return SumOfEach<1, kLeft>(sums);
}

// Adds n terms; add(sum, c) is a running sum with term c.
template <class AddTerm>
ROPE_HD float SumInOrder(int n, const AddTerm& add) {
  float sums[kRunningSums] = {};
  for (int c = 0; c < n; ++c) sums[c % kRunningSums] = add(sums[c % kRunningSums], c);
  return AddHalves(sums);
}

// Of the channels of a head, or of the sums of the heads of a token: x[0] to x[n - 1].
template <class Values>
ROPE_HD float SumOf(const Values& x, int n) {
  return SumInOrder(n, [&x](float sum, int c) { return Add(sum, x[c]); });
}

// The sum with the square of x - mean. A root mean square has mean 0.
ROPE_HD float AddSquare(float sum, float x, float mean) {
  const float distance = Add(x, -mean);
  return Fma(distance, distance, sum);
}
template <class Values>
ROPE_HD float SumOfSquares(const Values& x, int n, float mean) {
  return SumInOrder(n, [&x, mean](float sum, int c) { return AddSquare(sum, x[c], mean); });
}

ROPE_HD float SquareRoot(float value) {
#if defined(__CUDA_ARCH__)
  return SquareRootByDigits(value);
#else
  return std::sqrt(value);
#endif
}

// 1 / sqrt(sum / n + eps).
ROPE_HD float InverseRoot(float sum, float n, float eps) {
  return Divide(1.0f, SquareRoot(Add(Divide(sum, n), eps)));
}

// What is added where there is no bias: any number keeps its bits.
inline constexpr float kNoBias = -0.0f;

// A channel of a head, by its distance from the mean and the inverse root. `round` is what EAGER
// does to each result.
template <class Round>
ROPE_HD float WeightedChannel(float distance, float inverse_root, float weight,
                              const Round& round) {
  return round(Multiply(round(Multiply(distance, inverse_root)), weight));
}
// The same by the channel itself, and with a bias. A mean of 0 and kNoBias change no number.
template <class Round>
ROPE_HD float NormedChannel(float x, float mean, float inverse_root, float weight, float bias,
                            const Round& round) {
  return Add(WeightedChannel(Add(x, -mean), inverse_root, weight, round), bias);
}

// What a gradient with respect to a channel is made of; the means are those over the channels that
// are normed together.
struct ChannelGradient {
  float scaled;         // what the norm multiplies by the weight
  float weighted;       // the gradient with respect to it: that of the result, times the weight
  float mean_weighted;  // of a norm without a mean: 0
  float mean_product;   // of weighted * scaled
};

ROPE_HD float GradientOfChannel(const ChannelGradient& g, float inverse_root) {
  return Multiply(Fma(-g.mean_product, g.scaled, Add(g.weighted, -g.mean_weighted)), inverse_root);
}
// The same of a norm without a mean: a mean of 0 changes no number.
ROPE_HD float GradientOfRms(float scaled, float weighted, float mean_product, float inverse_root) {
  return Multiply(Fma(-mean_product, scaled, weighted), inverse_root);
}

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_NORM_H_
