// The gradients of a norm as docs/serving.md ("Gradients of norms") states them, in scalar steps.
#ifndef LIBROPE_TESTS_SUPPORT_GRADIENT_REFERENCE_H_
#define LIBROPE_TESTS_SUPPORT_GRADIENT_REFERENCE_H_

#include <cmath>
#include <cstddef>
#include <vector>

#include "librope/rope.h"
#include "support/norm_reference.h"

namespace rope::testing {

// m heads become one: ((d0 + d1) + d2) + ..
inline std::vector<Head> SumsOfHeads(const std::vector<Head>& heads, int m) {
  std::vector<Head> sums;
  for (size_t h = 0; h < heads.size(); ++h) {
    if (h % static_cast<size_t>(m) == 0) {
      sums.push_back(heads[h]);
      continue;
    }
    for (size_t c = 0; c < heads[h].size(); ++c) sums.back()[c] = sums.back()[c] + heads[h][c];
  }
  return sums;
}

struct GradientReference {
  NormReference norm;
  // One row, or one for each head; they grow with every token.
  std::vector<Head>*weight_grad, *bias_grad;

  // Of a token: from the gradients of its normed heads, turned back, those of x.
  std::vector<Head> Of(const std::vector<Head>& dy, const std::vector<Head>& x) const {
    const bool eager = norm.norm.rounding == ROPE_NORM_ROUNDING_EAGER;
    const bool rounds = norm.norm.rounding != ROPE_NORM_ROUNDING_FLOAT32;
    const size_t heads = x.size(), channels = x[0].size();
    std::vector<float> means, roots;
    norm.Moments(x, 0, &means, &roots);
    std::vector<Head> d = dy, t = x, g = x;
    for (size_t h = 0; h < heads; ++h) {
      for (size_t c = 0; c < channels; ++c) {
        if (rounds) d[h][c] = norm.Round(d[h][c]);
        t[h][c] = (norm.HasMean() ? x[h][c] - means[h] : x[h][c]) * roots[h];
        float w = norm.weights.empty() ? 1.0f : norm.weights[h][c];
        if (norm.norm.kind == ROPE_NORM_KIND_RMS_ONE_PLUS) w = 1.0f + w;
        g[h][c] = d[h][c] * w;
        if (eager) g[h][c] = norm.Round(g[h][c]);
        Grow(weight_grad, h, c, d[h][c], eager ? norm.Round(t[h][c]) : t[h][c]);
        if (!bias_grad->empty()) Row(bias_grad, h)[c] = Row(bias_grad, h)[c] + d[h][c];
      }
    }
    std::vector<float> p(heads), k(heads);
    for (size_t h = 0; h < heads; ++h) {
      p[h] = SumOfProductsInOrder(g[h], t[h], norm.fused);
      k[h] = SumInOrderOf(g[h]);
    }
    auto n = static_cast<float>(channels);
    if (norm.norm.span == ROPE_NORM_SPAN_ALL_HEADS) {
      p.assign(heads, SumInOrderOf(p));
      k.assign(heads, SumInOrderOf(k));
      n = static_cast<float>(channels * heads);
    }
    std::vector<Head> dx = x;
    for (size_t h = 0; h < heads; ++h) {
      const float mean_product = p[h] / n, mean = k[h] / n;
      for (size_t c = 0; c < channels; ++c) {
        const float rest = norm.HasMean() ? g[h][c] - mean : g[h][c];
        dx[h][c] = MultiplyAdd(-mean_product, t[h][c], rest) * roots[h];
      }
    }
    return dx;
  }

 private:
  float MultiplyAdd(float a, float b, float c) const {
    const float product = a * b;
    return norm.fused ? std::fma(a, b, c) : product + c;
  }
  static Head& Row(std::vector<Head>* rows, size_t head) {
    return (*rows)[rows->size() == 1 ? 0 : head];
  }
  void Grow(std::vector<Head>* rows, size_t h, size_t c, float a, float b) const {
    if (!rows->empty()) Row(rows, h)[c] = MultiplyAdd(a, b, Row(rows, h)[c]);
  }
};

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_GRADIENT_REFERENCE_H_
