// The rows of a prepared call: those of all its tokens, rounded and in the order of the kernels
// that will read them.
#ifndef LIBROPE_SRC_CPU_KEPT_ROWS_H_
#define LIBROPE_SRC_CPU_KEPT_ROWS_H_

#include <cstdint>
#include <memory>

#include "call/plan.h"
#include "context/backend.h"
#include "cpu/cos_sin_rows.h"
#include "cpu/kernels.h"
#include "cpu/scalar.h"

namespace rope::cpu {

class KeptRows final : public PreparedRows {
 public:
  // Of a plan without a NOPE context. May throw std::bad_alloc.
  KeptRows(const Plan& plan, const Kernels& kernels);

  // Whether some row has other values for one channel of a pair than for the other: then all have
  // ChannelRows, and else rows in order.
  bool per_channel() const { return per_channel_; }

  // Of tensor n, from a token on (counted through all batch rows).
  OrderedRows From(int n, int64_t token) const {
    const Rows& rows = rows_[n];
    const float* const cos = rows.values + token * 2 * rows.width;
    return {cos, cos + rows.width, 2 * rows.width};
  }
  ChannelRow ChannelRowOf(int n, int64_t token) const {
    const Rows& rows = rows_[n];
    const float* const first = rows.values + token * 4 * rows.width;
    return {first, first + rows.width, first + 2 * rows.width, first + 3 * rows.width};
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

  static Values Allocate(const Plan& plan, int64_t floats_per_token);
  void MakeInOrder(const Plan& plan, const Kernels& kernels);
  void MakePerChannel(const Plan& plan, const Kernels& kernels);

  bool per_channel_ = false;
  Rows rows_[2] = {};
  Values values_[2];  // the second is empty where both tensors read the same rows
};

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_KEPT_ROWS_H_
