// The sums and roots of norms, by math/norm.h and by every target: the bits of the order that
// docs/serving.md states, for every width, and its bounds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/limits.h"
#include "math/norm.h"
#include "support/elements.h"
#include "support/enumerators.h"
#include "support/memory.h"
#include "support/norm_reference.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

using cpu::NormSum;

constexpr double kUnit = 0x1p-24;
constexpr NormSum kAll[] = {NormSum::kValues, NormSum::kSquares, NormSum::kDistances};

float Want(NormSum what, const std::vector<float>& x, float mean, bool fused) {
  switch (what) {
    case NormSum::kValues: return SumInOrderOf(x);
    case NormSum::kSquares: return SumOfSquaresAround(x, 0, fused);
    default: return SumOfSquaresAround(x, mean, fused);
  }
}

::testing::AssertionResult AreSame(float got, float want) {
  if (std::isnan(got) && std::isnan(want)) return ::testing::AssertionSuccess();
  if (FloatBits(got) == FloatBits(want)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << got << " is not " << want;
}

class NormSumsTest : public TargetTest {
 protected:
  // Heads with a gap behind each, and the sums of the target.
  struct Heads {
    rope_dtype dtype;
    int count, channels;
    int64_t step;
    std::vector<char> memory;
    std::vector<std::vector<float>> values;  // as stored
    std::vector<float> means;
  };

  template <class Draw>
  static Heads Make(rope_dtype dtype, int count, int channels, const Draw& draw) {
    Heads heads{dtype, count, channels, (channels + 3) * SizeOf(dtype), {}, {}, {}};
    heads.memory.assign(static_cast<size_t>(count * heads.step), '\x7f');
    for (int h = 0; h < count; ++h) {
      heads.values.emplace_back();
      for (int c = 0; c < channels; ++c) {
        StoreElement(dtype, heads.memory.data() + h * heads.step, c, draw());
        heads.values[h].push_back(LoadElement(dtype, heads.memory.data() + h * heads.step, c));
      }
      heads.means.push_back(SumInOrderOf(heads.values[h]) / static_cast<float>(channels));
    }
    return heads;
  }

  std::vector<float> SumsOf(const Heads& heads, NormSum what) const {
    std::vector<float> sums(static_cast<size_t>(heads.count));
    kernels().norm_sums[heads.dtype - 1][static_cast<int>(what)](
        {heads.memory.data(), heads.step, heads.count, heads.channels, heads.means.data(),
         sums.data(), 0, 0, false});
    return sums;
  }

  void ExpectBits(const Heads& heads) const {
    for (NormSum what : kAll) {
      const std::vector<float> sums = SumsOf(heads, what);
      for (int h = 0; h < heads.count; ++h) {
        const std::vector<float>& x = heads.values[h];
        ASSERT_TRUE(AreSame(sums[h], Want(what, x, heads.means[h], kernels().fused)))
            << heads.channels << " channels, dtype " << heads.dtype << ", head " << h << ", sum "
            << static_cast<int>(what);
      }
    }
  }
};
INSTANTIATE_TARGETS(NormSumsTest);

std::vector<rope_dtype> AllDtypes() { return DtypesOf(ROPE_ROUNDING_FLOAT32); }

TEST_P(NormSumsTest, HaveTheOrderForEveryWidth) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.5f, 2);
  for (rope_dtype dtype : AllDtypes()) {
    for (int channels = 1; channels <= kMaxHeadDim; ++channels) {
      ExpectBits(Make(dtype, 3, channels, [&] { return normal(random); }));
      if (HasFatalFailure()) return;
    }
  }
}

// Where the square is exact, targets without fused multiply-add have the same bits.
TEST_P(NormSumsTest, OfSixteenBitsAreTheSameOnEveryTarget) {
  std::mt19937 random(2);
  std::lognormal_distribution<float> sizes(0, 3);
  for (rope_dtype dtype : SixteenBitDtypes()) {
    for (int channels : {1, 31, 32, 64, 80, 100, 128, 513, 1024}) {
      const Heads heads = Make(dtype, 7, channels, [&] { return sizes(random); });
      const std::vector<float> sums = SumsOf(heads, NormSum::kSquares);
      for (int h = 0; h < heads.count; ++h) {
        ASSERT_TRUE(AreSame(sums[h], SumOfSquaresAround(heads.values[h], 0, true))) << channels;
      }
    }
  }
}

TEST_P(NormSumsTest, OfSpecialValuesAreThoseOfTheOrder) {
  const float inf = std::numeric_limits<float>::infinity();
  const float specials[] = {std::numeric_limits<float>::quiet_NaN(),
                            inf,
                            -inf,
                            0.0f,
                            -0.0f,
                            3e38f,
                            -3e38f,
                            1.8e19f,
                            2e19f,
                            65504.0f,
                            0x1p-24f,
                            0x1p-75f,
                            0x1.8p-75f,
                            0x1p-130f,
                            0x1p-149f,
                            1.0f};
  constexpr auto kSpecials = static_cast<int>(std::size(specials));
  std::mt19937 random(3);
  for (rope_dtype dtype : AllDtypes()) {
    for (int channels : {1, 2, 5, 32, 33, 72, 128}) {
      for (int only = 0; only < kSpecials; ++only) {  // beside ordinary ones; only small ones
        ExpectBits(Make(dtype, 2, channels, [&] {
          return random() % 8 == 0 ? specials[only] : random() % 2 == 0 ? 0.75f : -0x1p-70f;
        }));
        ExpectBits(Make(dtype, 1, channels, [&] { return specials[only]; }));
        if (HasFatalFailure()) return;
      }
      ExpectBits(
          Make(dtype, 9, channels, [&] { return specials[3 + random() % (kSpecials - 3)]; }));
      if (HasFatalFailure()) return;
    }
  }
}

// A few large channels, and small ones whose squares are about half a unit of the sum: the inputs
// on which orders differ most.
TEST_P(NormSumsTest, AreWithinTheirBounds) {
  std::mt19937 random(4);
  std::uniform_real_distribution<float> uniform(0.9f, 1.1f);
  std::lognormal_distribution<float> sizes(0, 3);
  for (rope_dtype dtype : AllDtypes()) {
    for (int channels : {1, 2, 31, 64, 80, 128, 256, 300, 512, 1024}) {
      for (bool adversarial : {false, true}) {
        const Heads heads = Make(dtype, 200, channels, [&] {
          const float size = !adversarial         ? std::min(sizes(random), 6e4f)
                             : random() % 32 == 0 ? uniform(random)
                                                  : uniform(random) * 0x1p-12f;
          return random() % 2 == 0 ? size : -size;
        });
        const std::vector<float> values = SumsOf(heads, NormSum::kValues),
                                 squares = SumsOf(heads, NormSum::kSquares),
                                 distances = SumsOf(heads, NormSum::kDistances);
        const int m = (channels + 31) / 32;
        for (int h = 0; h < heads.count; ++h) {
          long double sum = 0, size = 0, square = 0, distance = 0;
          for (float x : heads.values[h]) {
            const auto exact = static_cast<long double>(x);
            sum += exact, size += std::fabs(exact), square += exact * exact;
            distance += (exact - heads.means[h]) * (exact - heads.means[h]);
          }
          ASSERT_LE(std::fabs(values[h] - sum), (m + 5) * kUnit * size) << channels;
          ASSERT_LE(std::fabs(squares[h] - square), (m + 5) * kUnit * square) << channels;
          ASSERT_LE(std::fabs(distances[h] - distance), (m + 7) * kUnit * distance) << channels;
        }
      }
    }
  }
}

TEST_P(NormSumsTest, ReadNothingBehindTheHead) {
  for (rope_dtype dtype : AllDtypes()) {
    for (int channels = 1; channels <= 160; ++channels) {
      const Guarded memory(static_cast<size_t>(channels * SizeOf(dtype)), Edge::kEnd);
      for (int c = 0; c < channels; ++c) StoreElement(dtype, memory.as<char>(), c, 1.5f);
      for (NormSum what : kAll) {
        const float mean = 0.5f;
        float sum = 0;
        kernels().norm_sums[dtype - 1][static_cast<int>(what)](
            {memory.as<char>(), 0, 1, channels, &mean, &sum, 0, 0, false});
        const float each = what == NormSum::kValues ? 1.5f : what == NormSum::kSquares ? 2.25f : 1;
        ASSERT_EQ(sum, each * channels);
      }
    }
  }
}

TEST_P(NormSumsTest, RootsAreThoseOfIeee) {
  constexpr int kCount = 48;
  std::mt19937 random(5);
  std::lognormal_distribution<float> sizes(0, 20);
  const float inf = std::numeric_limits<float>::infinity();
  for (float eps : {1e-6f, 1e-5f, 0x1p-149f, 1e-12f}) {
    for (float n : {1.0f, 80.0f, 127.0f, 128.0f, 4096.0f, 5120.0f}) {
      alignas(64) float got[kCount];
      float sums[kCount];
      for (int i = 0; i < kCount; ++i) sums[i] = sizes(random);
      sums[3] = 0, sums[5] = inf, sums[7] = std::nanf(""), sums[11] = 0x1p-149f, sums[13] = 3e38f;
      std::memcpy(got, sums, sizeof(sums));
      kernels().inverse_roots(got, kCount, n, eps);
      for (int i = 0; i < kCount; ++i) {
        ASSERT_TRUE(AreSame(got[i], InverseRootOf(sums[i], n, eps))) << sums[i];
        ASSERT_TRUE(AreSame(InverseRoot(sums[i], n, eps), InverseRootOf(sums[i], n, eps)));
      }
    }
  }
}

TEST(NormSums, OfTheReferenceHaveTheOrderForEveryWidth) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal(0.5f, 2);
  for (int channels = 1; channels <= kMaxHeadDim; ++channels) {
    std::vector<float> x;
    for (int c = 0; c < channels; ++c) x.push_back(normal(random));
    ASSERT_TRUE(AreSame(SumOf(x.data(), channels), SumInOrderOf(x)));
    ASSERT_TRUE(AreSame(SumOfSquares(x.data(), channels, 0), SumOfSquaresAround(x, 0, true)));
    ASSERT_TRUE(
        AreSame(SumOfSquares(x.data(), channels, 0.25f), SumOfSquaresAround(x, 0.25f, true)));
  }
}

}  // namespace
}  // namespace rope::testing
