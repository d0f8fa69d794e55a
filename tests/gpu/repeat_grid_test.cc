// Batch rows that share positions (rope_positions.batch_repeat) on the walked grid and on the CPU:
// the same bytes, for every kind of positions, in calls of each family of kernels and in rows; and
// as many launches as the design says.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "call_walk.h"
#include "gpu/launch.h"
#include "librope/rope.h"
#include "repeat_cases.h"
#include "staged_walk.h"
#include "support/handles.h"
#include "support/random.h"

namespace rope::gpu {
namespace {

using namespace rope::testing::repeat;
using rope::testing::Config;
using rope::testing::Context;
using rope::testing::CreateSets;
using rope::testing::Random;

using RepeatGrid = StagedGrid;

TEST_F(RepeatGrid, CallsEqualTheCpuByteForByte) {
  Walker walker(kWalks);
  RunAllRepeated(12, &walker);
}

rope_status WalkFill(const FillLaunch& l, void* data) {
  ++*static_cast<int*>(data);
  for (uint32_t n = 0; n < l.source.tokens.count; ++n) {
    for (uint32_t pair = 0; pair < l.source.pairs; ++pair) Fill<false>(l.source, n, pair);
  }
  return ROPE_OK;
}

TEST_F(RepeatGrid, RowsEqualTheCpuByteForByte) {
  Random r(2);
  for (rope_position_kind kind = 1; kind <= ROPE_POSITIONS_IDS_STRIDED; ++kind) {
    for (int n = 0; n < 9 && !HasFailure(); ++n) {
      SCOPED_TRACE("kind " + std::to_string(kind) + ", case " + std::to_string(n));
      const bool has_sets = n % 3 == 2;
      RepeatedPositions positions(&r, kind, n % 3 == 1, has_sets);
      const int64_t repeat = r.Pick(2, 4), batch = positions.rows * repeat;
      positions.p.batch_repeat = repeat;
      const rope_config config = Config(kDim), other = Config(kDim, ROPE_PAIRING_HALVES, 500);
      const Context context = has_sets ? CreateSets({config, other}) : CreateSets({config});
      std::vector<float> want(static_cast<size_t>(batch * kTokens * kDim)), got(want);
      rope_cos_sin rows =
          rope::testing::Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, kDim / 2, batch, want.data());
      ASSERT_OK(rope_cos_sin_fill(context.get(), batch, kTokens, &positions.p, &rows, nullptr));
      rows.data = got.data();
      FillPlan plan;
      ASSERT_OK(
          MakeFillPlan("test", context.get(), batch, kTokens, &positions.p, &rows, nullptr, &plan));
      int launches = 0;
      ASSERT_OK(ForEachFillLaunch(plan, &WalkFill, &launches));
      EXPECT_EQ(launches, positions.Parts(repeat));
      ASSERT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(float)), 0);
    }
  }
}

}  // namespace
}  // namespace rope::gpu
