// Heads of bf16 that become codes as they turn have, on every instruction set, the codes of what
// they turn to in f32: any element, any row, any number of pairs and any scale, or that of their
// largest number; and nothing else is written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/limits.h"
#include "cpu/block.h"
#include "math/code.h"
#include "math/element.h"
#include "math/pairing.h"
#include "math/scale.h"
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

  // Where a scale of a head goes is as far from the next as this.
  static constexpr int kScaleStep = 3;

  // `scales`: of a head's largest number; null: all have one, whose inverse is given.
  void Check(Code code, ChannelOrder order, int pairs, float inverse, const GroupScales* scales,
             Random& r) {
    const auto& codings = scales != nullptr ? kernels().coding_by_largest : kernels().coding;
    const cpu::Kernels::Rotation& coding = codings[static_cast<int>(code)][order];
    const cpu::Kernels::Rotation& widening = kernels().widening[ROPE_DTYPE_BF16 - 1][order];
    ASSERT_EQ(coding.order, widening.order);
    const int dim = 2 * pairs, in_head = dim + 2, out_head = dim + 5, width = PaddedPairs(pairs);
    std::vector<uint16_t> in(static_cast<size_t>(kTokens * kHeads * in_head));
    for (uint16_t& element : in) element = Element(r);
    std::vector<float> rows(static_cast<size_t>(kTokens * 2 * width));
    for (float& value : rows) value = RowValue(r);
    std::vector<float> turned(static_cast<size_t>(kTokens * kHeads * dim));
    std::vector<uint8_t> codes(static_cast<size_t>(kTokens * kHeads * out_head), kCanary);
    std::vector<char> stored(static_cast<size_t>(kTokens * kHeads * kScaleStep * 4), kCanary);

    const Segment segment = {0, 0, pairs};
    Tensor tensor = {};
    tensor.heads = kHeads;
    tensor.dtype = ROPE_DTYPE_BF16;
    tensor.in_strides = {0, int64_t{2} * kHeads * in_head, int64_t{2} * in_head};
    if (r.Sometimes(2)) {  // heads that lie apart
      tensor.in_strides = {0, int64_t{2} * in_head, int64_t{2} * kTokens * in_head};
    }
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
    block.scales = scales;
    block.first_scale = stored.data();
    tensor.out_strides = {0, int64_t{4} * kHeads * dim, int64_t{4} * dim};
    block.out = reinterpret_cast<char*>(turned.data());
    widening.rotate(block);
    tensor.out_strides = {0, int64_t{kHeads} * out_head, out_head};
    block.out = reinterpret_cast<char*>(codes.data());
    coding.rotate(block);
    std::vector<char> want_stored(stored.size(), kCanary);
    for (int n = 0; n < kTokens * kHeads; ++n) {
      if (scales != nullptr) {
        uint32_t largest = 0;
        for (int c = 0; c < dim; ++c) {
          largest = std::max(largest, SizeForScale(turned[static_cast<size_t>(n * dim + c)]));
        }
        const float scale = ScaleOf(code, BitsFloat(largest), scales->least, scales->power_of_two);
        StoreScale(scales->dtype, want_stored.data() + n * scales->strides.head, 0, scale);
        inverse = 1 / scale;
      }
      for (int c = 0; c < out_head; ++c) {
        const float value = c < dim ? turned[static_cast<size_t>(n * dim + c)] : 0;
        const uint8_t want = c < dim ? CodeFromFloat(code, value * inverse) : kCanary;
        ASSERT_EQ(codes[static_cast<size_t>(n * out_head + c)], want)
            << static_cast<int>(code) << ", order " << order << ", " << pairs << " pairs, channel "
            << c << ": " << value << " * " << inverse;
      }
    }
    ASSERT_EQ(stored, want_stored);
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
          Check(code, order, pairs, inverse, nullptr, r);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(CodedHeadsTest, HaveTheScaleOfTheirLargestNumber) {
  if (kernels().coding_by_largest[0][kHalves].rotate == nullptr) {
    GTEST_SKIP() << "in stages: AVX-512 alone has the registers";
  }
  Random r(20261201);
  for (int pairs = 1; pairs <= 160; ++pairs) {
    if (!kernels().CodesByLargest(pairs)) continue;
    for (const Code code : {Code::kE4m3, Code::kE5m2, Code::kInt8}) {
      for (const ChannelOrder order : {kHalves, kInterleaved}) {
        for (int round = 0; round < 200; ++round) {
          GroupScales scales = {};
          scales.group = 2 * pairs;
          scales.groups = 1;
          scales.computed = true;
          scales.power_of_two = r.Sometimes(2);
          const bool in_bytes = scales.power_of_two && r.Sometimes(2);
          scales.dtype = in_bytes ? ROPE_DTYPE_E8M0 : ROPE_DTYPE_F32;
          const int64_t step = kScaleStep * (in_bytes ? 1 : 4);
          scales.strides = {0, kHeads * step, step};
          scales.least = r.Sometimes(3) ? 0.25f : 0x1p-126f;
          Check(code, order, pairs, 0, &scales, r);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace rope::testing
