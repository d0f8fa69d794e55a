// The square root by integers is that of the CPU, bit for bit.
#include "math/root.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>

namespace rope {
namespace {

void ExpectRoot(uint32_t bits) {
  const float value = BitsFloat(bits), expected = std::sqrt(value),
              actual = SquareRootByDigits(value);
  if (std::isnan(expected)) {
    ASSERT_TRUE(std::isnan(actual)) << value;
  } else {
    ASSERT_EQ(FloatBits(actual), FloatBits(expected)) << std::hexfloat << value;
  }
}

// Every significand, with an odd and with an even exponent.
TEST(Root, OfEverySignificand) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr uint32_t kStep = 17;
#else
  constexpr uint32_t kStep = 1;
#endif
  for (uint32_t bits = 0x3f800000u; bits < 0x40800000u; bits += kStep) ExpectRoot(bits);
}

TEST(Root, OfAnyFloat) {
  std::mt19937 random(1);
  for (int i = 0; i < 2'000'000; ++i) ExpectRoot(random());
}

TEST(Root, OfSubnormalAndSpecialValues) {
  for (uint32_t bits = 0; bits < 0x800000u; bits += 13) ExpectRoot(bits);
  for (uint32_t bit = 0; bit < 23; ++bit) ExpectRoot(1u << bit);
  for (const uint32_t bits : {0u, 0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f7fffffu,
                              0x00800000u, 0x80000001u}) {
    ExpectRoot(bits);
  }
}

}  // namespace
}  // namespace rope
