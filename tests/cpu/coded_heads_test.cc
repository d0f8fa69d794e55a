// Heads of bf16 and f32 that become codes as they turn have, on every instruction set, the codes of
// what they turn to in f32: any element, any row, any number of pairs and any scale, or that of
// their largest number, past the caches or not; and nothing else is written.
#include <gtest/gtest.h>

#include <hwy/cache_control.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/limits.h"
#include "cpu/block.h"
#include "math/code.h"
#include "math/element.h"
#include "math/pairing.h"
#include "math/rounding.h"
#include "math/scale.h"
#include "math/tensor.h"
#include "support/random.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

constexpr int kHeads = 3, kTokens = 2;
constexpr uint8_t kCanary = 0x55;

// Heads of tokens, and a row of each.
struct Heads {
  int dim;
  std::vector<char> in;
  std::vector<float> rows;
  Segment segment;
  Tensor tensor = {};
  cpu::Block block = {};

  Heads(rope_dtype dtype, cpu::RowOrder order, int pairs, Random& r)
      : dim(2 * pairs), segment{0, 0, pairs} {
    const int head = dim + 2, width = cpu::RowWidth(order, pairs), size = ElementSize(dtype);
    in.resize(static_cast<size_t>(kTokens * kHeads * head * size));
    for (int i = 0; i < kTokens * kHeads * head; ++i) SetElement(dtype, in.data(), i, r);
    rows.resize(static_cast<size_t>(kTokens * 2 * width));
    for (float& value : rows) value = RowValue(r);
    tensor.heads = kHeads;
    tensor.dtype = dtype;
    const int64_t head_bytes = int64_t{size} * head;
    tensor.in_strides = {0, kHeads * head_bytes, head_bytes};
    if (r.Sometimes(2)) {  // heads that lie apart
      tensor.in_strides = {0, head_bytes, kTokens * head_bytes};
    }
    block.tensor = &tensor;
    block.in = in.data();
    block.cos = rows.data();
    block.sin = rows.data() + width;
    block.row_stride = 2 * width;
    block.segments = &segment;
    block.segment_count = 1;
    block.tokens = kTokens;
    block.in_cache = r.Sometimes(2);
  }
  Heads(const Heads&) = delete;
  Heads& operator=(const Heads&) = delete;

  // To heads that are so many bytes long.
  void Turn(void (*rotate)(const cpu::Block&), void* out, int64_t head_bytes) {
    tensor.out_strides = {0, kHeads * head_bytes, head_bytes};
    block.out = static_cast<char*>(out);
    rotate(block);
    hwy::FlushStream();
  }
  std::vector<float> TurnedBy(const cpu::Kernels::Rotation& rotation) {
    std::vector<float> turned(static_cast<size_t>(kTokens * kHeads * dim));
    Turn(rotation.rotate, turned.data(), int64_t{4} * dim);
    return turned;
  }

 private:
  // Numbers of the sizes of a model, with some of any bits.
  static void SetElement(rope_dtype dtype, void* elements, int64_t i, Random& r) {
    const float value = static_cast<float>(r.Below(1 << 20) - (1 << 19)) / (1 << 17);
    const uint32_t bits = r.Sometimes(64) ? static_cast<uint32_t>(r.Next()) : FloatBits(value);
    if (dtype == ROPE_DTYPE_F32) {
      std::memcpy(static_cast<char*>(elements) + 4 * i, &bits, 4);
    } else {
      const auto upper = static_cast<uint16_t>(bits >> 16);
      std::memcpy(static_cast<char*>(elements) + 2 * i, &upper, 2);
    }
  }
  static float RowValue(Random& r) {
    if (r.Sometimes(500)) return BitsFloat(static_cast<uint32_t>(r.Next()));
    return static_cast<float>(r.Below(1 << 21) - (1 << 20)) / (1 << 20);
  }
};

class CodedHeadsTest : public TargetTest {
 protected:
  // Where a scale of a head goes is as far from the next as this.
  static constexpr int kScaleStep = 3;

  // What codes heads as they turn, and what turns them to f32. `scales`: as below.
  const cpu::Kernels::Rotation& CodingOf(rope_dtype dtype, Code code, ChannelOrder order,
                                         const GroupScales* scales) const {
    const auto& codings = scales != nullptr ? kernels().coding_by_largest : kernels().coding;
    return codings[dtype - 1][static_cast<int>(code)][order];
  }
  const cpu::Kernels::Rotation& TurningOf(rope_dtype dtype, ChannelOrder order) const {
    if (dtype != ROPE_DTYPE_F32) return kernels().widening[dtype - 1][order];
    return kernels().RotationOf(dtype, order, Arithmetic::kFused, true);
  }

  // `scales`: of a head's largest number; null: all have one, whose inverse is given. `streams`:
  // heads are whole lines.
  void Check(rope_dtype dtype, Code code, ChannelOrder order, int pairs, float inverse,
             const GroupScales* scales, bool streams, Random& r) {
    const cpu::Kernels::Rotation& coding = CodingOf(dtype, code, order, scales);
    const cpu::Kernels::Rotation& turning = TurningOf(dtype, order);
    ASSERT_EQ(coding.order, turning.order);
    const int dim = 2 * pairs, out_head = streams ? dim + 64 : dim + 5;
    Heads heads(dtype, coding.order, pairs, r);
    const std::vector<float> turned = heads.TurnedBy(turning);
    std::vector<uint8_t> lines(static_cast<size_t>(kTokens * kHeads * out_head + 63), kCanary);
    uint8_t* codes = lines.data();
    if (streams) codes += -reinterpret_cast<uintptr_t>(codes) % 64;
    std::vector<char> stored(static_cast<size_t>(kTokens * kHeads * kScaleStep * 4), kCanary);
    heads.block.inverse = inverse;
    heads.block.scales = scales;
    heads.block.first_scale = stored.data();
    heads.Turn(streams ? coding.rotate_streaming : coding.rotate, codes, out_head);
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
        ASSERT_EQ(codes[n * out_head + c], want)
            << dtype << " to " << static_cast<int>(code) << ", order " << order << ", " << pairs
            << " pairs, channel " << c << ": " << value << " * " << inverse;
      }
    }
    ASSERT_EQ(stored, want_stored);
  }
};
INSTANTIATE_TARGETS(CodedHeadsTest);

TEST_P(CodedHeadsTest, HaveTheCodesOfWhatTheyTurnTo) {
  const auto coding = [&](rope_dtype dtype) {
    return CodingOf(dtype, Code::kE4m3, kHalves, nullptr);
  };
  if (coding(ROPE_DTYPE_BF16).rotate == nullptr) GTEST_SKIP() << "without vectors";
  Random r(20261128);
  for (const rope_dtype dtype : {ROPE_DTYPE_BF16, ROPE_DTYPE_F32}) {
    if (coding(dtype).rotate == nullptr) continue;  // f32 in stages: registers, as below
    for (const Code code : {Code::kE4m3, Code::kE5m2, Code::kInt8}) {
      for (const ChannelOrder order : {kHalves, kInterleaved}) {
        for (int pairs = 1; pairs <= 160; ++pairs) {
          if (dtype == ROPE_DTYPE_F32 && !kernels().CodesWholeHeads(pairs)) continue;
          const bool streams = coding(dtype).rotate_streaming != nullptr && pairs % 32 == 0;
          for (const float inverse : {1.0f, 100.0f, 3e-3f, 1e6f}) {
            Check(dtype, code, order, pairs, inverse, nullptr, false, r);
            if (streams) Check(dtype, code, order, pairs, inverse, nullptr, true, r);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_P(CodedHeadsTest, HaveTheScaleOfTheirLargestNumber) {
  Random r(20261201);
  bool none = true;
  for (const rope_dtype dtype : {ROPE_DTYPE_BF16, ROPE_DTYPE_F32}) {
    if (kernels().coding_by_largest[dtype - 1][0][kHalves].rotate == nullptr) continue;
    none = false;
    for (int pairs = 1; pairs <= 160; ++pairs) {
      if (!kernels().CodesWholeHeads(pairs)) continue;
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
            Check(dtype, code, order, pairs, 0, &scales, r.Sometimes(2), r);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
  if (none) GTEST_SKIP() << "in stages: AVX-512 alone has the registers";
}

// As the kernel that codes blocks alone has them (stages_test).
TEST_P(CodedHeadsTest, HaveTheBlocksOfQ8OfWhatTheyTurnTo) {
  Random r(20261203);
  bool none = true;
  for (const rope_dtype dtype : {ROPE_DTYPE_BF16, ROPE_DTYPE_F32}) {
    for (const ChannelOrder order : {kHalves, kInterleaved}) {
      const cpu::Kernels::Rotation& coding = kernels().coding_q8[dtype - 1][order];
      if (coding.rotate == nullptr) continue;
      none = false;
      for (int pairs = 1; pairs <= 160; ++pairs) {
        if (!kernels().CodesWholeHeads(pairs)) continue;
        for (int round = 0; round < 500; ++round) {
          Heads heads(dtype, coding.order, pairs, r);
          if (round % 3 == 0) {  // few digits in a scale, or none
            const int down = r.Pick(110, 150);
            for (float& value : heads.rows) value = std::ldexp(value, -down);
          }
          const std::vector<float> turned = heads.TurnedBy(TurningOf(dtype, order));
          const int64_t head_bytes = BytesOf(ROPE_DTYPE_Q8_0, heads.dim), step = head_bytes + 6;
          std::vector<char> got(static_cast<size_t>(kTokens * kHeads * step), kCanary), want = got;
          heads.Turn(coding.rotate, got.data(), step);
          for (int n = 0; n < kTokens * kHeads; ++n) {
            kernels().encode_q8[ROPE_DTYPE_F32 - 1](&turned[static_cast<size_t>(n * heads.dim)],
                                                    &want[static_cast<size_t>(n * step)],
                                                    heads.dim / 32);
          }
          ASSERT_TRUE(got == want) << dtype << ", order " << order << ", " << pairs << " pairs";
        }
      }
    }
  }
  if (none) GTEST_SKIP() << "in stages: AVX-512 alone has the registers";
}

}  // namespace
}  // namespace rope::testing
