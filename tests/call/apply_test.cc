// The full product of descriptors through the C API: random shapes, layouts, strides, position
// kinds and configurations against the reference, with every byte of memory accounted for.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "support/check_call.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/memory.h"
#include "support/random_call.h"
#include "support/random_values.h"
#include "support/reference.h"

namespace rope::testing {
namespace {

TEST(Apply, RandomCallsAreAsTheReferenceComputesThem) {
  const uint64_t count = LongTests() ? 200000 : 4000;
  std::set<std::pair<rope_operation, rope_pairing>> rotations;
  std::set<std::pair<rope_position_kind, rope_angle>> angles;
  std::set<std::pair<rope_dtype, rope_layout>> inputs, outputs;
  for (uint64_t seed = 0; seed < count; ++seed) {
    RandomCall call(seed, RandomCall::kComputable);
    const Context context = call.CreateContext();
    ASSERT_NE(context, nullptr) << "seed " << seed << ": " << call.Describe();
    call.MakeApply();
    const auto before = call.Snapshot();
    EXPECT_OK(rope_apply_qk(context.get(), &call.args));
    ExpectAsComputed(call, context.get(), before);
    if (HasFailure()) FAIL() << "seed " << seed << ": " << call.Describe();
    rotations.insert({call.args.operation, call.config().pairing});
    angles.insert({call.args.positions.kind, call.config().angle});
    for (const RandomCall::CallTensor& t : call.tensors) {
      if (t.present) inputs.insert({t.in->dtype, t.in->layout});
      if (t.present && !t.in_place) outputs.insert({t.out->dtype, t.out->layout});
    }
  }
  EXPECT_EQ(rotations.size(), OperationsOf(false, true).size() * kLastPairing);
  EXPECT_EQ(angles.size(), kLastPositionKind * 2u);
  EXPECT_EQ(inputs.size(), kLastDtype * 4u);
  EXPECT_EQ(outputs.size(), kLastDtype * 4u);
}

constexpr int kDim = 64, kTokens = 5, kHeads = 3;
constexpr size_t kCount = kDim * kTokens * kHeads;

void Apply(const Context& context, rope_operation operation, const rope_positions& positions,
           std::vector<float>* x) {
  rope_qk_args args = Args(1, kTokens);
  args.operation = operation;
  args.q = Tensor(x->data(), ROPE_DTYPE_F32, kHeads);
  args.positions = positions;
  ASSERT_OK(rope_apply_qk(context.get(), &args));
}

rope_config Scaled(rope_pairing pairing, double attention_factor) {
  rope_config config = Config(kDim, pairing, 500000);
  config.angle = ROPE_ANGLE_EXACT;
  config.attention_factor = attention_factor;
  return config;
}

constexpr rope_pairing kPairings[] = {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED,
                                      ROPE_PAIRING_INTERLEAVED_TO_HALVES};

TEST(Operations, InverseUndoesForward) {
  for (rope_pairing pairing : kPairings) {
    const Context context = Create(Scaled(pairing, 1.4));
    const std::vector<float> before = RandomValues(kCount);
    std::vector<float> x = before;
    Apply(context, ROPE_OPERATION_FORWARD, Offset(1000000), &x);
    EXPECT_NE(x, before);
    Apply(context, ROPE_OPERATION_INVERSE, Offset(1000000), &x);
    for (size_t i = 0; i < kCount; ++i) ASSERT_NEAR(x[i], before[i], 2e-6) << i;
  }
}

TEST(Operations, BackwardIsTheTransposeOfForward) {
  for (rope_pairing pairing : kPairings) {
    const Context context = Create(Scaled(pairing, 1.4));
    const std::vector<float> x = RandomValues(kCount, 1), g = RandomValues(kCount, 2);
    std::vector<float> forward = x, backward = g;
    Apply(context, ROPE_OPERATION_FORWARD, Offset(77), &forward);
    Apply(context, ROPE_OPERATION_BACKWARD, Offset(77), &backward);
    double left = 0, right = 0, size = 0;  // <g, R x> = <R^T g, x>
    for (size_t i = 0; i < kCount; ++i) {
      left += double{g[i]} * forward[i];
      right += double{backward[i]} * x[i];
      size += std::fabs(double{g[i]} * forward[i]);
    }
    EXPECT_NEAR(left, right, 1e-6 * size);
  }
}

TEST(Operations, ShiftTakesOneDistanceForAllTokens) {
  const Context context = Create(Scaled(ROPE_PAIRING_HALVES, 1));
  std::vector<float> x = RandomValues(kCount), want = x;
  const int64_t one = -16;
  const std::vector<int64_t> each(kTokens, one);
  rope_positions same{}, ids{};
  same.kind = ROPE_POSITIONS_IDS_STRIDED;
  same.ids_i64 = &one;
  ids.kind = ROPE_POSITIONS_IDS_T;
  ids.ids_i64 = each.data();
  Apply(context, ROPE_OPERATION_SHIFT, same, &x);
  Apply(context, ROPE_OPERATION_SHIFT, ids, &want);
  EXPECT_EQ(x, want);
}

TEST(Operations, ShiftMovesKeysAndExactPositionsAdd) {
  for (rope_pairing pairing : kPairings) {
    const Context context = Create(Scaled(pairing, 1.4));
    for (int64_t by : {int64_t{1}, int64_t{-4096}, int64_t{1} << 40}) {
      const std::vector<float> before = RandomValues(kCount);
      std::vector<float> moved = before, fresh = before;
      Apply(context, ROPE_OPERATION_FORWARD, Offset(5000), &moved);
      const std::vector<int64_t> same(kTokens, by);
      const rope_positions shift = Ids(ROPE_POSITIONS_IDS_T, same.data());
      Apply(context, ROPE_OPERATION_SHIFT, shift, &moved);
      Apply(context, ROPE_OPERATION_FORWARD, Offset(5000 + by), &fresh);
      for (size_t i = 0; i < kCount; ++i) ASSERT_NEAR(moved[i], fresh[i], 4e-6) << by;
    }
  }
}

TEST(Operations, PositionZeroChangesNothing) {
  const Context context = Create(Config(kDim));
  const std::vector<int64_t> zeros(kTokens, 0);
  const std::vector<float> before = RandomValues(kCount);
  std::vector<float> x = before;
  ASSERT_OK(rope_apply_thd(context.get(), ROPE_DTYPE_F32, kTokens, zeros.data(), x.data(), kHeads,
                           nullptr, 0));
  EXPECT_EQ(std::memcmp(x.data(), before.data(), kCount * 4), 0);
}

TEST(Positions, SumsWrapModulo2To64) {
  const Context context = Create(Scaled(ROPE_PAIRING_HALVES, 0));
  std::vector<float> wrapped = RandomValues(kCount), plain = wrapped;
  Apply(context, ROPE_OPERATION_FORWARD, Offset(INT64_MAX - 1), &wrapped);
  const int64_t ids[kTokens] = {INT64_MAX - 1, INT64_MAX, INT64_MIN, INT64_MIN + 1, INT64_MIN + 2};
  const rope_positions positions = Ids(ROPE_POSITIONS_IDS_T, ids);
  Apply(context, ROPE_OPERATION_FORWARD, positions, &plain);
  EXPECT_EQ(std::memcmp(wrapped.data(), plain.data(), kCount * 4), 0);
}

TEST(Positions, ACoordinateThatIsNotANumberGivesNan) {
  for (int axes : {1, 2}) {
    for (rope_angle angle : {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT, ROPE_ANGLE_DIVIDE}) {
      rope_config config = Config(kDim);
      config.angle = angle;
      config.axes = axes;
      if (axes == 2) config.mrope_section[0] = config.mrope_section[1] = kDim / 4;
      const Context context = Create(config);
      std::vector<float> ids(kTokens * axes, 1.0f);
      ids[2 * axes] = std::nanf("");
      ids[3 * axes] = INFINITY;
      const rope_positions positions = Ids(ROPE_POSITIONS_IDS_BTA, ids.data());
      std::vector<float> x(kCount, 1.0f);
      Apply(context, ROPE_OPERATION_FORWARD, positions, &x);
      for (int t = 0; t < kTokens; ++t) {
        // Channel 0 belongs to axis 0, the last pair to the last axis.
        EXPECT_EQ(std::isnan(x[t * kHeads * kDim]), t == 2 || t == 3) << axes << " " << angle;
        EXPECT_EQ(std::isnan(x[t * kHeads * kDim + kDim - 1]), axes == 1 && (t == 2 || t == 3));
      }
    }
  }
}

TEST(Batch, OfNoRowsIsFineWithoutPointers) {
  const Context context = Create(Config(kDim));
  rope_qk_args args = Args(0, 5);
  EXPECT_OK(rope_apply_qk(context.get(), &args));
  args.q = Tensor(nullptr, ROPE_DTYPE_F32, kHeads);  // as frameworks describe it
  args.positions = Offset(0);
  EXPECT_OK(rope_apply_qk(context.get(), &args));
  const rope_positions positions{};
  const rope_cos_sin rows = ROPE_INIT(rope_cos_sin);
  EXPECT_OK(rope_cos_sin_fill(context.get(), 0, 5, &positions, &rows, nullptr));
}

TEST(Tokens, NoneIsFineWithoutPointers) {
  const Context context = Create(Config(kDim));
  rope_qk_args args = Args(3, 0);
  args.positions = Offset(0);
  args.q = Tensor(nullptr, ROPE_DTYPE_F32, kHeads);
  args.k = Tensor(nullptr, ROPE_DTYPE_F32, kHeads);
  EXPECT_OK(rope_apply_qk(context.get(), &args));
  args = Args(1, 0);
  EXPECT_OK(rope_apply_qk(context.get(), &args));
  EXPECT_OK(rope_apply_thd(context.get(), ROPE_DTYPE_F32, 0, nullptr, nullptr, 0, nullptr, 0));
  EXPECT_OK(rope_apply_thd(context.get(), ROPE_DTYPE_BF16, 0, nullptr, nullptr, 32, nullptr, 8));
  const rope_positions positions = Offset(0);
  rope_cos_sin rows = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, kDim / 2, 1, nullptr);
  EXPECT_OK(rope_cos_sin_fill(context.get(), 1, 0, &positions, &rows, nullptr));
}

TEST(ShortCall, IsTheFullCallWithThePlainestArguments) {
  const Context context = Create(Config(kDim));
  const int64_t ids[kTokens] = {9, 1, -4, 1000000, INT64_MAX};
  std::vector<float> q = RandomValues(kCount), k = RandomValues(kTokens * kDim, 2), q2 = q, k2 = k;
  ASSERT_OK(
      rope_apply_thd(context.get(), ROPE_DTYPE_F32, kTokens, ids, q.data(), kHeads, k.data(), 1));
  rope_qk_args args = Args(1, kTokens);
  args.q = Tensor(q2.data(), ROPE_DTYPE_F32, kHeads);
  args.k = Tensor(k2.data(), ROPE_DTYPE_F32, 1);
  args.positions = Ids(ROPE_POSITIONS_IDS_T, ids);
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  EXPECT_EQ(q, q2);
  EXPECT_EQ(k, k2);
}

TEST(Nope, ValuesStayInPlaceAndAreCopiedElsewhere) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = kDim;
  config.scaling = ROPE_SCALING_NOPE;
  const Context context = Create(config);
  const std::vector<float> before = RandomValues(kCount);
  std::vector<float> x = before, y(kCount, 0.0f);
  Apply(context, ROPE_OPERATION_FORWARD, Offset(5), &x);
  EXPECT_EQ(x, before);
  rope_qk_args args = Args(1, kTokens);
  args.q = Tensor(x.data(), ROPE_DTYPE_F32, kHeads);
  args.q_out = Tensor(y.data(), ROPE_DTYPE_F32, kHeads);
  args.positions = Offset(5);
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  EXPECT_EQ(y, before);
}

// Rows of a layer without rotation: 1 and 0 under every policy, wherever the token is.
TEST(Nope, RowsAreOneAndZero) {
  for (rope_angle angle :
       {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT, ROPE_ANGLE_GGML, ROPE_ANGLE_DIVIDE}) {
    rope_config config = ROPE_INIT(rope_config);
    config.head_dim = 8;
    config.scaling = ROPE_SCALING_NOPE;
    config.angle = angle;
    const Context context = Create(config);
    const float ids[3] = {3, -1e30f, std::nanf("")};
    const rope_positions positions = Ids(ROPE_POSITIONS_IDS_T, ids);
    std::vector<float> rows(3 * 8, -1.0f), angles(3 * 4, -1.0f);
    const rope_cos_sin packed = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, 4, 1, rows.data());
    ASSERT_OK(rope_cos_sin_fill(context.get(), 1, 3, &positions, &packed, nullptr));
    for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], i % 8 < 4 ? 1 : 0) << angle;
    const rope_cos_sin radians = Rows(ROPE_COS_SIN_ANGLES, ROPE_DTYPE_F32, 4, 1, angles.data());
    ASSERT_OK(rope_cos_sin_fill(context.get(), 1, 3, &positions, &radians, nullptr));
    for (float value : angles) EXPECT_EQ(value, 0) << angle;
    std::vector<double> inv_freq(4, -1);
    ASSERT_OK(rope_context_inv_freq(context.get(), 0, inv_freq.data(), 4));
    EXPECT_EQ(inv_freq, std::vector<double>(4, 0.0));
  }
}

// The stated bound, for every operation and attention factor: 4 * 2^-24 * m * (|x0| + |x1|).
TEST(Bounds, HoldForEveryOperationAndFactorInF32) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (double factor : {1e-3, 0.5, 1.0, 2.0, 8.0, 1000.0}) {
    rope_config config = Config(2);
    config.attention_factor = factor;
    const Context context = Create(config);
    for (rope_operation operation : OperationsOf(false, true)) {
      const Turn scales = ScaledTurn({1, 1}, operation, factor);
      const auto m = static_cast<double>(scales.cos);
      // The cos and sin that the operation uses: those of FORWARD, scaled in f32 as it scales them.
      rope_config plain = Config(2);
      const Context unit = Create(plain);
      for (int p = 1; p < 2000; ++p) {
        float row[2];
        const int64_t id = p;
        const rope_positions at = Ids(ROPE_POSITIONS_IDS_T, &id);
        const rope_cos_sin rows = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, 1, 1, row);
        ASSERT_OK(rope_cos_sin_fill(unit.get(), 1, 1, &at, &rows, nullptr));
        const auto scale = static_cast<float>(m);
        const double cos = row[0] * scale, sin = row[1] * (scales.sin < 0 ? -scale : scale);
        const double x0 = normal(random), x1 = normal(random);
        float x[2] = {static_cast<float>(x0), static_cast<float>(x1)};
        const double given0 = x[0], given1 = x[1];
        rope_qk_args args = Args(1, 1);
        args.operation = operation;
        args.q = Tensor(x, ROPE_DTYPE_F32, 1);
        args.positions = at;
        ASSERT_OK(rope_apply_qk(context.get(), &args));
        const double bound = 4 * 0x1p-24 * m * (std::fabs(given0) + std::fabs(given1));
        ASSERT_LE(std::fabs(x[0] - (given0 * cos - given1 * sin)), bound) << factor << " " << p;
        ASSERT_LE(std::fabs(x[1] - (given1 * cos + given0 * sin)), bound) << factor << " " << p;
      }
    }
  }
}

// The largest count of sequences: 8 GiB of cu_seqlens, of which one entry is not zero.
TEST(Positions, MayBeOfAsManySequencesAsAnInt32Counts) {
  if (sizeof(void*) < 8) GTEST_SKIP() << "needs 8 GiB of addresses";
  const size_t bytes = (size_t{INT32_MAX} + 1) * sizeof(int32_t);
  const Untouched memory(bytes);
  if (memory.data() == nullptr) GTEST_SKIP() << "no 8 GiB of addresses";
  madvise(memory.data(), bytes, MADV_HUGEPAGE);  // reading zeros then takes a second
  auto* const cu_seqlens = reinterpret_cast<int32_t*>(memory.data());
  cu_seqlens[INT32_MAX] = 1;
  const Context context = Create(Config(kDim));
  std::vector<float> x = RandomValues(kHeads * kDim), y = x;
  rope_qk_args args = Args(1, 1);
  args.q = Tensor(x.data(), ROPE_DTYPE_F32, kHeads);
  args.positions = Offset(7);
  args.positions.cu_seqlens = cu_seqlens;
  args.positions.sequences = INT32_MAX;
  EXPECT_OK(rope_apply_qk(context.get(), &args));
  const int64_t id = 7;
  ASSERT_OK(rope_apply_thd(context.get(), ROPE_DTYPE_F32, 1, &id, y.data(), kHeads, nullptr, 0));
  EXPECT_EQ(x, y);
}

TEST(FrequencySets, EachSequenceTurnsByItsOwn) {
  rope_config a = Config(kDim, ROPE_PAIRING_HALVES, 10000), b = a;
  b.theta = 500000;
  b.attention_factor = 1.5;
  const Context sets = CreateSets({a, b}), only_a = Create(a), only_b = Create(b);
  const int32_t cu_seqlens[] = {0, 2, 2, 5}, chosen[] = {1, 0, 0};
  std::vector<float> x = RandomValues(kCount), first = x, second = x;
  rope_positions positions{};
  positions.kind = ROPE_POSITIONS_OFFSET;
  positions.offset = 10;
  positions.cu_seqlens = cu_seqlens;
  positions.sequences = 3;
  rope_positions single = positions;
  positions.freq_sets = chosen;
  Apply(sets, ROPE_OPERATION_FORWARD, positions, &x);
  Apply(only_b, ROPE_OPERATION_FORWARD, single, &first);
  Apply(only_a, ROPE_OPERATION_FORWARD, single, &second);
  const size_t cut = 2 * kHeads * kDim;
  EXPECT_EQ(std::memcmp(x.data(), first.data(), cut * 4), 0);
  EXPECT_EQ(std::memcmp(x.data() + cut, second.data() + cut, (kCount - cut) * 4), 0);
}

// A kept decode step of several sequences equals the steps of each.
TEST(Positions, OffsetsPerSequenceEqualIds) {
  const Context context = Create(Config(kDim));
  const int32_t offsets[] = {0, 900, 131072};
  const int64_t wide[] = {0, 900, 131072};
  std::vector<float> a = RandomValues(3 * kHeads * kDim), b = a, c = a;
  rope_qk_args args = Args(3, 1);
  args.q = Tensor(a.data(), ROPE_DTYPE_F32, kHeads);
  args.positions.kind = ROPE_POSITIONS_SEQ_OFFSETS;
  args.positions.offsets_i32 = offsets;
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  args.q.data = b.data();
  args.positions.offsets_i32 = nullptr;
  args.positions.offsets_i64 = wide;
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  ASSERT_OK(rope_apply_thd(context.get(), ROPE_DTYPE_F32, 3, wide, c.data(), kHeads, nullptr, 0));
  EXPECT_EQ(a, b);
  EXPECT_EQ(a, c);
}

}  // namespace
}  // namespace rope::testing
