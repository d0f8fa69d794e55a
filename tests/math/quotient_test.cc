// The quotient by integers is that of the CPU's division, bit for bit.
#include "math/quotient.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace rope {
namespace {

void ExpectDivision(float a, float b) {
  const float expected = a / b, actual = Quotient(a, b);
  if (std::isnan(expected)) {
    ASSERT_TRUE(std::isnan(actual)) << a << " / " << b;
  } else {
    ASSERT_EQ(FloatBits(actual), FloatBits(expected)) << std::hexfloat << a << " / " << b;
  }
}

TEST(Quotient, OfAnyTwoFloats) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 2'000'000; ++i) {
    const uint64_t bits = random();
    ExpectDivision(BitsFloat(static_cast<uint32_t>(bits)),
                   BitsFloat(static_cast<uint32_t>(bits >> 32)));
  }
}

// Positions over timescales: what ROPE_ANGLE_DIVIDE asks for.
TEST(Quotient, OfPositionsAndTimescales) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 1'000'000; ++i) {
    const auto position = static_cast<float>(static_cast<int64_t>(random()) >> (random() % 63));
    ExpectDivision(position, std::pow(500000.0f, static_cast<float>(random() % 128) / 128));
  }
}

// Where results leave the normal numbers, and where they lie between two: few bits, large and
// small.
TEST(Quotient, AtEveryExponent) {
  std::mt19937_64 random(3);
  for (int difference = -300; difference <= 300; ++difference) {
    for (int i = 0; i < 2000; ++i) {
      const int few = static_cast<int>(random() % 24);
      const auto a = static_cast<float>((random() & 0xffffff) >> few | 1);
      const auto b = static_cast<float>((random() & 0xffffff) >> (random() % 24) | 1);
      const int half = difference / 2;
      ExpectDivision(std::ldexp(a, half - 12), -std::ldexp(b, half - difference - 12));
    }
  }
}

TEST(Quotient, OfSpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {0.0f,
                                     1.0f,
                                     3.0f,
                                     infinity,
                                     std::nanf(""),
                                     std::numeric_limits<float>::min(),
                                     std::numeric_limits<float>::denorm_min(),
                                     std::numeric_limits<float>::max()};
  for (const float a : values) {
    for (const float b : values) {
      ExpectDivision(a, b);
      ExpectDivision(-a, b);
      ExpectDivision(a, -b);
    }
  }
}

}  // namespace
}  // namespace rope
