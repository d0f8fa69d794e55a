// Channels of heads that are normed and do not turn, on every instruction set: the bits of
// NormedChannel of math/norm.h, for every width, and of any values, subnormal ones among them,
// which the instruction that rounds to bf16 takes for zeros.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "math/norm.h"
#include "support/elements.h"
#include "support/enumerators.h"
#include "support/random.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

constexpr int kHeads = 3, kGap = 5;
constexpr char kCanary = '\x5a';

// Heads with what norms them, drawn at random; `tiny`: results below the least normal number.
struct Case {
  Case(Random* random, rope_dtype dtype, int channels, bool has_means, bool has_biases, bool tiny)
      : dtype(dtype),
        step((channels + kGap) * SizeOf(dtype)),
        in(static_cast<size_t>(kHeads * step), kCanary),
        weights(static_cast<size_t>(channels)),
        biases(weights.size()) {
    for (int h = 0; h < kHeads; ++h) {
      for (int c = 0; c < channels; ++c) {
        float x = static_cast<float>(random->Pick(-3000, 3000)) / 1024;
        if (random->Sometimes(8)) x = random->Of({0.0f, -0.0f, 0x1p-149f, 0x1p-130f, 3e38f});
        if (random->Sometimes(200)) x = std::numeric_limits<float>::infinity();
        if (random->Sometimes(200)) x = std::nanf("");
        StoreElement(dtype, in.data() + h * step, c, x);
      }
      roots.push_back(static_cast<float>(random->Pick(1, 999)) / 256 * (tiny ? 0x1p-66f : 1));
      means.push_back(static_cast<float>(random->Pick(-99, 99)) / 256);
    }
    for (float& w : weights) {
      w = static_cast<float>(random->Pick(-999, 999)) / 256 * (tiny ? 0x1p-66f : 1);
    }
    for (float& b : biases) b = static_cast<float>(random->Pick(-99, 99)) * (tiny ? 0x1p-140f : 1);
    heads = {in.data(),
             nullptr,
             step,
             step,
             kHeads,
             channels,
             weights.data(),
             has_biases ? biases.data() : nullptr,
             0,
             roots.data(),
             has_means ? means.data() : nullptr,
             false};
  }

  float Want(int h, int c, bool eager) const {
    const auto round = [&](float value) { return eager ? RoundTo(dtype, value) : value; };
    return NormedChannel(LoadElement(dtype, in.data() + h * step, c),
                         heads.means != nullptr ? means[static_cast<size_t>(h)] : 0,
                         roots[static_cast<size_t>(h)], weights[static_cast<size_t>(c)],
                         heads.biases != nullptr ? biases[static_cast<size_t>(c)] : kNoBias, round);
  }

  rope_dtype dtype;
  int64_t step;
  std::vector<char> in;
  std::vector<float> weights, biases, roots, means;
  cpu::NormedHeads heads;
};

class NormHeadsTest : public TargetTest {};
INSTANTIATE_TARGETS(NormHeadsTest);

TEST_P(NormHeadsTest, HaveTheBitsOfTheDefinition) {
  Random random(11);
  int subnormal = 0;
  for (rope_dtype dtype = 1; dtype <= kLastDtype; ++dtype) {
    for (int channels = 1; channels <= 140; ++channels) {
      for (int kind = 0; kind < 12; ++kind) {
        const bool eager = (kind & 1) != 0, tiny = (kind & 2) != 0, has_means = kind >= 4;
        Case all(&random, dtype, channels, has_means, kind >= 8, tiny);
        std::vector<char> got(all.in.size(), kCanary), want = got;
        for (int h = 0; h < kHeads; ++h) {
          for (int c = 0; c < channels; ++c) {
            const float value = all.Want(h, c, eager);
            StoreElement(dtype, want.data() + h * all.step, c, value);
            const float stored = LoadElement(dtype, want.data() + h * all.step, c);
            subnormal += stored != 0 && std::fabs(stored) < 0x1p-126f;
          }
        }
        all.heads.out = got.data();
        all.heads.eager = eager;
        kernels().norm_heads[dtype - 1](all.heads);
        for (int h = 0; h < kHeads; ++h) {
          for (int c = 0; c < channels + kGap; ++c) {
            const int64_t at = h * all.step + c * SizeOf(dtype);
            if (c < channels) {
              ASSERT_TRUE(IsSame(dtype, &got[at], &want[at], 0))
                  << "dtype " << dtype << ", " << channels << " channels, kind " << kind
                  << ", channel " << c << ": " << LoadElement(dtype, &got[at], 0) << ", not "
                  << LoadElement(dtype, &want[at], 0);
            } else {
              ASSERT_EQ(std::memcmp(&got[at], &want[at], SizeOf(dtype)), 0) << "behind the head";
            }
          }
        }
      }
    }
  }
  EXPECT_GT(subnormal, 1000);
}

}  // namespace
}  // namespace rope::testing
