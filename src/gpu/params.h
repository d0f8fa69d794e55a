// What a kernel is given, by value, in its parameters: where the tensors are, how tokens are
// counted, and the frequencies themselves. There is no state on the device, so that nothing must be
// uploaded, nothing belongs to one device, and a captured graph outlives its context.
#ifndef LIBROPE_SRC_GPU_PARAMS_H_
#define LIBROPE_SRC_GPU_PARAMS_H_

#include <cstdint>

#include "base/limits.h"
#include "math/angle.h"
#include "math/cos_sin_table.h"
#include "math/divisor.h"
#include "math/element.h"
#include "math/host_device.h"
#include "math/operation.h"
#include "math/rounding.h"
#include "math/slots.h"
#include "math/tensor.h"
#include "math/token_position.h"
#include "math/turns.h"

namespace rope::gpu {

inline constexpr int kMaxLaneSpans = kMaxSections;  // segments of a head: those of HALVES_PER_AXIS
inline constexpr int kMaxSets = 8;                  // sets of frequencies in one launch
inline constexpr int kMaxThreads = 512;
static_assert(kMaxThreads >= kMaxPairs, "a block takes the rows of a whole head");
// Space for frequencies. With more of them a call takes several launches.
inline constexpr int kFrequencyBytes = 1024;
inline constexpr int kMaxFrequencies = kFrequencyBytes / sizeof(float);

// The tokens of a launch, n = 0 .. count - 1, run through whole batch rows, or a part of one.
struct TokenRange {
  int64_t first_batch, first_index;
  uint32_t count;         // below 2^31
  uint32_t batch_tokens;  // tokens of a batch row
  SmallDivisor by_row;    // by batch_tokens; multiplier 0, and so all quotients: one batch row
};

// What cos and sin are made of.
enum class CosSinKind : int32_t {
  kFloat32 = static_cast<int32_t>(AngleRule::kFloat32),
  kDivide = static_cast<int32_t>(AngleRule::kDivide),
  kExact = static_cast<int32_t>(AngleRule::kExact),
  kCoordinate = static_cast<int32_t>(AngleRule::kCoordinate),
  kRows,     // the caller's cos and sin
  kRadians,  // the angle itself from f64: ANGLES rows under EXACT
};

union Frequencies {
  float inv_freq[kMaxFrequencies];
  float timescale[kMaxFrequencies];
  uint64_t turns[kFrequencyBytes / sizeof(uint64_t)];
  Turns whole_turns[kFrequencyBytes / sizeof(Turns)];
  double radians[kFrequencyBytes / sizeof(double)];
};

// Pairs of a launch whose channels lie at regular distances: a segment of the head, or a part.
struct LaneSpan {
  uint32_t first_lane;           // of the threads that rotate it
  int32_t first_pair;            // of the launch
  int32_t in_first, in_delta;    // bytes from the rotated span's start to a lane's first vector,
  int32_t out_first, out_delta;  // and from there to its second
  int32_t row_first, row_delta;  // channels in rows of the FULL formats
};

// cos and sin of every token and pair. Frequencies last: what all threads read shares cache lines.
struct CosSinSource {
  TokenRange tokens;
  PositionSource positions;
  CosSinKind kind;
  uint32_t pairs;                 // of this launch
  int32_t first_pair, all_pairs;  // of the context, for rows
  int32_t axes;
  int32_t terms;  // frequencies of a pair: 1, or, with sums over axes, one for each
  bool sums;
  int32_t first_set, set_count, all_sets;  // of this launch, and of the context
  int32_t lane_span_count, row_step;
  LaneSpan lane_spans[kMaxLaneSpans];
  CosSinTable rows;  // kRows: read; rope_cos_sin_fill: written
  bool backward;     // kRows
  Scales scales[kMaxSets];
  uint8_t axis[kMaxFrequencies];
  Frequencies
      frequencies;  // of set s, term a and pair i: [((s - first_set) * terms + a) * pairs + i]
};

// q or k.
struct Side {
  const char* in;  // the rotated span of the first head of the first token
  char* out;
  HeadStrides in_strides, out_strides;  // bytes
  uint32_t heads;
  uint32_t head_groups;  // group g has the heads g and g + head_groups
  // Vectors that are copied, counted over a gap: vector v lies at v * size, behind the gap for
  // v >= copy_gap_at, from copy_in (copy_out) on, which counts from the span.
  uint32_t copy_vectors, copy_gap_at;
  int32_t copy_gap, copy_in, copy_out;
};

// What the threads of a block do, (lanes, groups of heads, tokens) of them, whichever heads they
// have.
struct CommonParams {
  uint32_t lanes, copy_lanes;  // that rotate and that copy; together the block's x
  uint32_t first_head_group;
  int32_t in_step, out_step;  // bytes from a lane's vectors to those of the next lane
  bool rounds_rows;           // to the tensors' dtype
  bool per_channel;           // FULL rows: the members of a pair have their own cos and sin
  CosSinSource source;
};

// rope_apply_qk without `fused`. What a kernel finds at which place is part of its machine code, so
// that what a call with `fused` needs besides is in parameters and kernels of its own.
struct QAndK {
  Side sides[2];
};
struct Params : QAndK, CommonParams {};

// Heads of rope_apply_qk with `fused`: q, k or v, to one place.
struct FusedSide : Side {
  bool turns;     // else its vectors are copied, by all lanes
  bool to_slots;  // out is slot 0, out_strides lead from page to page and from slot to slot
};
// q, k and v to their outputs, k and v to a cache, and rest.
inline constexpr int kMaxSides = 6;

// From slot 0 to that of a token, in bytes, in each side that goes to slots; negative: nowhere.
struct SlotPlaces {
  int64_t bytes[2];
};

struct FusedParams : CommonParams {
  FusedSide sides[kMaxSides];           // those to slots are the last
  int32_t side_count, first_slot_side;  // side_count: none
  uint32_t first_slot_group;  // of heads, through all sides, that goes to slots; UINT32_MAX: none
  int64_t row_tokens;         // of a batch row
  SlotSource slots;
  Divisor page_size;
  uint32_t* dropped;  // null: not counted, or by another launch
};

// How a thread's two vectors hold its pairs; see kernel.h.
enum Form : int32_t {
  kHalves16,
  kAdjacent16,
  kToHalves16,       // reads adjacent, writes halves
  kToInterleaved16,  // reads halves, writes adjacent
  kHalves2,          // vectors of two elements
  kAdjacent2,
  kSingle,  // one element: any order, any alignment
};
inline constexpr int kForms = 7;

// One of the kernels of rope_apply_qk.
struct Variant {
  rope_dtype dtype;
  Form form;
  Arithmetic arithmetic;
};
// FUSED and EAGER of every dtype and form, then NATIVE of every form.
inline constexpr int kCommonVariants = kDtypes * kForms * 2;
inline constexpr int kVariants = kCommonVariants + kForms;
static_assert(kArithmetics == 3);
ROPE_HD constexpr int IndexOf(const Variant& v) {
  if (v.arithmetic == Arithmetic::kNative) return kCommonVariants + v.form;
  return ((v.dtype - 1) * kForms + v.form) * 2 + (v.arithmetic == Arithmetic::kEager ? 1 : 0);
}
ROPE_HD constexpr Variant VariantAt(int index) {
  if (index >= kCommonVariants) {
    return {ROPE_DTYPE_F16, static_cast<Form>(index - kCommonVariants), Arithmetic::kNative};
  }
  return {index / (2 * kForms) + 1, static_cast<Form>(index / 2 % kForms),
          index % 2 != 0 ? Arithmetic::kEager : Arithmetic::kFused};
}

static_assert(sizeof(Params) <= 4096 && sizeof(FusedParams) <= 4096,
              "what every toolkit and driver takes as parameters");

}  // namespace rope::gpu

#endif  // LIBROPE_SRC_GPU_PARAMS_H_
