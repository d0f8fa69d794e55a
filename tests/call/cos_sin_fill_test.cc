// Rows of cos and sin: every format and dtype written where it belongs, and read back to the bits
// that positions give; rows that are no rotations.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "model/oracle_array.h"
#include "support/elements.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/load_json.h"
#include "support/random_values.h"
#include "support/reference.h"

namespace rope::testing {
namespace {

constexpr int kDim = 20, kPairs = kDim / 2;
constexpr int64_t kBatch = 2, kTokens = 5, kStride = 2 * kDim + 3;
constexpr int64_t kIds[kBatch * kTokens] = {0, 1, 5, 1000, -3, 77, 8191, 2, 3, 4};

rope_positions GivenIds() { return Ids(ROPE_POSITIONS_IDS_BT, kIds); }

// One value of a row, by the comment of the format: cos, sin or angle of a pair.
struct Item {
  enum { kCos, kSin, kAngle } what;
  int pair;
};
struct Row {
  std::vector<Item> data, sin;
};

Row RowOf(rope_cos_sin_format format) {
  Row row;
  const auto all = [](std::vector<Item>* to, decltype(Item::what) what, int times) {
    for (int n = 0; n < times; ++n) {
      for (int i = 0; i < kPairs; ++i) to->push_back({what, i});
    }
  };
  switch (format) {
    case ROPE_COS_SIN_PACKED: all(&row.data, Item::kCos, 1), all(&row.data, Item::kSin, 1); break;
    case ROPE_COS_SIN_PACKED_SIN_FIRST:
      all(&row.data, Item::kSin, 1), all(&row.data, Item::kCos, 1);
      break;
    case ROPE_COS_SIN_SPLIT: all(&row.data, Item::kCos, 1), all(&row.sin, Item::kSin, 1); break;
    case ROPE_COS_SIN_FULL_HALVES:
      all(&row.data, Item::kCos, 2), all(&row.sin, Item::kSin, 2);
      break;
    case ROPE_COS_SIN_ANGLES: all(&row.data, Item::kAngle, 1); break;
    case ROPE_COS_SIN_ANGLES_FULL: all(&row.data, Item::kAngle, 2); break;
    default:
      for (int i = 0; i < kPairs; ++i) {
        if (format == ROPE_COS_SIN_COMPLEX) {
          row.data.insert(row.data.end(), {{Item::kCos, i}, {Item::kSin, i}});
        } else if (format == ROPE_COS_SIN_SINUSOIDAL) {
          row.data.insert(row.data.end(), {{Item::kSin, i}, {Item::kCos, i}});
        } else {  // FULL_INTERLEAVED
          row.data.insert(row.data.end(), {{Item::kCos, i}, {Item::kCos, i}});
          row.sin.insert(row.sin.end(), {{Item::kSin, i}, {Item::kSin, i}});
        }
      }
  }
  return row;
}

struct Tables {
  std::vector<unsigned char> data, sin;
  rope_cos_sin rows;
};

void Fill(const Context& context, rope_cos_sin_format format, rope_dtype dtype, int64_t stride,
          Tables* t) {
  const Row row = RowOf(format);
  t->data.assign(kBatch * kTokens * kStride * SizeOf(dtype), 0x5a);
  t->sin = t->data;
  t->rows = Rows(format, dtype, kPairs, kBatch, t->data.data(),
                 row.sin.empty() ? nullptr : t->sin.data());
  t->rows.stride_token = stride;
  const rope_positions positions = GivenIds();
  ASSERT_OK(rope_cos_sin_fill(context.get(), kBatch, kTokens, &positions, &t->rows, nullptr));
}

rope_config ScaledConfig(rope_angle angle) {
  rope_config config = Config(kDim);
  config.attention_factor = 1.25;
  config.angle = angle;
  return config;
}

TEST(CosSinFill, TheLibraryTellsTheSizesOfRows) {
  for (rope_cos_sin_format format : Formats()) {
    const Row row = RowOf(format);
    EXPECT_EQ(rope_cos_sin_width(format, kPairs), static_cast<int64_t>(row.data.size())) << format;
    EXPECT_EQ(rope_cos_sin_width(format, 0), 0) << format;
    EXPECT_EQ(rope_cos_sin_tensors(format), row.sin.empty() ? 1 : 2) << format;
  }
  for (rope_cos_sin_format unknown : {-1, 0, Formats().back() + 1}) {
    EXPECT_EQ(rope_cos_sin_width(unknown, kPairs), 0) << unknown;
    EXPECT_EQ(rope_cos_sin_tensors(unknown), 0) << unknown;
  }
}

TEST(CosSinFill, EveryFormatAndDtypeHasItsValuesInPlace) {
  for (rope_angle angle : {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT, ROPE_ANGLE_DIVIDE}) {
    const Context context = Create(ScaledConfig(angle));
    double inv_freq[kPairs];
    ASSERT_OK(rope_context_inv_freq(context.get(), 0, inv_freq, kPairs));
    for (rope_cos_sin_format format : Formats()) {
      const Row row = RowOf(format);
      for (rope_dtype dtype = 1; dtype <= kLastDtype; ++dtype) {
        if (HoldsAngles(format) && dtype != ROPE_DTYPE_F32) continue;
        for (int64_t given : {int64_t{0}, kStride}) {
          SCOPED_TRACE(::testing::Message() << format << " " << dtype << " " << given);
          Tables tables;
          Fill(context, format, dtype, given, &tables);
          const int64_t stride = given ? given : static_cast<int64_t>(row.data.size());
          const auto check = [&](std::vector<unsigned char>& memory,
                                 const std::vector<Item>& items) {
            std::vector<unsigned char> expected(memory.size(), 0x5a);
            for (int64_t r = 0; r < kBatch * kTokens; ++r) {
              for (size_t i = 0; i < items.size(); ++i) {
                const int64_t at = (r * stride + static_cast<int64_t>(i)) * SizeOf(dtype);
                const Quad f = angle == ROPE_ANGLE_EXACT
                                   ? InverseFrequency(10000, items[i].pair, kDim)
                                   : Quad(inv_freq[items[i].pair]);
                const Turn turn = TurnOf(angle, f, {false, kIds[r], 0});
                const double want = items[i].what == Item::kCos
                                        ? 1.25 * static_cast<double>(turn.cos)
                                    : items[i].what == Item::kSin
                                        ? 1.25 * static_cast<double>(turn.sin)
                                        : static_cast<double>(kIds[r]) * inv_freq[items[i].pair];
                const double tolerance =
                    items[i].what == Item::kAngle ? 0x1p-24 * std::fabs(want) : 1.25 * 2.1e-7;
                const double got = ReadElement(dtype, &memory[at]);
                EXPECT_GE(got, Rounded(dtype, want - tolerance)) << r << " " << i;
                EXPECT_LE(got, Rounded(dtype, want + tolerance)) << r << " " << i;
                std::memcpy(&expected[at], &memory[at], SizeOf(dtype));
              }
            }
            EXPECT_TRUE(expected == memory) << "bytes between the rows were written";
          };
          check(tables.data, row.data);
          check(tables.sin, row.sin);
        }
      }
    }
  }
}

// F32 rows are as good as positions: the same bits, for each format that can be read.
TEST(CosSinRows, GiveTheBitsOfPositions) {
  for (rope_pairing pairing = 1; pairing <= kLastPairing; ++pairing) {
    for (rope_rounding rounding = 0; rounding <= kLastRounding; ++rounding) {
      rope_config config = ScaledConfig(ROPE_ANGLE_FLOAT32);
      config.pairing = pairing;
      if (pairing == ROPE_PAIRING_HALVES_PER_AXIS) {
        config.axes = 2;
        config.mrope_section[0] = 4;
        config.mrope_section[1] = kPairs - 4;
      }
      config.rounding = rounding;
      const Context context = Create(config);
      for (rope_cos_sin_format format : ReadableFormats()) {
        Tables tables;
        Fill(context, format, ROPE_DTYPE_F32, format % 2 ? 0 : kStride, &tables);
        for (rope_dtype dtype : DtypesOf(rounding)) {
          for (rope_operation operation : OperationsOf(true, false)) {
            const auto size = static_cast<size_t>(SizeOf(dtype));
            const std::vector<float> source = RandomValues(kBatch * kTokens * 3 * kDim);
            std::vector<char> a(source.size() * size);
            for (size_t i = 0; i < source.size(); ++i) {
              WriteElement(dtype, &a[i * size], source[i]);
            }
            std::vector<char> b = a;
            rope_qk_args args = Args(kBatch, kTokens);
            args.operation = operation;
            args.q = Tensor(a.data(), dtype, 3);
            args.positions = GivenIds();
            ASSERT_OK(rope_apply_qk(context.get(), &args));
            args.q.data = b.data();
            args.positions = rope_positions{};
            args.cos_sin = &tables.rows;
            ASSERT_OK(rope_apply_qk(context.get(), &args));
            EXPECT_TRUE(a == b) << "pairing " << pairing << " rounding " << rounding << " format "
                                << format << " dtype " << dtype << " operation " << operation;
          }
        }
      }
    }
  }
}

// Rows of 16 bits hold the rounded cos and sin: what the COS_SIN policy computes itself.
TEST(CosSinRows, NarrowRowsAreTheRoundedOnes) {
  rope_config config = ScaledConfig(ROPE_ANGLE_EXACT);
  const Context plain = Create(config);
  config.rounding = ROPE_ROUNDING_COS_SIN;
  const Context rounding = Create(config);
  for (rope_dtype dtype : SixteenBitDtypes()) {
    for (rope_cos_sin_format format :
         {ROPE_COS_SIN_PACKED, ROPE_COS_SIN_SPLIT, ROPE_COS_SIN_FULL_HALVES, ROPE_COS_SIN_COMPLEX,
          ROPE_COS_SIN_PACKED_SIN_FIRST}) {
      Tables tables;
      Fill(plain, format, dtype, 0, &tables);
      std::vector<uint16_t> a(kBatch * kTokens * kDim);
      for (size_t i = 0; i < a.size(); ++i)
        a[i] = NearestOf(FormatOf(dtype), std::sin(1.0 + static_cast<double>(i)));
      std::vector<uint16_t> b = a;
      rope_qk_args args = Args(kBatch, kTokens);
      args.q = Tensor(a.data(), dtype, 1);
      args.cos_sin = &tables.rows;
      ASSERT_OK(rope_apply_qk(plain.get(), &args));
      args.q.data = b.data();
      args.cos_sin = nullptr;
      args.positions = GivenIds();
      ASSERT_OK(rope_apply_qk(rounding.get(), &args));
      EXPECT_EQ(a, b) << format << " " << dtype;
    }
  }
}

// V-JEPA 2 has cos and sin of its own for each channel: y = x * cos + rotate(x) * sin, which is no
// rotation. BACKWARD is its transpose.
TEST(CosSinRows, ChannelsMayHaveTheirOwnValues) {
  for (rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
    const Context context = Create(Config(kDim, pairing));
    std::vector<float> cos = RandomValues(kDim), sin = RandomValues(kDim, 2);
    rope_cos_sin rows = Rows(
        pairing == ROPE_PAIRING_HALVES ? ROPE_COS_SIN_FULL_HALVES : ROPE_COS_SIN_FULL_INTERLEAVED,
        ROPE_DTYPE_F32, kPairs, 1, cos.data(), sin.data());
    const std::vector<float> x = RandomValues(kDim, 3);
    std::vector<float> y = x, g = RandomValues(kDim, 4), back = g;
    rope_qk_args args = Args(1, 1);
    args.q = Tensor(y.data(), ROPE_DTYPE_F32, 1);
    args.cos_sin = &rows;
    ASSERT_OK(rope_apply_qk(context.get(), &args));
    args.operation = ROPE_OPERATION_BACKWARD;
    args.q.data = back.data();
    ASSERT_OK(rope_apply_qk(context.get(), &args));
    double left = 0, right = 0;
    for (int c = 0; c < kDim; ++c) {
      const bool first = pairing == ROPE_PAIRING_HALVES ? c < kPairs : c % 2 == 0;
      const int other = pairing == ROPE_PAIRING_HALVES ? (c + kPairs) % kDim : c ^ 1;
      const double want = double{x[c]} * cos[c] + (first ? -1.0 : 1.0) * x[other] * sin[c];
      EXPECT_NEAR(y[c], want, 1e-6) << c;
      left += double{g[c]} * y[c];
      right += double{back[c]} * x[c];
    }
    EXPECT_NEAR(left, right, 1e-5);
  }
}

// Its rows, as docs/models.md says how to make them: those of halves, in three blocks, read by
// pairs of neighbours. Compared with what transformers computes.
TEST(CosSinRows, OfBlocksReadByNeighboursAreThoseOfVjepa2) {
  const nlohmann::json rope = LoadJson("oracle/class-vjepa2.json")["ropes"][0];
  const int head_dim = rope["head_dim"], pairs = rope["pairs"], block = head_dim / 3 / 2;
  ASSERT_EQ(3 * block, pairs);
  const nlohmann::json& length = rope["lengths"][0];
  std::vector<double> table;
  for (int axis = 0; axis < 3; ++axis) {
    const std::vector<double> own = InvFreq(Config(2 * block));
    table.insert(table.end(), own.begin(), own.end());
  }
  const std::vector<float> first = OracleArray(length["inv_freq"]).ToFloat(),
                           second = OracleArray(length["inv_freq2"]).ToFloat();
  for (int c = 0; c < 2 * pairs; ++c) {
    const float want = (c % 2 == 0 ? first : second)[static_cast<size_t>(c / 2)];
    ASSERT_EQ(table[static_cast<size_t>(c / (2 * block) * block + c % block)], want) << c;
  }
  rope_config config = Config(head_dim, ROPE_PAIRING_HALVES_PER_AXIS);
  config.rotary_dim = 2 * pairs;
  config.axes = 3;
  for (int axis = 0; axis < 3; ++axis) config.mrope_section[axis] = block;
  config.inv_freq = table.data();
  config.table_length = pairs;
  const Context writes = Create(config);
  config = Config(head_dim, ROPE_PAIRING_INTERLEAVED);
  config.rotary_dim = 2 * pairs;
  const Context reads = Create(config);

  const nlohmann::json& apply = length["apply"];
  const OracleArray ids(apply["positions"]);
  const int64_t tokens = ids.shape[0];
  std::vector<float> cos(static_cast<size_t>(tokens * 2 * pairs)), sin(cos.size());
  const rope_positions at = Ids(ROPE_POSITIONS_IDS_BTA, ids.as<int64_t>());
  rope_cos_sin rows =
      Rows(ROPE_COS_SIN_FULL_HALVES, ROPE_DTYPE_F32, pairs, 1, cos.data(), sin.data());
  ASSERT_OK(rope_cos_sin_fill(writes.get(), 1, tokens, &at, &rows, nullptr));
  rows.format = ROPE_COS_SIN_FULL_INTERLEAVED;
  for (const char* name : {"q", "k"}) {
    std::vector<float> x = OracleArray(apply[name]).ToFloat();
    rope_qk_args args = Args(1, tokens);
    args.q = Tensor(x.data(), ROPE_DTYPE_F32, 1);
    args.cos_sin = &rows;
    ASSERT_OK(rope_apply_qk(reads.get(), &args));
    const std::vector<float> want = OracleArray(apply["f32"][name]).ToFloat();
    ASSERT_EQ(x.size(), want.size());
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], want[i], 2e-6) << name << i;
  }
}

// Rows whose cos alone, or sin alone, differ between the channels of a pair.
TEST(CosSinRows, OneTensorMayHaveAValuePerChannel) {
  const Context context = Create(Config(kDim));
  for (bool in_sin : {false, true}) {
    for (int odd : {0, kPairs - 1}) {  // the pair whose second channel differs
      std::vector<float> cos = RandomValues(kDim), sin = RandomValues(kDim, 2);
      for (int i = 0; i < kPairs; ++i) cos[kPairs + i] = cos[i], sin[kPairs + i] = sin[i];
      (in_sin ? sin : cos)[kPairs + odd] += 1;
      const rope_cos_sin rows =
          Rows(ROPE_COS_SIN_FULL_HALVES, ROPE_DTYPE_F32, kPairs, 1, cos.data(), sin.data());
      for (rope_operation operation : {ROPE_OPERATION_FORWARD, ROPE_OPERATION_BACKWARD}) {
        const std::vector<float> x = RandomValues(kDim, 3);
        std::vector<float> y = x;
        rope_qk_args args = Args(1, 1);
        args.operation = operation;
        args.q = Tensor(y.data(), ROPE_DTYPE_F32, 1);
        args.cos_sin = &rows;
        ASSERT_OK(rope_apply_qk(context.get(), &args));
        for (int i = 0; i < kPairs; ++i) {
          const int j = kPairs + i;
          const bool back = operation == ROPE_OPERATION_BACKWARD;
          const double want0 = double{x[i]} * cos[i] + (back ? sin[j] : -sin[i]) * double{x[j]};
          const double want1 = double{x[j]} * cos[j] + (back ? -sin[i] : sin[j]) * double{x[i]};
          EXPECT_NEAR(y[i], want0, 1e-6) << in_sin << " " << odd << " pair " << i;
          EXPECT_NEAR(y[j], want1, 1e-6) << in_sin << " " << odd << " pair " << i;
        }
      }
    }
  }
}

TEST(CosSinRows, OfBatchOneAreSharedByAllBatchRows) {
  const Context context = Create(Config(kDim));
  std::vector<float> row(kTokens * kDim);
  rope_positions positions = Offset(40);
  rope_cos_sin rows = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, kPairs, 1, row.data());
  ASSERT_OK(rope_cos_sin_fill(context.get(), 1, kTokens, &positions, &rows, nullptr));
  std::vector<float> a = RandomValues(kBatch * kTokens * kDim), b = a;
  rope_qk_args args = Args(kBatch, kTokens);
  args.q = Tensor(a.data(), ROPE_DTYPE_F32, 1);
  args.cos_sin = &rows;
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  args.q.data = b.data();
  args.cos_sin = nullptr;
  args.positions = positions;
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  EXPECT_EQ(a, b);
}

// FULL rows of a head with a block of channels for each axis.
TEST(CosSinFill, FullRowsFollowTheBlocksOfAxes) {
  rope_config config = Config(kDim, ROPE_PAIRING_HALVES_PER_AXIS);
  config.axes = 2;
  config.mrope_section[0] = 4;
  config.mrope_section[1] = 6;
  const Context context = Create(config);
  const int64_t ids[2] = {3, 9};
  const rope_positions positions = Ids(ROPE_POSITIONS_IDS_BTA, ids);
  float packed[kDim], cos[kDim], sin[kDim];
  rope_cos_sin rows = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, kPairs, 1, packed);
  ASSERT_OK(rope_cos_sin_fill(context.get(), 1, 1, &positions, &rows, nullptr));
  rows = Rows(ROPE_COS_SIN_FULL_HALVES, ROPE_DTYPE_F32, kPairs, 1, cos, sin);
  ASSERT_OK(rope_cos_sin_fill(context.get(), 1, 1, &positions, &rows, nullptr));
  for (int i = 0; i < kPairs; ++i) {
    const Channels c = ChannelsOfPair(config, ROPE_OPERATION_FORWARD, i);
    EXPECT_EQ(cos[c.out0], packed[i]);
    EXPECT_EQ(cos[c.out1], packed[i]);
    EXPECT_EQ(sin[c.out0], packed[kPairs + i]);
    EXPECT_EQ(sin[c.out1], packed[kPairs + i]);
  }
}

}  // namespace
}  // namespace rope::testing
