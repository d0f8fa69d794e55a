// bf16 results that lie in the middle between two numbers, of which the even one is right. Kernels
// that expect few of them go on in another way behind the first (RoundFromHalf): so they are
// planted in every head, in every vector, at both members of a pair, and in runs of them.
#include <gtest/gtest.h>
#include <librope/rope.h>

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "math/element.h"
#include "math/rotate.h"
#include "support/handles.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

constexpr int kHeads = 5;
constexpr uint16_t kOne = 0x3f80, kTied = 0x3f81;  // times 1.5: exact, and 1.5 + 3 * 2^-8

class TiesTest : public TargetTest {
 protected:
  // Rotates heads in which `is_tie(head, channel)` has planted ties, by rows (1.5, 0) in f32, and
  // compares all bits with rotate.h.
  void Check(int dim, rope_pairing pairing, bool in_place, bool prepared,
             const std::function<bool(int, int)>& is_tie) {
    const int pairs = dim / 2;
    std::vector<uint16_t> in(static_cast<size_t>(kHeads * dim)), want(in.size()), out(in.size());
    for (int head = 0; head < kHeads; ++head) {
      for (int c = 0; c < dim; ++c) in[head * dim + c] = is_tie(head, c) ? kTied : kOne;
    }
    std::vector<float> row(static_cast<size_t>(dim), 0.0f);
    std::fill(row.begin(), row.begin() + pairs, 1.5f);
    for (size_t i = 0; i < in.size(); ++i) {
      StoreElement(ROPE_DTYPE_BF16, want.data(), static_cast<int64_t>(i),
                   1.5f * LoadElement(ROPE_DTYPE_BF16, in.data(), static_cast<int64_t>(i)));
      ASSERT_EQ(want[i], in[i] == kTied ? 0x3fc2 : 0x3fc0);
    }

    rope_config config = ROPE_INIT(rope_config);
    config.head_dim = dim;
    config.theta = 10000;
    config.pairing = pairing;
    config.rounding = ROPE_ROUNDING_FLOAT32;
    const Context context = Create(config);
    rope_cos_sin rows = ROPE_INIT(rope_cos_sin);
    rows.format = ROPE_COS_SIN_PACKED;
    rows.dtype = ROPE_DTYPE_F32;
    rows.pairs = pairs;
    rows.batch = 1;
    rows.data = row.data();
    rope_qk_args args = ROPE_INIT(rope_qk_args);
    args.batch = args.tokens = 1;
    args.q.dtype = ROPE_DTYPE_BF16;
    args.q.layout = ROPE_LAYOUT_BSHD;
    args.q.heads = kHeads;
    args.cos_sin = &rows;
    if (!in_place) args.q_out = args.q;
    if (prepared) {
      rope_prepared* made = nullptr;
      ASSERT_EQ(rope_prepared_create(context.get(), &args, &made), ROPE_OK) << rope_last_error();
      const Prepared call(made);
      rope_qk_data data = ROPE_INIT(rope_qk_data);
      data.q = in.data();
      if (!in_place) data.q_out = out.data();
      ASSERT_EQ(rope_prepared_apply(made, &data), ROPE_OK) << rope_last_error();
    } else {
      args.q.data = in.data();
      if (!in_place) args.q_out.data = out.data();
      ASSERT_EQ(rope_apply_qk(context.get(), &args), ROPE_OK) << rope_last_error();
    }
    ASSERT_EQ(in_place ? in : out, want) << "head_dim " << dim << ", pairing " << pairing;
  }

  void CheckAll(const std::function<bool(int, int)>& is_tie) {
    for (const int dim : {8, 64, 72, 128, 192, 200, 256}) {
      for (const rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
        for (const bool in_place : {false, true}) {
          for (const bool prepared : {false, true}) {
            Check(dim, pairing, in_place, prepared, is_tie);
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
    for (int i = 0; i < kHeads * 256; ++i) tied.push_back(random() % rarity == 0);
    CheckAll([&tied](int head, int channel) { return tied[head * 256 + channel]; });
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
