// The stages that code heads in 8 bits and decode them, on every instruction set: the bits of
// math/code.h, in any number of channels, and nothing behind them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "math/code.h"
#include "math/element.h"
#include "math/scale.h"
#include "math/tensor.h"
#include "support/codes.h"
#include "support/q8_0.h"
#include "support/random.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

constexpr uint8_t kCanary = 0x55;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class StagesTest : public TargetTest {
 protected:
  auto EncodeOf(rope_dtype dtype, Code code) const {
    return kernels().encode[dtype - 1][static_cast<int>(code)][0];
  }
  auto EncodeGroupsOf(rope_dtype dtype, Code code) const {
    return kernels().encode_groups[dtype - 1][static_cast<int>(code)][0];
  }
};
INSTANTIATE_TARGETS(StagesTest);

TEST_P(StagesTest, CodeMidpointsTheirNeighboursAndAllSixteenBitValues) {
  for (Code code : {Code::kE4m3, Code::kE5m2, Code::kInt8}) {
    const std::vector<float> values = ValuesToCode(code);
    size_t first = 0;
    for (int64_t count = 0; first < values.size(); first += static_cast<size_t>(count++)) {
      count = std::min<int64_t>(count, static_cast<int64_t>(values.size() - first));
      std::vector<uint8_t> got(static_cast<size_t>(count) + 64, kCanary);
      EncodeOf(ROPE_DTYPE_F32, code)(values.data() + first, got.data(), count, 1.0f);
      for (size_t i = 0; i < got.size(); ++i) {
        const bool is_inside = i < static_cast<size_t>(count);
        const uint8_t want = is_inside ? CodeFromFloat(code, values[first + i]) : kCanary;
        ASSERT_EQ(got[i], want) << static_cast<int>(code) << ": "
                                << (is_inside ? values[first + i] : 0);
      }
    }
  }
}

TEST_P(StagesTest, CodeAnyFloatTimesAnyInverse) {
  Random random(20261124);
  std::vector<float> values(4096);
  std::vector<uint8_t> got(values.size());
  for (int round = 0; round < 100; ++round) {
    for (float& value : values) value = BitsFloat(static_cast<uint32_t>(random.Next()));
    const float inverse = BitsFloat(static_cast<uint32_t>(random.Below(254) + 1) << 23 |
                                    static_cast<uint32_t>(random.Below(1 << 23)));
    for (Code code : {Code::kE4m3, Code::kE5m2, Code::kInt8}) {
      EncodeOf(ROPE_DTYPE_F32, code)(values.data(), got.data(), static_cast<int64_t>(values.size()),
                                     inverse);
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(got[i], CodeFromFloat(code, values[i] * inverse)) << values[i] * inverse;
      }
    }
  }
}

TEST_P(StagesTest, CodeAllElementsOfSixteenBits) {
  std::vector<uint16_t> all(0x10000);
  std::iota(all.begin(), all.end(), uint16_t{0});
  for (rope_dtype dtype : {ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (Code code : {Code::kE4m3, Code::kE5m2, Code::kInt8}) {
      for (float inverse : {1.0f, 0.37f, 0x1p100f, 0x1p-100f}) {
        size_t first = 0;
        for (int64_t count = 1; first < all.size(); first += static_cast<size_t>(count++)) {
          count = std::min<int64_t>(count, static_cast<int64_t>(all.size() - first));
          std::vector<uint8_t> got(static_cast<size_t>(count) + 64, kCanary);
          EncodeOf(dtype, code)(&all[first], got.data(), count, inverse);
          for (size_t i = 0; i < got.size(); ++i) {
            uint8_t want = kCanary;
            if (i < static_cast<size_t>(count)) {
              want = CodeFromFloat(
                  code, LoadElement(dtype, &all[first], static_cast<int64_t>(i)) * inverse);
            }
            ASSERT_EQ(got[i], want) << dtype << ": " << first + i << " * " << inverse;
          }
        }
      }
    }
  }
}

TEST_P(StagesTest, DecodeAllCodesByAnyScale) {
  std::vector<uint8_t> codes(256 + 70);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
  for (Code code : {Code::kE4m3, Code::kE5m2, Code::kInt8}) {
    for (float scale : {1.0f, 0.0123f, 3e-5f, 0x1p-126f, 0x1p126f}) {
      for (size_t count = 0; count <= 70; ++count) {
        const size_t first = count * 37 % 256;
        std::vector<float> got(count + 16, -7.5f);
        kernels().decode[static_cast<int>(code)](&codes[first], got.data(),
                                                 static_cast<int64_t>(count), scale);
        for (size_t i = 0; i < got.size(); ++i) {
          if (i >= count) {
            ASSERT_EQ(got[i], -7.5f);
            continue;
          }
          const auto want = static_cast<float>(ValueOfCode(code, codes[first + i])) * scale;
          ASSERT_TRUE(FloatBits(got[i]) == FloatBits(want) || (got[i] != got[i] && want != want))
              << static_cast<int>(code) << ": " << int{codes[first + i]} << " * " << scale;
        }
      }
    }
  }
}

// What rounding gets wrong: halves, on both sides of 0, and their neighbours.
TEST_P(StagesTest, BlocksOfQ8AreThoseOfTheDefinition) {
  Random random(8);
  for (int64_t blocks : {0, 1, 2, 3, 4, 5, 8, 15, 16, 17, 33}) {
    for (int round = 0; round < 200; ++round) {
      std::vector<float> x(static_cast<size_t>(blocks * kBlock));
      for (float& value : x) {
        value = static_cast<float>(random.Pick(-254, 254)) / 2;
        if (random.Sometimes(3)) value = std::nextafter(value, random.Of({-kInfinity, kInfinity}));
        if (random.Sometimes(30)) value = random.Of({0.0f, -0.0f, 1e30f, 1e-44f, 3e-39f});
        if (round % 3 == 0 && random.Sometimes(90)) {
          value = random.Of({kInfinity, -kInfinity, std::nanf("")});
        }
      }
      for (int64_t b = 0; b < blocks && round % 2 == 0; ++b) {  // a scale of 1, or a power of two
        for (int i = 0; i < kBlock; ++i) {
          float& value = x[static_cast<size_t>(b * kBlock + i)];
          value = std::ldexp(std::fmin(std::fmax(value, -127.0f), 127.0f), round % 7 - 3);
        }
        x[static_cast<size_t>(b * kBlock)] = std::ldexp(127.0f, round % 7 - 3);
      }
      if (round % 5 == 1) {  // a scale that is 0
        for (float& value : x) value = random.Of({0.0f, -0.0f, 1e-44f, -1e-44f});
      }
      if (round % 5 == 2) {  // scales of few digits, and their neighbours
        for (float& value : x) value = std::ldexp(value, -random.Pick(125, 145));
      }
      const auto bytes = static_cast<size_t>(blocks * kBlockBytes);
      std::vector<char> got(bytes + 64, kCanary), want = got;
      for (int64_t b = 0; b < blocks; ++b) WriteBlock(&x[b * kBlock], &want[b * kBlockBytes]);
      kernels().encode_q8[ROPE_DTYPE_F32 - 1](x.data(), got.data(), blocks);
      ASSERT_TRUE(got == want) << blocks << ", round " << round;
      std::vector<float> back(x.size() + 16, -7.5f);
      kernels().decode_q8(got.data(), back.data(), blocks);
      for (size_t i = 0; i < back.size(); ++i) {
        if (i >= x.size()) {
          ASSERT_EQ(back[i], -7.5f);
          continue;
        }
        const float value = ReadFromBlocks(want.data(), static_cast<int64_t>(i));
        ASSERT_TRUE(FloatBits(back[i]) == FloatBits(value) ||
                    (back[i] != back[i] && value != value))
            << back[i] << " " << value;
      }
    }
  }
}

TEST_P(StagesTest, BlocksOfQ8FromSixteenBitsAreThoseOfTheirFloats) {
  Random random(9);
  for (rope_dtype dtype : {ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (int round = 0; round < 500; ++round) {
      const int64_t blocks = random.Pick(1, 40), count = blocks * kBlock;
      const bool finite = random.Sometimes(2);
      std::vector<uint16_t> x(static_cast<size_t>(count));
      for (uint16_t& element : x) {
        element = static_cast<uint16_t>(random.Next() & (finite ? 0xbfff : 0xffff));
      }
      std::vector<float> wide(x.size());
      kernels().widen[dtype - 1](x.data(), wide.data(), count);
      std::vector<char> got(static_cast<size_t>(blocks * kBlockBytes) + 64, kCanary), want = got;
      kernels().encode_q8[dtype - 1](x.data(), got.data(), blocks);
      kernels().encode_q8[ROPE_DTYPE_F32 - 1](wide.data(), want.data(), blocks);
      ASSERT_TRUE(got == want) << dtype << ", round " << round;
    }
  }
}

GroupScales Computed(int32_t group, int32_t groups, float least = 0x1p-126f) {
  GroupScales scales = {};
  scales.dtype = ROPE_DTYPE_F32;
  scales.group = group;
  scales.groups = groups;
  scales.least = least;
  scales.computed = true;
  return scales;
}

TEST_P(StagesTest, TheLargestSizeIsFoundWhereverItIs) {
  for (rope_dtype dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    for (int32_t count = 1; count < 150; ++count) {
      for (int32_t at = 0; at < count; ++at) {
        std::vector<float> values(static_cast<size_t>(count) + 64);  // behind: not to be read
        const auto store = [&](int64_t i, float value) {
          StoreElement(dtype, values.data(), i, value);
        };
        for (int64_t i = 0; i < count + 64; ++i) {
          const float other = i % 3 == 0 ? BitsFloat(0xffc00000u) : 1.5f;
          store(i, i >= count ? kInfinity : i == at ? -2.0f : other);
        }
        const GroupScales scales = Computed(count, 1);
        const HeadStrides none = {};
        const auto scale = [&] {
          float got = 0.0f;
          std::vector<char> codes(static_cast<size_t>(count));
          EncodeGroupsOf(dtype,
                         Code::kInt8)({reinterpret_cast<const char*>(values.data()), codes.data(),
                                       reinterpret_cast<char*>(&got), none, none, 1, 1, scales});
          return got;
        };
        const auto want = [](float largest) {
          return ScaleOf(Code::kInt8, largest, 0x1p-126f, false);
        };
        ASSERT_EQ(scale(), want(2.0f)) << at << " of " << count;
        store(at, -kInfinity);
        ASSERT_EQ(scale(), want(std::numeric_limits<float>::max())) << at << " of " << count;
        store(at, BitsFloat(0x7fc00001u));
        const bool has_no_number = count == 1 || (count == 2 && at == 1);
        ASSERT_EQ(scale(), want(has_no_number ? 0.0f : 1.5f)) << at << " of " << count;
      }
    }
  }
}

// Heads of tokens with gaps between all of them, in which nothing is written.
struct GroupsToCode {
  rope_dtype dtype;
  int32_t tokens, heads;
  GroupScales scales;
  HeadStrides from_strides, to_strides;
  std::vector<char> from, to, scale_bytes;

  GroupsToCode(Random* random, rope_dtype dtype)
      : dtype(dtype),
        tokens(static_cast<int32_t>(random->Below(4)) + 1),
        heads(static_cast<int32_t>(random->Below(9)) + 1) {
    constexpr int32_t kGroups[] = {128, 128, 128, 64, 32, 80, 33, 7, 256};
    scales = Computed(kGroups[random->Below(std::size(kGroups))],
                      static_cast<int32_t>(random->Below(3)) + 1, 0x1p-20f);
    scales.power_of_two = random->Below(2) == 0;
    scales.computed = random->Below(5) != 0;
    if (scales.power_of_two && random->Below(2) == 0) scales.dtype = ROPE_DTYPE_E8M0;
    const int64_t channels = int64_t{scales.group} * scales.groups;
    const auto gap = [&] { return static_cast<int64_t>(random->Below(5)); };
    const auto strides = [&](int64_t head_bytes, int64_t unit) {
      const int64_t head = head_bytes + gap() * unit;
      return HeadStrides{0, head * heads + gap() * unit, head};
    };
    const auto bytes = [&](const HeadStrides& s) { return static_cast<size_t>(s.token * tokens); };
    from_strides = strides(BytesOf(dtype, channels), ElementSize(dtype));
    to_strides = strides(channels, 1);
    const int scale_size = ElementSize(scales.dtype);
    scales.strides = strides(int64_t{scales.groups} * scale_size, scale_size);
    from.assign(bytes(from_strides), 0);
    to.assign(bytes(to_strides), kCanary);
    scale_bytes.assign(bytes(scales.strides), kCanary);
    const auto elements = static_cast<int64_t>(from.size()) / ElementSize(dtype);
    const bool any = random->Below(3) == 0;  // NaN and infinity among them
    for (int64_t i = 0; i < elements; ++i) {
      const float number = std::ldexp(static_cast<float>(random->Below(2001)) - 1000.0f,
                                      static_cast<int>(random->Below(30)) - 25);
      const bool is_special = any && random->Below(500) == 0;
      StoreElement(dtype, from.data(), i,
                   !is_special             ? number
                   : random->Below(2) == 0 ? kInfinity
                                           : std::numeric_limits<float>::quiet_NaN());
    }
    if (!scales.computed) {
      for (size_t i = 0; i < scale_bytes.size() / static_cast<size_t>(scale_size); ++i) {
        StoreScale(scales.dtype, scale_bytes.data(), static_cast<int64_t>(i),
                   std::ldexp(1.0f, static_cast<int>(random->Below(20)) - 10));
      }
    }
  }

  cpu::GroupedHeads At(char* codes, char* first_scales) const {
    return {from.data(), codes, first_scales, from_strides, to_strides, tokens, heads, scales};
  }

  // One channel after the other.
  void CodeOneByOne(Code code, std::vector<char>* codes, std::vector<char>* first_scales) const {
    for (int32_t t = 0; t < tokens; ++t) {
      for (int32_t h = 0; h < heads; ++h) {
        const char* const head = from.data() + HeadOffset(from_strides, 0, t, h);
        char* const to_head = codes->data() + HeadOffset(to_strides, 0, t, h);
        char* const of_head = first_scales->data() + HeadOffset(scales.strides, 0, t, h);
        for (int32_t g = 0; g < scales.groups; ++g) {
          if (scales.computed) {
            uint32_t largest = 0;
            for (int32_t c = 0; c < scales.group; ++c) {
              largest =
                  std::max(largest, SizeForScale(LoadElement(dtype, head, g * scales.group + c)));
            }
            StoreScale(scales.dtype, of_head, g,
                       ScaleOf(code, BitsFloat(largest), scales.least, scales.power_of_two));
          }
          const float inverse = 1.0f / LoadScale(scales.dtype, of_head, g);
          for (int32_t c = g * scales.group; c < (g + 1) * scales.group; ++c) {
            to_head[c] =
                static_cast<char>(CodeFromFloat(code, LoadElement(dtype, head, c) * inverse));
          }
        }
      }
    }
  }
};

TEST_P(StagesTest, GroupsHaveTheCodesAndScalesOfTheirChannels) {
  Random random(20261130);
  for (int round = 0; round < 300; ++round) {
    for (rope_dtype dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
      const GroupsToCode groups(&random, dtype);
      for (Code code : {Code::kE4m3, Code::kE5m2, Code::kInt8}) {
        std::vector<char> codes = groups.to, scales = groups.scale_bytes;
        std::vector<char> want = codes, want_scales = scales;
        EncodeGroupsOf(dtype, code)(groups.At(codes.data(), scales.data()));
        groups.CodeOneByOne(code, &want, &want_scales);
        ASSERT_TRUE(scales == want_scales) << "round " << round << ", " << dtype;
        ASSERT_TRUE(codes == want) << "round " << round << ", " << dtype << ", groups of "
                                   << groups.scales.group << ", code " << static_cast<int>(code);
      }
    }
  }
}

}  // namespace
}  // namespace rope::testing
