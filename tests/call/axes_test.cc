// Contexts with several axes: each id turns the pairs of its axis and no others, whichever axis is
// the one that differs.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/handles.h"

namespace rope::testing {
namespace {

constexpr int kAxes = 8, kDim = 2 * 3 * kAxes, kPairs = kDim / 2;

// The row of one token with the ids `ids`, as PACKED F32.
template <class Id>
std::vector<float> RowAt(const rope_context* context, const std::vector<Id>& ids) {
  std::vector<float> row(kDim);
  rope_positions positions{};
  positions.kind = ROPE_POSITIONS_IDS_BTA;
  if constexpr (std::is_same_v<Id, float>) {
    positions.ids_f32 = ids.data();
  } else {
    positions.ids_i64 = ids.data();
  }
  const rope_cos_sin rows = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, kPairs, 1, row.data());
  EXPECT_OK(rope_cos_sin_fill(context, 1, 1, &positions, &rows, nullptr));
  return row;
}

template <class Id>
void ExpectOwnPairsOnly(rope_angle angle) {
  std::vector<uint8_t> axis_of_pair;
  for (int i = 0; i < kPairs; ++i) axis_of_pair.push_back(static_cast<uint8_t>(5 * i % kAxes));
  rope_config config = Config(kDim);
  config.angle = angle;
  config.axes = kAxes;
  config.pair_axis = axis_of_pair.data();
  config.table_length = kPairs;
  const Context context = Create(config);
  const std::vector<Id> near(kAxes, Id{5}), far(kAxes, Id{9});
  const std::vector<float> at_near = RowAt(context.get(), near), at_far = RowAt(context.get(), far);
  for (int a = 0; a < kAxes; ++a) {
    std::vector<Id> ids = near;
    ids[a] = far[a];
    const std::vector<float> row = RowAt(context.get(), ids);
    for (int i = 0; i < kPairs; ++i) {
      const std::vector<float>& want = axis_of_pair[i] == a ? at_far : at_near;
      EXPECT_EQ(row[i], want[i]) << "axis " << a << " pair " << i;
      EXPECT_EQ(row[kPairs + i], want[kPairs + i]) << "axis " << a << " pair " << i;
      EXPECT_NE(at_near[i], at_far[i]);
    }
  }
}

TEST(Axes, EachIdTurnsThePairsOfItsAxis) {
  for (rope_angle angle :
       {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT, ROPE_ANGLE_GGML, ROPE_ANGLE_DIVIDE}) {
    SCOPED_TRACE(angle);
    ExpectOwnPairsOnly<int64_t>(angle);
    ExpectOwnPairsOnly<float>(angle);
  }
}

// Text of a multimodal model may have one id for all axes; images have not.
TEST(Axes, IdsPerAxisRefusesOneIdForAll) {
  const int64_t ids[2] = {3, 4};
  const auto positions = [&ids](rope_position_kind kind) {
    rope_positions p{};
    p.kind = kind;
    if (kind == ROPE_POSITIONS_SEQ_OFFSETS) p.offsets_i64 = ids;
    if (kind >= ROPE_POSITIONS_IDS_T) p.ids_i64 = ids;
    if (kind == ROPE_POSITIONS_IDS_STRIDED) p.stride_axis = 0;  // shared on purpose
    return p;
  };
  rope_config config = Config(16);
  config.axes = 2;
  config.mrope_section[0] = config.mrope_section[1] = 4;
  for (const int32_t per_axis : {0, 1}) {
    config.ids_per_axis = per_axis;
    const Context context = Create(config);
    for (rope_position_kind kind = 1; kind <= ROPE_POSITIONS_IDS_STRIDED; ++kind) {
      SCOPED_TRACE(kind);
      std::vector<float> row(16, -7);
      const rope_positions p = positions(kind);
      const rope_cos_sin rows = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, 8, 1, row.data());
      const rope_status status = rope_cos_sin_fill(context.get(), 1, 1, &p, &rows, nullptr);
      if (per_axis == 0 || kind >= ROPE_POSITIONS_IDS_ABT) {
        EXPECT_OK(status);
        continue;
      }
      EXPECT_EQ(status, ROPE_ERROR_INVALID_ARGUMENT);
      EXPECT_NE(std::string(rope_last_error()).find("gives all 2 axes of a token one id"),
                std::string::npos)
          << rope_last_error();
      EXPECT_EQ(row, std::vector<float>(16, -7));
    }
  }
}

}  // namespace
}  // namespace rope::testing
