// Heads of bf16 that become codes as they turn have, on every instruction set, the codes of what
// they turn to in f32: any element, any row, any number of pairs and any scale; and nothing else is
// written.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "base/limits.h"
#include "cpu/block.h"
#include "math/code.h"
#include "math/element.h"
#include "math/pairing.h"
#include "math/tensor.h"
#include "support/random.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

constexpr int kHeads = 3, kTokens = 2;
constexpr uint8_t kCanary = 0x55;

class CodedHeadsTest : public TargetTest {
 protected:
  // Numbers of the sizes of a model, with some of any bits.
  static uint16_t Element(Random& r) {
    if (r.Sometimes(64)) return static_cast<uint16_t>(r.Next());
    const float value = static_cast<float>(r.Below(1 << 20) - (1 << 19)) / (1 << 17);
    return static_cast<uint16_t>(FloatBits(value) >> 16);
  }
  static float RowValue(Random& r) {
    if (r.Sometimes(500)) return BitsFloat(static_cast<uint32_t>(r.Next()));
    return static_cast<float>(r.Below(1 << 21) - (1 << 20)) / (1 << 20);
  }

  void Check(Code code, ChannelOrder order, int pairs, float inverse, Random& r) {
    const cpu::Kernels::Rotation& coding = kernels().coding[static_cast<int>(code)][order];
    const cpu::Kernels::Rotation& widening = kernels().widening[ROPE_DTYPE_BF16 - 1][order];
    ASSERT_EQ(coding.order, widening.order);
    const int dim = 2 * pairs, in_head = dim + 2, out_head = dim + 5, width = PaddedPairs(pairs);
    std::vector<uint16_t> in(static_cast<size_t>(kTokens * kHeads * in_head));
    for (uint16_t& element : in) element = Element(r);
    std::vector<float> rows(static_cast<size_t>(kTokens * 2 * width));
    for (float& value : rows) value = RowValue(r);
    std::vector<float> turned(static_cast<size_t>(kTokens * kHeads * dim));
    std::vector<uint8_t> codes(static_cast<size_t>(kTokens * kHeads * out_head), kCanary);

    const Segment segment = {0, 0, pairs};
    Tensor tensor = {};
    tensor.heads = kHeads;
    tensor.dtype = ROPE_DTYPE_BF16;
    tensor.in_strides = {0, int64_t{2} * kHeads * in_head, int64_t{2} * in_head};
    cpu::Block block = {};
    block.tensor = &tensor;
    block.in = reinterpret_cast<const char*>(in.data());
    block.cos = rows.data();
    block.sin = rows.data() + width;
    block.row_stride = 2 * width;
    block.segments = &segment;
    block.segment_count = 1;
    block.tokens = kTokens;
    block.in_cache = r.Sometimes(2);
    block.inverse = inverse;
    tensor.out_strides = {0, int64_t{4} * kHeads * dim, int64_t{4} * dim};
    block.out = reinterpret_cast<char*>(turned.data());
    widening.rotate(block);
    tensor.out_strides = {0, int64_t{kHeads} * out_head, out_head};
    block.out = reinterpret_cast<char*>(codes.data());
    coding.rotate(block);
    for (int n = 0; n < kTokens * kHeads; ++n) {
      for (int c = 0; c < out_head; ++c) {
        const float value = c < dim ? turned[static_cast<size_t>(n * dim + c)] : 0;
        const uint8_t want = c < dim ? CodeFromFloat(code, value * inverse) : kCanary;
        ASSERT_EQ(codes[static_cast<size_t>(n * out_head + c)], want)
            << static_cast<int>(code) << ", order " << order << ", " << pairs << " pairs, channel "
            << c << ": " << value << " * " << inverse;
      }
    }
  }
};
INSTANTIATE_TARGETS(CodedHeadsTest);

TEST_P(CodedHeadsTest, HaveTheCodesOfWhatTheyTurnTo) {
  if (kernels().coding[0][kHalves].rotate == nullptr) GTEST_SKIP() << "without vectors";
  Random r(20261128);
  for (const Code code : {Code::kE4m3, Code::kE5m2, Code::kInt8}) {
    for (const ChannelOrder order : {kHalves, kInterleaved}) {
      for (int pairs = 1; pairs <= 160; ++pairs) {
        for (const float inverse : {1.0f, 100.0f, 3e-3f, 1e6f}) {
          Check(code, order, pairs, inverse, r);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace rope::testing
