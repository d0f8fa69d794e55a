#include "context/torch_pow.h"

#include <cmath>
#include <cstdint>

#include "math/element.h"
#include "math/strict_math.h"

namespace rope {
namespace {

// Each function rounds where SLEEF's does, and fuses where it does; none gives all of the 48 bits
// that a FloatFloat could have.

FloatFloat operator*(FloatFloat a, FloatFloat b) {
  const float product = a.high * b.high;
  const float error = std::fma(a.high, b.high, -product);
  return {product, std::fma(a.high, b.low, std::fma(a.low, b.high, error))};
}

FloatFloat operator*(FloatFloat a, float b) {
  const float product = a.high * b;
  return {product, std::fma(a.low, b, std::fma(a.high, b, -product))};
}

FloatFloat Square(FloatFloat a) {
  const float square = a.high * a.high;
  return {square, std::fma(a.high + a.high, a.low, std::fma(a.high, a.high, -square))};
}

// The quotient of a float and a FloatFloat.
FloatFloat operator/(float a, FloatFloat b) {
  const float inverse = 1 / b.high, quotient = a * inverse;
  const float error_of_product = std::fma(inverse, a, -quotient);
  const float error_of_inverse = std::fma(-b.low, inverse, std::fma(-b.high, inverse, 1.0f));
  return {quotient, std::fma(quotient, error_of_inverse, error_of_product)};
}

// Two-sum: for any a and b.
FloatFloat operator+(FloatFloat a, FloatFloat b) {
  const float sum = a.high + b.high, b_part = sum - a.high;
  const float error = (a.high - (sum - b_part)) + (b.high - b_part);
  return {sum, error + (a.low + b.low)};
}

// For |a| >= |b|.
FloatFloat OrderedSum(FloatFloat a, FloatFloat b) {
  const float sum = a.high + b.high;
  return {sum, a.high - sum + b.high + a.low + b.low};
}

// The natural logarithm of m 2^e, with m from 0.75 to 1.5: e ln 2 + 2 artanh(x) for
// x = (m - 1) / (m + 1), and 2 artanh(x) = 2 x + x^3 (2/3 + 2/5 x^2 + ..).
FloatFloat Log(float value) {
  constexpr FloatFloat kLn2 = {0.693147182464599609375f, -1.904654323148236017e-09f};
  constexpr FloatFloat kTwoThirds = {0.66666662693023681640625f, 3.69183861259614332084311e-09f};
  int exponent;
  float m = std::frexp(value, &exponent);
  if (m < 0.75f) m *= 2, --exponent;
  const FloatFloat x = (m - 1) / (FloatFloat{1, 0} + FloatFloat{m, 0}), square = Square(x);
  float series = 0.240320354700088500976562f;
  series = std::fma(series, square.high, 0.285112679004669189453125f);
  series = std::fma(series, square.high, 0.400007992982864379882812f);
  const FloatFloat rest = square * x * (square * series + kTwoThirds);
  const FloatFloat whole = kLn2 * static_cast<float>(exponent);
  return OrderedSum(OrderedSum(whole, {2 * x.high, 2 * x.low}), rest);
}

// Ties to even, in any rounding mode: with r up to ln 2 the polynomial of Exp would be of no use.
int Nearest(float x) {
  const int down = static_cast<int>(std::floor(x));
  const float rest = x - static_cast<float>(down);
  return down + (rest > 0.5f || (rest == 0.5f && down % 2 != 0) ? 1 : 0);
}

float PowerOfTwo(int exponent) { return BitsFloat(static_cast<uint32_t>(exponent + 127) << 23); }

// e^x: 2^n e^r with r = x - n ln 2, where n is whole.
float Exp(FloatFloat x) {
  constexpr float kInverseLn2 = 0x1.715476p+0f;
  constexpr float kLn2High = 0.693145751953125f, kLn2Low = 1.428606765330187045e-06f;
  const int exponent = Nearest((x.high + x.low) * kInverseLn2), half = exponent / 2;
  const auto n = static_cast<float>(exponent);
  FloatFloat r = x + FloatFloat{n * -kLn2High, 0} + FloatFloat{n * -kLn2Low, 0};
  const float sum = r.high + r.low;
  r = {sum, r.high - sum + r.low};
  float series = 0.00136324646882712841033936f;
  series = std::fma(series, r.high, 0.00836596917361021041870117f);
  series = std::fma(series, r.high, 0.0416710823774337768554688f);
  series = std::fma(series, r.high, 0.166665524244308471679688f);
  series = std::fma(series, r.high, 0.499999850988388061523438f);
  const FloatFloat power = OrderedSum({1, 0}, OrderedSum(r, Square(r) * series));
  // In two steps, because 2^128 is no float.
  return (power.high + power.low) * PowerOfTwo(half) * PowerOfTwo(exponent - half);
}

}  // namespace

TorchPow::TorchPow(float base, int count) : base_(base) {
  // SLEEF's answers for 0 and infinity are those of the C library.
  const bool ordinary = base > 0 && std::isfinite(base);
  vectorized_ = ordinary ? count - count % kTwoVectors : 0;
  log_ = vectorized_ > 0 ? Log(base) : FloatFloat{0, 0};
}

float TorchPow::operator()(int index, float exponent) const {
  return index < vectorized_ ? Exp(log_ * exponent) : std::pow(base_, exponent);
}

}  // namespace rope
