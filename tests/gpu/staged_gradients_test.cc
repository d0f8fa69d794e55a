// BACKWARD on a GPU with norms and repeated heads, on the walked grid and on the CPU: the same
// bytes, of gradients and of the parts of those of weights, whatever else the call does.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "call_walk.h"
#include "gpu/launch.h"
#include "librope/rope.h"
#include "staged_walk.h"
#include "support/elements.h"
#include "support/enumerators.h"
#include "support/errors.h"
#include "support/gradient_call.h"
#include "support/handles.h"
#include "support/random.h"
#include "support/row_positions.h"

namespace rope::gpu {
namespace {

using rope::testing::Args;
using rope::testing::Config;
using rope::testing::Context;
using rope::testing::Create;
using rope::testing::CreateSets;
using rope::testing::GradientSide;
using rope::testing::IsSame;
using rope::testing::Memory;
using rope::testing::Random;
using rope::testing::RowPositions;
using rope::testing::SizeOf;
using rope::testing::Tensor;

Context OnDevice(Context context) {
  context->backend = &kStagedDevice;
  return context;
}

// Of one target: all have the bits of the others (gradient_test).
class StagedGradients : public rope::testing::GradientCalls {
 protected:
  void SetUp() override {
    GradientCalls::SetUp();
    arena = &arena_;
  }
  Arena arena_;

  // Which frequencies the context has.
  std::vector<double> frequency_;
  Context MakeContext(bool heads_apart, int sets, Random* random);

  void RunCase(uint64_t seed);

  int refused_ = 0, walked_ = 0, several_ = 0, apart_ = 0, sets_ = 0, repeated_ = 0, beside_ = 0,
      added_ = 0, together_ = 0, empty_ = 0, long_ = 0;
};

Context StagedGradients::MakeContext(bool heads_apart, int sets, Random* random) {
  if (heads_apart && frequency_.empty()) {
    for (int i = 0; i < rotary_; ++i) frequency_.push_back(random->Pick(1, 1000) / 1000.0);
    config_.frequency = frequency_.data();
    config_.theta = 0;
    config_.freq_heads = 2;
    config_.table_length = rotary_ / 2;
  }
  std::vector<rope_config> configs = {config_};
  for (int s = 1; s < sets; ++s) {
    configs.push_back(config_);
    configs.back().theta = 10000 + 1000 * s;
  }
  return CreateSets(configs);
}

void StagedGradients::RunCase(uint64_t seed) {
  Random random(seed);
  Configure(&random);
  config_.angle = random.Of({ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT});
  const bool with_rows = random.Sometimes(4), by_axes = config_.axes == 2;
  const int sets = !with_rows && !nope() && random.Sometimes(5) ? random.Of({2, 10}) : 1;
  // Of them only v passes a norm or is added.
  const bool heads_apart = !with_rows && sets == 1 && !nope() && !by_axes && random.Sometimes(12);
  const Context cpu = MakeContext(heads_apart, sets, &random),
                device = OnDevice(MakeContext(heads_apart, sets, &random));
  ASSERT_TRUE(cpu != nullptr && device != nullptr) << rope_last_error();

  const bool with_shard = !with_rows && !by_axes && random.Sometimes(6),
             packed = !with_rows && !by_axes && !with_shard && random.Sometimes(4);
  const int64_t repeat = with_rows || !random.Sometimes(3) ? 1 : random.Pick(2, 3);
  tokens_ = random.Sometimes(3) ? 2 * random.Pick(2, 12) : 2 * random.Pick(1, 2);
  const rope_position_kind kind =
      by_axes                ? random.Of({ROPE_POSITIONS_IDS_ABT, ROPE_POSITIONS_IDS_STRIDED})
      : with_shard || packed ? ROPE_POSITIONS_OFFSET
                             : random.Pick(1, ROPE_POSITIONS_IDS_BT);
  const int64_t rows_of_positions = packed ? 1 : random.Pick(1, 3);
  RowPositions positions(&random, kind, rows_of_positions, static_cast<int32_t>(tokens_), packed,
                         sets > 1);
  for (int32_t& set : positions.sets) set = random.Pick(0, sets - 1);
  batch_ = rows_of_positions * repeat;
  parts_ = random.Sometimes(4) ? 0 : random.Of({1, 2, 3, 5, 7, 60});
  const rope_shard shard =
      rope::testing::ShardOf(random.Of({ROPE_SHARD_CONTIGUOUS, ROPE_SHARD_ZIGZAG}), 1, 3);

  rope_qk_args args = Args(batch_, tokens_);
  args.operation = ROPE_OPERATION_BACKWARD;
  rope_cos_sin rows{};
  if (with_rows) {
    rows = MakeRows(&random);
    args.cos_sin = &rows;
  } else {
    args.positions = positions.p;
    if (repeat > 1) args.positions.batch_repeat = repeat;
    if (with_shard) args.positions.shard = &shard;
  }
  rope_fused fused = ROPE_INIT(rope_fused);
  args.fused = &fused;

  const std::vector<rope_dtype> dtypes = rope::testing::DtypesOf(config_.rounding);
  const rope_dtype common = dtypes[random.Below(static_cast<int64_t>(dtypes.size()))];
  const auto dtype = [&] {
    return random.Sometimes(2) ? common : dtypes[random.Below(static_cast<int64_t>(dtypes.size()))];
  };
  std::deque<GradientSide> sides;
  int gradients = 0, plain = 0;
  const auto add = [&](bool turns, bool may_be_normed = true) -> GradientSide& {
    GradientSide& side = sides.emplace_back(MakeSide(&random, dtype(), turns));
    side.normed &= may_be_normed;
    if (turns && heads_apart) {
      side.normed = false;
      side.repeats = 1;
      for (Memory* memory : {&side.in, &side.out}) {
        if (memory->bytes.empty()) continue;
        *memory =
            Memory(&random, memory->tensor.dtype, batch_, tokens_, 4, side.in_width, side.in_width);
        Fill(&random, *memory, side.in_width);
      }
      side.out_width = side.in_width;
    }
    rope_norm& n = side.norm.norm;
    n.x = &side.x.tensor;
    for (auto [grad, field] :
         {std::pair{&side.weight_grad, &n.weight_grad}, std::pair{&side.bias_grad, &n.bias_grad}}) {
      if (grad->empty()) continue;
      grad->resize(grad->size() + 32, -123.5f);  // canaries
      *field = grad->data();
    }
    const bool has_gradient = side.normed || side.repeats > 1;
    gradients += has_gradient;
    plain += !has_gradient;
    added_ += side.repeats > 1;
    together_ += side.normed && n.span == ROPE_NORM_SPAN_ALL_HEADS && side.x.tensor.heads > 32;
    empty_ += side.normed && n.grad_parts > batch_ * tokens_;
    return side;
  };
  const auto norm = [](GradientSide& side) { return side.normed ? &side.norm.norm : nullptr; };
  const bool with_q = random.Sometimes(2), with_k = !with_q || !random.Sometimes(4);
  if (with_q) {
    GradientSide& q = add(true);
    args.q = q.in.tensor;
    if (!q.in_place) args.q_out = q.out.tensor;
    fused.q_norm = norm(q);
  }
  if (with_k) {
    GradientSide& k = add(true);
    args.k = k.in.tensor;
    if (!k.in_place) args.k_out = k.out.tensor;
    fused.k_norm = norm(k);
  }
  if (random.Sometimes(2)) {
    GradientSide& v = add(false);
    fused.v = v.in.tensor;
    fused.v_out = v.written().tensor;
    fused.v_norm = norm(v);
  }
  if (random.Sometimes(5)) {
    GradientSide& rest = add(false, false);
    fused.rest = rest.in.tensor;
    fused.rest_out = rest.written().tensor;
  }
  if (gradients == 0) return;

  std::vector<Memory*> all;
  std::vector<std::vector<float>*> of_weights;
  std::vector<MemorySpan> spans;
  for (GradientSide& side : sides) {
    for (Memory* memory : {&side.in, &side.x, &side.out}) {
      if (memory->bytes.empty()) continue;
      all.push_back(memory);
      spans.push_back(SpanOf(memory->bytes, memory != &side.written()));
    }
    for (auto* grad : {&side.weight_grad, &side.bias_grad}) {
      if (!grad->empty()) of_weights.push_back(grad);
    }
  }
  std::vector<std::vector<char>> before, want;
  std::vector<std::vector<float>> weights_before, weights_want;
  for (const Memory* memory : all) before.push_back(memory->bytes);
  for (const auto* grad : of_weights) weights_before.push_back(*grad);
  ASSERT_EQ(rope_apply_qk(cpu.get(), &args), ROPE_OK) << rope_last_error();
  for (size_t n = 0; n < all.size(); ++n) {
    want.push_back(all[n]->bytes);
    std::copy(before[n].begin(), before[n].end(), all[n]->bytes.begin());
  }
  for (size_t n = 0; n < of_weights.size(); ++n) {
    weights_want.push_back(*of_weights[n]);
    std::copy(weights_before[n].begin(), weights_before[n].end(), of_weights[n]->begin());
  }
  WalkedStaged walked;
  const rope_status s = WalkCall(device, args, spans, &random, &walked, kWalks);
  if (s == ROPE_ERROR_UNSUPPORTED) {
    EXPECT_EQ(walked.launches, 0);
    EXPECT_TRUE(device->pairs > 64 || sets > 1) << rope_last_error();
    ++refused_;
    return;
  }
  ASSERT_EQ(s, ROPE_OK) << rope_last_error();
  std::string text;
  for (const GradientSide& side : sides) text += "\n" + Describe(side);
  for (size_t n = 0; n < all.size(); ++n) {
    const rope_dtype of = all[n]->tensor.dtype;
    const auto count = static_cast<int64_t>(want[n].size()) / SizeOf(of);
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_TRUE(IsSame(of, want[n].data(), all[n]->bytes.data(), i))
          << "memory " << n << " of " << all.size() << ", element " << i << " of " << count << ": "
          << rope::testing::ReadElement(of, all[n]->bytes.data() + i * SizeOf(of))
          << ", on the CPU " << rope::testing::ReadElement(of, want[n].data() + i * SizeOf(of))
          << text;
    }
  }
  for (size_t n = 0; n < of_weights.size(); ++n) {
    for (size_t i = 0; i < weights_want[n].size(); ++i) {
      const float got = (*of_weights[n])[i], wanted = weights_want[n][i];
      ASSERT_TRUE((std::isnan(got) && std::isnan(wanted)) ||
                  std::memcmp(&got, &wanted, sizeof(float)) == 0)
          << "gradients of weights " << n << ", element " << i << ": " << got << ", on the CPU "
          << wanted << text;
    }
  }
  ++walked_;
  several_ += walked.gradients > 1;
  apart_ += heads_apart;
  sets_ += sets > 1 && !of_weights.empty();
  repeated_ += repeat > 1 && kind >= ROPE_POSITIONS_IDS_BT && !of_weights.empty();
  beside_ += plain > 0;
  long_ += tokens_ * batch_ > 60;
}

TEST_P(StagedGradients, EqualTheCpuByteForByte) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr int kCases = 250;
#else
  constexpr int kCases = 1200;
#endif
  for (int n = 1; n <= kCases && !HasFailure(); ++n) {
    SCOPED_TRACE("seed " + std::to_string(n));
    RunCase(static_cast<uint64_t>(n));
  }
  for (const int count :
       {several_, apart_, sets_, repeated_, beside_, added_, together_, empty_, long_, refused_}) {
    EXPECT_GT(count, 1);
  }
  EXPECT_GT(walked_, kCases / 2);
  for (rope_dtype dtype = 1; dtype <= rope::testing::kLastDtype; ++dtype) {
    EXPECT_EQ(walked_gradients.count(dtype), 1u) << dtype;
  }
}

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
  const Context device = OnDevice(Create(Config(kDim)));
  NormedCall call(kHeads, kDim, 1, kTokens, kParts);
  call.Allocate(kHeads, kTokens * kHeads * kDim);
  Random r(1);
  WalkedStaged walked;
  const std::vector<MemorySpan> spans = {SpanOf(call.in, true), SpanOf(call.of_x, true),
                                         SpanOf(call.out)};
  ASSERT_OK(WalkCall(device, call.args, spans, &r, &walked, kWalks));
  const std::vector<float> out = call.out, grad = call.grad;
  Planned planned;
  ASSERT_OK(planned.Make(device, call.args));
  std::vector<GradientLaunch> kept;
  ASSERT_OK(ForEachGradientLaunch(planned.plan, &KeepGradient, &kept));
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
      WalkGradients<ROPE_DTYPE_F32>(own, second);
    }
    EXPECT_FALSE(arena->failed);
    ASSERT_TRUE(call.out == out && call.grad == grad) << cut;
  }
}

// Addresses alone: what is cut because a grid or a launch has no more.
TEST_P(StagedGradients, GridsHaveLimits) {
  const auto address = [](int64_t n) { return reinterpret_cast<void*>(n << 44); };
  const Context device = OnDevice(Create(Config(2)));
  constexpr int64_t kTokens = 5000000000;
  NormedCall call(1, 2, 1, kTokens, 7);
  call.SetMemory(address(1), address(2), address(3), 1);
  Planned planned;
  ASSERT_OK(planned.Make(device, call.args));
  std::vector<GradientLaunch> kept;
  ASSERT_OK(ForEachGradientLaunch(planned.plan, &KeepGradient, &kept));
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
  ASSERT_OK(ForEachGradientLaunch(planned.plan, &KeepGradient, &kept));
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
    WalkedStaged walked;
    EXPECT_EQ(WalkCall(device, args, {}, &r, &walked, kWalks), ROPE_ERROR_UNSUPPORTED);
    EXPECT_STREQ(rope_last_error(), message);
    EXPECT_EQ(walked.launches, 0);
  };
  NormedCall wide(1, 512, 1, 2, 0);
  wide.Allocate(1, 2 * 512);
  expect(
      OnDevice(Create(config)), wide.args,
      "test: args->fused->q_norm: a norm with BACKWARD on CUDA needs at most 128 pairs with this "
      "angle and these positions, and the context has 256: give rows (args->cos_sin)");

  config = Config(64);
  std::vector<rope_config> configs;
  for (int n = 0; n < 9; ++n) {
    configs.push_back(config);
    configs.back().theta = 10000 + n;
  }
  const Context of_sets = OnDevice(CreateSets(configs));
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
  expect(OnDevice(Create(config)), rows.args,
         "test: args->positions.batch_repeat (2147483648) on CUDA must be below 2^31 where "
         "gradients pass norms or are added");
}

// A backend need not offer gradients.
TEST_P(StagedGradients, MayBeAbsent) {
  static constexpr Backend kWithout = [] {
    Backend backend = kStagedDevice;
    backend.has_gradients = false;
    return backend;
  }();
  const Context device = OnDevice(Create(Config(64)));
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
