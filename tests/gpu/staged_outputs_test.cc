// Outputs and caches of another dtype than their input, in 8 bits, or with repeated heads, on a
// GPU, on the walked grid: the bytes of the definition and of the CPU, in launches of any number.
// Nothing outside of the outputs and their scales is written, and none of these twice.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "call_walk.h"
#include "gpu/launch.h"
#include "librope/rope.h"
#include "output_cases.h"
#include "staged_walk.h"
#include "support/handles.h"
#include "support/mla_rows.h"
#include "support/random.h"
#include "support/slot_kinds.h"

namespace rope::gpu {
namespace {

using rope::testing::Config;
using rope::testing::Context;
using rope::testing::Random;

class StagedOutputs : public StagedGrid {
 protected:
  Walker walker_{kWalks};
};

TEST_F(StagedOutputs, EqualTheDefinitionByteForByte) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr int kRounds = 1;
#else
  constexpr int kRounds = 5;
#endif
  rope::testing::OutputTally tally;
  rope::testing::RunAllOutputs(rope::testing::ConvertConfigs(), kRounds, &walker_, &tally);
  EXPECT_GT(tally.refused, 0);
  EXPECT_GT(tally.several, 25);
  EXPECT_GT(tally.normed, 25);
  for (int kernel = 2 * kDtypes; kernel < 4 * kDtypes; ++kernel) {
    EXPECT_EQ(walked_staged.count(kernel), 1u) << kernel;
  }
}

TEST_F(StagedOutputs, EqualTheCpuWithRowsSetsAndSharedPositions) {
  EXPECT_GT(rope::testing::RunOwnCalls(400, &walker_), 25u);
}

// Keys and values in 8 bits that move, come into 8 bits or leave them, in place as well.
TEST_F(StagedOutputs, MovesOfCodesEqualTheDefinitionByteForByte) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr uint64_t kSeeds = 400;
#else
  constexpr uint64_t kSeeds = 2000;
#endif
  rope::testing::RunMovesOfCodes(kSeeds, &walker_);
}

TEST_F(StagedOutputs, RowsOfMlaAreThoseOfTheirEngines) { rope::testing::ExpectMlaRows(&walker_); }

TEST_F(StagedOutputs, SlotKindsHaveTheBytesOfSlotsThatAreSpeltOut) {
  rope::testing::ExpectSlotKindsAgree(&walker_, 200);
}

// What no launch can do, and what a device does not do yet: field, value and rule, and nothing is
// walked.
TEST_F(StagedOutputs, RefusalsNameFieldValueAndRule) {
  constexpr int kDim = 512;
  rope_config config = Config(kDim);
  config.angle = ROPE_ANGLE_EXACT;
  const Context device = walker_.Create({config});
  std::vector<float> in(kDim, 1.0f), scales(4, 0.0f);
  std::vector<char> out(2 * kDim);
  rope_scale scale = ROPE_INIT(rope_scale);
  scale.data = scales.data();
  scale.dtype = ROPE_DTYPE_F32;
  scale.computed = 1;
  rope_qk_args args = rope::testing::Args(1, 1);
  args.positions = rope::testing::Offset(3);
  args.q = rope::testing::Tensor(in.data(), ROPE_DTYPE_F32, 1);
  args.q_out = rope::testing::Tensor(out.data(), ROPE_DTYPE_I8, 1);
  args.q_out.scale = &scale;
  Random r(1);
  const auto walk = [&] {
    const rope_status s =
        walker_.Apply(device, args, {SpanOf(in), SpanOf(out), SpanOf(scales)}, &r);
    EXPECT_EQ(s == ROPE_OK, walker_.launches != 0);
    return s;
  };
  EXPECT_EQ(walk(), ROPE_ERROR_UNSUPPORTED);
  EXPECT_STREQ(rope_last_error(),
               "test: args->q_out.scale->computed (1) on CUDA needs at most 128 pairs with this "
               "angle and these positions, and the context has 256: give scales, or rows "
               "(args->cos_sin)");
  args.q_out.dtype = ROPE_DTYPE_Q8_0;
  args.q_out.scale = nullptr;
  EXPECT_EQ(walk(), ROPE_ERROR_UNSUPPORTED);
  EXPECT_STREQ(rope_last_error(),
               "test: args->q_out.dtype (ROPE_DTYPE_Q8_0), whose scales are computed, on CUDA "
               "needs at most 128 "
               "pairs with this angle and these positions, and the context has 256: give rows "
               "(args->cos_sin)");
  args.q_out.dtype = ROPE_DTYPE_I8;
  args.q_out.scale = &scale;
  scale.computed = 0;
  scales[0] = 0.5f;
  EXPECT_EQ(walk(), ROPE_OK);
}

}  // namespace
}  // namespace rope::gpu
