// Multiplication by a reciprocal is division, for every divisor and every number that is not
// negative.
#include "math/divisor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace rope {
namespace {

TEST(Divisor, IsDivision) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 20'000; ++round) {
    const int bits = static_cast<int>(random() % 31);
    int64_t d = 1 + static_cast<int64_t>(random() & ((uint64_t{1} << bits) - 1));
    if (round % 3 == 0) d = int64_t{1} << bits;
    if (round == 1) d = INT32_MAX;
    const Divisor by = DivisorOf(d);
    std::vector<int64_t> tries = {0, 1, d - 1, d, INT64_MAX};
    tries.push_back(INT64_MAX - INT64_MAX % d);
    tries.push_back(INT64_MAX - INT64_MAX % d - 1);
    for (int n = 0; n < 20; ++n) tries.push_back(static_cast<int64_t>(random() >> (1 + n * 3)));
    for (const int64_t n : tries) ASSERT_EQ(by(n), n / d) << n << " by " << d;
  }
}

TEST(SmallDivisor, IsDivision) {
  std::mt19937_64 random(6);
  for (int round = 0; round < 20'000; ++round) {
    const uint32_t d =
        round == 1 ? INT32_MAX : 1 + static_cast<uint32_t>(random() >> (33 + random() % 31));
    const SmallDivisor by = SmallDivisorOf(d);
    std::vector<uint32_t> tries = {0, 1, d - 1, d, INT32_MAX, INT32_MAX - INT32_MAX % d};
    tries.push_back(INT32_MAX - INT32_MAX % d - 1);
    for (int n = 0; n < 20; ++n) tries.push_back(static_cast<uint32_t>(random() >> (33 + n)));
    for (const uint32_t n : tries) ASSERT_EQ(by(n), n / d) << n << " by " << d;
  }
}

}  // namespace
}  // namespace rope
