// Norms on a GPU, on the walked grid and on the CPU: the same bytes, whatever else the call does.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/launch.h"
#include "librope/rope.h"
#include "norm_cases.h"
#include "staged_walk.h"
#include "support/errors.h"
#include "support/handles.h"
#include "support/random.h"

namespace rope::gpu {
namespace {

using rope::testing::Args;
using rope::testing::Config;
using rope::testing::Context;
using rope::testing::Random;
using rope::testing::Tensor;

class StagedNorms : public rope::testing::NormCases {
 protected:
  void SetUp() override {
    NormCases::SetUp();
    arena = &arena_;
  }
  Arena arena_;
  Walker walker_;
};

TEST_P(StagedNorms, EqualTheCpuByteForByte) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr int kCases = 250;
#else
  constexpr int kCases = 1200;
#endif
  for (int n = 1; n <= kCases && !HasFailure(); ++n) {
    SCOPED_TRACE("seed " + std::to_string(n));
    RunCase(static_cast<uint64_t>(n), &walker_);
  }
  for (const int count : {together_, several_, in_f32_, cached_, apart_, sets_, rows_given_}) {
    EXPECT_GT(count, 1);
  }
  EXPECT_GT(refused_, 0);
  for (int kernel = 0; kernel < 2 * kDtypes; ++kernel) {  // to outputs like their inputs
    EXPECT_EQ(walked_staged.count(kernel), 1u) << kernel;
  }
}

// What no launch can do: the message, and nothing walked.
TEST_P(StagedNorms, RefusalsNameFieldValueAndRule) {
  config_ = Config(512);
  config_.angle = ROPE_ANGLE_EXACT;
  const Context device = walker_.Create({config_});
  std::vector<float> q(512, 1.0f), out(512);
  rope_norm norm = ROPE_INIT(rope_norm);
  norm.kind = ROPE_NORM_KIND_RMS_PLAIN;
  norm.eps = 1e-6;
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.q_norm = &norm;
  rope_qk_args args = Args(1, 1);
  args.q = Tensor(q.data(), ROPE_DTYPE_F32, 1);
  args.positions = rope::testing::Offset(3);
  args.fused = &fused;
  Random random(1);
  const auto walk = [&] {
    const rope_status s = walker_.Apply(device, args, {SpanOf(q), SpanOf(out)}, &random);
    EXPECT_EQ(s == ROPE_OK, walker_.launches != 0);
    return s;
  };
  EXPECT_EQ(walk(), ROPE_ERROR_UNSUPPORTED);
  EXPECT_STREQ(rope_last_error(),
               "test: args->fused->q_norm: a norm in place on CUDA needs at most 128 pairs with "
               "this angle and these positions, and the context has 256: give rows "
               "(args->cos_sin) or an output");
  args.q_out = Tensor(out.data(), ROPE_DTYPE_F32, 1);
  EXPECT_EQ(walk(), ROPE_OK);
  norm.order = ROPE_NORM_ORDER_AFTER;
  EXPECT_EQ(walk(), ROPE_ERROR_UNSUPPORTED);
  EXPECT_STREQ(rope_last_error(),
               "test: args->fused->q_norm: a norm with ROPE_NORM_ORDER_AFTER on CUDA needs at most "
               "128 pairs with this angle and these positions, and the context has 256: give rows "
               "(args->cos_sin)");
}

INSTANTIATE_BEST_TARGET(StagedNorms);

}  // namespace
}  // namespace rope::gpu
