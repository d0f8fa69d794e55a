// Memory that ends at an unmapped page, on both sides: nothing outside the described views is read
// or written, on any target, for any dtype, pairing, odd tail, array of positions or rows.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "support/elements.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/memory.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

class GuardPageTest : public TargetTest {};
INSTANTIATE_TARGETS(GuardPageTest);

constexpr int kTokens = 3, kHeads = 2;

void Fill(void* memory, rope_dtype dtype, int count) {
  for (int i = 0; i < count; ++i) {
    WriteElement(dtype, static_cast<char*>(memory) + i * SizeOf(dtype), 0.25 * (i % 17) - 2);
  }
}

TEST_P(GuardPageTest, NothingBesideATensorIsTouched) {
  for (Edge edge : {Edge::kStart, Edge::kEnd}) {
    for (int dim : {2, 4, 6, 10, 14, 18, 26, 30, 34, 38, 62, 66, 80, 96, 126, 130, 254, 1022}) {
      for (rope_pairing pairing = 1; pairing <= kLastPairing; ++pairing) {
        for (rope_rounding rounding = 0; rounding <= kLastRounding; ++rounding) {
          rope_config config = Config(dim, pairing);
          config.rounding = rounding;
          if (pairing == ROPE_PAIRING_HALVES_PER_AXIS) {
            config.axes = 2;
            config.mrope_section[0] = dim / 4;
            config.mrope_section[1] = dim / 2 - dim / 4;
          }
          const Context context = Create(config);
          for (rope_dtype dtype : DtypesOf(rounding)) {
            const size_t bytes = static_cast<size_t>(dim * kHeads * kTokens * SizeOf(dtype));
            const Guarded in(bytes, edge), out(bytes, edge);
            Fill(in.as<char>(), dtype, dim * kHeads * kTokens);
            rope_qk_args args = Args(1, kTokens);
            args.positions = Offset(5);
            args.q = Tensor(in.as<char>(), dtype, kHeads);
            args.q_out = Tensor(out.as<char>(), dtype, kHeads);
            ASSERT_OK(rope_apply_qk(context.get(), &args));
            args.q_out = rope_tensor{};
            args.operation = ROPE_OPERATION_BACKWARD;
            ASSERT_OK(rope_apply_qk(context.get(), &args));
          }
        }
      }
    }
  }
}

// A span at an edge of the head, whose other channels do not exist in one tensor.
TEST_P(GuardPageTest, NothingBesideASpanAloneIsTouched) {
  for (Edge edge : {Edge::kStart, Edge::kEnd}) {
    for (int span : {2, 6, 18, 34, 66}) {
      rope_config config = Config(span + 10);
      config.rotary_dim = span;
      config.rotary_offset = edge == Edge::kEnd ? 10 : 0;
      const Context context = Create(config);
      for (rope_dtype dtype = 1; dtype <= kLastDtype; ++dtype) {
        const Guarded in(span * SizeOf(dtype), edge), out(config.head_dim * SizeOf(dtype), edge);
        Fill(in.as<char>(), dtype, span);
        rope_qk_args args = Args(1, 1);
        args.positions = Offset(5);
        args.k = Tensor(in.as<char>(), dtype, 1);
        args.k.head_dim = span;
        args.k_out = Tensor(out.as<char>(), dtype, 1);
        ASSERT_OK(rope_apply_qk(context.get(), &args));
      }
    }
  }
}

TEST_P(GuardPageTest, NothingBesideArraysOfPositionsIsRead) {
  rope_config config = Config(34);
  config.axes = 3;
  config.mrope_section[0] = 5;
  config.mrope_section[1] = config.mrope_section[2] = 6;
  const Context context = Create(config);
  const Context sets = CreateSets({Config(34), Config(34)});
  std::vector<float> x(2 * kTokens * 34);
  for (Edge edge : {Edge::kStart, Edge::kEnd}) {
    for (rope_position_kind kind = ROPE_POSITIONS_SEQ_OFFSETS; kind <= kLastPositionKind; ++kind) {
      const bool offsets = kind == ROPE_POSITIONS_SEQ_OFFSETS;
      size_t count = offsets ? 2 : kind == ROPE_POSITIONS_IDS_T ? kTokens : 2 * kTokens;
      if (kind == ROPE_POSITIONS_IDS_ABT || kind == ROPE_POSITIONS_IDS_BTA) count *= 3;
      if (kind == ROPE_POSITIONS_IDS_STRIDED) count = 2 * 20 + 10 + 2 * 2 + 1;
      for (int type = 0; type < (offsets ? 2 : 3); ++type) {
        const Guarded ids(count * (type == 1 ? 8 : 4), edge);
        rope_qk_args args = Args(2, kTokens);
        args.q = Tensor(x.data(), ROPE_DTYPE_F32, 1);
        args.positions.kind = kind;
        (offsets ? args.positions.offsets_i32 : args.positions.ids_i32) =
            type == 0 ? ids.as<int32_t>() : nullptr;
        (offsets ? args.positions.offsets_i64 : args.positions.ids_i64) =
            type == 1 ? ids.as<int64_t>() : nullptr;
        if (type == 2) args.positions.ids_f32 = ids.as<float>();
        if (kind == ROPE_POSITIONS_IDS_STRIDED) {
          args.positions.stride_axis = 20, args.positions.stride_batch = 10,
          args.positions.stride_token = 2;
        }
        ASSERT_OK(rope_apply_qk(context.get(), &args));
      }
    }
    const Guarded cu(4 * 4, edge), chosen(3 * 4, edge);
    const int32_t cuts[] = {0, 1, 1, kTokens};
    std::memcpy(cu.as<char>(), cuts, sizeof(cuts));
    rope_qk_args args = Args(1, kTokens);
    args.q = Tensor(x.data(), ROPE_DTYPE_F32, 1);
    args.positions = Offset(1);
    args.positions.cu_seqlens = cu.as<int32_t>();
    args.positions.sequences = 3;
    args.positions.freq_sets = chosen.as<int32_t>();
    ASSERT_OK(rope_apply_qk(sets.get(), &args));
  }
}

TEST_P(GuardPageTest, NothingBesideRowsIsTouched) {
  for (Edge edge : {Edge::kStart, Edge::kEnd}) {
    for (int dim : {2, 6, 18, 34, 62, 66}) {
      for (rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
        const Context context = Create(Config(dim, pairing));
        for (rope_cos_sin_format format : Formats()) {
          const int64_t width = rope_cos_sin_width(format, dim / 2);
          const bool two = rope_cos_sin_tensors(format) == 2;
          for (rope_dtype row_dtype = 1; row_dtype <= kLastDtype; ++row_dtype) {
            if (HoldsAngles(format) && row_dtype != ROPE_DTYPE_F32) continue;
            const auto bytes = static_cast<size_t>(width * kTokens * SizeOf(row_dtype));
            const Guarded data(bytes, edge), sin(bytes, edge);
            const rope_cos_sin rows = Rows(format, row_dtype, dim / 2, 1, data.as<char>(),
                                           two ? sin.as<char>() : nullptr);
            const rope_positions positions = Offset(3);
            ASSERT_OK(rope_cos_sin_fill(context.get(), 1, kTokens, &positions, &rows, nullptr));
            if (!IsRead(format)) continue;
            for (rope_dtype dtype = 1; dtype <= kLastDtype; ++dtype) {
              std::vector<char> x(static_cast<size_t>(dim * kTokens * SizeOf(dtype)));
              rope_qk_args args = Args(1, kTokens);
              args.q = Tensor(x.data(), dtype, 1);
              args.cos_sin = &rows;
              ASSERT_OK(rope_apply_qk(context.get(), &args));
            }
          }
        }
      }
    }
  }
}

// Kernels read the tables of a set in whole vectors, behind the last pair too. A table's end is no
// guard page, so its size is asked.
TEST_P(GuardPageTest, TablesOfFrequenciesHoldWholeVectors) {
  for (int dim : {2, 6, 30, 32, 34, 66, 1022}) {
    for (rope_angle angle :
         {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT, ROPE_ANGLE_GGML, ROPE_ANGLE_DIVIDE}) {
      rope_config config = Config(dim);
      config.angle = angle;
      const Context context = Create(config);
      const auto padded = static_cast<size_t>(PaddedPairs(dim / 2));
      const FrequencySet& set = context->sets[0];
      EXPECT_GE(set.inv_freq_f32.size(), padded);
      if (angle == ROPE_ANGLE_DIVIDE) {
        EXPECT_GE(set.timescale.size(), padded);
      }
      EXPECT_GE(set.turns_high.size(), padded);
      EXPECT_GE(set.turns_low.size(), padded);
    }
  }
}

// The test's own means: such a page does stop a write.
TEST(GuardPageDeathTest, AWriteBesideTheMemoryDies) {
  const Guarded memory(8, Edge::kEnd);
  EXPECT_DEATH(*const_cast<volatile char*>(memory.as<char>() + 8) = 1, "");
}

}  // namespace
}  // namespace rope::testing
