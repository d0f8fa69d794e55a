#include "cpu/kept_rows.h"

#include <algorithm>
#include <new>

#include "base/limits.h"
#include "math/element.h"

namespace rope::cpu {
namespace {

constexpr std::align_val_t kAlignment{64};

// make(block, row) for all rows of the plan, a RowBuffer of them after the other; `row` is the
// first one's number.
template <class Make>
void ForEachBlock(const Plan& plan, Make make) {
  RowBuffer buffer;
  const int64_t most = RowBuffer::Capacity(*plan.context);
  for (int32_t head = 0; head < plan.row_heads; ++head) {
    for (int64_t batch = 0; batch < plan.batch; ++batch) {
      for (int64_t first = 0; first < plan.tokens; first += most) {
        const auto count = static_cast<int>(std::min(most, plan.tokens - first));
        StartRows(plan, batch, first, count, head, &buffer);
        make(&buffer, KeptRows::RowOf(plan, head, batch, first));
      }
    }
  }
}

// The first tensor of the plan that reads rows as tensor n does.
template <class ReadsAlike>
int FirstAlike(int n, const ReadsAlike& reads_alike) {
  int first = 0;
  while (first < n && !reads_alike(first)) ++first;
  return first;
}

// All of the plan, which may be more than there can be: a k that is only read may have its heads in
// one place.
int64_t RowsOf(const Plan& plan) {
  int64_t rows;
  if (__builtin_mul_overflow(plan.batch * plan.tokens, plan.row_heads, &rows)) {
    throw std::bad_alloc();
  }
  return rows;
}

}  // namespace

void KeptRows::Free::operator()(float* values) const { ::operator delete(values, kAlignment); }

KeptRows::Values KeptRows::Allocate(const Plan& plan, int64_t floats_per_row) {
  int64_t bytes;
  if (__builtin_mul_overflow(RowsOf(plan), floats_per_row * static_cast<int64_t>(sizeof(float)),
                             &bytes) ||
      bytes > PTRDIFF_MAX) {
    throw std::bad_alloc();
  }
  void* const memory = ::operator new(static_cast<size_t>(bytes), kAlignment, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();  // sanitizers end the program where new throws
  return Values(static_cast<float*>(memory));
}

KeptRows::KeptRows(const Plan& plan, const Course& course) {
  bool some = false;
  if (plan.has_rows && plan.rows.format.per_channel()) {
    ForEachBlock(plan, [&](RowBuffer* buffer, int64_t) { some |= buffer->some_per_channel; });
  }
  if (some) MakePerChannel(plan, course.kernels);
  MakeInOrder(plan, course);
}

void KeptRows::MakeInOrder(const Plan& plan, const Course& course) {
  const rope_context& context = *plan.context;
  const auto order_for = [&](int n) { return course.rotations[n]->order; };
  for (int n = 0; n < plan.tensor_count; ++n) {
    const rope_dtype dtype = plan.tensors[n].dtype;
    const RowOrder order = order_for(n);
    const int alike = FirstAlike(n, [&](int other) {
      return order == order_for(other) &&
             RoundedTo(context, dtype) == RoundedTo(context, plan.tensors[other].dtype);
    });
    if (alike != n) {
      rows_[n] = rows_[alike];
      continue;
    }
    const int width = RowWidth(order, context.pairs);
    values_[n] = Allocate(plan, 2 * width);
    float* const values = values_[n].get();
    rows_[n] = {values, width};
    // Not the padding, which rows of the caller do not have.
    const int used = RowValues(order, context.pairs);
    ForEachBlock(plan, [&](RowBuffer* buffer, int64_t row) {
      const OrderedRows made = OrderRows(plan, course.kernels, dtype, order, buffer);
      for (int i = 0; i < buffer->count; ++i) {
        float* const cos = values + (row + i) * 2 * width;
        std::copy_n(made.cos + i * made.stride, used, cos);
        std::copy_n(made.sin + i * made.stride, used, cos + width);
      }
    });
  }
}

void KeptRows::MakePerChannel(const Plan& plan, const Kernels& kernels) {
  const int width = PaddedPairs(plan.context->pairs), pairs = plan.context->pairs;
  channel_width_ = width;
  is_per_channel_ = std::make_unique<bool[]>(static_cast<size_t>(RowsOf(plan)));
  for (int n = 0; n < plan.tensor_count; ++n) {
    const rope_dtype dtype = plan.tensors[n].dtype;
    const int alike = FirstAlike(n, [&](int other) { return plan.tensors[other].dtype == dtype; });
    if (alike != n) {
      channel_rows_[n] = channel_rows_[alike];
      continue;
    }
    channel_values_[n] = Allocate(plan, 4 * width);
    float* const values = channel_values_[n].get();
    channel_rows_[n] = values;
    ForEachBlock(plan, [&](RowBuffer* buffer, int64_t row) {
      for (int i = 0; i < buffer->count; ++i) {
        if (!buffer->is_per_channel[i]) continue;
        is_per_channel_[static_cast<size_t>(row + i)] = true;
        const ChannelRow made = cpu::ChannelRowOf(plan, kernels, dtype, i, buffer);
        float* to = values + (row + i) * 4 * width;
        for (const float* from : {made.cos0, made.sin0, made.cos1, made.sin1}) {
          std::copy_n(from, pairs, to);
          to += width;
        }
      }
    });
  }
}

}  // namespace rope::cpu
