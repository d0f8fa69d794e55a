// Scalings that depend on the length of the sequence: at which lengths their frequencies change,
// for which lengths a context is right, and what calls beyond them get.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/errors.h"
#include "support/handles.h"

namespace rope::testing {
namespace {

TEST(NextChange, IsTheFirstLengthWithOtherFrequencies) {
  const auto next = [](const rope_config& config, int64_t length) {
    int64_t value = -1;
    EXPECT_OK(rope_config_next_change(&config, length, &value));
    return value;
  };
  EXPECT_EQ(next(Config(64), 0), INT64_MAX);
  rope_config dynamic = Config(64);
  dynamic.scaling = ROPE_SCALING_DYNAMIC;
  dynamic.factor = 2;
  dynamic.max_position_embeddings = 2048;
  dynamic.seq_len = 1;
  EXPECT_EQ(next(dynamic, 0), 2049);
  EXPECT_EQ(next(dynamic, 2048), 2049);
  EXPECT_EQ(next(dynamic, 5000), 5001);
  EXPECT_EQ(next(dynamic, INT64_MAX), INT64_MAX);
  // The claim itself: equal up to there, different from there on.
  const auto at = [&](int64_t length) {
    dynamic.seq_len = length;
    return InvFreq(dynamic);
  };
  EXPECT_EQ(at(1), at(2048));
  EXPECT_NE(at(2048), at(2049));
  const std::vector<double> shorts(32, 1.0), longs(32, 4.0);
  rope_config longrope = Config(64);
  longrope.scaling = ROPE_SCALING_LONGROPE;
  longrope.factor = 4;
  longrope.original_max_position_embeddings = 4096;
  longrope.seq_len = 1;
  longrope.short_factor = shorts.data();
  longrope.long_factor = longs.data();
  longrope.table_length = 32;
  EXPECT_EQ(next(longrope, 0), 4097);
  EXPECT_EQ(next(longrope, 4096), 4097);
  EXPECT_EQ(next(longrope, 4097), INT64_MAX);
  // The length is the argument: that of the configuration is not read.
  longrope.seq_len = -3;
  EXPECT_EQ(next(longrope, 0), 4097);
  // No length is above the largest.
  longrope.original_max_position_embeddings = INT64_MAX;
  EXPECT_EQ(next(longrope, 5), INT64_MAX);
  longrope.long_factor = shorts.data();
  EXPECT_EQ(next(longrope, 0), INT64_MAX);
}

// An engine sets it for every kind of layer.
TEST(SeqLen, IsWithoutEffectWhereTheScalingDoesNotUseIt) {
  rope_config config = Config(64);
  const std::vector<double> want = InvFreq(config);
  config.seq_len = 100000;
  EXPECT_EQ(InvFreq(config), want);
  config.scaling = ROPE_SCALING_LINEAR;
  config.factor = 1;
  EXPECT_EQ(InvFreq(config), want);
  config.scaling = ROPE_SCALING_NOPE;
  config.factor = 0;
  EXPECT_NE(Create(config), nullptr);
}

// The lengths that a context tells have its frequencies, and those around them have not.
TEST(ValidFrom, IsTheFirstLengthWithTheseFrequencies) {
  const auto expect = [](rope_config config, int64_t seq_len, int64_t from, int64_t below) {
    config.seq_len = seq_len;
    const Context context = Create(config);
    rope_info info = ROPE_INIT(rope_info);
    ASSERT_OK(rope_context_info(context.get(), 0, &info));
    EXPECT_EQ(info.valid_from, from) << seq_len;
    EXPECT_EQ(info.valid_below, below) << seq_len;
    const std::vector<double> want = InvFreq(config);
    const auto at = [&config](int64_t length) {
      config.seq_len = length;
      return InvFreq(config);
    };
    EXPECT_EQ(at(std::max<int64_t>(1, from)), want) << seq_len;
    if (from > 1) {
      EXPECT_NE(at(from - 1), want) << seq_len;
    }
    if (below == INT64_MAX) return;
    EXPECT_EQ(at(below - 1), want) << seq_len;
    EXPECT_NE(at(below), want) << seq_len;
  };
  expect(Config(64), 5, 0, INT64_MAX);
  rope_config dynamic = Config(64);
  dynamic.scaling = ROPE_SCALING_DYNAMIC;
  dynamic.factor = 2;
  dynamic.max_position_embeddings = 2048;
  expect(dynamic, 5, 0, 2049);
  expect(dynamic, 2048, 0, 2049);
  expect(dynamic, 3000, 3000, 3001);
  dynamic.scaling = ROPE_SCALING_DYNAMIC_STEPS;
  expect(dynamic, 2048, 0, 2049);
  expect(dynamic, 2049, 2049, 4097);
  expect(dynamic, 4096, 2049, 4097);
  expect(dynamic, 4097, 4097, 8193);
  dynamic.max_position_embeddings = int64_t{1} << 61;
  expect(dynamic, INT64_MAX, (int64_t{1} << 62) + 1, INT64_MAX);
  const std::vector<double> shorts(32, 1.0), longs(32, 4.0);
  rope_config longrope = Config(64);
  longrope.scaling = ROPE_SCALING_LONGROPE;
  longrope.factor = 4;
  longrope.original_max_position_embeddings = 4096;
  longrope.short_factor = shorts.data();
  longrope.long_factor = longs.data();
  longrope.table_length = 32;
  expect(longrope, 1, 0, 4097);
  expect(longrope, 4097, 4097, INT64_MAX);
  expect(longrope, 100000, 4097, INT64_MAX);
  longrope.long_factor = shorts.data();
  expect(longrope, 100000, 0, INT64_MAX);
}

// What a context tells of the lengths it is right for, and what it does beyond.
TEST(ValidBelow, IsToldAndLargerPositionsAreRefused) {
  const auto valid_below = [](const Context& context, int32_t set = 0) {
    rope_info info = ROPE_INIT(rope_info);
    EXPECT_OK(rope_context_info(context.get(), set, &info));
    return info.valid_below;
  };
  EXPECT_EQ(valid_below(Create(Config(64))), INT64_MAX);

  rope_config dynamic = Config(64);
  dynamic.scaling = ROPE_SCALING_DYNAMIC;
  dynamic.factor = 2;
  dynamic.max_position_embeddings = 2048;
  dynamic.seq_len = 3000;
  EXPECT_EQ(valid_below(Create(dynamic)), 3001);

  const std::vector<double> shorts(32, 1.0), longs(32, 4.0);
  rope_config below = Config(64);
  below.scaling = ROPE_SCALING_LONGROPE;
  below.factor = 4;
  below.original_max_position_embeddings = 4096;
  below.seq_len = 1;
  below.short_factor = shorts.data();
  below.long_factor = longs.data();
  below.table_length = 32;
  rope_config above = below;
  above.seq_len = 4097;
  const Context sets = CreateSets({below, above}), context = Create(below);
  EXPECT_EQ(valid_below(context), 4097);
  EXPECT_EQ(valid_below(sets, 0), 4097);
  EXPECT_EQ(valid_below(sets, 1), INT64_MAX);

  std::vector<float> q(4 * 64, 1.0f);
  const std::vector<float> before = q;
  const auto apply = [&q](const Context& with, const rope_positions& positions,
                          rope_operation operation = ROPE_OPERATION_FORWARD) {
    rope_qk_args args = Args(2, 2);
    args.operation = operation;
    args.q = Tensor(q.data(), ROPE_DTYPE_F32, 1);
    args.positions = positions;
    return rope_apply_qk(with.get(), &args);
  };
  const auto expect_refused = [&](rope_status status, std::initializer_list<const char*> parts) {
    EXPECT_EQ(status, kInvalid);
    ExpectMessage("rope_apply_qk", parts);
    EXPECT_EQ(q, before);
  };
  expect_refused(apply(context, Offset(4095)),
                 {"position 4096", "token 1", "must be below 4096", "4097 tokens", "seq_len"});
  expect_refused(apply(context, Offset(4095), ROPE_OPERATION_INVERSE), {"position 4096"});
  int64_t offsets[2] = {0, 4095};
  rope_positions positions{};
  positions.kind = ROPE_POSITIONS_SEQ_OFFSETS;
  positions.offsets_i64 = offsets;
  expect_refused(apply(context, positions), {"position 4096", "token 1", "batch row 1"});
  const int32_t wrong_sets[2] = {1, 0}, right_sets[2] = {0, 1};
  positions.freq_sets = wrong_sets;
  expect_refused(apply(sets, positions), {"4097", "batch row 1"});
  positions = rope_positions{};
  float ids[4] = {0, 1e30f, -5, std::nanf("")};
  positions.kind = ROPE_POSITIONS_IDS_BT;
  positions.ids_f32 = ids;
  expect_refused(apply(context, positions), {"token 1", "batch row 0"});
  float row[64 * 2];
  const rope_positions last = Offset(4096);
  const rope_cos_sin rows = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, 32, 1, row);
  EXPECT_EQ(rope_cos_sin_fill(context.get(), 1, 1, &last, &rows, nullptr), kInvalid);
  ExpectMessage("rope_cos_sin_fill", {"4097"});

  rope_config with_axes = below;  // every axis is looked at
  std::vector<uint8_t> axis_of_pair(32, 0);
  axis_of_pair[31] = 2;
  with_axes.axes = 3;
  with_axes.pair_axis = axis_of_pair.data();
  const Context axes = Create(with_axes);
  for (int a = 0; a < 3; ++a) {
    int64_t coordinates[2 * 2 * 3] = {};
    coordinates[2 * 3 + a] = 4096;
    positions = Ids(ROPE_POSITIONS_IDS_BTA, coordinates);
    expect_refused(apply(axes, positions), {"position 4096", "token 0", "batch row 1"});
  }
  positions = Ids(ROPE_POSITIONS_IDS_BT, ids);

  EXPECT_OK(apply(context, Offset(4094)));  // the last position that the length has
  EXPECT_OK(apply(context, Offset(-70000)));
  const int64_t distances[2 * 2] = {70000, 70000, 70000, 70000};
  const rope_positions far = Ids(ROPE_POSITIONS_IDS_BT, distances);
  EXPECT_OK(apply(context, far, ROPE_OPERATION_SHIFT));  // no positions
  ids[1] = 1;
  EXPECT_OK(apply(context, positions));
  positions = rope_positions{};
  positions.kind = ROPE_POSITIONS_SEQ_OFFSETS;
  positions.offsets_i64 = offsets;
  positions.freq_sets = right_sets;
  EXPECT_OK(apply(sets, positions));
}

}  // namespace
}  // namespace rope::testing
