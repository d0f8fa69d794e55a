// f32 powers against torch's own, recorded by tests/oracle/powers.py.
#include "context/torch_pow.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "bits/hash.h"
#include "math/element.h"
#include "model/oracle_array.h"
#include "support/load_json.h"
#include "support/random.h"

namespace rope::testing {
namespace {

using nlohmann::json;

constexpr int kTwoVectors = 32;  // of AVX-512: the fewest elements that all go through them

const json& Recorded() {
  static const json recorded = LoadJson("torch_pow.json");
  return recorded;
}

float Exponent(int i, int dim) { return static_cast<float>(2 * i) / static_cast<float>(dim); }

std::string Text(const bits::Hash& hash) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash.value()));
  return text;
}

TEST(TorchPow, GivesThePowersOfCommonModels) {
  for (const json& table : Recorded()["tables"]) {
    const float theta = table["theta"];
    const int dim = table["dim"];
    const OracleArray want(table["powers"]);
    const TorchPow pow(theta, dim / 2);
    for (int i = 0; i < dim / 2; ++i) {
      EXPECT_EQ(pow(i, Exponent(i, dim)), want.as<float>()[i]) << theta << " " << dim << " " << i;
    }
  }
}

// All 79,852 exponents that a head of up to 1024 channels can have.
TEST(TorchPow, GivesTorchsBitsForEveryWidth) {
  std::vector<float> exponents;
  for (int dim = 2; dim <= 1024; dim += 2) {
    for (int i = 0; i < dim / 2; ++i) {
      if (std::gcd(i, dim / 2) == 1) exponents.push_back(Exponent(i, dim));
    }
  }
  ASSERT_EQ(exponents.size(), Recorded()["widths"]["exponents"].get<size_t>());
  ASSERT_GE(Recorded()["hashes"].size(), 38u);
  for (const auto& [theta, want] : Recorded()["hashes"].items()) {
    const TorchPow pow(std::stof(theta), kTwoVectors);
    bits::Hash hash;
    for (float exponent : exponents) hash.Word(FloatBits(pow(0, exponent)));
    EXPECT_EQ(Text(hash), want.get<std::string>()) << theta;
  }
}

TEST(TorchPow, GivesTorchsBitsForAnyBase) {
  const int64_t pairs = Recorded()["random"]["pairs"];
  for (const auto& [seed, want] : Recorded()["random"]["hashes"].items()) {
    Random random(std::stoull(seed));
    bits::Hash hash;
    for (int64_t n = 0; n < pairs; ++n) {
      const uint64_t z = random.Next();
      const auto base = static_cast<uint32_t>((107 + (z >> 32) % 61) << 23 | (z & 0x7fffff));
      const float exponent = static_cast<float>(random.Next() >> 40) * 0x1p-24f;
      hash.Word(FloatBits(TorchPow(BitsFloat(base), kTwoVectors)(0, exponent)));
    }
    EXPECT_EQ(Text(hash), want.get<std::string>()) << seed;
  }
}

TEST(TorchPow, TakesWhatFillsNoTwoVectorsThroughTheCLibrary) {
  int different = 0;
  for (int count = 1; count <= 130; ++count) {
    const TorchPow pow(500000, count), in_vectors(500000, kTwoVectors);
    for (int i = 0; i < count; ++i) {
      const float exponent = Exponent(i, 2 * count), rest = std::pow(500000.0f, exponent);
      const bool whole = i < count / kTwoVectors * kTwoVectors;
      EXPECT_EQ(pow(i, exponent), whole ? in_vectors(0, exponent) : rest) << count << " " << i;
      different += !whole && in_vectors(0, exponent) != rest;
    }
  }
  EXPECT_GE(different, 1);
}

TEST(TorchPow, HasTheLimitsOfAPower) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (int count : {1, kTwoVectors}) {
    for (float base : {0.0f, 1e-45f, 0.5f, 1.0f, 10000.0f, 3.4028235e38f, infinity}) {
      EXPECT_EQ(TorchPow(base, count)(0, 0), 1) << base;
    }
    EXPECT_EQ(TorchPow(1, count)(0, 0.75f), 1);
    EXPECT_EQ(TorchPow(0, count)(0, 0.75f), 0);
    EXPECT_EQ(TorchPow(infinity, count)(0, 0.75f), infinity);
    EXPECT_EQ(TorchPow(0x1p-140f, count)(0, 0.5f), 0x1p-70f);
    EXPECT_EQ(TorchPow(0x1p120f, count)(0, 0.75f), 0x1p90f);
  }
}

}  // namespace
}  // namespace rope::testing
