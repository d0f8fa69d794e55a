// A norm as docs/serving.md ("Numerics") states it, in scalar steps. On purpose it shares nothing
// with src/math/norm.h, whose bits every backend has: each would show an error of the other.
#ifndef LIBROPE_TESTS_SUPPORT_NORM_REFERENCE_H_
#define LIBROPE_TESTS_SUPPORT_NORM_REFERENCE_H_

#include <cmath>
#include <cstddef>
#include <vector>

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

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_NORM_REFERENCE_H_
