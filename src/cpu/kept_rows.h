// The rows of a prepared call: those of all its tokens, rounded and in the order of the kernels
// that will read them.
#ifndef LIBROPE_SRC_CPU_KEPT_ROWS_H_
#define LIBROPE_SRC_CPU_KEPT_ROWS_H_

#include <cstdint>
#include <memory>

#include "call/plan.h"
#include "cpu/cos_sin_rows.h"
#include "cpu/kernels.h"
#include "cpu/scalar.h"

namespace rope::cpu {

class KeptRows {
 public:
  // Of a plan without a NOPE context. May throw std::bad_alloc.
  KeptRows(const Plan& plan, const Kernels& kernels);

  // The number of a token's row: tokens are counted through all batch rows, and those of the next
  // row of each token (Plan::row_heads) follow behind all.
  static int64_t RowOf(const Plan& plan, int32_t row_head, int64_t batch, int64_t token) {
    return (row_head * plan.batch + batch) * plan.tokens + token;
  }

  // Of the rows from `row` on, whether they have other values for one channel of a pair than for
  // the other; null: none of the call has.
  const bool* IsPerChannel(int64_t row) const {
    return is_per_channel_ != nullptr ? is_per_channel_.get() + row : nullptr;
  }

  // Rows in order, of tensor n, from one on.
  OrderedRows From(int n, int64_t row) const {
    const Rows& rows = rows_[n];
    const float* const cos = rows.values + row * 2 * rows.width;
    return {cos, cos + rows.width, 2 * rows.width};
  }
  // Of tensor n and a row that IsPerChannel.
  ChannelRow ChannelRowOf(int n, int64_t row) const {
    const float* const first = channel_values_[n].get() + row * 4 * channel_width_;
    return {first, first + channel_width_, first + 2 * channel_width_, first + 3 * channel_width_};
  }

 private:
  struct Free {
    void operator()(float* values) const;
  };
  using Values = std::unique_ptr<float, Free>;
  struct Rows {
    const float* values;
    int width;  // of a row of cos, and of one of sin
  };

  static Values Allocate(const Plan& plan, int64_t floats_per_row);
  void MakeInOrder(const Plan& plan, const Kernels& kernels);
  void MakePerChannel(const Plan& plan, const Kernels& kernels);

  Rows rows_[2] = {};
  Values values_[2];  // the second is empty where both tensors read the same rows
  // Where some row is per channel.
  std::unique_ptr<bool[]> is_per_channel_;
  Values channel_values_[2];
  int channel_width_ = 0;
};

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_KEPT_ROWS_H_
