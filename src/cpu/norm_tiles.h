// Norms of heads: blocks of tokens are cut into tiles that the L1 cache holds, whose sums are all
// added before the first head is written.
#ifndef LIBROPE_SRC_CPU_NORM_TILES_H_
#define LIBROPE_SRC_CPU_NORM_TILES_H_

#include <cstdint>

#include "call/plan.h"
#include "context/context.h"
#include "cpu/block.h"
#include "cpu/caches.h"
#include "cpu/kernels.h"
#include "math/element.h"
#include "math/norm.h"
#include "math/tensor.h"

namespace rope::cpu {

// What the functions below are told about a tensor and its norm.
struct NormOf {
  const Kernels& kernels;
  const rope_context& context;
  const Norm& norm;
  const Tensor& tensor;
  const char* prefetch_last = nullptr;  // this and what follows: as of a Block
  bool prefetch_into_l1 = false;
  bool in_cache = true;
};

inline const NormTiles& NormTilesOf(const Caches& caches, rope_dtype dtype) {
  return IsNarrow(dtype) ? caches.normed_narrow : caches.normed_f32;
}

// What the norm rounds between itself and the rotation: nothing of f32.
inline rope_norm_rounding RoundingOf(const Norm& norm, rope_dtype dtype) {
  return IsNarrow(dtype) ? norm.rounding : ROPE_NORM_ROUNDING_FLOAT32;
}

// Whether heads turn as a whole, by rows without padding: weights that are in order for one of
// them, or for each pair of vectors, then are in order for all.
inline bool TurnsWhole(const Kernels& kernels, const rope_context& context, const Norm& norm,
                       ChannelOrder order, RowOrder row_order) {
  const int pairs = context.pairs;
  return context.segments.size() == 1 && context.rotary_dim == norm.channels &&
         pairs == PaddedPairs(pairs) && kernels.Makes(row_order, pairs) &&
         (row_order == RowOrder::kPerChannel || !ReadsInterleaved(order));
}

// Whether the norm and the rotation are one pass. Else the norm has a pass of its own, from input
// to output or, behind the rotation, in place. f32 could do either where heads have weights of
// their own; to order these takes longer than a pass, unless they are in order. Rounded channels
// and rows of as few digits meet ties too often for kernels that expect few.
inline bool TakesOnePass(const Kernels& kernels, ChannelOrder order, const rope_context& context,
                         const Norm& norm, rope_dtype dtype) {
  const rope_norm_rounding rounding = RoundingOf(norm, dtype);
  const Kernels::Rotation& rotation = kernels.normed_rotations[dtype - 1][rounding][order];
  return !context.nope && !norm.after && !norm.rule.has_mean &&
         context.rounding.arithmetic == Arithmetic::kFused &&
         (IsNarrow(dtype) || norm.weight_stride == 0 ||
          TurnsWhole(kernels, context, norm, order, rotation.order)) &&
         (rounding == ROPE_NORM_ROUNDING_FLOAT32 || !context.rounding.rounds_rows) &&
         rotation.rotate != nullptr;
}

// The inverse root of a token of which all heads are normed together, and of norms that have one,
// the mean.
void FindTokenMoments(const NormOf& of, const char* in, float* root, float* mean);

// Where a tensor is normed: not at all, as it is turned, or in a pass of its own; or where its
// gradient passes the norm.
enum class NormPass : uint8_t { kNone, kWithRotation, kBefore, kAfter, kGradient };

// The norms of a call, and its tensors: as they are given, and as the rotation sees them, in place
// where a pass before has been there.
struct Norms {
  Norms(const Plan& plan, const Kernels& kernels, ChannelOrder order, const Tensor* given,
        const FusedPlan& fused);

  const Tensor* given;
  bool some;
  NormPass passes[3];
  Tensor tensors[3];
};

// So many channels of a head, from one of its input and one of its output on.
struct ChannelPart {
  int in, out, channels;
};

// Whether what norms a tensor writes its channels outside the span, too.
inline bool WritesRest(const rope_context& context, const Norm& norm, const Tensor& tensor) {
  return norm.channels != context.rotary_dim && (tensor.in == tensor.out || tensor.copies_rest);
}

// What a pass of its own norms of a tensor.
inline ChannelPart NormedPart(const rope_context& context, const Norm& norm, const Tensor& tensor) {
  if (WritesRest(context, norm, tensor)) return {0, 0, norm.channels};
  const int size = ElementSize(tensor.dtype);
  return {tensor.in_span / size, tensor.out_span / size, context.rotary_dim};
}

// Tokens [token, token + count) of those that are read one after the other, which are written so,
// too: the first head of the first one to `out`.
struct WrittenRun {
  int token, count;
  char* out;
};
// In their order; what is in none of them is not written.
struct WrittenRuns {
  const WrittenRun* runs;
  int count;

  int Tokens() const { return runs[count - 1].token + runs[count - 1].count; }
};

// Norms channels of tokens, from number `token` on, counted through all batch rows, whose first
// head begins at `in`. They do not turn.
void NormTokens(const NormOf& of, const ChannelPart& part, const char* in, const WrittenRuns& out,
                int64_t token);

// Norms heads on their way through a buffer at `to`, one behind the other: [first, first + heads)
// of each of `tokens`. They are there, in a dtype, or (`from_memory`) still where the tensor has
// them, whose first head of the first token begins at `in`; what norms all heads together looks at
// it in any case. Never more than kMostNormedHeads.
inline constexpr int32_t kMostNormedHeads = 64;
void NormInBuffer(const NormOf& of, const char* in, int64_t token, int tokens, int32_t first,
                  int32_t heads, bool from_memory, rope_dtype dtype, char* to);

// One of Kernels::normed_rotations.
struct OnePass {
  ChannelOrder order;
  RowOrder row_order;
  void (*rotate)(const Block& block);
  bool writes_rest;  // the output has the channels outside the span, too
};

// Norms the tokens of a block, which is complete but for its norm and its output, and turns them.
void NormAndRotate(const NormOf& of, const OnePass& pass, const Block& block,
                   const WrittenRuns& out, int64_t token);

// The same of one token, whose row has other values for one channel of a pair than for the other:
// head by head.
void NormAndRotateByChannels(const NormOf& of, const OnePass& pass, const ChannelRow& row,
                             const char* in, char* out, int64_t token);

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_NORM_TILES_H_
