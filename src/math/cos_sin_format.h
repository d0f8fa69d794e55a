// What the formats of rows of cos and sin mean, once for all backends and bindings. Host and
// device.
#ifndef LIBROPE_SRC_MATH_COS_SIN_FORMAT_H_
#define LIBROPE_SRC_MATH_COS_SIN_FORMAT_H_

#include <cstdint>
#include <iterator>

#include "librope/rope.h"
#include "math/host_device.h"

namespace rope {

// Where a row has the values of one kind.
struct Place {
  uint8_t tensor;  // 0: data; 1: sin
  uint8_t step;    // from one pair to the next
  uint8_t first;
  bool after_all;  // behind the values of the other kind, of all pairs

  ROPE_HD int64_t IndexOf(int32_t pair, int32_t pairs) const {
    return first + step * pair + (after_all ? pairs : 0);
  }
};

// What a row has values for.
enum class Holds : uint8_t {
  kPairs,                // cos and sin of each pair
  kChannels,             // both tensors: of each channel, as v0 v1 .. v0 v1 ..
  kInterleavedChannels,  // as v0 v0 v1 v1 ..
  kAngles,               // F32 angles in place of cos and sin, not scaled
};

struct CosSinFormat {
  uint8_t tensors;
  uint8_t values_per_pair;  // in a row of each tensor
  bool is_read;             // by rope_apply_qk; the others are only written
  Holds holds;
  Place cos, sin;  // of kPairs. kAngles: of the first and of the second copy

  ROPE_HD int64_t Width(int64_t pairs) const { return values_per_pair * pairs; }
  ROPE_HD bool is_angles() const { return holds == Holds::kAngles; }
  ROPE_HD bool per_channel() const {
    return holds == Holds::kChannels || holds == Holds::kInterleavedChannels;
  }
  ROPE_HD bool interleaved() const { return holds == Holds::kInterleavedChannels; }
};

inline constexpr Place kFirst{0, 1, 0, false}, kAfter{0, 1, 0, true}, kInSin{1, 1, 0, false},
    kEven{0, 2, 0, false}, kOdd{0, 2, 1, false};

// By number. Device code gets its row in a CosSinTable: a table of the host cannot be indexed
// there.
inline constexpr CosSinFormat kCosSinFormats[] = {
    {},
    {1, 2, true, Holds::kPairs, kFirst, kAfter},        // PACKED
    {1, 2, true, Holds::kPairs, kAfter, kFirst},        // PACKED_SIN_FIRST
    {2, 1, true, Holds::kPairs, kFirst, kInSin},        // SPLIT
    {2, 2, true, Holds::kChannels, {}, {}},             // FULL_HALVES
    {2, 2, true, Holds::kInterleavedChannels, {}, {}},  // FULL_INTERLEAVED
    {1, 2, true, Holds::kPairs, kEven, kOdd},           // COMPLEX
    {1, 2, false, Holds::kPairs, kOdd, kEven},          // SINUSOIDAL
    {1, 1, false, Holds::kAngles, kFirst, {}},          // ANGLES
    {1, 2, false, Holds::kAngles, kFirst, kAfter},      // ANGLES_FULL
};
static_assert(std::size(kCosSinFormats) == ROPE_COS_SIN_ANGLES_FULL + 1);

inline constexpr const char* kCosSinFormatNames[] = {
    "",        "PACKED",     "PACKED_SIN_FIRST", "SPLIT",       "FULL_HALVES", "FULL_INTERLEAVED",
    "COMPLEX", "SINUSOIDAL", "ANGLES",           "ANGLES_FULL",
};
static_assert(std::size(kCosSinFormatNames) == std::size(kCosSinFormats));

constexpr bool IsFormat(rope_cos_sin_format format) {
  return format > 0 && format < static_cast<rope_cos_sin_format>(std::size(kCosSinFormats));
}

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_COS_SIN_FORMAT_H_
