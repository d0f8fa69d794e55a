// The error of cos and sin, on every target: rows of both angle policies against long double, and
// against sincos.h bit for bit where the target has fused multiply-add, or the row a large angle.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "context/context.h"
#include "math/rotate.h"
#include "support/handles.h"
#include "support/quad.h"
#include "support/memory.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

constexpr double kBound = 1.5e-7;  // of the header
constexpr int kDim = 128, kPairs = kDim / 2;

struct alignas(64) RowValues {
  float cos[kPairs], sin[kPairs];
  cpu::Row row(float cos_scale = 1, float sin_scale = 1) {
    return {cos, sin, kPairs, cos_scale, sin_scale, cpu::RowOrder::kNatural};
  }
};

uint64_t Fraction(const FrequencySet& set, int i) {
  return static_cast<uint64_t>(set.turns_high[i]) << 32 | set.turns_low[i];
}

// The largest error, and where it was.
struct Worst {
  double error = 0;
  double where = 0;
  void Add(double got, double want, double at) {
    const double e = std::fabs(got - want);
    if (!(e <= error)) error = e, where = at;  // NaN counts
  }
};

void Print(const char* what, const char* target, const Worst& worst) {
  std::printf("  %-34s %-8s largest error %.3g at %.17g\n", what, target, worst.error, worst.where);
}

// --- EXACT --------------------------------------------------------------------------------------

// Positions whose true angle the 64 fraction bits of a frequency still describe: half a unit of
// 2^-64 turns times 2^38 is 5e-8 radians.
const std::vector<int64_t>& TruePositions() {
  static const std::vector<int64_t> positions = [] {
    std::vector<int64_t> p;
    for (int64_t i = 0; i < 8192; ++i) p.push_back(i);
    for (int64_t i : {int64_t{131071}, int64_t{131072}, int64_t{1048575}, int64_t{16777217},
                      int64_t{2147483647}, int64_t{1} << 32, int64_t{1} << 38}) {
      p.push_back(i);
      p.push_back(-i);
    }
    std::mt19937_64 random(1);
    for (int i = 0; i < 2000; ++i) {
      p.push_back(static_cast<int64_t>(random() >> (26 + random() % 30)) * (random() % 2 ? 1 : -1));
    }
    return p;
  }();
  return positions;
}

struct Expected {
  double cos, sin;
};

// For all TruePositions and pairs of one theta, computed once for all targets.
const std::vector<Expected>& TrueValues() {
  static const std::vector<Expected> values = [] {
    std::vector<Quad> turns;
    for (int i = 0; i < kPairs; ++i)
      turns.push_back(InverseFrequency(500000, i, kDim) / (2 * Pi()));
    std::vector<Expected> all;
    for (int64_t p : TruePositions()) {
      for (const Quad& t : turns) {
        const auto radians = static_cast<long double>(FractionOf(t * Quad(p)) * 2 * Pi());
        all.push_back(
            {static_cast<double>(std::cos(radians)), static_cast<double>(std::sin(radians))});
      }
    }
    return all;
  }();
  return values;
}

rope_config ExactConfig() {
  rope_config config = Config(kDim, ROPE_PAIRING_HALVES, 500000);
  config.angle = ROPE_ANGLE_EXACT;
  return config;
}

class SinCosTest : public TargetTest {};
INSTANTIATE_TARGETS(SinCosTest);

TEST_P(SinCosTest, ExactIsWithinTheBoundOfTheTrueAngle) {
  const Context context = Create(ExactConfig());
  const FrequencySet& set = context->sets[0];
  Worst worst;
  RowValues values;
  const Expected* want = TrueValues().data();
  for (int64_t p : TruePositions()) {
    kernels().phase_rows(set, &p, 1, values.row());
    for (int i = 0; i < kPairs; ++i, ++want) {
      worst.Add(values.cos[i], want->cos, static_cast<double>(p));
      worst.Add(values.sin[i], want->sin, static_cast<double>(p));
    }
  }
  Print("EXACT, true angle", kernels().target, worst);
  EXPECT_LE(worst.error, kBound);
}

// Any int64: against the angle that the fixed-point frequency describes.
TEST_P(SinCosTest, ExactIsWithinTheBoundAtAnyPosition) {
  const Context context = Create(ExactConfig());
  const FrequencySet& set = context->sets[0];
  std::mt19937_64 random(2);
  std::vector<int64_t> positions = {std::numeric_limits<int64_t>::max(),
                                    std::numeric_limits<int64_t>::min(), -1};
  for (int i = 0; i < 3000; ++i) positions.push_back(static_cast<int64_t>(random()));
  Worst worst;
  RowValues values;
  for (int64_t p : positions) {
    kernels().phase_rows(set, &p, 1, values.row());
    for (int i = 0; i < kPairs; ++i) {
      const auto phase = static_cast<int64_t>(Fraction(set, i) * static_cast<uint64_t>(p));
      const long double radians =
          static_cast<long double>(phase) * 0x1p-63L * 3.14159265358979323846264338327950288L;
      worst.Add(values.cos[i], static_cast<double>(std::cos(radians)), static_cast<double>(p));
      worst.Add(values.sin[i], static_cast<double>(std::sin(radians)), static_cast<double>(p));
    }
  }
  Print("EXACT, random int64", kernels().target, worst);
  EXPECT_LE(worst.error, kBound);
}

TEST_P(SinCosTest, ExactRowsHaveTheBitsOfTheReference) {
  if (!kernels().fused) GTEST_SKIP() << "no fused multiply-add: held to the bound only";
  const Context context = Create(ExactConfig());
  const FrequencySet& set = context->sets[0];
  RowValues values;
  for (int64_t p : TruePositions()) {
    kernels().phase_rows(set, &p, 1, values.row(1.25f, -1.25f));
    for (int i = 0; i < kPairs; ++i) {
      const CosSin want = CosSinOfPosition(Fraction(set, i), p);
      ASSERT_EQ(FloatBits(values.cos[i]), FloatBits(want.cos * 1.25f)) << p << " pair " << i;
      ASSERT_EQ(FloatBits(values.sin[i]), FloatBits(want.sin * -1.25f)) << p << " pair " << i;
    }
  }
}

TEST_P(SinCosTest, OppositePositionsHaveExactlyOppositeSines) {
  const Context context = Create(ExactConfig());
  const FrequencySet& set = context->sets[0];
  RowValues there, back;
  for (int64_t p : TruePositions()) {
    kernels().phase_rows(set, &p, 1, there.row());
    const int64_t opposite = -p;
    kernels().phase_rows(set, &opposite, 1, back.row());
    for (int i = 0; i < kPairs; ++i) {
      ASSERT_EQ(there.cos[i], back.cos[i]) << p;
      ASSERT_EQ(there.sin[i], -back.sin[i]) << p;
    }
  }
}

TEST_P(SinCosTest, APositionPerPairGivesTheSameBits) {
  const Context context = Create(ExactConfig());
  const FrequencySet& set = context->sets[0];
  std::mt19937_64 random(3);
  RowValues mixed, single;
  for (int n = 0; n < 200; ++n) {
    alignas(64) int64_t positions[kPairs];
    alignas(64) float coordinates[kPairs];
    for (int i = 0; i < kPairs; ++i) {
      positions[i] = static_cast<int64_t>(random() >> (random() % 64));
      if (random() % 2) positions[i] = -positions[i];
      coordinates[i] = static_cast<float>(positions[i] % (n % 2 ? 100000 : 100000000));
    }
    kernels().phase_row_per_pair(set, positions, mixed.row());
    for (int i = 0; i < kPairs; ++i) {
      kernels().phase_rows(set, &positions[i], 1, single.row());
      ASSERT_EQ(FloatBits(mixed.cos[i]), FloatBits(single.cos[i])) << positions[i];
      ASSERT_EQ(FloatBits(mixed.sin[i]), FloatBits(single.sin[i])) << positions[i];
    }
    kernels().angle_row_per_pair(set, coordinates, mixed.row());
    for (int i = 0; i < kPairs; ++i) {
      const CosSin want = CosSinOfAngle(coordinates[i] * set.inv_freq_f32[i]);
      ASSERT_NEAR(mixed.cos[i], want.cos, kernels().fused ? 0 : 2e-7) << coordinates[i];
      ASSERT_NEAR(mixed.sin[i], want.sin, kernels().fused ? 0 : 2e-7) << coordinates[i];
    }
  }
}

// --- FLOAT32 ------------------------------------------------------------------------------------

// A frequency of 1 for all pairs: the position of a pair is its angle.
Context UnitContext() {
  const std::vector<double> ones(kPairs, 1.0);
  rope_config config = Config(kDim);
  config.inv_freq = ones.data();
  config.table_length = kPairs;
  return Create(config);
}

// Angles of all sizes: dense up to 2^24, then random bit patterns, which are mostly huge or tiny.
const std::vector<float>& Angles() {
  static const std::vector<float> angles = [] {
    std::vector<float> a;
    for (int i = 0; i < 40000; ++i) a.push_back(static_cast<float>(i) * 0.25f);
    // Around the multiples of a quarter turn, where cancellation is worst.
    for (int i = 1; i < 20000; ++i) {
      const auto quarter = static_cast<float>(i * 1.57079632679489661923);
      a.push_back(quarter);
      a.push_back(std::nextafter(quarter, 0.0f));
      a.push_back(std::nextafter(quarter, 1e9f));
    }
    // Between two quarter turns, where the rest of the reduction is largest.
    for (double eighth = 0.78539816339744831; eighth < 0x1p24; eighth *= 1.0009) {
      const double odd = (std::floor(eighth / 1.57079632679489662) + 0.5) * 1.57079632679489662;
      const auto angle = static_cast<float>(odd);
      for (float f : {angle, std::nextafter(angle, 0.0f), std::nextafter(angle, 1e9f)})
        a.push_back(f);
    }
    a.push_back(1014725.88f);  // the worst below 2^20, by trying all
    for (float edge : {0x1p20f, 0x1p23f, 0x1p24f, 0x1p30f, 0x1p31f, 0x1p32f, 0x1p63f, 0x1p64f,
                       0x1p100f, 0x1.fffffep127f, 0x1p-126f, 0x1p-149f, 0.0f}) {
      a.push_back(edge);
      a.push_back(std::nextafter(edge, 0.0f));
      a.push_back(-edge);
    }
    std::mt19937_64 random(4);
    std::uniform_real_distribution<float> moderate(-8388608.0f, 8388608.0f);
    const int count = LongTests() ? 20000000 : 100000;
    for (int i = 0; i < count; ++i) {
      a.push_back(moderate(random));
      const float any = BitsFloat(static_cast<uint32_t>(random()));
      if (std::isfinite(any)) a.push_back(any);
    }
    while (a.size() % kPairs != 0) a.push_back(1);
    return a;
  }();
  return angles;
}

const std::vector<Expected>& AngleValues() {
  static const std::vector<Expected> values = [] {
    std::vector<Expected> v;
    for (float a : Angles()) {
      v.push_back({static_cast<double>(std::cos(static_cast<long double>(a))),
                   static_cast<double>(std::sin(static_cast<long double>(a)))});
    }
    return v;
  }();
  return values;
}

TEST(SinCosReference, AnglesOfAnySizeAreWithinTheBound) {
  Worst worst;
  for (size_t i = 0; i < Angles().size(); ++i) {
    const CosSin got = CosSinOfAngle(Angles()[i]);
    worst.Add(got.cos, AngleValues()[i].cos, Angles()[i]);
    worst.Add(got.sin, AngleValues()[i].sin, Angles()[i]);
  }
  Print("FLOAT32, angles of any size", "rotate.h", worst);
  EXPECT_LE(worst.error, kBound);
}

TEST_P(SinCosTest, Float32IsWithinTheBoundOfTheF32Angle) {
  const Context context = UnitContext();
  const FrequencySet& set = context->sets[0];
  Worst worst;
  RowValues values;
  for (size_t first = 0; first < Angles().size(); first += kPairs) {
    kernels().angle_row_per_pair(set, Angles().data() + first, values.row());
    for (int i = 0; i < kPairs; ++i) {
      const Expected& want = AngleValues()[first + i];
      worst.Add(values.cos[i], want.cos, Angles()[first + i]);
      worst.Add(values.sin[i], want.sin, Angles()[first + i]);
    }
  }
  Print("FLOAT32, angles of any size", kernels().target, worst);
  EXPECT_LE(worst.error, kBound);
}

// Rows with an angle of 2^23 or more, in every order.
TEST_P(SinCosTest, RowsOfLargeAnglesHaveTheBitsOfTheReferenceOnEveryTarget) {
  const Context context = UnitContext();
  const FrequencySet& set = context->sets[0];
  alignas(64) float positions[kPairs], cos[2 * kPairs], sin[2 * kPairs];
  for (size_t first = 0; first < Angles().size(); first += kPairs) {
    std::copy_n(Angles().data() + first, kPairs, positions);
    positions[first / kPairs % kPairs] = -kMaxFastAngle;
    CosSin want[kPairs];
    for (int i = 0; i < kPairs; ++i) {
      want[i] = CosSinOfAngle(positions[i]);
      want[i] = {want[i].cos * 1.25f, want[i].sin * -0.75f};
    }
    for (cpu::RowOrder order :
         {cpu::RowOrder::kNatural, cpu::RowOrder::kEvenOdd, cpu::RowOrder::kPerChannel}) {
      if (!kernels().Makes(order, kPairs)) continue;
      if (order != cpu::RowOrder::kNatural && kernels().order_row == nullptr) continue;
      kernels().angle_row_per_pair(set, positions, {cos, sin, kPairs, 1.25f, -0.75f, order});
      for (int i = 0; i < kPairs; ++i) {
        const int vectors = 2 * kernels().lanes;
        const int at = order == cpu::RowOrder::kNatural ? i
                       : order == cpu::RowOrder::kPerChannel
                           ? 2 * i + 1
                           : i - i % vectors + i % 2 * kernels().lanes + i % vectors / 2;
        ASSERT_EQ(FloatBits(cos[at]), FloatBits(want[i].cos)) << positions[i];
        ASSERT_EQ(FloatBits(sin[at]), FloatBits(want[i].sin)) << positions[i];
        if (order != cpu::RowOrder::kPerChannel) continue;
        ASSERT_EQ(cos[at - 1], cos[at]) << positions[i];
        ASSERT_EQ(sin[at - 1], -sin[at]) << positions[i];
      }
    }
  }
}

TEST_P(SinCosTest, Float32RowsTakeThePositionTimesTheFrequency) {
  const Context context = Create(Config(kDim, ROPE_PAIRING_HALVES, 500000));
  const FrequencySet& set = context->sets[0];
  std::vector<float> positions;
  for (int i = 0; i < 2000; ++i) positions.push_back(static_cast<float>(i));
  for (float p : {8191.0f, 131071.0f, 1048575.0f, 8388607.0f, 8388608.0f, 2147483648.0f, 1e20f,
                  3e38f, 0.5f, 1e-20f}) {
    positions.push_back(p);
    positions.push_back(-p);
  }
  Worst worst;
  RowValues values;
  for (float p : positions) {
    kernels().angle_rows(set, &p, 1, values.row());
    for (int i = 0; i < kPairs; ++i) {
      const float angle = p * set.inv_freq_f32[i];
      worst.Add(values.cos[i], static_cast<double>(std::cos(static_cast<long double>(angle))), p);
      worst.Add(values.sin[i], static_cast<double>(std::sin(static_cast<long double>(angle))), p);
      if (!kernels().fused) continue;
      const CosSin want = CosSinOfAngle(angle);
      ASSERT_EQ(FloatBits(values.cos[i]), FloatBits(want.cos)) << p << " pair " << i;
      ASSERT_EQ(FloatBits(values.sin[i]), FloatBits(want.sin)) << p << " pair " << i;
    }
  }
  Print("FLOAT32, positions", kernels().target, worst);
  EXPECT_LE(worst.error, kBound);
}

// Several rows in one call have the bits of one call for each, whatever is among them.
TEST_P(SinCosTest, RowsOfSeveralPositions) {
  const Context context = Create(Config(kDim, ROPE_PAIRING_HALVES, 500000));
  const FrequencySet& set = context->sets[0];
  const std::vector<float> coordinates = {3, -1, 1e30f, 0, 8388609, -1e9f, NAN, 77, 78, 9e6f};
  const std::vector<int64_t> positions = {3, -1, int64_t{1} << 60, 0, -7, 8388609, 77};
  for (cpu::RowOrder order :
       {cpu::RowOrder::kNatural, cpu::RowOrder::kEvenOdd, cpu::RowOrder::kPerChannel}) {
    if (order != cpu::RowOrder::kNatural && kernels().order_row == nullptr) continue;
    if (!kernels().Makes(order, kPairs)) continue;
    const int width = cpu::RowWidth(order, kPairs);
    const auto rows_of = [&](const auto& all, auto make) {
      const int count = static_cast<int>(all.size());
      std::vector<float> together(2 * width * count + 16), single(2 * width + 16);
      float *const many = FromLine(&together), *const one = FromLine(&single);
      make(all.data(), count,
           cpu::Row{many, many + width, kPairs, 1.25f, -1.25f, order, 2 * width});
      for (int t = 0; t < count; ++t) {
        make(&all[t], 1, cpu::Row{one, one + width, kPairs, 1.25f, -1.25f, order, 0});
        for (int i = 0; i < 2 * width; ++i) {
          ASSERT_EQ(FloatBits(one[i]), FloatBits(many[2 * width * t + i])) << t << " value " << i;
        }
      }
    };
    rows_of(coordinates, [&](const float* p, int count, const cpu::Row& first) {
      kernels().angle_rows(set, p, count, first);
    });
    rows_of(positions, [&](const int64_t* p, int count, const cpu::Row& first) {
      kernels().phase_rows(set, p, count, first);
    });
  }
}

TEST_P(SinCosTest, NoAngleGivesNan) {
  const Context context = UnitContext();
  const FrequencySet& set = context->sets[0];
  constexpr float kInf = std::numeric_limits<float>::infinity();
  RowValues values;
  for (float p : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
    kernels().angle_rows(set, &p, 1, values.row());
    for (int i = 0; i < kPairs; ++i) {
      ASSERT_TRUE(std::isnan(values.cos[i]) && std::isnan(values.sin[i])) << p;
    }
    // One such coordinate does not spoil the other pairs.
    alignas(64) float positions[kPairs] = {};
    positions[5] = p;
    kernels().angle_row_per_pair(set, positions, values.row());
    for (int i = 0; i < kPairs; ++i) {
      ASSERT_EQ(std::isnan(values.cos[i]), i == 5) << p;
      ASSERT_EQ(std::isnan(values.sin[i]), i == 5) << p;
    }
  }
}

// --- EXACT with float coordinates ---------------------------------------------------------------

TEST(SinCosReference, CoordinatesAreExact) {
  const double frequencies[] = {1, 0.37, -2.5, 1e-6, 3.14159265358979, 4096, 0};
  std::mt19937_64 random(5);
  Worst worst;
  for (double frequency : frequencies) {
    rope_config config = Config(2);
    config.inv_freq = &frequency;
    config.table_length = 1;
    config.angle = ROPE_ANGLE_EXACT;
    const Context context = Create(config);
    const FrequencySet& set = context->sets[0];
    const auto check = [&](float coordinate) {
      const CosSin got = CosSinOfCoordinate(set.turns_whole[0], Fraction(set, 0), coordinate);
      const Quad turns = Quad(frequency) * Quad(coordinate) / (2 * Pi());
      const auto radians = static_cast<long double>(FractionOf(turns) * 2 * Pi());
      worst.Add(got.cos, static_cast<double>(std::cos(radians)), coordinate);
      worst.Add(got.sin, static_cast<double>(std::sin(radians)), coordinate);
      const CosSin opposite = CosSinOfCoordinate(set.turns_whole[0], Fraction(set, 0), -coordinate);
      EXPECT_EQ(got.cos, opposite.cos) << coordinate;
      EXPECT_EQ(got.sin, -opposite.sin) << coordinate;
    };
    for (int e = -149; e <= 35; ++e) {
      for (int n = 0; n < 50; ++n) {
        const float mantissa = 1.0f + static_cast<float>(random() >> 41) * 0x1p-23f;
        check(std::ldexp(mantissa, e));
      }
    }
    for (float c : {0.0f, 1.0f, -0.5f, 1234567.0f}) check(c);
  }
  Print("EXACT, float coordinates", "rotate.h", worst);
  EXPECT_LE(worst.error, kBound);

  // Far away, the angle that the fixed-point frequency describes: a multiple of 2^64 is whole
  // turns.
  const CosSin far = CosSinOfCoordinate(0, 0x123456789abcdef1u, 0x1p120f);
  EXPECT_EQ(far.cos, 1);
  EXPECT_EQ(far.sin, 0);
  for (float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const CosSin value = CosSinOfCoordinate(0, 1, bad);
    EXPECT_TRUE(std::isnan(value.cos) && std::isnan(value.sin));
  }
}

TEST(SinCosReference, IntegersAreCoordinates) {
  std::mt19937_64 random(6);
  for (int n = 0; n < 100000; ++n) {
    const uint64_t fraction = random();
    const auto position = static_cast<int64_t>(random() % 16777217) * (random() % 2 ? 1 : -1);
    const CosSin a = CosSinOfPosition(fraction, position);
    const CosSin b = CosSinOfCoordinate(0, fraction, static_cast<float>(position));
    ASSERT_EQ(a.cos, b.cos) << position;
    ASSERT_EQ(a.sin, b.sin) << position;
  }
}

}  // namespace
}  // namespace rope::testing
