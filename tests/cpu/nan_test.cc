// NaN goes where it belongs and nowhere else, whatever its payload and sign, on every target: an
// element, a cos or a sin that is NaN makes the results computed from it NaN, never a number, and
// leaves the bits of all others alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <vector>

#include "math/element.h"
#include "support/elements.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/reference.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

constexpr int kDim = 74, kPairs = kDim / 2;  // a tail after every width of vectors

// Bit patterns: quiet and signalling, all mantissa bits, those that a rounding carry could turn
// over.
std::vector<uint32_t> NansOf(rope_dtype dtype) {
  if (dtype == ROPE_DTYPE_F32) {
    return {0x7fc00000, 0xffc00000, 0x7fffffff, 0xffffffff,
            0x7f800001, 0x7fff8000, 0x7f80ffff, 0xff808000};
  }
  const Format16 f = FormatOf(dtype);
  const uint32_t infinity = static_cast<uint32_t>(f.top_exponent) << f.mantissa_bits;
  const uint32_t quiet = infinity | 1u << (f.mantissa_bits - 1);
  return {quiet, 0x8000 | quiet, 0x7fff, 0xffff, infinity | 1};
}

void SetBits(rope_dtype dtype, void* data, int index, uint32_t bits) {
  const int size = ElementSize(dtype);
  const auto half = static_cast<uint16_t>(bits);
  std::memcpy(static_cast<char*>(data) + index * size,
              dtype == ROPE_DTYPE_F32 ? static_cast<const void*>(&bits) : &half, size);
}

class NanTest : public TargetTest {
 protected:
  using Memory = std::vector<char>;  // of any dtype

  static Memory Elements(rope_dtype dtype) {
    Memory x(kDim * static_cast<size_t>(SizeOf(dtype)));
    for (int i = 0; i < kDim; ++i) StoreElement(dtype, x.data(), i, 1.0f + 0.03f * i);
    return x;
  }
  // `got` is `clean`, but NaN in the marked channels.
  static void Expect(rope_dtype dtype, const Memory& got, const Memory& clean,
                     const std::vector<int>& nans) {
    for (int c = 0; c < kDim; ++c) {
      const bool marked = std::find(nans.begin(), nans.end(), c) != nans.end();
      const float value = LoadElement(dtype, got.data(), c);
      if (marked) {
        EXPECT_TRUE(std::isnan(value)) << "channel " << c << " is " << value;
      } else {
        EXPECT_EQ(FloatBits(value), FloatBits(LoadElement(dtype, clean.data(), c))) << c;
      }
    }
  }
  static void Apply(const Context& context, rope_dtype dtype, rope_operation operation,
                    const rope_cos_sin* rows, Memory* x) {
    rope_qk_args args = Args(1, 1);
    args.operation = operation;
    args.q = Tensor(x->data(), dtype, 1);
    if (rows == nullptr) {
      args.positions = Offset(3);
    } else {
      args.cos_sin = rows;
    }
    ASSERT_OK(rope_apply_qk(context.get(), &args));
  }
};
INSTANTIATE_TARGETS(NanTest);

constexpr int kMarked[] = {0, 5, 17, kPairs - 1};

TEST_P(NanTest, ElementConcernsItsPairAlone) {
  for (rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
    for (rope_rounding rounding = 0; rounding <= kLastRounding; ++rounding) {
      rope_config config = Config(kDim, pairing);
      config.rounding = rounding;
      const Context context = Create(config);
      for (rope_dtype dtype : DtypesOf(rounding)) {
        Memory clean = Elements(dtype);
        Apply(context, dtype, ROPE_OPERATION_FORWARD, nullptr, &clean);
        for (uint32_t bits : NansOf(dtype)) {
          for (int pair : kMarked) {
            for (int member : {0, 1}) {
              SCOPED_TRACE(::testing::Message() << std::hex << bits << " dtype " << dtype
                                                << " pairing " << pairing << " pair " << pair);
              Memory x = Elements(dtype);
              SetBits(dtype, x.data(), ChannelOf(pairing, kPairs, pair, member), bits);
              Apply(context, dtype, ROPE_OPERATION_FORWARD, nullptr, &x);
              Expect(dtype, x, clean,
                     {ChannelOf(pairing, kPairs, pair, 0), ChannelOf(pairing, kPairs, pair, 1)});
            }
          }
        }
      }
    }
  }
}

// The places of the cos and the sin of a pair: which tensor (0 data, 1 sin), which elements.
struct Places {
  int tensor;
  std::vector<int> at;
};
Places PlacesOf(rope_cos_sin_format format, rope_pairing pairing, int pair, bool sin) {
  switch (format) {
    case ROPE_COS_SIN_PACKED: return {0, {sin ? kPairs + pair : pair}};
    case ROPE_COS_SIN_PACKED_SIN_FIRST: return {0, {sin ? pair : kPairs + pair}};
    case ROPE_COS_SIN_SPLIT: return {sin, {pair}};
    case ROPE_COS_SIN_COMPLEX: return {0, {2 * pair + sin}};
    default:
      return pairing == ROPE_PAIRING_INTERLEAVED ? Places{sin, {2 * pair, 2 * pair + 1}}
                                                 : Places{sin, {pair, pair + kPairs}};
  }
}

TEST_P(NanTest, RowValueConcernsItsPairAlone) {
  for (rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
    const Context context = Create(Config(kDim, pairing));
    for (rope_cos_sin_format format : ReadableFormats()) {
      // Of the FULL formats the one in the order of the pairing.
      const bool interleaved = pairing == ROPE_PAIRING_INTERLEAVED;
      if (format == ROPE_COS_SIN_FULL_HALVES && interleaved) continue;
      if (format == ROPE_COS_SIN_FULL_INTERLEAVED && !interleaved) continue;
      const bool two = rope_cos_sin_tensors(format) == 2;
      for (rope_dtype row_dtype = 1; row_dtype <= kLastDtype; ++row_dtype) {
        Memory tensors[2] = {Elements(row_dtype), Elements(row_dtype)};
        const rope_cos_sin rows = Rows(format, row_dtype, kPairs, 1, tensors[0].data(),
                                       two ? tensors[1].data() : nullptr);
        const rope_positions positions = Offset(3);
        ASSERT_OK(rope_cos_sin_fill(context.get(), 1, 1, &positions, &rows, nullptr));
        const Memory filled[2] = {tensors[0], tensors[1]};
        for (rope_dtype dtype = 1; dtype <= kLastDtype; ++dtype) {
          for (rope_operation operation : OperationsOf(true, false)) {
            Memory clean = Elements(dtype);
            Apply(context, dtype, operation, &rows, &clean);
            for (uint32_t bits : NansOf(row_dtype)) {
              for (int pair : kMarked) {
                for (bool sin : {false, true}) {
                  SCOPED_TRACE(::testing::Message()
                               << std::hex << bits << " in format " << format << " of dtype "
                               << row_dtype << (sin ? " sin" : " cos") << " dtype " << dtype
                               << " pairing " << pairing << " pair " << pair << " operation "
                               << operation);
                  const Places places = PlacesOf(format, pairing, pair, sin);
                  for (int at : places.at) {
                    SetBits(row_dtype, tensors[places.tensor].data(), at, bits);
                  }
                  Memory x = Elements(dtype);
                  Apply(context, dtype, operation, &rows, &x);
                  Expect(
                      dtype, x, clean,
                      {ChannelOf(pairing, kPairs, pair, 0), ChannelOf(pairing, kPairs, pair, 1)});
                  tensors[places.tensor] = filled[places.tensor];
                }
              }
            }
          }
        }
      }
    }
  }
}

// A coordinate that is not a number leaves the other axes as they are, however large they be, and
// its own channels become NaN in every dtype, whatever its payload.
TEST_P(NanTest, CoordinateConcernsItsAxisAlone) {
  const auto bits = [](uint32_t value) {
    float result;
    std::memcpy(&result, &value, sizeof(result));
    return result;
  };
  for (rope_angle angle :
       {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT, ROPE_ANGLE_GGML, ROPE_ANGLE_DIVIDE}) {
    rope_config config = Config(96);
    config.angle = angle;
    config.axes = 3;
    for (int a = 0; a < 3; ++a) config.mrope_section[a] = 16;
    const Context context = Create(config);
    for (rope_dtype dtype = 1; dtype <= kLastDtype; ++dtype) {
      for (uint32_t nan : {0x7fc00000u, 0x7fffffffu, 0xffffffffu, 0x7f800001u}) {
        for (float large : {1.0f, 3e9f}) {
          const auto rotated = [&](float middle) {
            const float ids[3] = {large, middle, 5};
            std::vector<char> x(96 * static_cast<size_t>(SizeOf(dtype)));
            for (int c = 0; c < 96; ++c) WriteElement(dtype, &x[c * SizeOf(dtype)], 1.0);
            rope_qk_args args = Args(1, 1);
            args.q = Tensor(x.data(), dtype, 1);
            args.positions = Ids(ROPE_POSITIONS_IDS_BTA, ids);
            EXPECT_OK(rope_apply_qk(context.get(), &args));
            std::vector<double> y(96);
            for (int c = 0; c < 96; ++c) y[c] = ReadElement(dtype, &x[c * SizeOf(dtype)]);
            return y;
          };
          const std::vector<double> want = rotated(2), got = rotated(bits(nan));
          for (int c = 0; c < 96; ++c) {
            if (c % 48 / 16 == 1) {
              EXPECT_TRUE(std::isnan(got[c])) << c << " " << dtype << " " << nan;
            } else {
              // Without fused multiply-add vectors and single pairs may differ by a rounding.
              EXPECT_NEAR(got[c], want[c], 1e-6 + (IsNarrow(dtype) ? 1e-2 : 0)) << c;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace rope::testing
