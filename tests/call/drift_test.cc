// What it costs to rotate keys of 16 bits, or of 8, again and again, as the header and
// docs/serving.md state it: each time rounds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iterator>
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
void ExpectDriftUnderDynamicNtk(rope_rounding rounding, double of_100, double of_500) {
  rope_config config = Config(kDim);
  config.scaling = ROPE_SCALING_DYNAMIC;
  config.factor = 4;
  config.max_position_embeddings = kTokens;
  config.rounding = rounding;
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
    const double want = n == 100 ? of_100 : of_500;
    EXPECT_NEAR(relative, want, want / 4) << n;
  }
}

TEST(Drift, MovesUnderDynamicNtkAddUp) {
  ExpectDriftUnderDynamicNtk(ROPE_ROUNDING_FLOAT32, 0.02, 0.09);
}
TEST(Drift, EagerMovesUnderDynamicNtkAddUpFaster) {
  ExpectDriftUnderDynamicNtk(ROPE_ROUNDING_EAGER, 0.1, 0.2);
}

// The table of docs/serving.md: keys that REROTATE moves again and again in their slots, to random
// positions, with a computed scale for each head or block, against those that FORWARD makes there.
TEST(Drift, OfKeysInEightBits) {
  const Context context = Create(Config(kDim));
  rope_config plain = Config(kDim);
  plain.scaling = ROPE_SCALING_NOPE;
  const Context nope = Create(plain);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  constexpr int kMoves[] = {1, 4, 16, 64, 256};
  for (rope_dtype dtype = ROPE_DTYPE_F8_E4M3; dtype <= ROPE_DTYPE_Q8_0; ++dtype) {
    if (dtype == ROPE_DTYPE_E8M0) continue;
    std::vector<float> raw(kCount), fresh(kCount), moved(kCount), scales(kTokens);
    for (float& x : raw) x = normal(random);
    std::vector<uint16_t> codes(kCount);  // or blocks
    std::vector<int64_t> slots(kTokens), at(kTokens), to(kTokens);
    for (int i = 0; i < kTokens; ++i) slots[i] = i;
    rope_scale scale = ROPE_INIT(rope_scale);
    scale.computed = 1;
    scale.dtype = ROPE_DTYPE_F32;
    scale.data = scales.data();
    scale.stride_batch = scale.stride_token = scale.stride_head = 1;
    rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
    cache.kind = ROPE_SLOTS_MAPPED;
    cache.pages = kTokens;
    cache.page_size = 1;
    cache.slots_i64 = slots.data();
    cache.slots_length = kTokens;
    cache.k = Tensor(codes.data(), dtype, 1, ROPE_LAYOUT_NHD);
    if (dtype != ROPE_DTYPE_Q8_0) cache.k.scale = &scale;
    rope_fused fused = ROPE_INIT(rope_fused);
    rope_qk_args args = Args(1, kTokens);
    args.fused = &fused;
    const auto somewhere = [&](std::vector<int64_t>* ids) {
      for (int64_t& id : *ids) id = random() % 100000;
    };
    somewhere(&at);
    args.positions = Ids(ROPE_POSITIONS_IDS_T, at.data());
    args.k = Tensor(raw.data(), ROPE_DTYPE_F32, 1);
    fused.cache = &cache;
    ASSERT_OK(rope_apply_qk(context.get(), &args));
    args.k = rope_tensor{};
    fused.source = &cache;
    std::printf("dtype %d:", dtype);
    for (int n = 1; n <= 256; ++n) {
      somewhere(&to);
      rope_positions from = Ids(ROPE_POSITIONS_IDS_T, at.data());
      args.operation = ROPE_OPERATION_REROTATE;
      args.positions = Ids(ROPE_POSITIONS_IDS_T, to.data());
      args.k_out = rope_tensor{};
      fused.cache = &cache;
      fused.from_positions = &from;
      ASSERT_OK(rope_apply_qk(context.get(), &args));
      at = to;
      if (std::find(std::begin(kMoves), std::end(kMoves), n) == std::end(kMoves)) continue;
      args.operation = ROPE_OPERATION_FORWARD;
      args.k_out = Tensor(moved.data(), ROPE_DTYPE_F32, 1);
      fused.cache = nullptr;
      fused.from_positions = nullptr;
      ASSERT_OK(rope_apply_qk(nope.get(), &args));
      fresh = raw;
      rope_qk_args forward = Args(1, kTokens);
      forward.positions = args.positions;
      forward.k = Tensor(fresh.data(), ROPE_DTYPE_F32, 1);
      ASSERT_OK(rope_apply_qk(context.get(), &forward));
      double error = 0, sum = 0;
      for (int i = 0; i < kCount; ++i) {
        error += std::pow(moved[i] - fresh[i], 2);
        sum += std::pow(fresh[i], 2);
      }
      const double drift = std::sqrt(error / sum);
      std::printf(" %.2g after %d", drift, n);
      constexpr double kOnce[] = {0.03, 0.06, 0.008, 0, 0.008};  // by one rounding
      EXPECT_LT(drift, std::sqrt(n + 1) * kOnce[dtype - ROPE_DTYPE_F8_E4M3]) << n;
    }
    std::printf("\n");
  }
}

}  // namespace
}  // namespace rope::testing
