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
    return kernels().encode[dtype - 1][static_cast<int>(code)];
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
  for (int64_t blocks = 0; blocks <= 5; ++blocks) {
    for (int round = 0; round < 200; ++round) {
      std::vector<float> x(static_cast<size_t>(blocks * kBlock));
      for (float& value : x) {
        value = static_cast<float>(random.Pick(-254, 254)) / 2;
        if (random.Sometimes(3)) value = std::nextafter(value, random.Of({-kInfinity, kInfinity}));
        if (random.Sometimes(30)) value = random.Of({0.0f, -0.0f, 1e30f, 1e-44f, 3e-39f});
        if (random.Sometimes(90)) value = random.Of({kInfinity, -kInfinity, std::nanf("")});
      }
      for (int64_t b = 0; b < blocks && round % 2 == 0; ++b) {  // a scale of 1, or a power of two
        for (int i = 0; i < kBlock; ++i) {
          float& value = x[static_cast<size_t>(b * kBlock + i)];
          value = std::ldexp(std::fmin(std::fmax(value, -127.0f), 127.0f), round % 7 - 3);
        }
        x[static_cast<size_t>(b * kBlock)] = std::ldexp(127.0f, round % 7 - 3);
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
      const int64_t blocks = random.Pick(1, 5), count = blocks * kBlock;
      std::vector<uint16_t> x(static_cast<size_t>(count));
      for (uint16_t& element : x) element = static_cast<uint16_t>(random.Next());
      std::vector<float> wide(x.size());
      kernels().widen[dtype - 1](x.data(), wide.data(), count);
      std::vector<char> got(static_cast<size_t>(blocks * kBlockBytes) + 64, kCanary), want = got;
      kernels().encode_q8[dtype - 1](x.data(), got.data(), blocks);
      kernels().encode_q8[ROPE_DTYPE_F32 - 1](wide.data(), want.data(), blocks);
      ASSERT_TRUE(got == want) << dtype << ", round " << round;
    }
  }
}

TEST_P(StagesTest, TheLargestSizeIsFoundWhereverItIs) {
  for (rope_dtype dtype : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
    const auto largest_size = kernels().largest_size[dtype - 1];
    for (int64_t count = 1; count < 150; ++count) {
      for (int64_t at = 0; at < count; ++at) {
        std::vector<float> values(static_cast<size_t>(count) + 64);  // behind: not to be read
        const auto store = [&](int64_t i, float value) {
          StoreElement(dtype, values.data(), i, value);
        };
        for (int64_t i = 0; i < count + 64; ++i) {
          const float other = i % 3 == 0 ? BitsFloat(0xffc00000u) : 1.5f;
          store(i, i >= count ? kInfinity : i == at ? -2.0f : other);
        }
        ASSERT_EQ(largest_size(values.data(), count), FloatBits(2.0f)) << at << " of " << count;
        store(at, -kInfinity);
        ASSERT_EQ(largest_size(values.data(), count), 0x7f7fffffu) << at << " of " << count;
        store(at, BitsFloat(0x7fc00001u));
        ASSERT_EQ(largest_size(values.data(), count),
                  count == 1 || (count == 2 && at == 1) ? 0u : FloatBits(1.5f))
            << at << " of " << count;
      }
    }
    EXPECT_EQ(largest_size(nullptr, 0), 0u);
  }
}

}  // namespace
}  // namespace rope::testing
