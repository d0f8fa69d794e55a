// Random calls of BACKWARD with norms and repeated heads on a machine and on the CPU: the same
// bytes, of gradients and of the parts of those of weights, whatever else the call does.
#ifndef LIBROPE_TESTS_GPU_GRADIENT_CASES_H_
#define LIBROPE_TESTS_GPU_GRADIENT_CASES_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "librope/rope.h"
#include "support/elements.h"
#include "support/enumerators.h"
#include "support/gradient_call.h"
#include "support/handles.h"
#include "support/machine.h"
#include "support/random.h"
#include "support/row_positions.h"

namespace rope::testing {

// Of one target: all have the bits of the others (gradient_test).
class GradientCases : public GradientCalls {
 protected:
  // Those of the sets of a context; of two groups of heads that turn apart, if `heads_apart`.
  std::vector<rope_config> MakeConfigs(bool heads_apart, int sets, Random* random);

  void RunCase(uint64_t seed, Machine* machine);

  // What configurations are taken from, with of_models_; empty: any.
  std::vector<rope_config> like_;

  std::vector<double> frequency_;
  int refused_ = 0, made_ = 0, several_ = 0, apart_ = 0, sets_ = 0, repeated_ = 0, beside_ = 0,
      added_ = 0, together_ = 0, means_in_f32_ = 0, empty_ = 0, long_ = 0;
};

inline std::vector<rope_config> GradientCases::MakeConfigs(bool heads_apart, int sets,
                                                           Random* random) {
  if (heads_apart) {
    frequency_.clear();
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
  return configs;
}

inline void GradientCases::RunCase(uint64_t seed, Machine* machine) {
  Random random(seed);
  of_models_ = !like_.empty();
  if (of_models_) {
    config_ = like_[seed % like_.size()];
    rotary_ = config_.rotary_dim != 0 ? config_.rotary_dim : config_.head_dim;
  } else {
    Configure(&random);
  }
  config_.angle = random.Of({ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT});
  const bool with_rows = random.Sometimes(4), by_axes = config_.axes == 2;
  const int sets = !with_rows && !nope() && random.Sometimes(5) ? random.Of({2, 10}) : 1;
  // Of them only v passes a norm or is added.
  const bool heads_apart = !with_rows && sets == 1 && !nope() && !by_axes && random.Sometimes(12);
  const std::vector<rope_config> configs = MakeConfigs(heads_apart, sets, &random);
  const Context cpu = CreateSets(configs), device = machine->Create(configs);
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
  const rope_shard shard = ShardOf(random.Of({ROPE_SHARD_CONTIGUOUS, ROPE_SHARD_ZIGZAG}), 1, 3);

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

  const std::vector<rope_dtype> dtypes = DtypesOf(config_.rounding);
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
    means_in_f32_ += side.normed && side.mean_in_f32;
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
  const rope_status s = machine->Apply(device, args, spans, &random);
  if (s == ROPE_ERROR_UNSUPPORTED) {
    EXPECT_TRUE(rotary_ / 2 > 64 || sets > 1) << rope_last_error();
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
          << ReadElement(of, all[n]->bytes.data() + i * SizeOf(of)) << ", on the CPU "
          << ReadElement(of, want[n].data() + i * SizeOf(of)) << text;
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
  ++made_;
  several_ += machine->gradients > 1;
  apart_ += heads_apart;
  sets_ += sets > 1 && !of_weights.empty();
  repeated_ += repeat > 1 && kind >= ROPE_POSITIONS_IDS_BT && !of_weights.empty();
  beside_ += plain > 0;
  long_ += tokens_ * batch_ > 60;
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_GPU_GRADIENT_CASES_H_
