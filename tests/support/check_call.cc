#include "support/check_call.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "support/elements.h"
#include "support/reference.h"
#include "support/shard_reference.h"

namespace rope::testing {
namespace {

// Of one set. Those of FLOAT32 are f32 numbers, which other tests look at.
std::vector<Quad> FrequenciesOf(const RandomCall& call, const rope_context* context, int set) {
  const rope_config config = call.ConfigOf(set);
  int count = call.pairs();
  if (config.frequency != nullptr)
    count *= std::max(1, config.axes) * std::max(1, config.freq_heads);
  std::vector<double> told(static_cast<size_t>(count));
  EXPECT_OK(rope_context_inv_freq(context, set, told.data(), count));
  std::vector<Quad> frequencies(told.begin(), told.end());
  if (config.angle != ROPE_ANGLE_EXACT || config.inv_freq != nullptr ||
      config.frequency != nullptr || config.scaling == ROPE_SCALING_NOPE) {
    return frequencies;
  }
  const Quad root = RootOf(config.theta, call.pairs());
  Quad next = config.scaling == ROPE_SCALING_LINEAR ? 1 / Quad(config.factor) : Quad(1);
  for (Quad& frequency : frequencies) frequency = next, next /= root;
  return frequencies;
}

class Check {
 public:
  Check(const RandomCall& call, const rope_context* context) : call_(call) {
    for (int set = 0; set < call.sets(); ++set) {
      frequencies_.push_back(FrequenciesOf(call, context, set));
    }
    const rope_positions& p = call.args.positions;
    if (p.shard != nullptr) numbers_ = NumbersOf(p, call.args.tokens);
  }

  // The turns of all pairs of a token's head, out of `heads`; unscaled.
  std::vector<Turn> TurnsAt(int64_t b, int64_t t, int head, int heads) const {
    const rope_positions& p = call_.args.positions;
    if (p.shard != nullptr) t = numbers_[static_cast<size_t>(t)];
    const rope_config& config = call_.config();
    const int64_t set = p.freq_sets != nullptr ? p.freq_sets[PlaceOf(p, b, t).sequence] : 0;
    std::vector<Turn> turns;
    const std::vector<Quad>& frequencies = frequencies_[static_cast<size_t>(set)];
    for (int i = 0; config.frequency != nullptr && i < call_.pairs(); ++i) {
      const int axes = std::max(1, config.axes), own = std::max(1, config.freq_heads);
      std::vector<Quad> of_axes;
      std::vector<Position> positions;
      for (int a = 0; a < axes; ++a) {
        const int at = (a * own + head / (heads / own)) * call_.pairs() + i;
        of_axes.push_back(frequencies[static_cast<size_t>(at)]);
        positions.push_back(PositionOf(p, call_.args.batch, call_.args.tokens, axes, b, t, a));
      }
      turns.push_back(TurnOfSum(config.angle, of_axes, positions));
    }
    if (config.frequency != nullptr) return turns;
    for (int i = 0; i < call_.pairs(); ++i) {
      const Position position = PositionOf(p, call_.args.batch, call_.args.tokens,
                                           std::max(1, config.axes), b, t, AxisOfPair(config, i));
      turns.push_back(TurnOf(config.angle, frequencies[static_cast<size_t>(i)], position));
    }
    return turns;
  }

  // `want` is what the output's memory held: the rest of each head is copied into it, and so are
  // the elements of `got` that prove right.
  void CheckTensor(const RandomCall::CallTensor& t, const std::vector<char>& in,
                   const std::vector<char>& got, std::vector<char>* want) const {
    const rope_qk_args& args = call_.args;
    const rope_config& config = call_.config();
    const rope_tensor& to = t.in_place ? *t.in : *t.out;
    const auto size = static_cast<size_t>(SizeOf(t.in->dtype));
    const bool whole_in = call_.WidthOf(*t.in) == config.head_dim;
    const bool whole_out = call_.WidthOf(to) == config.head_dim;
    const double a = config.attention_factor != 0 ? config.attention_factor : 1;
    const double unit = std::max({1.0, a, 1 / a}) * (1.5e-7 + 5 * 0x1p-24);
    for (int64_t b = 0; b < args.batch; ++b) {
      for (int64_t token = 0; token < args.tokens; ++token) {
        std::vector<Turn> turns = TurnsAt(b, token, 0, t.in->heads);
        for (int h = 0; h < t.in->heads; ++h) {
          if (h > 0 && config.freq_heads > 1) turns = TurnsAt(b, token, h, t.in->heads);
          const size_t from = ByteOf(*t.in, t.in_buffer, b, token, h);
          const size_t target = ByteOf(to, t.out_buffer, b, token, h);
          if (!t.in_place && whole_in && whole_out) {
            std::memcpy(&(*want)[target], &in[from], static_cast<size_t>(config.head_dim) * size);
          }
          const auto offset = static_cast<size_t>(config.rotary_offset) * size;
          const size_t span_in = from + (whole_in ? offset : 0);
          const size_t span_out = target + (whole_out ? offset : 0);
          if (config.scaling == ROPE_SCALING_NOPE) {
            std::memcpy(&(*want)[span_out], &in[span_in],
                        static_cast<size_t>(config.rotary_dim) * size);
            continue;
          }
          for (int i = 0; i < call_.pairs(); ++i) {
            const Channels c = ChannelsOfPair(config, args.operation, i);
            const auto load = [&](int channel) {
              return ReadElement(t.in->dtype, &in[span_in + static_cast<size_t>(channel) * size]);
            };
            const double x0 = load(c.in0), x1 = load(c.in1);
            const Turn turn = ScaledTurn(turns[static_cast<size_t>(i)], args.operation, a);
            const auto cos = static_cast<double>(turn.cos), sin = static_cast<double>(turn.sin);
            const double tolerance = unit * (std::fabs(x0) + std::fabs(x1));
            const auto accept = [&](int channel, double value) {
              const size_t at = span_out + static_cast<size_t>(channel) * size;
              const double stored = ReadElement(t.in->dtype, &got[at]);
              ASSERT_TRUE(stored >= Rounded(t.in->dtype, value - tolerance) &&
                          stored <= Rounded(t.in->dtype, value + tolerance))
                  << t.name << " b " << b << " t " << token << " h " << h << " channel " << channel
                  << ": " << stored << " in place of " << value;
              std::memcpy(&(*want)[at], &got[at], size);
            };
            accept(c.out0, x0 * cos - x1 * sin);
            accept(c.out1, x1 * cos + x0 * sin);
            if (::testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  }

 private:
  size_t ByteOf(const rope_tensor& t, size_t buffer, int64_t b, int64_t token, int64_t h) const {
    const int64_t head =
        HeadOffset(t, call_.args.batch, call_.args.tokens, call_.WidthOf(t), b, token, h);
    const auto begins = static_cast<const char*>(t.data) - call_.buffers[buffer].bytes.data();
    return static_cast<size_t>(begins + head * SizeOf(t.dtype));
  }

  const RandomCall& call_;
  std::vector<std::vector<Quad>> frequencies_;
  std::vector<int64_t> numbers_;  // of the tokens of a shard  // of each set
};

}  // namespace

void ExpectAsComputed(const RandomCall& call, const rope_context* context,
                      const std::vector<RandomCall::Buffer>& before) {
  const Check check(call, context);
  std::vector<RandomCall::Buffer> want = before;
  for (const RandomCall::CallTensor& t : call.tensors) {
    if (!t.present) continue;
    check.CheckTensor(t, before[t.in_buffer].bytes, call.buffers[t.out_buffer].bytes,
                      &want[t.out_buffer].bytes);
    if (::testing::Test::HasFatalFailure()) return;
  }
  for (size_t n = 0; n < want.size(); ++n) {
    EXPECT_TRUE(want[n].bytes == call.buffers[n].bytes)
        << "bytes that are no result of the call changed in buffer " << n;
  }
}

}  // namespace rope::testing
