// The arithmetic of double_double.h, to the last bit.
#include "context/double_double.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "support/quad.h"

namespace rope::testing {
namespace {

Quad ToQuad(DoubleDouble p) { return Quad(p.high) + Quad(p.low); }
double RelativeError(DoubleDouble got, Quad want) {
  const Quad error = (ToQuad(got) - want) / want;
  return static_cast<double>(error < 0 ? -error : error);
}

TEST(PreciseArithmetic, HasAHundredBits) {
  std::mt19937_64 random(9);
  std::uniform_real_distribution<double> uniform(0.1, 10);
  double worst = 0;
  for (int n = 0; n < 100000; ++n) {
    const DoubleDouble a = DoubleDouble(uniform(random)) + uniform(random) * 0x1p-55;
    const DoubleDouble b = DoubleDouble(uniform(random)) + uniform(random) * 0x1p-55;
    worst = std::max({worst, RelativeError(a + b, ToQuad(a) + ToQuad(b)),
                      RelativeError(a * b, ToQuad(a) * ToQuad(b)),
                      RelativeError(a / b, ToQuad(a) / ToQuad(b))});
  }
  EXPECT_LT(worst, 0x1p-100);
}

TEST(PreciseArithmetic, RootsHave98Bits) {
  double worst = 0;
  for (double value : {2.0, 10000.0, 500000.0, 1e6, 1e-3, 1.5, 1e10}) {
    for (int n : {1, 2, 3, 16, 32, 64, 127, 512}) {
      worst = std::max(worst, RelativeError(Root(value, n), RootOf(value, n)));
    }
  }
  EXPECT_LT(worst, 0x1p-98);
}

TEST(PreciseArithmetic, LogarithmsHave98Bits) {
  double worst = 0;
  for (double value :
       {1e-300, 1e-3, 0.5, 0.7, 0.75, 1.25, 1.4, 1.5, 2.0, 10000.0, 500000.0, 1e300}) {
    worst = std::max({worst, RelativeError(Log(DoubleDouble(value)), LogOf(value)),
                      RelativeError(Log(DoubleDouble(value) / 3.0), LogOf(Quad(value) / 3))});
  }
  EXPECT_LT(worst, 0x1p-98);
  EXPECT_EQ(static_cast<double>(Log(DoubleDouble(1))), 0);
}

TEST(PreciseArithmetic, FixedTurnsRoundToNearest) {
  std::mt19937_64 random(10);
  const auto check = [](DoubleDouble turns) {
    const Turns fixed = ToFixedTurns(turns);
    const Quad got = Quad(fixed.whole) * Quad(0x1p64) + Quad(fixed.fraction);
    const Quad error = ToQuad(turns) * Quad(0x1p64) - got;
    EXPECT_LE(static_cast<double>(error < 0 ? -error : error), 0.5)
        << turns.high << " " << turns.low;
  };
  for (int n = 0; n < 100000; ++n) {
    const double high =
        std::ldexp(static_cast<double>(random() >> 11), -53 - static_cast<int>(random() % 20));
    check(DoubleDouble(random() % 2 ? high : -high) +
          std::ldexp(static_cast<double>(random() >> 11), -120));
  }
  for (double v :
       {0.0, 1.0, -1.0, 0.5, -0.5, 1e9 + 0.25, -1e9 - 0.25, 0x1p-64, 0x1p-65, -0x1p-64}) {
    check(v);
    check(DoubleDouble(v) - 0x1p-66);  // carries and borrows across the words
    check(DoubleDouble(v) + 0x1p-70);
  }
}

}  // namespace
}  // namespace rope::testing
