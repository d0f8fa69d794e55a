// Rows of cos and sin for a block of tokens, from positions or from the caller's rows.
#ifndef LIBROPE_SRC_CPU_COS_SIN_ROWS_H_
#define LIBROPE_SRC_CPU_COS_SIN_ROWS_H_

#include <cstdint>

#include "base/limits.h"
#include "call/plan.h"
#include "cpu/kernels.h"
#include "cpu/scalar.h"

namespace rope::cpu {

// The rows of one block of tokens. Lives on the stack: apply allocates nothing.
struct RowBuffer {
  static constexpr int kFloats = 2048;  // 8 KiB of natural rows: cos and sin of 1024 pairs
  static_assert(kFloats >= 4 * PaddedPairs(kMaxPairs), "four rows of ChannelRowOf");
  static constexpr int kTokens = kFloats / (2 * kTablePadding);  // the most that Capacity() gives

  // Rows in a kernel's order, which can be twice as long as natural ones (kPerChannel).
  alignas(64) float ordered[2 * kFloats];
  // Where rows cannot be made in that order, or are the caller's: natural ones, which are ordered
  // from here. Else REROTATE has a row of the old position here. Of a FULL format the second
  // members' rows are in `ordered`, until others are.
  alignas(64) float natural[kFloats];

  // The tokens, and which of their rows, where they have several (Plan::row_heads).
  int64_t batch, first;  // batch: that of positions or rows
  int count;
  int32_t row_head;
  int rows;  // `count`, or 1: the tokens have one position, and rows lie 0 floats apart
  // What `ordered` holds, so that q and k share it: rows rounded to a dtype (0: not rounded; -1:
  // nothing yet), and their order.
  rope_dtype ordered_dtype;
  RowOrder ordered_order;
  // Whether token i's row, of a FULL format, has different values in the channels of a pair, and
  // whether some row has.
  bool is_per_channel[kTokens];
  bool some_per_channel;
  // Natural rows, once there are any: `cos` + i * `stride`. They may be the caller's own.
  const float* cos;
  const float* sin;
  int64_t stride;

  int64_t StrideOf(int64_t stride) const { return rows == count ? stride : 0; }

  // Tokens that fit.
  static int Capacity(const rope_context& context) {
    return kFloats / (2 * PaddedPairs(context.pairs));
  }
};

// Rounds rows in an order, each followed by the next, to a dtype.
void RoundRows(const Kernels& kernels, rope_dtype dtype, RowOrder order, int pairs, int count,
               float* rows);

// REROTATE of the only token of a call, whose heads have one row: that row in an order, followed by
// nothing. False where rows cannot be made in that order at once: nothing has been written then.
bool MakeRowOfMove(const Plan& plan, const Kernels& kernels, RowOrder order, float* row);

// Tokens [first, first + count) of a batch row, and one of the rows of each. Reads the caller's
// rows, if the call has any.
void StartRows(const Plan& plan, int64_t batch, int64_t first, int count, int32_t row_head,
               RowBuffer* buffer);

struct OrderedRows {
  const float* cos;
  const float* sin;
  int64_t stride;
};

// What rows for tensors of this dtype are rounded to; 0: nothing.
rope_dtype RoundedTo(const rope_context& context, rope_dtype dtype);

// The block's rows rounded as the context's policy asks for this dtype, in the kernel's order.
OrderedRows OrderRows(const Plan& plan, const Kernels& kernels, rope_dtype dtype, RowOrder order,
                      RowBuffer* buffer);

// The same for row i where buffer->is_per_channel[i], as long as no rows have been ordered.
ChannelRow ChannelRowOf(const Plan& plan, const Kernels& kernels, rope_dtype dtype, int i,
                        RowBuffer* buffer);

// rope_cos_sin_fill.
void FillRows(const FillPlan& plan, const Kernels& kernels);

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_COS_SIN_ROWS_H_
