// Batch rows that share positions (rope_positions.batch_repeat) on the walked grid and on the CPU:
// the same bytes, for every kind of positions, in calls of each family of kernels and in rows; and
// as many launches as the design says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "call_walk.h"
#include "gpu/launch.h"
#include "librope/rope.h"
#include "staged_walk.h"
#include "support/handles.h"
#include "support/random.h"
#include "support/row_positions.h"

namespace rope::gpu {
namespace {

using rope::testing::Config;
using rope::testing::Context;
using rope::testing::CreateSets;
using rope::testing::Random;
using rope::testing::RowPositions;

constexpr int kDim = 32, kTokens = 5, kMostRows = 3, kQ = 2, kGroup = kQ + 2;
constexpr int kParts = 3;  // of the gradients of weights

// What a call does, each by another family of kernels: q and k; v as well; norms; REROTATE;
// gradients of norms.
enum class Family { kPlain, kFused, kNormed, kMoved, kGradients };

struct RepeatedPositions : RowPositions {
  RepeatedPositions(Random* r, rope_position_kind kind, bool packed, bool has_sets)
      : RowPositions(r, kind, packed ? 1 : r->Pick(1, kMostRows), kTokens, packed, has_sets) {}

  // Of `repeat` batch rows for each row of positions.
  int64_t Parts(int64_t repeat) const {
    const bool by_sequence = p.freq_sets != nullptr || p.kind == ROPE_POSITIONS_SEQ_OFFSETS;
    if (p.cu_seqlens == nullptr && by_sequence) return repeat;
    if (p.kind < ROPE_POSITIONS_IDS_BT) return 1;
    return std::min(rows, repeat);
  }
};

class RepeatGrid : public StagedGrid {
 protected:
  // Walks a call of any family, and returns how many launches it has.
  int Walk(const Context& device, const rope_qk_args& args, Random* r) {
    WalkedStaged walked;
    Planned planned;
    EXPECT_OK(planned.Make(device, args));
    std::vector<uint8_t> writes(memory_.size() * sizeof(float));
    const auto* const begin = reinterpret_cast<const char*>(memory_.data());
    *arena = Arena{};
    arena->ranges.push_back({begin, begin + writes.size(), &writes});
    EXPECT_OK(ForEachLaunchOfCall(planned.plan, r->Of({1, 4, 132}), kWalks, &walked));
    EXPECT_FALSE(arena->failed) << "outside of memory, or written twice";
    return walked.launches;
  }

  void RunCase(Random* r, rope_position_kind kind, Family family, bool packed, bool has_sets,
               bool in_place);

  std::vector<float> memory_;
};

// Grouped QKV, [tokens, rows, groups, q + 2, head_dim]: each group is a batch row.
void RepeatGrid::RunCase(Random* r, rope_position_kind kind, Family family, bool packed,
                         bool has_sets, bool in_place) {
  const RepeatedPositions positions(r, kind, packed, has_sets), before(r, kind, packed, has_sets);
  const int64_t rows = positions.rows, repeat = r->Pick(2, 4), batch = rows * repeat;
  rope_config config = Config(kDim), other = Config(kDim, ROPE_PAIRING_HALVES, 500);
  if (kind >= ROPE_POSITIONS_IDS_ABT) config.axes = other.axes = 2;
  if (config.axes == 2) {
    config.mrope_section[0] = other.mrope_section[0] = kDim / 4;
    config.mrope_section[1] = other.mrope_section[1] = kDim / 4;
  }
  const auto create = [&] { return has_sets ? CreateSets({config, other}) : CreateSets({config}); };
  const Context cpu = create(), device = create();
  device->backend = &kStagedDevice;

  const size_t size = static_cast<size_t>(batch * kTokens * kGroup * kDim);
  memory_.resize(3 * size);
  for (float& value : memory_) value = static_cast<float>(r->Pick(-800, 800)) / 256;
  rope_qk_args args = rope::testing::Args(batch, kTokens);
  args.positions = positions.p;
  args.positions.batch_repeat = repeat;
  const auto part = [&](size_t from, int head, int heads) {
    rope_tensor t =
        rope::testing::Tensor(memory_.data() + from + head * kDim, ROPE_DTYPE_F32, heads);
    rope::testing::SetStrides(&t, kGroup * kDim, batch * kGroup * kDim, kDim);
    t.head_dim = kDim;
    return t;
  };
  args.q = part(0, 0, kQ);
  args.k = part(0, kQ, 1);
  if (!in_place) args.q_out = part(size, 0, kQ), args.k_out = part(size, kQ, 1);
  rope_fused fused = ROPE_INIT(rope_fused);
  if (family != Family::kPlain) args.fused = &fused;
  if (family == Family::kFused || family == Family::kNormed) {
    fused.v = part(0, kQ + 1, 1);
    fused.v_out = in_place ? fused.v : part(size, kQ + 1, 1);
  }
  rope_norm norm = ROPE_INIT(rope_norm);
  std::vector<float> rstd;
  if (family == Family::kNormed) {
    for (int64_t i = 0; i < batch * kTokens; ++i) rstd.push_back(r->Pick(1, 999) / 512.0f);
    norm.kind = ROPE_NORM_KIND_RMS_PLAIN;
    norm.span = ROPE_NORM_SPAN_GIVEN;
    norm.rstd = rstd.data();
    fused.q_norm = fused.v_norm = &norm;
  }
  rope_tensor x{};
  std::vector<float> weights(kDim, 0.75f), grad(kParts * kDim), want_grad;
  if (family == Family::kGradients) {
    args.operation = ROPE_OPERATION_BACKWARD;
    x = part(2 * size, 0, kQ);
    norm.kind = ROPE_NORM_KIND_RMS;
    norm.eps = 1e-5;
    norm.weight = weights.data();
    norm.weight_dtype = ROPE_DTYPE_F32;
    norm.x = &x;
    norm.weight_grad = grad.data();
    norm.grad_parts = kParts;
    fused.q_norm = &norm;
    args.k = args.k_out = rope_tensor{};
  }
  rope_positions from = before.p;
  if (family == Family::kMoved) {
    if (before.rows < rows) return;
    from.batch_repeat = repeat;
    args.operation = ROPE_OPERATION_REROTATE;
    fused.from_positions = &from;
    args.q = args.q_out = rope_tensor{};
  }
  const std::vector<float> given = memory_;
  ASSERT_OK(rope_apply_qk(cpu.get(), &args));
  const std::vector<float> want = memory_;
  want_grad.swap(grad);
  grad.resize(want_grad.size());
  norm.weight_grad = norm.grad_parts != 0 ? grad.data() : nullptr;
  std::copy(given.begin(), given.end(), memory_.begin());
  const int launches = Walk(device, args, r);
  ASSERT_EQ(std::memcmp(want.data(), memory_.data(), memory_.size() * sizeof(float)), 0);
  ASSERT_EQ(std::memcmp(want_grad.data(), grad.data(), grad.size() * sizeof(float)), 0);
  if (family == Family::kMoved && has_sets) return;  // several for each part
  EXPECT_EQ(launches, family == Family::kGradients ? 1 : positions.Parts(repeat));
}

TEST_F(RepeatGrid, CallsEqualTheCpuByteForByte) {
  Random r(1);
  for (rope_position_kind kind = 1; kind <= ROPE_POSITIONS_IDS_STRIDED; ++kind) {
    for (const Family family :
         {Family::kPlain, Family::kFused, Family::kNormed, Family::kMoved, Family::kGradients}) {
      for (int n = 0; n < 12 && !HasFailure(); ++n) {
        SCOPED_TRACE("kind " + std::to_string(kind) + ", family " +
                     std::to_string(static_cast<int>(family)) + ", case " + std::to_string(n));
        RunCase(&r, kind, family, n % 3 == 1, n % 3 == 2, n % 2 == 0);
      }
    }
  }
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
