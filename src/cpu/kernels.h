// The CPU kernels as seen by the backend: one table of functions for each instruction set, chosen
// when a context is made. No function here allocates or fails.
#ifndef LIBROPE_SRC_CPU_KERNELS_H_
#define LIBROPE_SRC_CPU_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/limits.h"
#include "context/context.h"
#include "cpu/block.h"
#include "math/angle.h"
#include "math/code.h"
#include "math/element.h"
#include "math/pairing.h"
#include "math/rounding.h"
#include "math/scale.h"
#include "math/tensor.h"

namespace rope::cpu {

// Kernels read and write rows of cos and sin in whole vectors of at most this many lanes.
inline constexpr int kMaxLanes = 16;
static_assert(kTablePadding % kMaxLanes == 0);

// How a rotation kernel wants its rows.
enum class RowOrder : uint8_t {
  kNatural,     // c0 c1 c2 ..
  kEvenOdd,     // c0 c2 .. c1 c3 .. in each whole pair of vectors, then natural: bf16 halves
  kPerChannel,  // c0 c0 c1 c1 .. and -s0 s0 -s1 s1 ..: interleaved f32 and f16
};

// Floats of a row of cos, and of one of sin.
inline int RowWidth(RowOrder order, int pairs) {
  return PaddedPairs(pairs) * (order == RowOrder::kPerChannel ? 2 : 1);
}

// How many of these are values.
inline int RowValues(RowOrder order, int pairs) {
  return order == RowOrder::kPerChannel ? 2 * pairs : pairs;
}

// One row of cos and sin to be made, each RowWidth() long. `scale` of FORWARD is the attention
// factor; a negative sin_scale turns backwards.
struct Row {
  float* cos;
  float* sin;
  int32_t pairs;
  float cos_scale, sin_scale;
  RowOrder order;      // one that Kernels::Makes()
  int32_t stride = 0;  // floats from a row to the next, where there are several

  Row Behind(int rows) const {
    Row row = *this;
    row.cos += static_cast<ptrdiff_t>(rows) * stride;
    row.sin += static_cast<ptrdiff_t>(rows) * stride;
    return row;
  }
};

// What positions are multiplied by under FLOAT32, and divided by under DIVIDE.
template <AngleRule kRule>
const std::vector<float>& TermsOf(const FrequencySet& set) {
  static_assert(kRule == AngleRule::kFloat32 || kRule == AngleRule::kDivide);
  return kRule == AngleRule::kDivide ? set.timescale : set.inv_freq_f32;
}

template <AngleRule kRule>
float F32AngleOf(float position, const FrequencySet& set, int pair) {
  const float term = TermsOf<kRule>(set)[static_cast<size_t>(pair)];
  return kRule == AngleRule::kDivide ? QuotientAngle(position, term) : AngleOf(position, term);
}

// Heads of tokens in groups of channels, and where their codes go. Scales lie in an array.
struct GroupedHeads {
  const char* from;  // the first head of the first token
  char* to;
  char* first_scales;
  const HeadStrides &from_strides, &to_strides;  // bytes
  int32_t tokens, heads;
  const GroupScales& scales;
};

// What is added up for a norm: channels, their squares, or those of their distances from a mean.
enum class NormSum : uint8_t { kValues, kSquares, kDistances };
inline constexpr int kNormSums = static_cast<int>(NormSum::kDistances) + 1;

// By rope_norm_rounding.
inline constexpr int kNormRoundings = ROPE_NORM_ROUNDING_EAGER + 1;

struct Kernels {
  const char* target;
  bool fused;     // has fused multiply-add: the bits of rotate.h
  int32_t lanes;  // of the vectors that rows are made in

  // Whether the six functions below make rows of one segment in this order. They make natural ones
  // of any number of segments.
  bool Makes(RowOrder order, int pairs) const {
    return order != RowOrder::kEvenOdd || pairs % (2 * lanes) == 0;
  }
  // FLOAT32 (and GGML, whose positions are angles): rows of as many positions, each for all pairs;
  // or one row, with a position for each pair.
  void (*angle_rows)(const FrequencySet& set, const float* positions, int count, const Row& first);
  void (*angle_row_per_pair)(const FrequencySet& set, const float* positions, const Row& row);
  // DIVIDE, likewise.
  void (*divided_rows)(const FrequencySet& set, const float* positions, int count,
                       const Row& first);
  void (*divided_row_per_pair)(const FrequencySet& set, const float* positions, const Row& row);
  // EXACT with integer positions, likewise.
  void (*phase_rows)(const FrequencySet& set, const int64_t* positions, int count,
                     const Row& first);
  void (*phase_row_per_pair)(const FrequencySet& set, const int64_t* positions, const Row& row);

  // Rounds a natural row in place. [dtype - 1]
  void (*round_row[kDtypes])(float* values, int32_t count);

  // Adjacent channels to f32 and from it: the stages around a rotation in f32. [dtype - 1]
  void (*widen[kDtypes])(const void* from, float* to, int64_t count);
  void (*narrow[kDtypes])(const float* from, void* to, int64_t count);
  // Codes times their scale, as f32. [code]
  void (*decode[kCodes])(const uint8_t* from, float* to, int64_t count, float scale);
  // Channels times `inverse`, that of a scale, as codes. [dtype - 1][code][whether these go past
  // the caches, as whole, aligned lines]
  void (*encode[kDtypes][kCodes][2])(const void* from, uint8_t* to, int64_t count, float inverse);
  // Channels as codes, each group by a scale of its own; or each a whole number of such lines.
  void (*encode_groups[kDtypes][kCodes][2])(const GroupedHeads& heads);
  // Adjacent blocks of Q8_0, from channels: [dtype - 1].
  void (*decode_q8)(const void* from, float* to, int64_t blocks);
  void (*encode_q8[kDtypes])(const void* from, void* to, int64_t blocks);

  struct Rotation {
    RowOrder order;
    void (*rotate)(const Block& block);
    void (*rotate_streaming)(const Block& block);  // non-temporal stores; out is vector-aligned
    // The heads of one token, of `count` tensors, by a row of one segment; their data are in the
    // caches. Null where channels move, and of norms.
    void (*rotate_token)(const Tensor* tensors, int count, const Segment& segment, const float* cos,
                         const float* sin);
  };
  // [dtype - 1][channel order][arithmetic]; null where that is not for this dtype.
  Rotation rotations[kDtypes][kChannelOrders][kArithmetics];
  // bf16, kFused: faster where ties are rare. Null where nothing is. [channel order]
  Rotation rotations_of_rare_ties[kChannelOrders];
  // Of heads that are normed first, by Block::weight0, weight1 and roots, in f32 or rounded
  // between; kFused. Null where there is none, or none is faster than two passes.
  // [dtype - 1][rope_norm_rounding][channel order]
  Rotation normed_rotations[kDtypes][kNormRoundings][kChannelOrders];
  // Heads of 16 bits that become f32 as they turn; kFused. Null where there is none.
  // [dtype - 1][channel order]
  Rotation widening[kDtypes][kChannelOrders];
  // Heads that become codes by one scale, Block::inverse, as they turn; kFused, by rows as
  // `widening` has them, or `rotations` those of f32. Null where there is none; of f32 for
  // CodesWholeHeads() alone. [dtype - 1][code][channel order]
  Rotation coding[kDtypes][kCodes][kChannelOrders];
  // The same by the scale of each head's largest number, Block::scales. Null where there is none;
  // for CodesWholeHeads() alone.
  Rotation coding_by_largest[kDtypes][kCodes][kChannelOrders];
  // The same to blocks of Q8_0, for CodesWholeHeads() alone. [dtype - 1][channel order]
  Rotation coding_q8[kDtypes][kChannelOrders];
  // Heads that wait in registers: those that turn as a whole by so many pairs.
  bool CodesWholeHeads(int pairs) const { return pairs == 2 * lanes || pairs == 4 * lanes; }
  // Of rotations that expect ties or do not the rows have the same order.
  RowOrder RowOrderOf(rope_dtype dtype, ChannelOrder order, Arithmetic arithmetic) const {
    return rotations[dtype - 1][order][static_cast<int>(arithmetic)].order;
  }
  // `rare_ties`: rows have all digits of f32, so few results lie between two bf16.
  const Rotation& RotationOf(rope_dtype dtype, ChannelOrder order, Arithmetic arithmetic,
                             bool rare_ties) const {
    if (rare_ties && dtype == ROPE_DTYPE_BF16 && arithmetic == Arithmetic::kFused &&
        rotations_of_rare_ties[order].rotate != nullptr) {
      return rotations_of_rare_ties[order];
    }
    return rotations[dtype - 1][order][static_cast<int>(arithmetic)];
  }
  // Null where there are no vectors. [dtype - 1][arithmetic]
  ChannelRotation rotate_by_channels[kDtypes][kArithmetics];
  // Whole, aligned lines, with non-temporal stores. Null where there are no vectors.
  void (*copy_streaming)(void* to, const void* from, int64_t bytes);
  // REROTATE: what TurnBack() of cos_sin_rows.cc does to rows in any order, with the same bits.
  // Null where there are no vectors.
  void (*turn_back)(const float* from_cos, const float* from_sin, double factor, int count,
                    float* cos, float* sin);
  // Brings a natural row of all segments into the order of such a kernel.
  void (*order_row)(RowOrder order, const Segment* segments, int32_t segment_count, float* cos,
                    float* sin, const float* natural_cos, const float* natural_sin);

  // Of each head the sum in the order of math/norm.h. [dtype - 1][what is added up]
  void (*norm_sums[kDtypes][kNormSums])(const SummedHeads& heads);
  // Norms channels that do not turn. [dtype - 1]
  void (*norm_heads[kDtypes])(const NormedHeads& heads);
  // The sums of gradients, and what follows from their means. [dtype - 1]
  void (*gradient_sums[kDtypes])(const NormedGradients& heads);
  void (*norm_gradients[kDtypes])(const NormedGradients& heads);
  // Adds so many heads, `step` bytes apart, in their order, in f32. [dtype - 1]
  void (*add_heads[kDtypes])(const void* heads, int64_t step, int count, int channels, float* sum);
  // Weights in f32, `one_plus` of these. [dtype - 1]
  void (*widen_weights[kDtypes])(const void* weights, int count, bool one_plus, float* to);
  // The same of bf16 in the order of RowOrder::kEvenOdd, whose vectors these fill.
  void (*widen_even_odd)(const void* weights, int count, bool one_plus, float* to);
  // 1 / sqrt(sum / channels + eps) of sums, in their place; aligned, and in whole vectors.
  void (*inverse_roots)(float* sums, int count, float channels, float eps);
};

// How kernels.cc finds the kernels that it has compiled for a target (a HWY_* bit); null: none.
using KernelsGetter = const Kernels* (*)();
template <int64_t kTarget>
inline constexpr KernelsGetter kKernelsGetter = nullptr;

// Kernels of the best target of this CPU, or of the one that the environment variable
// LIBROPE_CPU_TARGET names (such as "AVX2"). A name of no target of ListKernels() is an error of
// `function`; an empty value means the best, and programs with raised privileges do not look at it.
rope_status ChooseKernels(const char* function, const Kernels** kernels);

// All targets that were compiled and that this CPU can run, best first.
std::vector<const Kernels*> ListKernels();

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_KERNELS_H_
