// Calls whose batch rows share positions (rope_positions.batch_repeat) on a machine and on the CPU:
// the same bytes, for every kind of positions, by each family of kernels; and as many launches as
// the design says, where they are seen.
#ifndef LIBROPE_TESTS_GPU_REPEAT_CASES_H_
#define LIBROPE_TESTS_GPU_REPEAT_CASES_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "librope/rope.h"
#include "support/handles.h"
#include "support/machine.h"
#include "support/random.h"
#include "support/row_positions.h"

namespace rope::testing::repeat {

inline constexpr int kDim = 32, kTokens = 5, kMostRows = 3, kQ = 2, kGroup = kQ + 2;
inline constexpr int kParts = 3;  // of the gradients of weights

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

// Grouped QKV, [tokens, rows, groups, q + 2, head_dim]: each group is a batch row.
inline void RunRepeated(Random* r, rope_position_kind kind, Family family, bool packed,
                        bool has_sets, bool in_place, Machine* machine) {
  const RepeatedPositions positions(r, kind, packed, has_sets), before(r, kind, packed, has_sets);
  const int64_t rows = positions.rows, repeat = r->Pick(2, 4), batch = rows * repeat;
  rope_config config = Config(kDim), other = Config(kDim, ROPE_PAIRING_HALVES, 500);
  if (kind >= ROPE_POSITIONS_IDS_ABT) config.axes = other.axes = 2;
  if (config.axes == 2) {
    config.mrope_section[0] = other.mrope_section[0] = kDim / 4;
    config.mrope_section[1] = other.mrope_section[1] = kDim / 4;
  }
  const std::vector<rope_config> configs =
      has_sets ? std::vector<rope_config>{config, other} : std::vector<rope_config>{config};
  const Context cpu = CreateSets(configs), device = machine->Create(configs);

  const size_t size = static_cast<size_t>(batch * kTokens * kGroup * kDim);
  std::vector<float> memory(3 * size);
  for (float& value : memory) value = static_cast<float>(r->Pick(-800, 800)) / 256;
  rope_qk_args args = Args(batch, kTokens);
  args.positions = positions.p;
  args.positions.batch_repeat = repeat;
  const auto part = [&](size_t from, int head, int heads) {
    rope_tensor t = Tensor(memory.data() + from + head * kDim, ROPE_DTYPE_F32, heads);
    SetStrides(&t, kGroup * kDim, batch * kGroup * kDim, kDim);
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
  const std::vector<float> given = memory;
  ASSERT_OK(rope_apply_qk(cpu.get(), &args));
  const std::vector<float> want = memory;
  want_grad.swap(grad);
  grad.resize(want_grad.size());
  norm.weight_grad = norm.grad_parts != 0 ? grad.data() : nullptr;
  std::copy(given.begin(), given.end(), memory.begin());
  ASSERT_OK(machine->Apply(device, args, {SpanOf(memory)}, r));
  ASSERT_EQ(std::memcmp(want.data(), memory.data(), memory.size() * sizeof(float)), 0);
  ASSERT_EQ(std::memcmp(want_grad.data(), grad.data(), grad.size() * sizeof(float)), 0);
  if (machine->launches == 0 || (family == Family::kMoved && has_sets)) return;  // several a part
  EXPECT_EQ(machine->launches, family == Family::kGradients ? 1 : positions.Parts(repeat));
}

// `count` calls of each family with each kind of positions.
inline void RunAllRepeated(int count, Machine* machine) {
  Random r(1);
  for (rope_position_kind kind = 1; kind <= ROPE_POSITIONS_IDS_STRIDED; ++kind) {
    for (const Family family :
         {Family::kPlain, Family::kFused, Family::kNormed, Family::kMoved, Family::kGradients}) {
      for (int n = 0; n < count && !::testing::Test::HasFailure(); ++n) {
        SCOPED_TRACE("kind " + std::to_string(kind) + ", family " +
                     std::to_string(static_cast<int>(family)) + ", case " + std::to_string(n));
        RunRepeated(&r, kind, family, n % 3 == 1, n % 3 == 2, n % 2 == 0, machine);
      }
    }
  }
}

}  // namespace rope::testing::repeat

#endif  // LIBROPE_TESTS_GPU_REPEAT_CASES_H_
