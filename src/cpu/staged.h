// Inputs that no kernel reads, in 8 bits, and outputs that none writes, of another dtype than their
// input or with heads of it repeated: some heads at once are widened or decoded to f32 in the L1
// cache, normed and rotated there by the kernel of f32, and narrowed or coded into the output.
// Where results are rounded to the input's dtype first, its own kernel rotates them.
#ifndef LIBROPE_SRC_CPU_STAGED_H_
#define LIBROPE_SRC_CPU_STAGED_H_

#include <algorithm>
#include <cstdint>

#include "base/limits.h"
#include "call/fused_plan.h"
#include "context/context.h"
#include "cpu/kept_slots.h"
#include "cpu/kernels.h"
#include "cpu/norm_tiles.h"
#include "cpu/stage.h"
#include "math/element.h"
#include "math/norm.h"
#include "math/scale.h"
#include "math/slots.h"
#include "math/tensor.h"

namespace rope::cpu {

// What heads in 8 bits are read by.
struct CodedHeads {
  const SourceHeads* of;     // null: they are in another dtype
  const char* first_scales;  // of the first head of the first token, if there is an array
  int32_t first;             // which channel of a head is the first that is read
};

// Heads of adjacent tokens with their output.
struct StagedHeads {
  const Kernels& kernels;
  const rope_context& context;
  const char* in;  // the first head of the first token
  char* out;
  HeadStrides in_strides, out_strides;  // bytes, from token to token and from head to head
  int32_t heads, width;                 // width: channels that are read, and normed if any are
  int32_t first, stored;                // of these: those that go to the output
  rope_dtype dtype;
  Stage stage;
  const Output& output;
  char* first_scales;  // of the first head of the first token, if the output has an array of them
  const Norm* norm;    // null: none
  int64_t token;       // number of the first token, counted through all batch rows
  CodedHeads coded;    // if they are, `dtype` is F32
  bool streams;        // codes may go past the caches (CodesFillLines())
};

// Where the scales of a head are, if the output has an array of them.
inline char* ScalesAt(const Output& output, const Place& place, int64_t head) {
  if (!output.HasScaleArray()) return nullptr;
  return output.scales.data + HeadOffset(output.scales.strides, place.batch, place.token, head);
}

// The same from heads[head] of a slot on.
inline CodedHeads CodedHeadsOf(const SourceHeads& heads, const Slot& slot, int64_t head,
                               int32_t first) {
  if (!heads.HasScaleArray()) return {&heads, nullptr, first};
  const GroupScales& scales = heads.scales;
  return {&heads, scales.data + HeadOffset(scales.strides, slot.page, slot.index, head), first};
}

// Whether codes, where they do not turn, mean the same in the output by scales that are given, or
// are copied there: then they stay as they are.
bool KeepsCodes(const StagedHeads& staged);
// Of heads whose codes are kept: where scales are computed, they go to the output, too.
void CopyScales(const StagedHeads& staged, int32_t tokens);
void CopyCodes(const StagedHeads& staged, int32_t tokens);

// 6 KiB: heads of f32; or of 16 bits, as many as fit behind themselves in f32, if they come to
// that.
struct StageBuffer {
  static constexpr int kFloats = 1536, kNarrow = kFloats * 2 / 3;
  static_assert(kNarrow >= kMaxHeadDim);
  alignas(64) float wide[kFloats];
};

// The heads that are in the buffer: tokens and heads that follow each other, each head `width`.
struct StagedPart {
  int32_t token, tokens, head, heads;
  char *loaded, *turned;  // in the dtypes of the Stage
  float* wide;

  int32_t channels(const StagedHeads& staged) const { return tokens * heads * staged.width; }
};

void LoadPart(const StagedHeads& staged, const StagedPart& part);
void StorePart(const StagedHeads& staged, const StagedPart& part);

// Heads that do not turn, to their output.
void Convert(const StagedHeads& staged, int32_t tokens);

// Calls apply(part) for one part after the other.
template <class Apply>
void ForEachPart(const StagedHeads& staged, int32_t tokens, const Apply& apply) {
  StageBuffer buffer;
  const Stage& stage = staged.stage;
  const bool is_wide = stage.loaded == ROPE_DTYPE_F32;
  const bool stays_narrow = stage.StaysNarrow(staged.output.dtype);
  const int32_t most = is_wide        ? StageBuffer::kFloats
                       : stays_narrow ? 2 * StageBuffer::kFloats
                                      : StageBuffer::kNarrow;
  const int32_t heads = std::min({staged.heads, most / staged.width, kMostNormedHeads});
  const int32_t per_part =
      heads < staged.heads ? 1 : std::min(most / staged.width, kMostNormedHeads) / heads;
  char* const wide = reinterpret_cast<char*>(buffer.wide);
  char* const narrow =
      stays_narrow ? wide : reinterpret_cast<char*>(buffer.wide + StageBuffer::kNarrow);
  StagedPart part;
  part.wide = buffer.wide;
  part.loaded = is_wide ? wide : narrow;
  part.turned = stage.turned == ROPE_DTYPE_F32 ? wide : narrow;
  for (part.token = 0; part.token < tokens; part.token += part.tokens) {
    part.tokens = std::min(per_part, tokens - part.token);
    for (part.head = 0; part.head < staged.heads; part.head += part.heads) {
      part.heads = std::min(heads, staged.heads - part.head);
      apply(part);
    }
  }
}

// fill(part) loads a part and rotates its `turned`, which then is stored.
template <class Fill>
void RunStages(const StagedHeads& staged, int32_t tokens, const Fill& fill) {
  ForEachPart(staged, tokens, [&](const StagedPart& part) {
    fill(part);
    StorePart(staged, part);
  });
}

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_STAGED_H_
