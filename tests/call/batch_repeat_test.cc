// rope_positions.batch_repeat: batch rows that share positions have the bits of a call in which the
// ids of each row are spelt out, whatever the kind of positions, in calls, prepared ones and rows.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "librope/rope.h"
#include "support/errors.h"
#include "support/handles.h"
#include "support/prepared_call.h"
#include "support/random.h"
#include "support/reference.h"
#include "support/row_positions.h"

namespace rope::testing {
namespace {

constexpr int kDim = 24, kHeads = 2, kTokens = 5, kRows = 3, kRepeat = 4;

// Positions of rows, and the same as ids of each axis of every one of `rows * kRepeat`.
struct Pair {
  const RowPositions shared;
  const int64_t rows = shared.rows;
  rope_positions repeated = shared.p, spelt{};
  std::vector<int64_t> spelt_ids;
  std::vector<int32_t> spelt_sets;

  Pair(Random* random, rope_position_kind kind, int axes, bool packed, bool has_sets)
      : shared(random, kind, kRows, kTokens, packed, has_sets) {
    repeated.batch_repeat = kRepeat;
    for (int a = 0; a < axes; ++a) {
      for (int64_t b = 0; b < rows * kRepeat; ++b) {
        for (int64_t t = 0; t < kTokens; ++t) {
          spelt_ids.push_back(PositionOf(shared.p, rows, kTokens, axes, b / kRepeat, t, a).integer);
        }
      }
    }
    spelt.kind = ROPE_POSITIONS_IDS_ABT;
    spelt.ids_i64 = spelt_ids.data();
    for (int64_t b = 0; b < rows * kRepeat; ++b) spelt_sets.push_back(shared.sets[b / kRepeat]);
    if (has_sets) spelt.freq_sets = spelt_sets.data();
  }
  Pair(const Pair&) = delete;
};

std::vector<float> Results(const Context& context, const rope_positions& positions, int64_t batch,
                           bool prepared) {
  std::vector<float> q(static_cast<size_t>(batch * kTokens * kHeads * kDim));
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i % 89) / 16.0f - 2.0f;
  rope_qk_args args = Args(batch, kTokens);
  args.positions = positions;
  args.q = Tensor(q.data(), ROPE_DTYPE_F32, kHeads);
  EXPECT_OK(prepared ? ApplyPrepared(context.get(), args) : rope_apply_qk(context.get(), &args));
  return q;
}

std::vector<float> RowsOf(const Context& context, const rope_positions& positions, int64_t batch) {
  std::vector<float> rows(static_cast<size_t>(batch * kTokens * kDim));
  const rope_cos_sin out = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, kDim / 2, batch, rows.data());
  EXPECT_EQ(rope_cos_sin_fill(context.get(), batch, kTokens, &positions, &out, nullptr), ROPE_OK)
      << rope_last_error();
  return rows;
}

TEST(BatchRepeat, HasTheBitsOfIdsThatAreSpeltOut) {
  Random random(1);
  rope_config axes = Config(kDim), other = Config(kDim, ROPE_PAIRING_HALVES, 500);
  axes.axes = 3;
  axes.mrope_section[0] = 3, axes.mrope_section[1] = 4, axes.mrope_section[2] = 5;
  const Context one = Create(Config(kDim)), three = Create(axes),
                sets = CreateSets({Config(kDim), other});
  for (rope_position_kind kind = 1; kind <= ROPE_POSITIONS_IDS_STRIDED; ++kind) {
    for (int n = 0; n < 4; ++n) {
      const bool packed = n == 1, has_sets = n == 2;
      const int count = n == 3 ? 3 : 1;
      const Context& context = has_sets ? sets : count == 3 ? three : one;
      const Pair pair(&random, kind, count, packed, has_sets);
      SCOPED_TRACE("kind " + std::to_string(kind) + ", case " + std::to_string(n));
      const int64_t batch = pair.rows * kRepeat;
      EXPECT_EQ(Results(context, pair.repeated, batch, false),
                Results(context, pair.spelt, batch, false));
      EXPECT_EQ(Results(context, pair.repeated, batch, true),
                Results(context, pair.spelt, batch, true));
      EXPECT_EQ(RowsOf(context, pair.repeated, batch), RowsOf(context, pair.spelt, batch));
    }
  }
}

// BACKWARD through a norm, with sums over repeated heads and the gradients of the weights.
TEST(BatchRepeat, GradientsHaveTheBitsOfIdsThatAreSpeltOut) {
  constexpr int kSums = 2, kParts = 3;
  Random random(2);
  const Context context = Create(Config(kDim));
  for (rope_position_kind kind = 1; kind <= ROPE_POSITIONS_IDS_STRIDED; ++kind) {
    SCOPED_TRACE("kind " + std::to_string(kind));
    const Pair pair(&random, kind, 1, false, false);
    const int64_t batch = pair.rows * kRepeat;
    const auto count = static_cast<size_t>(batch * kTokens * kHeads * kDim);
    std::vector<float> x, gradient, weight;
    const auto fill = [&](std::vector<float>* values, size_t n) {
      while (values->size() < n) values->push_back(random.Pick(-999, 999) / 256.0f);
    };
    fill(&x, count), fill(&gradient, kSums * count), fill(&weight, kDim);
    const auto gradients = [&](const rope_positions& positions) {
      std::vector<float> all(count + kParts * kDim);
      const rope_tensor given = Tensor(x.data(), ROPE_DTYPE_F32, kHeads);
      rope_norm norm = ROPE_INIT(rope_norm);
      norm.kind = ROPE_NORM_KIND_RMS;
      norm.eps = 1e-6;
      norm.weight = weight.data();
      norm.weight_dtype = ROPE_DTYPE_F32;
      norm.x = &given;
      norm.weight_grad = all.data() + count;
      norm.grad_parts = kParts;
      rope_fused fused = ROPE_INIT(rope_fused);
      fused.k_norm = &norm;
      rope_qk_args args = Args(batch, kTokens);
      args.operation = ROPE_OPERATION_BACKWARD;
      args.positions = positions;
      args.k = Tensor(gradient.data(), ROPE_DTYPE_F32, kSums * kHeads);
      args.k_out = Tensor(all.data(), ROPE_DTYPE_F32, kHeads);
      args.fused = &fused;
      EXPECT_OK(rope_apply_qk(context.get(), &args));
      return all;
    };
    const std::vector<float> shared = gradients(pair.repeated);
    EXPECT_EQ(shared, gradients(pair.spelt));
    EXPECT_NE(shared, std::vector<float>(shared.size()));
  }
}

// Of a context with an end: the position that is too large is found, and its batch row.
TEST(BatchRepeat, PositionsBeyondTheEndAreFound) {
  rope_config config = Config(kDim);
  config.scaling = ROPE_SCALING_DYNAMIC;
  config.factor = 2;
  config.max_position_embeddings = 64;
  config.seq_len = 1;
  const Context context = Create(config);
  std::vector<float> q(kRows * kRepeat * kDim);
  std::vector<int64_t> ids = {1, 2, 64};
  rope_qk_args args = Args(kRows * kRepeat, 1);
  args.positions.kind = ROPE_POSITIONS_IDS_BT;
  args.positions.ids_i64 = ids.data();
  args.positions.batch_repeat = kRepeat;
  args.q = Tensor(q.data(), ROPE_DTYPE_F32, 1);
  EXPECT_EQ(rope_apply_qk(context.get(), &args), ROPE_ERROR_INVALID_ARGUMENT);
  ExpectMessage("rope_apply_qk", {"position 64 of token 0 in batch row 8 must be below"});
  ids[2] = 63;
  EXPECT_EQ(rope_apply_qk(context.get(), &args), ROPE_OK) << rope_last_error();
}

TEST(BatchRepeat, IsADivisorOfTheBatch) {
  const Context context = Create(Config(kDim));
  std::vector<float> q(6 * kDim, 1.5f);
  rope_qk_args args = Args(6, 1);
  args.positions = Offset(1);
  args.q = Tensor(q.data(), ROPE_DTYPE_F32, 1);
  for (int64_t wrong : {int64_t{4}, int64_t{-1}, int64_t{12}, INT64_MIN}) {
    args.positions.batch_repeat = wrong;
    EXPECT_EQ(rope_apply_qk(context.get(), &args), ROPE_ERROR_INVALID_ARGUMENT);
    const std::string told = "args->positions.batch_repeat (" + std::to_string(wrong) + ")";
    ExpectMessage("rope_apply_qk", {told.c_str(), "must be 0 or a divisor of batch (6)"});
  }
  args.positions.batch_repeat = 3;
  const int32_t runs[] = {0, 1};
  args.positions.cu_seqlens = runs;
  args.positions.sequences = 1;
  EXPECT_EQ(rope_apply_qk(context.get(), &args), ROPE_ERROR_INVALID_ARGUMENT);
  ExpectMessage("rope_apply_qk", {"args->positions.cu_seqlens needs batch 1"});
  args.positions = Offset(1);
  args.positions.batch_repeat = 3;
  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.cache = &cache;
  args.fused = &fused;
  EXPECT_EQ(rope_apply_qk(context.get(), &args), ROPE_ERROR_UNSUPPORTED);
  ExpectMessage("rope_apply_qk",
                {"args->fused->cache must be NULL with args->positions.batch_repeat (3)"});
  for (float value : q) ASSERT_EQ(value, 1.5f);
  args.fused = nullptr;
  for (int64_t right : {0, 1, 2, 3, 6}) {
    args.positions.batch_repeat = right;
    EXPECT_EQ(rope_apply_qk(context.get(), &args), ROPE_OK) << rope_last_error();
  }
}

}  // namespace
}  // namespace rope::testing
