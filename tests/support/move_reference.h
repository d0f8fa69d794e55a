// What a key becomes that SHIFT or REROTATE moves, or on its way FORWARD or INVERSE, in scalar
// steps from the header ("Apply", rope_angle and rope_rounding) and docs/serving.md ("Rules":
// operations). On purpose it shares nothing with src/: neither rows nor rotations are those of a
// call. What it reads of the library are frequencies and attention factors, and for KnownRows what
// rope_cos_sin_fill writes.
#ifndef LIBROPE_TESTS_SUPPORT_MOVE_REFERENCE_H_
#define LIBROPE_TESTS_SUPPORT_MOVE_REFERENCE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "librope/rope.h"
#include "support/elements.h"
#include "support/handles.h"
#include "support/reference.h"

namespace rope::testing {

// Cos and sin of a pair, times what the operation multiplies R by (`factor`), and how far those of
// the library may be from them.
struct MoveRow {
  double cos, sin, factor, error;
};

// The set of frequencies of a token.
inline int SetAt(const rope_positions& p, int64_t b, int64_t t) {
  return p.freq_sets != nullptr ? p.freq_sets[PlaceOf(p, b, t).sequence] : 0;
}

// Rows by the definition: the difference of the angles of two positions, each by the frequencies of
// its set. The header ("Apply") says how far cos and sin may be from those.
class MoveReference {
 public:
  MoveReference(const Context& context, const rope_config& config) : config_(config) {
    const int sets = Info(context).freq_sets;
    for (int set = 0; set < sets; ++set) {
      rope_info info = ROPE_INIT(rope_info);
      EXPECT_OK(rope_context_info(context.get(), set, &info));
      factors_.push_back(info.attention_factor);
      frequencies_.emplace_back(static_cast<size_t>(info.pairs));
      EXPECT_OK(rope_context_inv_freq(context.get(), set, frequencies_.back().data(), info.pairs));
    }
  }

  std::vector<MoveRow> RowsAt(const rope_qk_args& args, int64_t b, int64_t t) const {
    std::vector<MoveRow> rows;
    const rope_positions& to = args.positions;
    const auto pairs = static_cast<int>(frequencies_[0].size());
    for (int pair = 0; pair < pairs; ++pair) {
      const Turn turn = TurnAt(to, args, b, t, pair);
      const double a = factors_[SetAt(to, b, t)];
      if (args.operation != ROPE_OPERATION_REROTATE) {
        const Turn scaled = ScaledTurn(turn, args.operation, a);
        const auto factor = static_cast<double>(std::hypot(scaled.cos, scaled.sin));
        rows.push_back(RowOf(scaled, factor, 1.5e-7));
        continue;
      }
      const rope_positions& from = *args.fused->from_positions;
      const Turn before = TurnAt(from, args, b, t, pair);
      const double factor = a / factors_[SetAt(from, b, t)];
      const Turn difference = {factor * (turn.cos * before.cos + turn.sin * before.sin),
                               factor * (turn.sin * before.cos - turn.cos * before.sin)};
      rows.push_back(RowOf(difference, factor, config_.angle == ROPE_ANGLE_EXACT ? 1.5e-7 : 4e-7));
    }
    return rows;
  }

 private:
  Turn TurnAt(const rope_positions& p, const rope_qk_args& args, int64_t b, int64_t t,
              int pair) const {
    const Position at = PositionOf(p, args.batch, args.tokens, std::max(1, config_.axes), b, t,
                                   AxisOfPair(config_, pair));
    return TurnOf(config_.angle, frequencies_[SetAt(p, b, t)][pair], at);
  }
  // A factor is one rounding more.
  static MoveRow RowOf(const Turn& turn, double factor, double error) {
    return {static_cast<double>(turn.cos), static_cast<double>(turn.sin), factor,
            factor * (error + (std::fabs(factor - 1) > 1e-9 ? 0x1p-24 : 0))};
  }

  const rope_config config_;
  std::vector<std::vector<double>> frequencies_;  // of each set
  std::vector<double> factors_;
};

// Rows whose bits are known. Under all angles but EXACT that of REROTATE is the product of two
// rows, made in f64 and rounded once; within one set of EXACT it is that of the distance, as
// SHIFT's.
class KnownRows {
 public:
  // `plain` has the sets of the call's context without their attention factors.
  KnownRows(const Context& plain, std::vector<double> factors, const rope_qk_args& args)
      : factors_(std::move(factors)), args_(args), pairs_(Info(plain).pairs) {
    Fill(plain, args.positions, &to_);
    if (args.operation == ROPE_OPERATION_REROTATE) Fill(plain, *args.fused->from_positions, &from_);
  }

  std::vector<MoveRow> RowsAt(int64_t b, int64_t t) const {
    std::vector<MoveRow> rows;
    for (int64_t at = (b * args_.tokens + t) * pairs_, end = at + pairs_; at < end; ++at) {
      const double c = to_.cos[at], s = to_.sin[at];
      if (from_.cos.empty()) {
        rows.push_back({c, s, 1, 0});
        continue;
      }
      const double from_c = from_.cos[at], from_s = from_.sin[at];
      const double factor = factors_[SetAt(args_.positions, b, t)] /
                            factors_[SetAt(*args_.fused->from_positions, b, t)];
      rows.push_back({static_cast<float>((c * from_c + s * from_s) * factor),
                      static_cast<float>((s * from_c - c * from_s) * factor), factor, 0});
    }
    return rows;
  }

 private:
  struct Filled {
    std::vector<float> cos, sin;  // [batch, tokens, pairs]
  };
  void Fill(const Context& plain, const rope_positions& positions, Filled* filled) const {
    filled->cos.resize(static_cast<size_t>(args_.batch * args_.tokens * pairs_));
    filled->sin = filled->cos;
    const rope_cos_sin rows = Rows(ROPE_COS_SIN_SPLIT, ROPE_DTYPE_F32, pairs_, args_.batch,
                                   filled->cos.data(), filled->sin.data());
    EXPECT_OK(
        rope_cos_sin_fill(plain.get(), args_.batch, args_.tokens, &positions, &rows, nullptr));
  }

  const std::vector<double> factors_;
  const rope_qk_args args_;
  const int pairs_;
  Filled to_, from_;
};

// What x cos + z sin may be stored as. No step falls where its operand rises, or none rises, so
// that the ends of what the library's cos and sin may be lead to the ends of what it may store.
struct Bounds {
  double least, most;
};

inline Bounds BoundsOf(rope_rounding rounding, rope_dtype dtype, double x, double z,
                       const MoveRow& row) {
  const auto round = [&](double value) { return Rounded(dtype, value); };
  const auto of_row = [&](double value) {
    return rounding != ROPE_ROUNDING_FLOAT32 ? round(value) : value;
  };
  // "Within 4 * 2^-24 * m * (|x0| + |x1|) of the exact rotation by the same cos and sin."
  const double slack = 4 * 0x1p-24 * row.factor * (std::fabs(x) + std::fabs(z));
  Bounds bounds = {INFINITY, -INFINITY};
  for (const double end : {-row.error, row.error}) {
    for (const double other : {-row.error, row.error}) {
      const double c = of_row(row.cos + end), s = of_row(row.sin + other);
      double least, most;
      switch (rounding) {
        case ROPE_ROUNDING_EAGER: least = most = round(round(x * c) + round(z * s)); break;
        case ROPE_ROUNDING_NATIVE: least = most = NativeSum(x, c, z, s); break;
        default: least = round(x * c + z * s - slack), most = round(x * c + z * s + slack);
      }
      bounds.least = std::min(bounds.least, least);
      bounds.most = std::max(bounds.most, most);
    }
  }
  return bounds;
}

// `before` and `after` begin with the span of a head. `exact` grows by the channels of which one
// value alone is right.
inline void ExpectTurned(const rope_config& config, rope_operation operation, rope_dtype dtype,
                         const std::vector<MoveRow>& rows, const char* before, const char* after,
                         int64_t* exact = nullptr) {
  const int size = SizeOf(dtype);
  for (size_t pair = 0; pair < rows.size(); ++pair) {
    const Channels c = ChannelsOfPair(config, operation, static_cast<int>(pair));
    const double x0 = ReadElement(dtype, before + c.in0 * size),
                 x1 = ReadElement(dtype, before + c.in1 * size);
    const auto expect = [&](int channel, double x, double z) {
      const double got = ReadElement(dtype, after + channel * size);
      const Bounds bounds = BoundsOf(config.rounding, dtype, x, z, rows[pair]);
      ASSERT_TRUE(bounds.least <= got && got <= bounds.most)
          << "channel " << channel << " of (" << x0 << ", " << x1 << "): " << got << ", not from "
          << bounds.least << " to " << bounds.most;
      if (exact != nullptr) *exact += bounds.least == bounds.most;
    };
    expect(c.out0, x0, -x1);
    expect(c.out1, x1, x0);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_MOVE_REFERENCE_H_
