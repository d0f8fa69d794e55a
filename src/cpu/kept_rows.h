// The rows of a prepared call: those of all its tokens, rounded and in the order of the kernels
// that will read them.
#ifndef LIBROPE_SRC_CPU_KEPT_ROWS_H_
#define LIBROPE_SRC_CPU_KEPT_ROWS_H_

#include <cstdint>
#include <memory>

#include "call/plan.h"
#include "cpu/cos_sin_rows.h"
#include "cpu/course.h"
#include "cpu/kernels.h"
#include "cpu/scalar.h"

namespace rope::cpu {

class KeptRows {
 public:
  // Of a plan without a NOPE context. May throw std::bad_alloc.
  KeptRows(const Plan& plan, const Course& course);

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
    const float* const first = channel_rows_[n] + row * 4 * channel_width_;
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
  void MakeInOrder(const Plan& plan, const Course& course);
  void MakePerChannel(const Plan& plan, const Kernels& kernels);

  // Of each tensor; one that reads the rows of another has no values of its own.
  Rows rows_[3] = {};
  Values values_[3];
  // Where some row is per channel.
  std::unique_ptr<bool[]> is_per_channel_;
  const float* channel_rows_[3] = {};
  Values channel_values_[3];
  int channel_width_ = 0;
};

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_KEPT_ROWS_H_
