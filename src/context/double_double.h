// Numbers of about 106 bits: the unevaluated sum of two doubles.
//
// Frequencies become 64-bit fixed point, so they must be known to more bits than a double has. Only
// IEEE addition, multiplication and fma are used, never libm: every platform gets the same bits.
// Algorithms: Dekker 1971, Knuth's two-sum. Needs -ffp-contract=off.
#ifndef LIBROPE_SRC_CONTEXT_DOUBLE_DOUBLE_H_
#define LIBROPE_SRC_CONTEXT_DOUBLE_DOUBLE_H_

#include <cmath>
#include <cstdint>

#include "math/strict_math.h"
#include "math/turns.h"

namespace rope {

struct DoubleDouble {
  double high = 0;
  double low = 0;

  constexpr DoubleDouble() = default;
  constexpr DoubleDouble(double value) : high(value) {}  // NOLINT: a double is a DoubleDouble
  constexpr DoubleDouble(double h, double l) : high(h), low(l) {}
  explicit operator double() const { return high + low; }
};

// The exact sum of a and b, where |a| >= |b|.
inline DoubleDouble OrderedSum(double a, double b) {
  const double sum = a + b;
  return {sum, b - (sum - a)};
}

inline DoubleDouble operator+(DoubleDouble a, DoubleDouble b) {
  const double sum = a.high + b.high;
  const double b_part = sum - a.high;
  const double error = (a.high - (sum - b_part)) + (b.high - b_part);
  return OrderedSum(sum, error + (a.low + b.low));
}

inline DoubleDouble operator-(DoubleDouble a) { return {-a.high, -a.low}; }
inline DoubleDouble operator-(DoubleDouble a, DoubleDouble b) { return a + -b; }

inline DoubleDouble operator*(DoubleDouble a, DoubleDouble b) {
  const double product = a.high * b.high;
  const double error = std::fma(a.high, b.high, -product);
  return OrderedSum(product, error + (a.high * b.low + a.low * b.high));
}

inline DoubleDouble operator/(DoubleDouble a, DoubleDouble b) {
  const double first = a.high / b.high;
  DoubleDouble rest = a - b * first;
  const double second = rest.high / b.high;
  rest = rest - b * second;
  return OrderedSum(first, second) + rest.high / b.high;
}

// base^exponent for exponent >= 0.
inline DoubleDouble Power(DoubleDouble base, int exponent) {
  DoubleDouble result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result = result * base;
    base = base * base;
  }
  return result;
}

// The n-th root of a positive value, by Newton's method from the double result: each of the two
// steps doubles the number of right digits, whatever libm's pow returned.
inline DoubleDouble Root(DoubleDouble value, int n) {
  DoubleDouble root = std::pow(value.high, 1.0 / n);
  for (int step = 0; step < 2; ++step) {
    const DoubleDouble ratio = value / Power(root, n);
    root = root + root * (ratio - 1.0) / static_cast<double>(n);
  }
  return root;
}

// The natural logarithm of a positive value: with x = m 2^e and m near 1, e ln 2 + 2 artanh(s) for
// s = (m - 1) / (m + 1), whose series ends after 106 bits because |s| is at most 0.172.
inline DoubleDouble Log(DoubleDouble x) {
  constexpr DoubleDouble kLn2(0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56);
  int exponent;
  double m = std::frexp(x.high, &exponent);
  if (m < 0.7071067811865476) m *= 2, --exponent;
  const DoubleDouble near_one(m, std::ldexp(x.low, -exponent));
  const DoubleDouble s = (near_one - 1.0) / (near_one + 1.0), square = s * s;
  DoubleDouble sum = 0.0;
  for (int n = 43; n >= 1; n -= 2) sum = sum * square + DoubleDouble(1.0) / static_cast<double>(n);
  return sum * s * 2.0 + kLn2 * static_cast<double>(exponent);
}
inline double Log(double x) { return std::log(x); }

inline DoubleDouble Floor(DoubleDouble x) {
  const double whole = std::floor(x.high);
  return whole == x.high && x.low < 0 ? whole - 1 : whole;
}
inline double Floor(double x) { return std::floor(x); }

inline bool operator<(DoubleDouble a, DoubleDouble b) {
  return a.high < b.high || (a.high == b.high && a.low < b.low);
}

// The fraction is rounded to nearest.
inline Turns ToFixedTurns(DoubleDouble turns) {
  const double whole = std::floor(turns.high);
  DoubleDouble rest = turns - whole;  // in [0, 1] but for the low part
  // 32 bits at a time, each step exact: the scaled value minus its integer part.
  Turns fixed{static_cast<int64_t>(whole), 0};
  rest = rest * 0x1p32;
  const double upper = std::floor(rest.high);
  rest = (rest - upper) * 0x1p32;
  const double lower = std::floor(rest.high + (rest.low + 0.5));
  // Low parts can carry or borrow: normalise to 32 bits each.
  const auto low = static_cast<int64_t>(lower);
  const int64_t high = static_cast<int64_t>(upper) + (low >> 32);
  fixed.whole += high >> 32;
  fixed.fraction = static_cast<uint64_t>(high) << 32 | static_cast<uint32_t>(low);
  return fixed;
}

}  // namespace rope

#endif  // LIBROPE_SRC_CONTEXT_DOUBLE_DOUBLE_H_
