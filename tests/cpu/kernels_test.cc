// Rotations on every target: the whole product of dtype, pairing, rounding, operation, in place and
// not, head sizes and spans. Fused targets give the bits of rotate.h, others those of the same
// operations without fusing; rows with values for each channel give the bits of rotate.h
// everywhere.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "context/context.h"
#include "math/rotate.h"
#include "support/elements.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/memory.h"
#include "support/reference.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

constexpr int kTokens = 3, kHeads = 2;
constexpr int64_t kPositions[kTokens] = {7, -3, 123456789};

struct Span {
  int dim, offset;
};

// The whole head, and parts of it at its end, its start and inside.
std::vector<Span> SpansOf(int head_dim) {
  std::vector<Span> spans = {{head_dim, 0}};
  if (head_dim >= 4) spans.push_back({head_dim / 4 * 2, head_dim - head_dim / 4 * 2});
  if (head_dim >= 6) spans.push_back({head_dim - 4, 1});
  return spans;
}

std::vector<int> HeadDims() {
  std::vector<int> dims;
  for (int d = 2; d <= 34; d += 2) dims.push_back(d);
  for (int d : {40, 48, 64, 80, 96, 100, 126, 128, 192, 254, 256, 320, 512, 1000, 1024}) {
    dims.push_back(d);
  }
  return dims;
}

class KernelsTest : public TargetTest {
 protected:
  // One pair of f32 values, rounded as the policy says; `dtype` is that of the tensor.
  Pair Want(rope_dtype dtype, rope_rounding rounding, Pair x, CosSin row) const {
    if (rounding != ROPE_ROUNDING_FLOAT32) {
      row = {RoundTo(dtype, row.cos), RoundTo(dtype, row.sin)};
    }
    if (rounding == ROPE_ROUNDING_EAGER) {
      const float p = RoundTo(dtype, x.x0 * row.cos), q = RoundTo(dtype, x.x1 * row.sin);
      const float r = RoundTo(dtype, x.x1 * row.cos), s = RoundTo(dtype, x.x0 * row.sin);
      return {p - q, r + s};
    }
    if (rounding == ROPE_ROUNDING_NATIVE) {
      return {static_cast<float>(NativeSum(x.x0, row.cos, -x.x1, row.sin)),
              static_cast<float>(NativeSum(x.x1, row.cos, x.x0, row.sin))};
    }
    if (kernels().fused) return Rotate(x, row, row);
    const float p = x.x0 * row.cos, q = x.x1 * row.sin, r = x.x1 * row.cos, s = x.x0 * row.sin;
    return {p - q, r + s};
  }

  // Rows as the operation uses them, for all kPositions.
  std::vector<CosSin> RowsOf(const rope_context& context, rope_operation operation) const {
    const int padded = PaddedPairs(context.pairs);
    std::vector<float> memory(2 * padded + 16);
    float* const cos = FromLine(&memory);
    const Turn scales = ScaledTurn({1, 1}, operation, context.sets[0].attention_factor);
    const cpu::Row row{cos,
                       cos + padded,
                       context.pairs,
                       static_cast<float>(scales.cos),
                       static_cast<float>(scales.sin),
                       cpu::RowOrder::kNatural};
    std::vector<CosSin> rows;
    for (int64_t p : kPositions) {
      kernels().phase_rows(context.sets[0], &p, 1, row);
      for (int i = 0; i < context.pairs; ++i) rows.push_back({row.cos[i], row.sin[i]});
    }
    return rows;
  }

  void Check(const rope_config& config, const rope_context& context, rope_operation operation,
             rope_dtype dtype, bool in_place);

  std::vector<double> source_;  // random values
  void SetUp() override {
    TargetTest::SetUp();
    std::mt19937 random(11);
    std::normal_distribution<double> normal(0, 2);
    for (int i = 0; i < 1024 * kHeads * kTokens; ++i) source_.push_back(normal(random));
  }
};
INSTANTIATE_TARGETS(KernelsTest);

void KernelsTest::Check(const rope_config& config, const rope_context& context,
                        rope_operation operation, rope_dtype dtype, bool in_place) {
  const int dim = config.head_dim, size = SizeOf(dtype);
  const auto bytes = static_cast<size_t>(dim * kHeads * kTokens * size);
  std::vector<unsigned char> in(bytes), out(bytes, 0x5a);
  for (size_t i = 0; i < bytes / size; ++i) {
    StoreElement(dtype, in.data(), static_cast<int64_t>(i), static_cast<float>(source_[i]));
  }
  // Everything outside the span is the input's.
  std::vector<unsigned char> want = in;
  const std::vector<CosSin> rows = RowsOf(context, operation);
  for (int head = 0; head < kTokens * kHeads; ++head) {
    const int64_t at = int64_t{head} * dim + config.rotary_offset;
    for (int i = 0; i < context.pairs; ++i) {
      const Channels c = ChannelsOfPair(config, operation, i);
      const CosSin row = rows[head / kHeads * context.pairs + i];
      const Pair x = {LoadElement(dtype, in.data(), at + c.in0),
                      LoadElement(dtype, in.data(), at + c.in1)};
      const Pair y = Want(dtype, config.rounding, x, row);
      StoreElement(dtype, want.data(), at + c.out0, y.x0);
      StoreElement(dtype, want.data(), at + c.out1, y.x1);
      // And the bounds of the header.
      const double y0 = double{x.x0} * row.cos - double{x.x1} * row.sin,
                   y1 = double{x.x1} * row.cos + double{x.x0} * row.sin;
      if (config.rounding == ROPE_ROUNDING_NATIVE) {
        const double bound =
            3.01 * 0x1p-11 * std::hypot(row.cos, row.sin) * std::hypot(x.x0, x.x1) + 0x1p-24 +
            0x1p-25 * (std::fabs(x.x0) + std::fabs(x.x1));
        ASSERT_NEAR(y.x0, y0, bound);
        ASSERT_NEAR(y.x1, y1, bound);
      }
      if (!IsNarrow(dtype)) {
        const double size0 = std::fabs(x.x0) + std::fabs(x.x1);
        const double bound =
            4 * 0x1p-24 * size0 * std::max(1.0f, std::fabs(row.cos) + std::fabs(row.sin));
        ASSERT_NEAR(y.x0, y0, bound);
        ASSERT_NEAR(y.x1, y1, bound);
      }
    }
  }
  const std::vector<unsigned char> before = in;
  rope_qk_args args = Args(1, kTokens);
  args.operation = operation;
  args.q = Tensor(in.data(), dtype, kHeads);
  if (!in_place) args.q_out = Tensor(out.data(), dtype, kHeads);
  args.positions = Ids(ROPE_POSITIONS_IDS_T, kPositions);
  ASSERT_OK(rope_apply_qk(&context, &args));
  const unsigned char* got = in_place ? in.data() : out.data();
  if (std::memcmp(got, want.data(), bytes) != 0) {
    for (size_t i = 0; i < bytes / size; ++i) {
      ASSERT_EQ(LoadElement(dtype, got, i), LoadElement(dtype, want.data(), i))
          << "element " << i % dim << " of head " << i / dim << ", head_dim " << dim << ", span "
          << config.rotary_dim << " at " << config.rotary_offset << ", dtype " << dtype
          << ", pairing " << config.pairing << ", rounding " << config.rounding << ", operation "
          << operation << (in_place ? ", in place" : ", out of place");
    }
    FAIL() << "only the sign of a zero differs";
  }
  if (in_place) return;
  ASSERT_EQ(std::memcmp(in.data(), before.data(), bytes), 0) << "the input changed";
}

TEST_P(KernelsTest, RotateAsTheReferenceInTheWholeProduct) {
  for (int head_dim : HeadDims()) {
    for (const Span& span : SpansOf(head_dim)) {
      for (rope_pairing pairing = 1; pairing <= kLastPairing; ++pairing) {
        for (rope_rounding rounding = 0; rounding <= kLastRounding; ++rounding) {
          rope_config config = Config(head_dim, pairing, 10000);
          config.rotary_dim = span.dim;
          config.rotary_offset = span.offset;
          config.rounding = rounding;
          config.angle = ROPE_ANGLE_EXACT;
          config.attention_factor = 1.25;
          if (pairing == ROPE_PAIRING_HALVES_PER_AXIS) {
            config.axes = 2;
            config.mrope_section[0] = span.dim / 2 / 3;
            config.mrope_section[1] = span.dim / 2 - span.dim / 2 / 3;
          }
          const Context context = Create(config);
          for (rope_operation operation : OperationsOf(false, true)) {
            for (rope_dtype dtype : DtypesOf(rounding)) {
              for (bool in_place : {true, false}) {
                Check(config, *context, operation, dtype, in_place);
                if (HasFatalFailure()) return;
              }
            }
          }
        }
      }
    }
  }
}

// 16-bit elements that are NaN, infinite, subnormal or large; overflow goes to infinity.
TEST_P(KernelsTest, TreatSpecialValuesAsTheReference) {
  constexpr int kDim = 74, kMany = 40;  // a tail after every width of vectors
  const float inf = std::numeric_limits<float>::infinity();
  const float specials[] = {std::numeric_limits<float>::quiet_NaN(),
                            inf,
                            -inf,
                            0.0f,
                            -0.0f,
                            65504.0f,
                            -65504.0f,
                            60000.0f,
                            3e38f,
                            -3e38f,
                            0x1p-24f,
                            0x1p-130f,
                            0x1p-14f,
                            1.0f};
  std::mt19937 random(12);
  for (rope_pairing pairing :
       {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED, ROPE_PAIRING_INTERLEAVED_TO_HALVES}) {
    for (rope_rounding rounding :
         {ROPE_ROUNDING_FLOAT32, ROPE_ROUNDING_EAGER, ROPE_ROUNDING_NATIVE}) {
      rope_config config = Config(kDim, pairing);
      config.rounding = rounding;
      config.angle = ROPE_ANGLE_EXACT;
      const Context context = Create(config);
      const std::vector<CosSin> rows = RowsOf(*context, ROPE_OPERATION_FORWARD);
      for (rope_dtype dtype : DtypesOf(rounding)) {
        int nans = 0, infinities = 0;
        for (int n = 0; n < kMany; ++n) {
          std::vector<char> memory(kDim * kTokens * SizeOf(dtype));
          std::vector<float> x(kDim * kTokens);
          for (size_t i = 0; i < x.size(); ++i) {
            StoreElement(dtype, memory.data(), i, specials[random() % std::size(specials)]);
            x[i] = LoadElement(dtype, memory.data(), i);
          }
          rope_qk_args args = Args(1, kTokens);
          args.q = Tensor(memory.data(), dtype, 1);
          args.positions = Ids(ROPE_POSITIONS_IDS_T, kPositions);
          ASSERT_OK(rope_apply_qk(context.get(), &args));
          for (int t = 0; t < kTokens; ++t) {
            for (int i = 0; i < kDim / 2; ++i) {
              const Channels c = ChannelsOfPair(config, ROPE_OPERATION_FORWARD, i);
              const Pair y = Want(dtype, rounding, {x[t * kDim + c.in0], x[t * kDim + c.in1]},
                                  rows[t * kDim / 2 + i]);
              const float want[2] = {RoundTo(dtype, y.x0), RoundTo(dtype, y.x1)};
              const int at[2] = {c.out0, c.out1};
              for (int m = 0; m < 2; ++m) {
                const float got = LoadElement(dtype, memory.data(), t * kDim + at[m]);
                nans += std::isnan(want[m]);
                infinities += std::isinf(want[m]);
                if (std::isnan(want[m])) {
                  ASSERT_TRUE(std::isnan(got)) << got;
                } else {
                  ASSERT_EQ(FloatBits(got), FloatBits(want[m])) << got << " is not " << want[m];
                }
              }
            }
          }
        }
        EXPECT_GT(nans, 0);
        EXPECT_GT(infinities, 0);
      }
    }
  }
}

TEST_P(KernelsTest, ContextsNameTheTarget) {
  const Context context = Create(Config(64));
  EXPECT_STREQ(rope_context_backend(context.get()),
               (std::string("cpu ") + kernels().target).c_str());
}

// Many heads, tokens and both tensors in one call give the bits of one head at a time: blocks of
// tokens, rows shared by q and k of several dtypes.
TEST_P(KernelsTest, ManyTokensGiveTheBitsOfOne) {
  constexpr int kDim = 96, kMany = 150, kQ = 3, kK = 1;
  for (rope_rounding rounding = 0; rounding <= kLastRounding; ++rounding) {
    const std::vector<rope_dtype> dtypes = DtypesOf(rounding);
    const size_t count = dtypes.size();
    for (rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
      for (size_t types = 0; types < count * count; ++types) {
        const rope_dtype q_type = dtypes[types / count], k_type = dtypes[types % count];
        rope_config config = Config(kDim, pairing);
        config.rounding = rounding;
        const Context context = Create(config);
        constexpr size_t kQCount = kMany * kQ * kDim, kKCount = kMany * kK * kDim;
        std::vector<char> q(kQCount * SizeOf(q_type)), k(kKCount * SizeOf(k_type));
        for (size_t i = 0; i < kQCount; ++i)
          StoreElement(q_type, q.data(), i, static_cast<float>(source_[i % source_.size()]));
        for (size_t i = 0; i < kKCount; ++i)
          StoreElement(k_type, k.data(), i, static_cast<float>(source_[i % 1000]));
        std::vector<char> q_one = q, k_one = k;
        rope_qk_args args = Args(1, kMany);
        args.q = Tensor(q.data(), q_type, kQ);
        args.k = Tensor(k.data(), k_type, kK);
        args.positions = Offset(1000);
        ASSERT_OK(rope_apply_qk(context.get(), &args));
        const auto one_by_one = [&](void* data, rope_dtype dtype, int heads) {
          rope_qk_args one = Args(1, 1);
          for (int t = 0; t < kMany; ++t) {
            one.positions = Offset(1000 + t);
            for (int h = 0; h < heads; ++h) {
              one.q = Tensor(static_cast<char*>(data) + (t * heads + h) * kDim * SizeOf(dtype),
                             dtype, 1);
              ASSERT_OK(rope_apply_qk(context.get(), &one));
            }
          }
        };
        one_by_one(q_one.data(), q_type, kQ);
        one_by_one(k_one.data(), k_type, kK);
        ASSERT_TRUE(q == q_one) << q_type << " " << k_type;
        ASSERT_TRUE(k == k_one) << q_type << " " << k_type;
      }
    }
  }
}

// By rows of which each channel has its own cos and sin, so that no two values can stand for each
// other.
TEST_P(KernelsTest, RowsPerChannelGiveTheBitsOfTheReferenceOnEveryTarget) {
  for (int head_dim : {2, 6, 8, 20, 34, 40, 64, 74, 128, 1024}) {
    for (rope_pairing pairing = 1; pairing <= kLastPairing; ++pairing) {
      for (rope_rounding rounding = 0; rounding <= kLastRounding; ++rounding) {
        rope_config config = Config(head_dim, pairing);
        config.rounding = rounding;
        if (pairing == ROPE_PAIRING_HALVES_PER_AXIS) {
          config.axes = 2;
          config.mrope_section[0] = head_dim / 2 / 3;
          config.mrope_section[1] = head_dim / 2 - head_dim / 2 / 3;
        }
        const Context context = Create(config);
        for (rope_cos_sin_format format :
             {ROPE_COS_SIN_FULL_HALVES, ROPE_COS_SIN_FULL_INTERLEAVED}) {
          const auto width = static_cast<size_t>(head_dim);
          std::vector<float> cos(kTokens * width), sin(cos.size());
          for (size_t i = 0; i < cos.size(); ++i) {
            cos[i] = static_cast<float>(source_[i % source_.size()]);
            sin[i] = static_cast<float>(source_[(i + 77) % source_.size()]);
          }
          const rope_cos_sin rows =
              Rows(format, ROPE_DTYPE_F32, context->pairs, 1, cos.data(), sin.data());
          for (rope_operation operation : OperationsOf(true, false)) {
            for (rope_dtype dtype : DtypesOf(rounding)) {
              const auto value = [&](const std::vector<float>& row, int token, int channel) {
                const float v = row[static_cast<size_t>(token) * width + channel];
                return rounding == ROPE_ROUNDING_FLOAT32 ? v : RoundTo(dtype, v);
              };
              std::vector<char> x(kHeads * kTokens * width * SizeOf(dtype)), out(x.size());
              for (size_t i = 0; i < kHeads * kTokens * width; ++i) {
                StoreElement(dtype, x.data(), i, static_cast<float>(source_[i]));
              }
              std::vector<char> want(x.size());
              for (int head = 0; head < kHeads * kTokens; ++head) {
                const int64_t at = int64_t{head} * head_dim;
                int p = 0;
                for (const Segment& segment : context->segments) {
                  for (int i = 0; i < segment.pairs; ++i, ++p) {
                    const PairIndex own =
                        ChannelsOf(format == ROPE_COS_SIN_FULL_INTERLEAVED, i, segment.pairs);
                    const int first = segment.first_channel + own.first,
                              second = segment.first_channel + own.second;
                    const int token = head / kHeads;
                    const float c0 = value(cos, token, first), c1 = value(cos, token, second),
                                s0 = value(sin, token, first), s1 = value(sin, token, second);
                    const bool back = operation == ROPE_OPERATION_BACKWARD;
                    const Channels c = ChannelsOfPair(config, operation, p);
                    const Pair y = RotateBy(context->rounding.arithmetic, dtype,
                                            {LoadElement(dtype, x.data(), at + c.in0),
                                             LoadElement(dtype, x.data(), at + c.in1)},
                                            {c0, back ? -s1 : s0}, {c1, back ? -s0 : s1});
                    StoreElement(dtype, want.data(), at + c.out0, y.x0);
                    StoreElement(dtype, want.data(), at + c.out1, y.x1);
                  }
                }
              }
              rope_qk_args args = Args(1, kTokens);
              args.operation = operation;
              args.cos_sin = &rows;
              args.q = Tensor(x.data(), dtype, kHeads);
              args.q_out = Tensor(out.data(), dtype, kHeads);
              ASSERT_OK(rope_apply_qk(context.get(), &args));
              args.q_out = rope_tensor{};
              ASSERT_OK(rope_apply_qk(context.get(), &args));
              for (const std::vector<char>* got : {&out, &x}) {
                ASSERT_TRUE(*got == want)
                    << (got == &x ? "in place" : "out of place") << ", head_dim " << head_dim
                    << ", pairing " << pairing << ", rounding " << rounding << ", format " << format
                    << ", operation " << operation << ", dtype " << dtype;
              }
            }
          }
        }
      }
    }
  }
}

// By such rows a sum is rounded once, also on targets that add in doubles: products that are ties
// of f32, and a number beside them that no double has room for.
TEST_P(KernelsTest, RowsPerChannelRoundSumsOnce) {
  constexpr int kDim = 74, kPairs = kDim / 2;
  const Context context = Create(Config(kDim, ROPE_PAIRING_HALVES));
  std::vector<float> x(kDim), cos(kDim), sin(kDim);
  for (int i = 0; i < kPairs; ++i) {
    x[i] = cos[i] = 1 + 0x1p-12f;  // the square: 1 + 2^-11 + 2^-24
    x[i + kPairs] = i % 2 == 0 ? 1.0f : -1.0f;
    sin[i] = 0x1p-80f;
  }
  const std::vector<float> before = x;
  const rope_cos_sin rows =
      Rows(ROPE_COS_SIN_FULL_HALVES, ROPE_DTYPE_F32, kPairs, 1, cos.data(), sin.data());
  rope_qk_args args = Args(1, 1);
  args.q = Tensor(x.data(), ROPE_DTYPE_F32, 1);
  args.cos_sin = &rows;
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  for (int i = 0; i < kPairs; ++i) {
    EXPECT_EQ(x[i], std::fma(before[i], cos[i], -before[i + kPairs] * sin[i])) << i;
    EXPECT_EQ(x[i], 1 + 0x1p-11f + (i % 2 == 0 ? 0 : 0x1p-23f)) << i;
  }
}

// An f16 whose mantissa is often all zeros or ones, but for the last bit.
uint16_t F16Near(std::mt19937* random, int least_exponent, int exponents) {
  const auto mantissa = static_cast<unsigned>((*random)() % 3 == 0   ? (*random)()
                                              : (*random)() % 2 == 0 ? (*random)() & 1
                                                                     : (*random)() | 0x3fe) &
                        0x3ff;
  const auto exponent = static_cast<unsigned>(least_exponent) + (*random)() % exponents;
  return static_cast<uint16_t>(((*random)() & 1) << 15 | exponent << 10 | mantissa);
}

// NATIVE by rows of the caller, FULL ones among them whose channels differ: sums of a product and a
// number of any size. Rounding them to f32 before f16 would not do.
TEST_P(KernelsTest, NativeSumsAreRoundedOnce) {
  constexpr int kPairs = 512, kDim = 2 * kPairs, kMany = 200;
  std::mt19937 random(13);
  int twice = 0, subnormal = 0, infinite = 0;
  for (rope_pairing pairing :
       {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED, ROPE_PAIRING_INTERLEAVED_TO_HALVES}) {
    rope_config config = Config(kDim, pairing);
    config.rounding = ROPE_ROUNDING_NATIVE;
    const Context context = Create(config);
    for (bool full : {false, true}) {
      if (full && pairing == ROPE_PAIRING_INTERLEAVED_TO_HALVES) continue;
      const rope_cos_sin_format format = !full ? ROPE_COS_SIN_SPLIT
                                         : pairing == ROPE_PAIRING_HALVES
                                             ? ROPE_COS_SIN_FULL_HALVES
                                             : ROPE_COS_SIN_FULL_INTERLEAVED;
      for (int n = 0; n < kMany; ++n) {
        std::vector<uint16_t> x(kDim), before, cos(kDim), sin(kDim);
        // Products of 2^-11 of the rest, and of any size.
        for (int i = 0; i < kPairs; ++i) {
          const bool any = n % 4 == 0;
          const Channels c = ChannelsOfPair(config, ROPE_OPERATION_FORWARD, i);
          x[c.in0] = F16Near(&random, any ? 0 : 15, any ? 31 : 1);
          x[c.in1] = F16Near(&random, any ? 0 : 3, any ? 31 : 27);
        }
        for (int i = 0; i < kDim; ++i) {
          cos[i] = F16Near(&random, 1, n % 2 == 0 ? 30 : 15);
          sin[i] = F16Near(&random, n % 3 == 0 ? 15 : 1, n % 3 == 0 ? 1 : 16);
        }
        before = x;
        const rope_cos_sin rows = Rows(format, ROPE_DTYPE_F16, kPairs, 1, cos.data(), sin.data());
        rope_qk_args args = Args(1, 1);
        args.q = Tensor(x.data(), ROPE_DTYPE_F16, 1);
        args.cos_sin = &rows;
        ASSERT_OK(rope_apply_qk(context.get(), &args));
        for (int i = 0; i < kPairs; ++i) {
          const Channels c = ChannelsOfPair(config, ROPE_OPERATION_FORWARD, i);
          const int row0 = full ? c.in0 : i, row1 = full ? c.in1 : i;
          const double x0 = FloatFromF16(before[c.in0]), x1 = FloatFromF16(before[c.in1]);
          const double c0 = FloatFromF16(cos[row0]), s0 = FloatFromF16(sin[row0]);
          const double c1 = FloatFromF16(cos[row1]), s1 = FloatFromF16(sin[row1]);
          const double want[2] = {NativeSum(x0, c0, -x1, s0), NativeSum(x1, c1, x0, s1)};
          const uint16_t got[2] = {x[c.out0], x[c.out1]};
          for (int m = 0; m < 2; ++m) {
            ASSERT_EQ(got[m], NearestOf(kHalf, want[m]))
                << "pair " << i << " member " << m << " pairing " << pairing << " format " << format
                << ": " << x0 << " " << x1 << " by " << c0 << " " << s0 << " and " << c1 << " "
                << s1 << " is " << want[m] << ", not " << FloatFromF16(got[m]);
            subnormal += want[m] != 0 && std::fabs(want[m]) < 0x1p-14;
            infinite += std::isinf(want[m]);
          }
          const double exact = x0 * c0 + Rounded(ROPE_DTYPE_F16, -x1 * s0);
          twice += Rounded(ROPE_DTYPE_F16, static_cast<float>(exact)) != want[0];
        }
      }
    }
  }
  EXPECT_GT(twice, 100);
  EXPECT_GT(subnormal, 100);
  EXPECT_GT(infinite, 100);
}

}  // namespace
}  // namespace rope::testing
