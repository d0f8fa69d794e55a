// What the kernels of BACKWARD are given where gradients pass norms or heads are added. See
// gradient.h.
#ifndef LIBROPE_SRC_GPU_GRADIENT_PARAMS_H_
#define LIBROPE_SRC_GPU_GRADIENT_PARAMS_H_

#include <cstdint>

#include "gpu/params.h"
#include "gpu/staged_params.h"
#include "math/divisor.h"
#include "math/norm.h"
#include "math/pairing.h"
#include "math/rounding.h"
#include "math/tensor.h"

namespace rope::gpu {

// q, k, v or rest. Channels are counted from the first one that is read.
struct GradientSide {
  const char* in;  // of the first head of the first token
  char* out;
  HeadStrides in_strides, out_strides;  // bytes
  uint32_t sums;                        // heads of the input that are added for each of the output
  uint32_t heads, block_heads;  // of the output; block_heads: of one token in a block at once
  uint32_t blocks;              // of a token; 1 if its heads pass through one
  uint32_t block_tokens;        // of a block at once
  SmallDivisor by_block_heads, by_heads;
  uint32_t span_at, span;  // where the rotated channels begin, and how many; 0: they do not turn
  uint32_t rest;           // channels besides these
  bool has_parts;          // of the gradients of weights: a block has the tokens of one
  bool one_block;          // has all heads of a token
  StagedNorm norm;
  float inverse_terms;    // of a power of two, else 0
  const char* x;          // what was normed
  HeadStrides x_strides;  // bytes
  // Of the weights, and how many a part has.
  float *weight_grad, *bias_grad;
  int64_t weights;
};
inline constexpr int kMaxGradientSides = 4;

// The parts of the gradients of weights, of all tokens of the call.
struct GradientParts {
  int64_t tokens, rest;  // of a part; tokens that are left over
  Divisor by_parts;
  uint32_t count;

  ROPE_HD int64_t FirstToken(uint32_t part) const { return tokens * part + by_parts(rest * part); }
};

// Heads in columns (gradient_columns.h): the channels of a thread in a row of 32, the threads of a
// head, the heads of a block at once, and the most rows of one.
inline constexpr uint32_t kGradientElements = 4, kGradientLanes = kRunningSums / kGradientElements,
                          kGradientColumnHeads = kStagedThreads / kGradientLanes;
inline constexpr int kGradientRows = 4;
inline constexpr uint32_t kMostRowTokens = 16;  // whose rows are there at once
static_assert(kMaxGradientSides * kMostRowTokens <= kStagedThreads);

struct GradientColumns {
  uint32_t row_tokens;    // whose rows are there at once
  uint32_t block_tokens;  // of a block, where there are no parts
  SmallDivisor by_pairs;
  bool together;  // a block has all sides of its tokens
};

struct GradientParams {
  GradientSide sides[kMaxGradientSides];
  int32_t side_count;
  uint32_t first_block;  // through all sides
  int64_t first_token;   // of the launch, counted through all batch rows
  GradientParts parts;
  Divisor by_repeat;  // by the batch rows that share a row of positions
  Arithmetic arithmetic;
  bool rounds_rows, per_channel;
  bool with_rest;  // channels besides those that turn
  bool reads_interleaved, writes_interleaved;
  int32_t segment_count;
  Segment segments[kMaxLaneSpans];
  // Shared memory: gradients of heads at 0; what was normed, rows, tokens and sums, from bytes on.
  // Of heads in columns: what grows the gradients of weights at 0; at x_at, where tokens lie; rows;
  // whether tokens are in the launch; and, at sums_at, weights and their gradients.
  uint32_t x_at, rows_at, tokens_at, sums_at;
  GradientColumns columns;
  CosSinSource source;
};
static_assert(sizeof(GradientParams) <= 4096, "what every toolkit and driver takes as parameters");

}  // namespace rope::gpu

#endif  // LIBROPE_SRC_GPU_GRADIENT_PARAMS_H_
