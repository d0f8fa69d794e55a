// f16 and bf16: every value, both ways, by src/math/element.h and by the vector code of every
// target, against the definition in double arithmetic.
#include "math/element.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "support/elements.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/reference.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

// By element.h, of a dtype of 16 bits; compilers want room for the largest.
uint16_t FromFloat(rope_dtype dtype, float value) {
  alignas(8) char memory[kMaxElementSize];
  StoreElement(dtype, memory, 0, value);
  uint16_t bits;
  std::memcpy(&bits, memory, sizeof(bits));
  return bits;
}
float ToFloat(rope_dtype dtype, uint16_t bits) {
  alignas(8) char memory[kMaxElementSize];
  std::memcpy(memory, &bits, sizeof(bits));
  return LoadElement(dtype, memory, 0);
}

void ExpectNarrowed(rope_dtype dtype, uint32_t bits) {
  const float value = BitsFloat(bits);
  const uint16_t got = FromFloat(dtype, value);
  if (std::isnan(value)) {
    ASSERT_TRUE(IsNan16(FormatOf(dtype), got)) << std::hex << bits << " became " << got;
    ASSERT_EQ(got >> 15, bits >> 31) << "the sign of a NaN";
    // Quiet: the top bit of the mantissa.
    ASSERT_TRUE(got >> (FormatOf(dtype).mantissa_bits - 1) & 1) << std::hex << bits;
    return;
  }
  ASSERT_EQ(got, NearestOf(FormatOf(dtype), value)) << std::hex << bits << " as " << value;
}

// f32 bits: every sign and exponent, with mantissas at, below and above every rounding boundary of
// both formats, subnormal ones included; and every lower half of a few.
const std::vector<uint32_t>& Boundaries() {
  static const std::vector<uint32_t> values = [] {
    std::set<uint32_t> mantissas;
    for (int shift = 13; shift <= 23; ++shift) {
      const uint32_t unit = 1u << shift;
      for (uint32_t m = 0; m <= 0x800000u; m += unit) {
        for (uint32_t at : {m, m + unit / 2}) {
          for (int delta = -1; delta <= 1; ++delta) {
            mantissas.insert(
                std::min<int64_t>(0x7fffff, std::max<int64_t>(0, int64_t{at} + delta)));
          }
        }
      }
    }
    std::vector<uint32_t> all;
    for (uint32_t sign_and_exponent = 0; sign_and_exponent < 512; ++sign_and_exponent) {
      for (uint32_t m : mantissas) all.push_back(sign_and_exponent << 23 | m);
    }
    // All that bf16 cuts off: below the least, the largest, an even and an odd one.
    for (uint32_t upper : {0x0000u, 0x7f7fu, 0x8001u, 0x3f80u, 0xbf81u}) {
      for (uint32_t lower = 0; lower <= 0xffff; ++lower) all.push_back(upper << 16 | lower);
    }
    return all;
  }();
  return values;
}

TEST(Element, WideningIsExactForAll65536Values) {
  for (rope_dtype dtype : SixteenBitDtypes()) {
    for (int bits = 0; bits < 65536; ++bits) {
      const auto half = static_cast<uint16_t>(bits);
      const float got = ToFloat(dtype, half);
      const double want = ValueOf(FormatOf(dtype), half);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(got)) << std::hex << bits;
      } else {
        ASSERT_EQ(got, want) << std::hex << bits;
      }
      ASSERT_EQ(std::signbit(got), bits >= 0x8000) << std::hex << bits;
    }
  }
}

TEST(Element, NarrowingRoundsToNearestEvenAtEveryBoundary) {
  for (rope_dtype dtype : SixteenBitDtypes()) {
    for (uint32_t bits : Boundaries()) {
      ExpectNarrowed(dtype, bits);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Element, NarrowingIsRightForAllFloats) {
  // With LIBROPE_TEST_LONG all 2^32, else one in 4099.
  const uint64_t step = LongTests() ? 1 : 4099;
  for (rope_dtype dtype : SixteenBitDtypes()) {
    for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += step) {
      ExpectNarrowed(dtype, static_cast<uint32_t>(bits));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Element, NarrowingAWidenedValueGivesItBack) {
  for (rope_dtype dtype : SixteenBitDtypes()) {
    for (int bits = 0; bits < 65536; ++bits) {
      const auto half = static_cast<uint16_t>(bits);
      const float wide = ToFloat(dtype, half);
      if (std::isnan(wide)) continue;
      ASSERT_EQ(FromFloat(dtype, wide), half);
    }
  }
}

// --- the vector code ----------------------------------------------------------------------------

class ElementVectorTest : public TargetTest {
 protected:
  static constexpr int kDim = 1024, kPairs = 512;

  // Turns pairs (x0, x1) by rows of any cos and sin.
  void Rotate(rope_dtype dtype, rope_pairing pairing, int64_t tokens, std::vector<uint16_t>* x,
              const float* cos, const float* sin, int64_t stride) {
    const Context context = Create(Config(kDim, pairing));
    rope_cos_sin rows = Rows(ROPE_COS_SIN_SPLIT, ROPE_DTYPE_F32, kPairs, 1, const_cast<float*>(cos),
                             const_cast<float*>(sin));
    rows.stride_token = stride;
    rope_qk_args args = Args(1, tokens);
    args.q = Tensor(x->data(), dtype, 1);
    args.cos_sin = &rows;
    ASSERT_OK(rope_apply_qk(context.get(), &args));
  }
};
INSTANTIATE_TARGETS(ElementVectorTest);

// cos 1 and sin 0: what was loaded is stored.
TEST_P(ElementVectorTest, LoadsAndStoresAll65536Values) {
  constexpr int64_t kTokens = 65536 / kPairs;
  const std::vector<float> ones(kPairs, 1.0f), zeros(kPairs, 0.0f);
  // Rows of all tokens are the same one: a batch of 1 with one token each.
  for (rope_dtype dtype : SixteenBitDtypes()) {
    for (rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
      for (int member = 0; member < 2; ++member) {
        for (int64_t t = 0; t < kTokens; ++t) {
          std::vector<uint16_t> x(kDim, 0);
          for (int i = 0; i < kPairs; ++i) {
            x[ChannelOf(pairing, kPairs, i, member)] = static_cast<uint16_t>(t * kPairs + i);
          }
          Rotate(dtype, pairing, 1, &x, ones.data(), zeros.data(), 0);
          for (int i = 0; i < kPairs; ++i) {
            const auto want = static_cast<uint16_t>(t * kPairs + i);
            const uint16_t got = x[ChannelOf(pairing, kPairs, i, member)];
            if (IsNan16(FormatOf(dtype), want)) {
              ASSERT_TRUE(IsNan16(FormatOf(dtype), got)) << std::hex << want << " " << got;
            } else if ((want & 0x7fff) == 0) {
              ASSERT_EQ(got & 0x7fff, 0);  // x1 * 0 is added: -0 may become 0
            } else {
              ASSERT_EQ(got, want) << std::hex << "member " << member;
            }
          }
        }
      }
    }
  }
}

// (1, 0) turned: x0 becomes cos, x1 becomes sin, so any f32 value is stored. One of them is 0, or
// both are the same number: vectors with a zero and without may be rounded in different ways.
TEST_P(ElementVectorTest, StoresAnyF32RoundedToNearestEven) {
  std::vector<float> values;
  for (uint32_t bits : Boundaries()) values.push_back(BitsFloat(bits));
  while (values.size() % kPairs != 0) values.push_back(1);
  const auto tokens = static_cast<int64_t>(values.size()) / kPairs;
  const std::vector<float> zeros(values.size(), 0.0f);
  std::vector<float> numbers = values;  // 0 * infinity is none
  std::replace_if(
      numbers.begin(), numbers.end(), [](float value) { return !std::isfinite(value); }, 1.0f);
  const std::vector<float>* const rows[][2] = {
      {&values, &zeros}, {&zeros, &values}, {&numbers, &numbers}};
  for (rope_dtype dtype : SixteenBitDtypes()) {
    const uint16_t one = FromFloat(dtype, 1.0f);
    for (rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
      for (const auto& cos_and_sin : rows) {
        std::vector<uint16_t> x(values.size() * 2, 0);
        for (int64_t t = 0; t < tokens; ++t) {
          for (int i = 0; i < kPairs; ++i) x[t * kDim + ChannelOf(pairing, kPairs, i, 0)] = one;
        }
        Rotate(dtype, pairing, tokens, &x, cos_and_sin[0]->data(), cos_and_sin[1]->data(), kPairs);
        for (int64_t n = 0; n < tokens * kDim; ++n) {
          const int64_t t = n / kDim;
          const int i = static_cast<int>(n % kPairs), member = static_cast<int>(n % kDim / kPairs);
          const float value = (*cos_and_sin[member])[t * kPairs + i];
          const uint16_t got = x[t * kDim + ChannelOf(pairing, kPairs, i, member)];
          if (std::isnan(value)) {
            ASSERT_TRUE(IsNan16(FormatOf(dtype), got)) << std::hex << FloatBits(value);
          } else if (value != 0) {
            ASSERT_EQ(got, FromFloat(dtype, value)) << std::hex << FloatBits(value);
          } else if (cos_and_sin[member] != &zeros) {  // where the other may be no number
            ASSERT_EQ(got & 0x7fff, 0);
          }
        }
      }
    }
  }
}

TEST_P(ElementVectorTest, RoundsRows) {
  std::vector<float> values;
  for (uint32_t bits : Boundaries()) values.push_back(BitsFloat(bits));
  while (values.size() % 64 != 0) values.push_back(0);
  for (rope_dtype dtype : SixteenBitDtypes()) {
    alignas(64) float row[64];
    for (size_t first = 0; first < values.size(); first += 64) {
      std::copy_n(values.begin() + first, 64, row);
      kernels().round_row[dtype - 1](row, 64);
      for (int i = 0; i < 64; ++i) {
        const float value = values[first + i];
        if (std::isnan(value)) {
          ASSERT_TRUE(std::isnan(row[i]));
        } else {
          ASSERT_EQ(FloatBits(row[i]), FloatBits(RoundTo(dtype, value)))
              << std::hex << FloatBits(value);
        }
      }
    }
  }
}

// The stages around a rotation: any number of channels, and nothing behind them.
TEST_P(ElementVectorTest, WidensAll65536ValuesAndNothingBehind) {
  for (rope_dtype dtype : SixteenBitDtypes()) {
    std::vector<uint16_t> all(65536);
    for (size_t bits = 0; bits < all.size(); ++bits) all[bits] = static_cast<uint16_t>(bits);
    size_t first = 0;
    for (int64_t count = 0; first < all.size(); first += static_cast<size_t>(count++)) {
      count = std::min<int64_t>(count, static_cast<int64_t>(all.size() - first));
      std::vector<float> got(static_cast<size_t>(count) + 16, 77.0f);
      kernels().widen[dtype - 1](all.data() + first, got.data(), count);
      for (size_t i = 0; i < got.size(); ++i) {
        const float want = i < static_cast<size_t>(count) ? ToFloat(dtype, all[first + i]) : 77.0f;
        if (std::isnan(want)) {
          ASSERT_TRUE(std::isnan(got[i]));
        } else {
          ASSERT_EQ(FloatBits(got[i]), FloatBits(want)) << std::hex << first + i << " of " << count;
        }
      }
    }
  }
}

TEST_P(ElementVectorTest, NarrowsAnyF32ToNearestEvenAndNothingBehind) {
  std::vector<float> values;
  for (uint32_t bits : Boundaries()) values.push_back(BitsFloat(bits));
  for (rope_dtype dtype : SixteenBitDtypes()) {
    size_t first = 0;
    for (int64_t count = 0; first < values.size(); first += static_cast<size_t>(count++)) {
      count = std::min<int64_t>(count, static_cast<int64_t>(values.size() - first));
      std::vector<uint16_t> got(static_cast<size_t>(count) + 32, 0x1234);
      kernels().narrow[dtype - 1](values.data() + first, got.data(), count);
      for (size_t i = 0; i < got.size(); ++i) {
        if (i >= static_cast<size_t>(count)) {
          ASSERT_EQ(got[i], 0x1234);
        } else if (std::isnan(values[first + i])) {
          ASSERT_TRUE(IsNan16(FormatOf(dtype), got[i])) << std::hex << got[i];
        } else {
          ASSERT_EQ(got[i], FromFloat(dtype, values[first + i]))
              << std::hex << FloatBits(values[first + i]);
        }
      }
    }
  }
}

TEST_P(ElementVectorTest, CopiesF32BothWays) {
  for (int64_t count = 0; count < 70; ++count) {
    std::vector<float> x(128), wide(128, 7.0f), narrow(128, 7.0f);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) + 0.5f;
    kernels().widen[ROPE_DTYPE_F32 - 1](x.data(), wide.data(), count);
    kernels().narrow[ROPE_DTYPE_F32 - 1](x.data(), narrow.data(), count);
    for (size_t i = 0; i < x.size(); ++i) {
      const float want = static_cast<int64_t>(i) < count ? x[i] : 7.0f;
      ASSERT_EQ(wide[i], want);
      ASSERT_EQ(narrow[i], want);
    }
  }
}

}  // namespace
}  // namespace rope::testing
