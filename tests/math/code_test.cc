// 8-bit codes: every code back, and every midpoint between two codes with its neighbours, against
// the definitions in double arithmetic.
#include "math/code.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/codes.h"
#include "support/handles.h"

namespace rope::testing {
namespace {

constexpr Code kAllCodes[] = {Code::kE4m3, Code::kE5m2, Code::kInt8};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Code, EveryCodeHasTheValueOfItsDefinition) {
  for (Code code : kAllCodes) {
    for (int bits = 0; bits < 256; ++bits) {
      const float got = FloatFromCode(code, static_cast<uint8_t>(bits));
      const double want = ValueOfCode(code, static_cast<uint8_t>(bits));
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(got)) << bits;
      } else {
        ASSERT_EQ(got, want) << bits;
        ASSERT_EQ(std::signbit(got), std::signbit(want)) << bits;
      }
    }
  }
}

TEST(Code, ValuesAreThePublishedOnes) {
  // arXiv 2209.05433, table 1.
  EXPECT_EQ(FloatFromCode(Code::kE4m3, 0x7e), 448.0f);
  EXPECT_EQ(FloatFromCode(Code::kE4m3, 0x08), 0x1p-6f);
  EXPECT_EQ(FloatFromCode(Code::kE4m3, 0x07), 0x1.cp-7f);
  EXPECT_EQ(FloatFromCode(Code::kE4m3, 0x01), 0x1p-9f);
  EXPECT_TRUE(std::isnan(FloatFromCode(Code::kE4m3, 0xff)));
  EXPECT_EQ(FloatFromCode(Code::kE5m2, 0xfc), -kInfinity);
  EXPECT_EQ(FloatFromCode(Code::kE5m2, 0x7b), 57344.0f);
  EXPECT_EQ(FloatFromCode(Code::kE5m2, 0x04), 0x1p-14f);
  EXPECT_EQ(FloatFromCode(Code::kE5m2, 0x03), 0x1.8p-15f);
  EXPECT_EQ(FloatFromCode(Code::kE5m2, 0x01), 0x1p-16f);
}

TEST(Code, CodesOfCodesAreTheSame) {
  for (Code code : kAllCodes) {
    for (int bits = 0; bits < 256; ++bits) {
      const double value = ValueOfCode(code, static_cast<uint8_t>(bits));
      if (!std::isfinite(value)) continue;
      ASSERT_EQ(CodeFromFloat(code, static_cast<float>(value)), bits);
    }
  }
}

TEST(Code, MidpointsTheirNeighboursAndAllSixteenBitValuesAreRoundedToNearestEven) {
  for (Code code : kAllCodes) {
    for (float value : ValuesToCode(code)) {
      ASSERT_EQ(CodeFromFloat(code, value), NearestCode(code, value)) << std::hexfloat << value;
    }
  }
}

TEST(Code, AnyFloatIsRoundedToNearestEven) {
  // With LIBROPE_TEST_LONG all 2^32, else one in 65521.
  const uint64_t step = LongTests() ? 1 : 65521;
  for (Code code : kAllCodes) {
    for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += step) {
      const float value = BitsFloat(static_cast<uint32_t>(bits));
      ASSERT_EQ(CodeFromFloat(code, value), NearestCode(code, value)) << std::hexfloat << value;
    }
  }
}

TEST(Code, WhatIsBeyondTheLargestSaturatesAndNanIsNone) {
  const float most = std::numeric_limits<float>::max();
  for (float value : {most, kInfinity}) {
    EXPECT_EQ(CodeFromFloat(Code::kE4m3, value), 0x7e);
    EXPECT_EQ(CodeFromFloat(Code::kE4m3, -value), 0xfe);
    EXPECT_EQ(CodeFromFloat(Code::kE5m2, value), 0x7b);
    EXPECT_EQ(CodeFromFloat(Code::kE5m2, -value), 0xfb);
    EXPECT_EQ(CodeFromFloat(Code::kInt8, value), 127);
    EXPECT_EQ(CodeFromFloat(Code::kInt8, -value), 0x80);
  }
  for (uint32_t nan : {0x7f800001u, 0x7fc00000u, 0xffc00000u, 0xffffffffu}) {
    EXPECT_EQ(CodeFromFloat(Code::kE4m3, BitsFloat(nan)), 0x7f);
    EXPECT_EQ(CodeFromFloat(Code::kE5m2, BitsFloat(nan)), 0x7f);
    EXPECT_EQ(CodeFromFloat(Code::kInt8, BitsFloat(nan)), 0);
  }
}

TEST(Code, ScalesMapTheLargestSizeToTheLargestCode) {
  constexpr float kLeast = 0x1p-126f;
  EXPECT_EQ(ScaleOf(Code::kE4m3, 448.0f, kLeast, false), 1.0f);
  EXPECT_EQ(ScaleOf(Code::kE5m2, 57344.0f, kLeast, false), 1.0f);
  EXPECT_EQ(ScaleOf(Code::kInt8, 127.0f, kLeast, false), 1.0f);
  EXPECT_EQ(ScaleOf(Code::kE4m3, 3.0f, kLeast, false), 3.0f / 448.0f);
  EXPECT_EQ(ScaleOf(Code::kE4m3, 0.0f, kLeast, false), kLeast);
  EXPECT_EQ(ScaleOf(Code::kE4m3, 1.0f, 0.25f, false), 0.25f);
  EXPECT_EQ(ScaleOf(Code::kE4m3, 448.0f, kLeast, true), 1.0f);
  EXPECT_EQ(ScaleOf(Code::kE4m3, std::nextafter(448.0f, 449.0f), kLeast, true), 2.0f);
  EXPECT_EQ(ScaleOf(Code::kE4m3, std::nextafter(448.0f, 447.0f), kLeast, true), 1.0f);
  EXPECT_EQ(ScaleOf(Code::kE4m3, 1.0f, 1e-4f, true), 0x1p-8f);   // 1 / 448
  EXPECT_EQ(ScaleOf(Code::kE4m3, 0.0f, 1e-4f, true), 0x1p-13f);  // the least, rounded up
  EXPECT_EQ(ScaleOf(Code::kInt8, 0x1.fffffep127f, kLeast, true), 0x1p122f);
}

TEST(Code, SizesForScalesTakeInfinityForTheLargestFloatAndNanForNone) {
  EXPECT_EQ(SizeForScale(-3.5f), FloatBits(3.5f));
  EXPECT_EQ(SizeForScale(-0.0f), 0u);
  EXPECT_EQ(SizeForScale(-kInfinity), 0x7f7fffffu);
  EXPECT_EQ(SizeForScale(BitsFloat(0xff800001u)), 0u);
  EXPECT_EQ(SizeForScale(BitsFloat(0x7f7fffffu)), 0x7f7fffffu);
}

TEST(Code, PowersOfTwoGoBothWays) {
  for (int exponent = -126; exponent <= 127; ++exponent) {
    const float power = std::ldexp(1.0f, exponent);
    EXPECT_EQ(E8m0FromPowerOfTwo(power), exponent + 127);
    EXPECT_EQ(FloatFromE8m0(E8m0FromPowerOfTwo(power)), power);
  }
  EXPECT_EQ(FloatFromE8m0(0), 0x1p-127f);
  EXPECT_TRUE(std::isnan(FloatFromE8m0(255)));
}

}  // namespace
}  // namespace rope::testing
