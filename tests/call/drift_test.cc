// What it costs to rotate 16-bit keys again and again, as the header states it: each time rounds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "math/element.h"
#include "support/errors.h"
#include "support/handles.h"

namespace rope::testing {
namespace {

constexpr int kDim = 64, kTokens = 256;
constexpr int64_t kCount = kDim * kTokens;

using Keys = std::vector<uint16_t>;

Keys RandomKeys() {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  Keys keys(kCount);
  for (int64_t i = 0; i < kCount; ++i)
    StoreElement(ROPE_DTYPE_BF16, keys.data(), i, normal(random));
  return keys;
}

void Rotate(const Context& context, rope_operation operation, const rope_positions& positions,
            Keys* keys, const rope_positions* from = nullptr) {
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.from_positions = from;
  rope_qk_args args = Args(1, kTokens);
  args.operation = operation;
  args.fused = from != nullptr ? &fused : nullptr;
  args.k = Tensor(keys->data(), ROPE_DTYPE_BF16, 1);
  args.positions = positions;
  ASSERT_OK(rope_apply_qk(context.get(), &args));
}

double At(const Keys& keys, int64_t i) { return LoadElement(ROPE_DTYPE_BF16, keys.data(), i); }

// The norms of the pairs after 50 moves by one distance, relative to those before: the farthest.
template <class Move>
double NormDrift(rope_config config, rope_rounding rounding, Move move) {
  config.rounding = rounding;
  const Context context = Create(config);
  const Keys before = RandomKeys();
  Keys keys = before;
  for (int n = 0; n < 50; ++n) move(context, n, &keys);
  double farthest = 0;
  for (int pair = 0; pair < kDim / 2; ++pair) {  // over the tokens, so that roundings average out
    double was = 0, is = 0;
    for (int64_t i = 2 * pair; i < kCount; i += kDim) {
      was += At(before, i) * At(before, i) + At(before, i + 1) * At(before, i + 1);
      is += At(keys, i) * At(keys, i) + At(keys, i + 1) * At(keys, i + 1);
    }
    farthest = std::max(farthest, std::fabs(std::sqrt(is / was) - 1));
  }
  return farthest;
}

TEST(Drift, EagerShiftsChangeTheNormOf16BitKeys) {
  rope_config config = Config(kDim, ROPE_PAIRING_INTERLEAVED, 500000);
  config.angle = ROPE_ANGLE_EXACT;
  const int64_t distance = -64;
  const rope_positions by = Ids(ROPE_POSITIONS_IDS_STRIDED, &distance);
  const auto shift = [&by](const Context& context, int, Keys* keys) {
    Rotate(context, ROPE_OPERATION_SHIFT, by, keys);
  };
  const double eager = NormDrift(config, ROPE_ROUNDING_EAGER, shift);
  EXPECT_LT(eager, 0.11);
  EXPECT_GT(eager, 0.05);
  EXPECT_LT(NormDrift(config, ROPE_ROUNDING_FLOAT32, shift), 0.03);
}

TEST(Drift, EagerMovesFromKnownPositionsDoSoToo) {
  rope_config config = Config(kDim, ROPE_PAIRING_INTERLEAVED, 10000);
  config.scaling = ROPE_SCALING_YARN;
  config.factor = 4;
  config.original_max_position_embeddings = 4096;
  const auto rerotate = [](const Context& context, int n, Keys* keys) {
    const rope_positions from = Offset(9000 - 37 * n), to = Offset(9000 - 37 * (n + 1));
    Rotate(context, ROPE_OPERATION_REROTATE, to, keys, &from);
  };
  const double eager = NormDrift(config, ROPE_ROUNDING_EAGER, rerotate);
  EXPECT_LT(eager, 0.15);
  EXPECT_GT(eager, 0.05);
  EXPECT_LT(NormDrift(config, ROPE_ROUNDING_FLOAT32, rerotate), 0.03);
}

// Dynamic NTK with a 16-bit cache whose keys are moved at every token.
TEST(Drift, MovesUnderDynamicNtkAddUp) {
  rope_config config = Config(kDim);
  config.scaling = ROPE_SCALING_DYNAMIC;
  config.factor = 4;
  config.max_position_embeddings = kTokens;
  const auto at = [&config](int64_t length) {
    config.seq_len = length;
    return Create(config);
  };
  const Keys raw = RandomKeys();
  Keys moved = raw;
  Rotate(at(kTokens), ROPE_OPERATION_FORWARD, Offset(0), &moved);
  for (int n = 1; n <= 500; ++n) {
    Rotate(at(kTokens + n - 1), ROPE_OPERATION_INVERSE, Offset(0), &moved);
    Rotate(at(kTokens + n), ROPE_OPERATION_FORWARD, Offset(0), &moved);
    if (n != 100 && n != 500) continue;
    Keys fresh = raw;
    Rotate(at(kTokens + n), ROPE_OPERATION_FORWARD, Offset(0), &fresh);
    double error = 0, sum = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      error += std::pow(At(moved, i) - At(fresh, i), 2);
      sum += std::pow(At(fresh, i), 2);
    }
    const double relative = std::sqrt(error / sum);
    EXPECT_NEAR(relative, n == 100 ? 0.02 : 0.09, n == 100 ? 0.005 : 0.015) << n;
  }
}

}  // namespace
}  // namespace rope::testing
