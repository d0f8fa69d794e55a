// What the kernels of calls are given that do more than rotate and store: keys that move, out of
// slots or from other positions, norms, what is read in 8 bits, and outputs that differ from their
// input. See staged.h.
#ifndef LIBROPE_SRC_GPU_STAGED_PARAMS_H_
#define LIBROPE_SRC_GPU_STAGED_PARAMS_H_

#include <cstdint>

#include "gpu/params.h"
#include "math/angle.h"
#include "math/divisor.h"
#include "math/element.h"
#include "math/norm.h"
#include "math/pairing.h"
#include "math/rounding.h"
#include "math/slots.h"
#include "math/token_position.h"

namespace rope::gpu {

// A block: a warp for each head, as many heads at a time.
inline constexpr uint32_t kStagedLanes = 32, kStagedWarps = 8;
inline constexpr uint32_t kStagedThreads = kStagedLanes * kStagedWarps;

// Of heads that are held (held.h): the threads of a head.
ROPE_HD constexpr uint32_t HeldLanes(rope_dtype dtype) {
  return static_cast<uint32_t>(kRunningSums * ElementSize(dtype) / 16);
}

// The slots of a cache, read or written.
struct SlotUse {
  SlotSource slots;  // kind 0: none
  Divisor page_size;
  uint32_t* dropped;  // null: tokens whose slot is missing are not counted
};

// The positions before, of REROTATE.
struct PositionsBefore {
  bool given;
  bool whole_turns;  // what frequencies are kept as, under EXACT
  AngleRule rule, rule_after;
  PositionSource positions;
  // The one set of frequencies of the launch that tokens had before, and where among its sets it
  // is.
  int32_t set, at;
  double factors[kMaxSets];  // of each set, by this one
};

// A norm of a side.
struct StagedNorm {
  const char *weight, *bias;
  const float* rstd;      // null: not given
  int64_t weight_stride;  // bytes from head to head
  float eps, terms;       // terms: that a mean is over
  uint32_t channels;      // of a head
  rope_dtype weight_dtype;
  rope_norm_rounding rounding;
  NormRule rule;
  bool is_there;
  bool after;        // the rotation
  bool all_heads;    // are normed together
  bool interleaved;  // its channels: as they are read or, after the rotation, written
};

// `heads`: of the tensor; `interleaved`: its channels.
inline StagedNorm StagedNormOf(const Norm& from, uint32_t heads, bool interleaved) {
  StagedNorm norm{};
  norm.is_there = true;
  norm.weight = from.weight;
  norm.bias = from.bias;
  norm.rstd = from.rstd;
  norm.weight_stride = from.weight_stride;
  norm.eps = from.eps;
  norm.channels = static_cast<uint32_t>(from.channels);
  norm.weight_dtype = from.weight_dtype;
  norm.rounding = from.rounding;
  norm.rule = from.rule;
  norm.after = from.after;
  norm.all_heads = from.span == ROPE_NORM_SPAN_ALL_HEADS;
  norm.interleaved = interleaved;
  norm.terms = static_cast<float>(from.channels);
  if (norm.all_heads) norm.terms *= static_cast<float>(heads);
  return norm;
}

// What a block keeps of them, in shared memory: running sums of each head and, behind them, of each
// token, so many floats apart that threads with one each meet no bank twice; then the moments.
inline constexpr uint32_t kStagedSumStride = kStagedLanes + 1;
// Of heads that are held: so many that vectors of four meet no bank twice.
inline constexpr uint32_t kHeldSumStride = kRunningSums + 4;
struct StagedMoments {
  float mean, root;
};

// What is read in 8 bits, from slots. It counts as f32.
struct StagedInput {
  const char* scales;         // of the first head of slot 0; null: `scale` serves all
  HeadStrides scale_strides;  // bytes
  float scale;
  SmallDivisor by_group;  // by the channels that share a scale
  rope_dtype dtype, scale_dtype;
};
// k and v.
inline constexpr int kMaxInputs = 2;

// What a side's output is where it differs from its input.
struct StagedOutput {
  char* scales;  // of the first head of the first token, or of slot 0; null: `inverse` serves all
  HeadStrides scale_strides;               // bytes
  int64_t repeat_step, scale_repeat_step;  // from each time that a head is written to the next
  float inverse;
  float least;                       // of computed scales
  uint32_t first, channels;          // that go to it, counted as those that are read
  uint32_t groups;                   // of a head, which have a scale each; 0: `inverse` serves all
  SmallDivisor by_group, by_groups;  // by the channels of a group; by the groups of a head
  uint32_t repeats;
  uint8_t dtype, scale_dtype;
  bool is_there;
  bool computed, power_of_two;  // the scales
  bool rounds;                  // to the input's dtype first
  // Tokens that do not turn keep their codes; if `by_place`, only where scales lie in one place.
  bool keeps, by_place;
};

// q, k or v, to one place. Channels are counted from the first one that is read.
struct StagedSide {
  const char* in;                       // of the first head of the first token, or of slot 0
  char* out;                            // likewise
  HeadStrides in_strides, out_strides;  // bytes; of slots: from page to page, from slot to slot
  uint32_t heads, block_heads;          // block_heads: of one token in a block at once
  uint32_t
      blocks;  // of a token; 1 if its heads are normed together. Of heads held: units of a block
  uint32_t vectors;  // of a head
  SmallDivisor by_vectors, by_block_heads;
  uint32_t span_at;               // where the rotated channels begin
  uint32_t copy_begin, copy_end;  // what is written besides those that turn
  bool turns;                     // else there are no rotated channels
  bool from_slots, to_slots;
  uint8_t input;         // 0, or the number, from 1 on, of what is read in 8 bits
  uint32_t input_first;  // which channel of a head in 8 bits is the first that is read
  StagedNorm norm;
  StagedOutput output;

  // Whether heads pass through shared memory; else they are copied.
  ROPE_HD bool is_staged() const { return turns || norm.is_there || output.is_there; }
};

struct StagedParams {
  StagedSide sides[kMaxSides];
  int32_t side_count;
  uint32_t first_block;   // through all sides
  uint32_t block_tokens;  // of a block
  uint32_t block_units;   // of heads held: those of a block, of all that its tokens have
  uint32_t row_shift;     // 2^this warps make the rows of one token
  int64_t row_tokens;     // from one batch row to the next
  SlotUse read, written;
  Arithmetic arithmetic;
  bool rounds_rows, per_channel;
  bool reads_interleaved, writes_interleaved;
  int32_t segment_count;
  Segment segments[kMaxLaneSpans];
  // Shared memory: values of heads at 0, so many floats apart; rows, tokens, norms, their weights
  // (of heads that are held) and the scales of outputs, from bytes on.
  uint32_t head_values, rows_at, tokens_at, norms_at, weights_at, scales_at;
  StagedInput inputs[kMaxInputs];
  PositionsBefore before;
  CosSinSource source;
};
static_assert(sizeof(StagedParams) <= 4096, "what every toolkit and driver takes as parameters");

// One of the kernels: 16-byte vectors or single elements of a dtype, to outputs like their inputs
// or to any; or heads that are held, of 16-byte vectors and to any.
struct StagedVariant {
  rope_dtype dtype;
  bool wide, converts;
  int held;  // vectors of a thread, if these hold heads: 2, 4 or 8
};
inline constexpr int kStagedKernels = 7 * kDtypes;
ROPE_HD constexpr int StagedIndexOf(const StagedVariant& v) {
  if (v.held != 0) return (v.held == 8 ? 6 : v.held == 4 ? 5 : 4) * kDtypes + v.dtype - 1;
  return ((v.converts ? kDtypes : 0) + v.dtype - 1) * 2 + (v.wide ? 0 : 1);
}
ROPE_HD constexpr StagedVariant StagedVariantAt(int index) {
  if (index >= 4 * kDtypes) {
    return {index % kDtypes + 1, true, true, 2 << (index / kDtypes - 4)};
  }
  return {index / 2 % kDtypes + 1, index % 2 == 0, index >= 2 * kDtypes, 0};
}

}  // namespace rope::gpu

#endif  // LIBROPE_SRC_GPU_STAGED_PARAMS_H_
