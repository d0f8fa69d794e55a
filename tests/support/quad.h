// Arithmetic with at least 113 bits, to check what the library computes to the last bit.
#ifndef LIBROPE_TESTS_SUPPORT_QUAD_H_
#define LIBROPE_TESTS_SUPPORT_QUAD_H_

#include <cmath>
#include <cstdint>

namespace rope::testing {

#if defined(__SIZEOF_FLOAT128__)
__extension__ typedef __float128 Quad;
#else
using Quad = long double;  // binary128 on AArch64 and RISC-V
#endif

inline Quad Pi() {  // 160 bits as three doubles
  return Quad(0x1.921fb54442d18p+1) + Quad(0x1.1a62633145c07p-53) + Quad(-0x1.f1976b7ed8fbcp-109);
}

inline Quad PowerOf(Quad base, int exponent) {
  Quad result = 1;
  for (int i = 0; i < exponent; ++i) result *= base;
  return result;
}

// value^(1/n): Newton's steps from a double.
inline Quad RootOf(double value, int n) {
  Quad root = std::pow(value, 1.0 / n);
  for (int step = 0; step < 4; ++step) {
    const Quad power = PowerOf(root, n - 1);
    root -= (power * root - Quad(value)) / (Quad(n) * power);
  }
  return root;
}

// The natural logarithm of a positive value, by the series of 2 artanh((m - 1) / (m + 1)).
inline Quad LogNearOne(Quad m) {
  const Quad s = (m - 1) / (m + 1), square = s * s;
  Quad sum = 0, power = 2 * s;
  for (int n = 1; n < 200; n += 2, power *= square) sum += power / n;
  return sum;
}
inline Quad LogOf(Quad value) {
  const Quad ln2 = LogNearOne(2);
  Quad sum = 0;
  for (; value > Quad(1.4); value /= 2) sum += ln2;
  for (; value < Quad(0.7); value *= 2) sum -= ln2;
  return sum + LogNearOne(value);
}

// theta^(-2i / dim).
inline Quad InverseFrequency(double theta, int i, int dim) {
  return 1 / PowerOf(RootOf(theta, dim / 2), i);
}

// x - floor(x).
inline Quad FractionOf(Quad x) {
  for (;;) {
    double whole = std::floor(static_cast<double>(x));
    if (Quad(whole) > x) whole -= 1;  // x was rounded up to it
    if (whole == 0) return x;
    x -= whole;
  }
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_QUAD_H_
