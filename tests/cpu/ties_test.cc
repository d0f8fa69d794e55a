// bf16 results that lie in the middle between two numbers, of which the even one is right. Kernels
// that expect few of them go on in another way behind the first (RoundFromHalf): so they are
// planted in every head, in every vector, at both members of a pair, and in runs of them, in small
// calls and in those that leave the caches. Half of them are rounded up, and half down, which
// adding one half alone would not do.
#include <gtest/gtest.h>
#include <librope/rope.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "math/element.h"
#include "math/rotate.h"
#include "support/handles.h"
#include "support/memory.h"
#include "support/reference.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

constexpr int kHeads = 5, kTokens = 2, kMostDim = 256;
constexpr int64_t kMany = 1 << 18;  // tokens of which no cache keeps the heads
constexpr int kPad = 32;            // elements between heads of an output elsewhere: a line
// Times 1.5: exact; 0x3fc1 and a half, rounded up; 0x3fc4 and a half, rounded down.
constexpr uint16_t kOne = 0x3f80, kUp = 0x3f81, kDown = 0x3f83;

// The calls that rotate heads in another way each.
enum class Way {
  kInPlace,
  kElsewhere,
  kPrepared,
  kLargeInPlace,
  kLargeElsewhere,  // around the cache, where heads are whole lines
  kLargeBeside,     // beside the start of a line
};
constexpr Way kWays[] = {Way::kInPlace,      Way::kElsewhere,      Way::kPrepared,
                         Way::kLargeInPlace, Way::kLargeElsewhere, Way::kLargeBeside};

// The cos and sin of a pair: one of them 0, so that products are results; and of pairs that follow
// each other no two alike, but for a power of 2.
CosSin RowOf(int pair) {
  const float factor = std::ldexp(pair % 3 == 0 ? -1.5f : 1.5f, pair % 7 - 3);
  return pair % 4 == 3 ? CosSin{0, factor} : CosSin{factor, 0};
}

class TiesTest : public TargetTest {
 protected:
  using IsTie = std::function<bool(int head, int channel)>;

  // Of all tokens' heads. They take memory only where they are touched.
  Untouched in_{kMany * kHeads * kMostDim * sizeof(uint16_t)};
  Untouched out_{kMany * kHeads * (kMostDim + kPad) * sizeof(uint16_t) + kLine};
  Untouched rows_{kMany * kMostDim * sizeof(float)};

  // Rotates heads in which `is_tie` has planted ties, by rows of f32, and compares all bits with
  // rotate.h. `down`: which of the planted ones are rounded down, the even or the odd channels'.
  void Check(int dim, rope_pairing pairing, Way way, int down, const IsTie& is_tie) {
    const int pairs = dim / 2;
    const rope_config config = Config(dim, pairing);
    const Context context = Create(config);
    const bool large = way >= Way::kLargeInPlace;
    const bool in_place = way == Way::kInPlace || way == Way::kLargeInPlace;
    auto* const in = reinterpret_cast<uint16_t*>(in_.data());
    auto* const out =
        in_place ? in
                 : reinterpret_cast<uint16_t*>(out_.data()) + (way == Way::kLargeBeside ? 8 : 0);
    const int out_step = in_place ? dim : dim + kPad;
    auto* const rows = reinterpret_cast<float*>(rows_.data());

    std::vector<uint16_t> want(static_cast<size_t>(kTokens * kHeads * dim));
    for (int n = 0; n < kTokens * kHeads; ++n) {
      uint16_t* const head = in + n * dim;
      for (int c = 0; c < dim; ++c) {
        head[c] = !is_tie(n % kHeads, c) ? kOne : (c + n) % 2 == down ? kDown : kUp;
      }
      for (int i = 0; i < pairs; ++i) {
        const Channels c = ChannelsOfPair(config, ROPE_OPERATION_FORWARD, i);
        const Pair x = {FloatFromBf16(head[c.in0]), FloatFromBf16(head[c.in1])};
        const Pair y = Rotate(x, RowOf(i), RowOf(i));
        want[n * dim + c.out0] = Bf16FromFloat(y.x0);
        want[n * dim + c.out1] = Bf16FromFloat(y.x1);
        const bool by_cos = RowOf(i).sin == 0;
        EXPECT_EQ(IsTied(y.x0), head[by_cos ? c.in0 : c.in1] != kOne);
      }
    }
    for (int i = 0; i < kTokens * pairs; ++i) {
      const CosSin row = RowOf(i % pairs);
      float* const to = rows + i / pairs * dim + i % pairs;
      to[0] = row.cos;
      to[pairs] = row.sin;
    }

    const rope_cos_sin cos_sin = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, pairs, 1, rows);
    rope_qk_args args = Args(1, large ? kMany : kTokens);
    args.cos_sin = &cos_sin;
    args.q = Tensor(in, ROPE_DTYPE_BF16, kHeads);
    if (!in_place) {
      args.q_out = Tensor(out, ROPE_DTYPE_BF16, kHeads);
      SetStrides(&args.q_out, 0, kHeads * out_step, out_step);
    }
    const rope_runner first_task = {[](void*, rope_task_fn fn, void* task, uint32_t) {
                                      fn(task, 0);
                                      return 1;  // the others would take their time
                                    },
                                    nullptr};
    if (large) {
      args.runner = &first_task;
      ASSERT_EQ(rope_apply_qk(context.get(), &args), ROPE_ERROR_RUNNER);
    } else if (way == Way::kPrepared) {
      const rope_qk_data data = DataOf(args);
      ASSERT_OK(rope_prepared_apply(Prepare(context, args).get(), &data));
    } else {
      ASSERT_OK(rope_apply_qk(context.get(), &args));
    }
    for (int n = 0; n < kTokens * kHeads; ++n) {
      for (int c = 0; c < dim; ++c) {
        ASSERT_EQ(out[n * out_step + c], want[n * dim + c])
            << "channel " << c << " of head " << n << ", head_dim " << dim << ", pairing "
            << pairing << ", way " << static_cast<int>(way);
      }
    }
  }

  static bool IsTied(float value) { return (FloatBits(value) & 0xffff) == 0x8000; }

  void CheckAll(const IsTie& is_tie) {
    for (const int dim : {8, 64, 72, 128, 192, 200, 256}) {
      for (const rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
        for (const Way way : kWays) {
          for (const int down : {0, 1}) {
            Check(dim, pairing, way, down, is_tie);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
};
INSTANTIATE_TARGETS(TiesTest);

TEST_P(TiesTest, NoneAndAll) {
  CheckAll([](int, int) { return false; });
  CheckAll([](int, int) { return true; });
}

TEST_P(TiesTest, OneHead) {
  for (int tied = 0; tied < kHeads; ++tied) {
    CheckAll([tied](int head, int) { return head == tied; });
  }
}

TEST_P(TiesTest, OneChannel) {
  for (const int tied : {0, 1, 7, 15, 16, 31, 32, 63, 64, 65, 71, 100, 127, 128, 199, 255}) {
    CheckAll([tied](int head, int channel) { return head == 1 && channel == tied; });
  }
}

TEST_P(TiesTest, SomeChannels) {
  std::mt19937 random(4);
  for (const uint32_t rarity : {2, 8, 64, 512}) {
    std::vector<bool> tied;
    for (int i = 0; i < kHeads * kMostDim; ++i) tied.push_back(random() % rarity == 0);
    CheckAll([&tied](int head, int channel) { return tied[head * kMostDim + channel]; });
  }
}

// Both rotations of bf16 are there, and the backend may choose either: they want one row order.
TEST_P(TiesTest, RowsHaveOneOrder) {
  for (int order = 0; order < kChannelOrders; ++order) {
    const auto channels = static_cast<ChannelOrder>(order);
    for (const bool rare : {false, true}) {
      EXPECT_EQ(kernels().RotationOf(ROPE_DTYPE_BF16, channels, Arithmetic::kFused, rare).order,
                kernels().RowOrderOf(ROPE_DTYPE_BF16, channels, Arithmetic::kFused));
    }
  }
}

}  // namespace
}  // namespace rope::testing
