// A norm as docs/serving.md ("Numerics") states it, in scalar steps. On purpose it shares nothing
// with src/math/norm.h, whose bits every backend has: each would show an error of the other.
#ifndef LIBROPE_TESTS_SUPPORT_NORM_REFERENCE_H_
#define LIBROPE_TESTS_SUPPORT_NORM_REFERENCE_H_

#include <cmath>
#include <cstddef>
#include <vector>

#include "librope/rope.h"
#include "support/elements.h"

namespace rope::testing {

// The sum of products a[c] * b[c]: 32 running sums, then halves. `fused`: one rounding each.
inline float SumOfProductsInOrder(const std::vector<float>& a, const std::vector<float>& b,
                                  bool fused) {
  std::vector<float> s(32, 0.0f);
  for (size_t c = 0; c < a.size(); ++c) {
    const float product = a[c] * b[c];
    s[c % 32] = fused ? std::fma(a[c], b[c], s[c % 32]) : s[c % 32] + product;
  }
  while (s.size() > 1) {
    std::vector<float> lower(s.begin(), s.begin() + s.size() / 2);
    for (size_t j = 0; j < lower.size(); ++j) lower[j] = lower[j] + s[j + lower.size()];
    s = lower;
  }
  return s[0];
}

// The sum of the values themselves: each running sum grows by x[c].
inline float SumInOrderOf(const std::vector<float>& x) {
  return SumOfProductsInOrder(x, std::vector<float>(x.size(), 1.0f), true);
}

inline float SumOfSquaresAround(const std::vector<float>& x, float mean, bool fused) {
  std::vector<float> distances = x;
  for (float& value : distances) value = value - mean;
  return SumOfProductsInOrder(distances, distances, fused);
}

inline float InverseRootOf(float sum, float n, float eps) {
  const float mean_square = sum / n;
  const float root = std::sqrt(mean_square + eps);
  return 1.0f / root;
}

using Head = std::vector<float>;

// The normed heads of one token. Weights and biases of each head are given in f32, as is r for
// GIVEN; `dtype` is that of the tensor.
struct NormReference {
  rope_norm norm;
  std::vector<Head> weights, biases;  // [heads]; empty: none
  rope_dtype dtype;
  bool fused;

  bool HasMean() const {
    return norm.kind == ROPE_NORM_KIND_LAYER || norm.kind == ROPE_NORM_KIND_LAYER_BIAS;
  }

  // The means and the inverse roots of the heads of a token.
  void Moments(const std::vector<Head>& x, float given, std::vector<float>* means_of,
               std::vector<float>* roots_of) const {
    const bool layer = HasMean();
    const auto heads = x.size(), channels = x[0].size();
    std::vector<float>&means = *means_of, &roots = *roots_of;
    means.assign(heads, 0.0f);
    roots.assign(heads, given);
    const auto eps = static_cast<float>(norm.eps);
    if (norm.span == ROPE_NORM_SPAN_HEAD) {
      const auto n = static_cast<float>(channels);
      for (size_t h = 0; h < heads; ++h) {
        if (layer) means[h] = SumInOrderOf(x[h]) / n;
        roots[h] = InverseRootOf(SumOfSquaresAround(x[h], means[h], fused), n, eps);
      }
    } else if (norm.span == ROPE_NORM_SPAN_ALL_HEADS) {
      const auto n = static_cast<float>(channels * heads);
      std::vector<float> sums(heads);
      if (layer) {
        for (size_t h = 0; h < heads; ++h) sums[h] = SumInOrderOf(x[h]);
        means.assign(heads, SumInOrderOf(sums) / n);
      }
      for (size_t h = 0; h < heads; ++h) sums[h] = SumOfSquaresAround(x[h], means[h], fused);
      roots.assign(heads, InverseRootOf(SumInOrderOf(sums), n, eps));
    }
  }

  std::vector<Head> Of(const std::vector<Head>& x, float given) const {
    const bool layer = HasMean();
    const auto heads = x.size(), channels = x[0].size();
    std::vector<float> means, roots;
    Moments(x, given, &means, &roots);
    std::vector<Head> y = x;
    for (size_t h = 0; h < heads; ++h) {
      for (size_t c = 0; c < channels; ++c) {
        float value = x[h][c];
        if (layer) value = value - means[h];
        value = Eager(value * roots[h]);
        if (!weights.empty()) {
          float weight = weights[h][c];
          if (norm.kind == ROPE_NORM_KIND_RMS_ONE_PLUS) weight = 1.0f + weight;
          value = value * weight;
        }
        if (!biases.empty()) value = Eager(value) + biases[h][c];
        y[h][c] = norm.rounding != ROPE_NORM_ROUNDING_FLOAT32 ? Round(value) : value;
      }
    }
    return y;
  }

  float Round(float value) const { return static_cast<float>(Rounded(dtype, value)); }

 private:
  float Eager(float value) const {
    return norm.rounding == ROPE_NORM_ROUNDING_EAGER ? Round(value) : value;
  }
};

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_NORM_REFERENCE_H_
