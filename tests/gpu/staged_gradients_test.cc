// BACKWARD on a GPU with norms and repeated heads, on the walked grid and on the CPU: the same
// bytes, of gradients and of the parts of those of weights, whatever else the call does.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "call_walk.h"
#include "model_heads.h"
#include "gpu/launch.h"
#include "gradient_cases.h"
#include "librope/rope.h"
#include "staged_walk.h"
#include "support/enumerators.h"
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

class StagedGradients : public rope::testing::GradientCases {
 protected:
  void SetUp() override {
    GradientCases::SetUp();
    arena = &arena_;
  }
  Arena arena_;
  Walker walker_{kWalks};
};

TEST_P(StagedGradients, EqualTheCpuByteForByte) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr int kCases = 250;
#else
  constexpr int kCases = 1200;
#endif
  for (int n = 1; n <= kCases && !HasFailure(); ++n) {
    SCOPED_TRACE("seed " + std::to_string(n));
    RunCase(static_cast<uint64_t>(n), &walker_);
  }
  for (const int count : {several_, apart_, sets_, repeated_, beside_, added_, together_,
                          means_in_f32_, empty_, long_, refused_}) {
    EXPECT_GT(count, 1);
  }
  EXPECT_GT(made_, kCases / 2);
  for (rope_dtype dtype = 1; dtype <= rope::testing::kLastDtype; ++dtype) {
    EXPECT_EQ(walked_gradients.count({dtype, false}), 1u) << dtype;
  }
}

// Heads of models, which are cut into columns where all tensors of a dtype allow it.
class ColumnGradients : public StagedGradients {};

TEST_P(ColumnGradients, EqualTheCpuByteForByte) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr int kCases = 500;
#else
  constexpr int kCases = 3000;
#endif
  like_ = rope::testing::NormedModelHeads();
  walked_gradients.clear();
  walked_gradient_columns.clear();
  for (int n = 1; n <= kCases && !HasFailure(); ++n) {
    SCOPED_TRACE("seed " + std::to_string(n));
    RunCase(static_cast<uint64_t>(n), &walker_);
  }
  struct Columns {
    int channels, pairs;
    bool adjacent;
  };
  for (rope_dtype dtype = 1; dtype <= rope::testing::kLastDtype; ++dtype) {
    EXPECT_EQ(walked_gradients.count({dtype, true}), 1u) << dtype;
    EXPECT_EQ(walked_gradients.count({dtype, false}), 1u) << dtype;
    if (kCases < 1000) continue;
    size_t apart = 0, together = 0;
    for (const Columns& c : {Columns{64, 32, false}, {128, 64, false}, {128, 64, true}}) {
      const auto count = [&](bool is_together) {
        return walked_gradient_columns.count({dtype, c.channels, c.pairs, c.adjacent, is_together});
      };
      EXPECT_GT(count(false) + count(true), 0u)
          << dtype << " " << c.channels << " " << c.pairs << " " << c.adjacent;
      apart += count(false);
      together += count(true);
    }
    EXPECT_GT(apart, 0u) << dtype;
    EXPECT_GT(together, 0u) << dtype;
  }
}
INSTANTIATE_BEST_TARGET(ColumnGradients);

// A call of q with a norm whose weights have gradients.
struct NormedCall {
  rope_norm norm = ROPE_INIT(rope_norm);
  rope_fused fused = ROPE_INIT(rope_fused);
  rope_qk_args args;
  rope_tensor x{};
  std::vector<float> in, of_x, out, weights, grad;

  NormedCall(int heads, int dim, int64_t batch, int64_t tokens, int parts)
      : args(Args(batch, tokens)), weights(dim, 0.75f), grad(parts * dim, -123.5f) {
    norm.kind = ROPE_NORM_KIND_RMS;
    norm.eps = 1e-6;
    norm.weight = weights.data();
    norm.weight_dtype = ROPE_DTYPE_F32;
    norm.weight_grad = parts != 0 ? grad.data() : nullptr;
    norm.grad_parts = parts;
    norm.x = &x;
    fused.q_norm = &norm;
    args.fused = &fused;
    args.operation = ROPE_OPERATION_BACKWARD;
    args.positions = rope::testing::Offset(3);
    SetMemory(nullptr, nullptr, nullptr, heads);
  }
  NormedCall(const NormedCall&) = delete;

  void SetMemory(void* gradient, void* before, void* result, int heads) {
    args.q = Tensor(gradient, ROPE_DTYPE_F32, heads);
    x = Tensor(before, ROPE_DTYPE_F32, heads);
    args.q_out = Tensor(result, ROPE_DTYPE_F32, heads);
  }
  void Allocate(int heads, int64_t count) {
    Random r(1);
    for (std::vector<float>* values : {&in, &of_x, &out}) {
      for (int64_t i = 0; i < count; ++i) {
        values->push_back(static_cast<float>(r.Pick(-900, 900)) / 256);
      }
    }
    SetMemory(in.data(), of_x.data(), out.data(), heads);
  }
};

rope_status KeepGradient(const GradientLaunch& l, void* data) {
  ExpectLimits(l.shape, l.shared_bytes);
  static_cast<std::vector<GradientLaunch>*>(data)->push_back(l);
  return ROPE_OK;
}

// What more than 2^31 tokens are cut into, whose parts go on from launch to launch: here at every
// token.
TEST_P(StagedGradients, PartsGoOnInTheNextLaunch) {
  constexpr int kHeads = 3, kDim = 20, kTokens = 11, kParts = 4;
  const Context device = walker_.Create({Config(kDim)});
  NormedCall call(kHeads, kDim, 1, kTokens, kParts);
  call.Allocate(kHeads, kTokens * kHeads * kDim);
  Random r(1);
  const std::vector<MemorySpan> spans = {SpanOf(call.in, true), SpanOf(call.of_x, true),
                                         SpanOf(call.out)};
  ASSERT_OK(walker_.Apply(device, call.args, spans, &r));
  const std::vector<float> out = call.out, grad = call.grad;
  Planned planned;
  ASSERT_OK(planned.Make(device, call.args));
  std::vector<GradientLaunch> kept;
  ASSERT_OK(ForEachGradientLaunch(planned.plan, 132, &KeepGradient, &kept));
  ASSERT_EQ(kept.size(), 1u);
  for (uint32_t cut = 1; cut < kTokens; ++cut) {
    std::fill(call.out.begin(), call.out.end(), 0.0f);
    std::fill(call.grad.begin(), call.grad.end(), -123.5f);
    std::vector<uint8_t> writes(out.size() * sizeof(float));
    arena->ranges.back().writes = &writes;
    for (const bool second : {false, true}) {
      GradientLaunch own = kept[0];
      const uint32_t first = second ? cut : 0;
      own.params.first_token = first;
      own.params.source.tokens = {0, first, second ? kTokens - cut : cut, 0, {}};
      WalkGradients(own, second);
    }
    EXPECT_FALSE(arena->failed);
    ASSERT_TRUE(call.out == out && call.grad == grad) << cut;
  }
}

// Addresses alone: what is cut because a grid or a launch has no more.
TEST_P(StagedGradients, GridsHaveLimits) {
  const auto address = [](int64_t n) { return reinterpret_cast<void*>(n << 44); };
  const Context device = walker_.Create({Config(2)});
  constexpr int64_t kTokens = 5000000000;
  NormedCall call(1, 2, 1, kTokens, 7);
  call.SetMemory(address(1), address(2), address(3), 1);
  Planned planned;
  ASSERT_OK(planned.Make(device, call.args));
  std::vector<GradientLaunch> kept;
  ASSERT_OK(ForEachGradientLaunch(planned.plan, 132, &KeepGradient, &kept));
  ASSERT_EQ(kept.size(), 3u);
  int64_t next = 0;
  for (const GradientLaunch& l : kept) {
    EXPECT_EQ(l.params.first_token, next);
    EXPECT_EQ(l.shape.grid_x, 7u);
    next += l.params.source.tokens.count;
  }
  EXPECT_EQ(next, kTokens);
  for (uint32_t part = 0; part <= 7; ++part) {
    EXPECT_EQ(kept[0].params.parts.FirstToken(part), kTokens * part / 7);
  }

  constexpr int kHeads = 5000000;  // 32 in a block
  rope_qk_args args = Args(1, 3);
  args.operation = ROPE_OPERATION_BACKWARD;
  args.positions = rope::testing::Offset(3);
  args.k = Tensor(address(1), ROPE_DTYPE_F16, 2 * kHeads);
  args.k_out = Tensor(address(2), ROPE_DTYPE_F16, kHeads);
  ASSERT_OK(planned.Make(device, args));
  kept.clear();
  ASSERT_OK(ForEachGradientLaunch(planned.plan, 132, &KeepGradient, &kept));
  ASSERT_EQ(kept.size(), 3u);
  EXPECT_EQ(kept[2].params.first_block, 2 * 65535u);
  EXPECT_EQ(kept[2].params.first_block + kept[2].shape.grid_y, (kHeads + 31u) / 32);
}

// What no launch can do: the message, and nothing walked.
TEST_P(StagedGradients, RefusalsNameFieldValueAndRule) {
  rope_config config = Config(512);
  config.angle = ROPE_ANGLE_EXACT;
  Random r(1);
  const auto expect = [&](const Context& device, const rope_qk_args& args, const char* message) {
    EXPECT_EQ(walker_.Apply(device, args, {}, &r), ROPE_ERROR_UNSUPPORTED);
    EXPECT_STREQ(rope_last_error(), message);
  };
  NormedCall wide(1, 512, 1, 2, 0);
  wide.Allocate(1, 2 * 512);
  expect(
      walker_.Create({config}), wide.args,
      "test: args->fused->q_norm: a norm with BACKWARD on CUDA needs at most 128 pairs with this "
      "angle and these positions, and the context has 256: give rows (args->cos_sin)");

  config = Config(64);
  std::vector<rope_config> configs;
  for (int n = 0; n < 9; ++n) {
    configs.push_back(config);
    configs.back().theta = 10000 + n;
  }
  const Context of_sets = walker_.Create(configs);
  NormedCall call(1, 64, 2, 2, 3);
  call.Allocate(1, 4 * 64);
  const int32_t sets[] = {0, 8};
  call.args.positions.freq_sets = sets;
  expect(of_sets, call.args,
         "test: args->fused->q_norm->grad_parts (3) on CUDA must be 0 where tokens have more than "
         "8 frequency sets of 32 pairs with this angle and these positions, and the context has 9: "
         "give rows (args->cos_sin)");
  NormedCall rows(1, 64, int64_t{1} << 31, 1, 3);
  const auto address = [](int64_t n) { return reinterpret_cast<void*>(n << 44); };
  rows.SetMemory(address(1), address(2), address(3), 1);
  rows.args.positions.batch_repeat = int64_t{1} << 31;
  expect(walker_.Create({config}), rows.args,
         "test: args->positions.batch_repeat (2147483648) on CUDA must be below 2^31 where "
         "gradients pass norms or are added");
}

// Heads with more pairs than a launch has: what does not turn is written by the first one alone.
TEST_P(StagedGradients, WhatDoesNotTurnIsOfTheFirstLaunch) {
  constexpr int kDim = 1024, kHeads = 2, kRepeats = 2, kTokens = 3;
  rope_config config = Config(kDim);
  config.rotary_dim = 700;
  config.rotary_offset = 60;
  config.angle = ROPE_ANGLE_EXACT;
  const Context device = walker_.Create({config}), cpu = rope::testing::Create(config);
  std::vector<float> in, out(kTokens * kHeads * kDim, -123.5f), want = out;
  Random r(1);
  for (int i = 0; i < kTokens * kHeads * kRepeats * kDim; ++i) {
    in.push_back(static_cast<float>(r.Pick(-900, 900)) / 256);
  }
  rope_qk_args args = Args(1, kTokens);
  args.operation = ROPE_OPERATION_BACKWARD;
  args.positions = rope::testing::Offset(3);
  args.k = Tensor(in.data(), ROPE_DTYPE_F32, kHeads * kRepeats);
  args.k_out = Tensor(want.data(), ROPE_DTYPE_F32, kHeads);
  ASSERT_OK(rope_apply_qk(cpu.get(), &args));
  args.k_out.data = out.data();
  ASSERT_OK(walker_.Apply(device, args, {SpanOf(in, true), SpanOf(out)}, &r));
  EXPECT_GT(walker_.gradients, 1);
  EXPECT_EQ(out, want);
}

// A backend need not offer gradients.
TEST_P(StagedGradients, MayBeAbsent) {
  static constexpr Backend kWithout = [] {
    Backend backend = kStagedDevice;
    backend.has_gradients = false;
    return backend;
  }();
  const Context device = walker_.Create({Config(64)});
  device->backend = &kWithout;
  NormedCall call(2, 64, 1, 2, 0);
  call.Allocate(2, 4 * 64);
  Planned planned;
  EXPECT_EQ(planned.Make(device, call.args), ROPE_ERROR_UNSUPPORTED);
  EXPECT_STREQ(
      rope_last_error(),
      "test: args->fused->q_norm must be NULL with BACKWARD in a CUDA context in this version");
  call.args.fused = nullptr;
  call.args.q_out.heads = 1;
  EXPECT_EQ(planned.Make(device, call.args), ROPE_ERROR_UNSUPPORTED);
  EXPECT_STREQ(
      rope_last_error(),
      "test: q_out.heads (1) must be that of q (2) with BACKWARD in a CUDA context in this "
      "version");
}

INSTANTIATE_BEST_TARGET(StagedGradients);

}  // namespace
}  // namespace rope::gpu
