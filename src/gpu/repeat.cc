#include "gpu/repeat.h"

#include <algorithm>

#include "math/element.h"
#include "math/operation.h"
#include "math/token_position.h"

namespace rope::gpu {
namespace {

// What of a token's position depends on its batch row.
enum class RowsIn { kNothing, kIds, kSequences };

RowsIn RowsInPositions(const PositionSource& positions, size_t sets) {
  const bool rows_are_sequences =
      positions.place == PositionSource::kRows ||
      (positions.place == PositionSource::kShard && positions.cu_seqlens == nullptr);
  const bool has_data = positions.type != PositionSource::kNone,
             has_sets = positions.freq_sets != nullptr && sets > 1;
  if (rows_are_sequences && (has_sets || (has_data && positions.per_sequence))) {
    return RowsIn::kSequences;
  }
  return has_data && !positions.per_sequence && positions.stride_batch != 0 ? RowsIn::kIds
                                                                            : RowsIn::kNothing;
}

// Ids of one row, for all batch rows.
void KeepRow(int64_t row, PositionSource* positions) {
  const int64_t size = positions->type == PositionSource::kInt64 ? 8 : 4;
  if (positions->type == PositionSource::kNone || positions->per_sequence) return;
  positions->data =
      static_cast<const char*>(positions->data) + row * positions->stride_batch * size;
  positions->stride_batch = 0;
}

// From batch row to batch row; one alone needs no stride, and with it might leave 64 bits.
int64_t StrideOf(const BatchPart& part, int64_t stride) {
  return part.count == 1 ? 0 : stride * part.step;
}

template <class T>
void Shift(const BatchPart& part, T** data, HeadStrides* strides) {
  *data += part.first * strides->batch;
  strides->batch = StrideOf(part, strides->batch);
}

void Shift(const BatchPart& part, Output* output) {
  if (output->HasScaleArray()) Shift(part, &output->scales.data, &output->scales.strides);
}

// Of a norm that the call has, what points to it and what it has for each token.
void ShiftNorm(const BatchPart& part, const Plan& plan, const Norm& whole, Norm* own,
               FusedPlan* fused) {
  bool has = false;
  const auto point = [&](const Norm** norm) {
    if (*norm != &whole) return;
    *norm = own;
    has = true;
  };
  for (const Norm*& norm : fused->norms) point(&norm);
  for (int32_t n = 0; n < fused->copies.count; ++n) point(&fused->copies.of[n].norm);
  if (has && own->rstd != nullptr) own->rstd += part.first * plan.tokens;
}

void ShiftRows(const BatchPart& part, FillPlan* plan) {
  if (part.position_row >= 0) KeepRow(part.position_row, &plan->positions);
  plan->batch = part.count;
  plan->batch_repeat = part.step;
}

}  // namespace

RepeatedBatch::RepeatedBatch(const FillPlan& plan, const PositionSource* from)
    : rows_(plan.batch / plan.batch_repeat), repeat_(plan.batch_repeat) {
  const size_t sets = plan.context->sets.size();
  RowsIn rows_in = RowsInPositions(plan.positions, sets);
  if (from != nullptr) rows_in = std::max(rows_in, RowsInPositions(*from, sets));
  by_row_ = rows_in == RowsIn::kNothing || (rows_in == RowsIn::kIds && rows_ <= repeat_);
  parts_ = rows_in == RowsIn::kNothing ? 1 : by_row_ ? rows_ : repeat_;
}

BatchPart RepeatedBatch::At(int64_t part) const {
  if (!by_row_) return {part, repeat_, rows_, -1};
  if (parts_ == 1) return {0, 1, rows_ * repeat_, 0};
  return {part * repeat_, 1, repeat_, part};
}

Plan PlanOfPart(const Plan& plan, const BatchPart& part, FusedPlan* fused) {
  Plan own = plan;
  ShiftRows(part, &own);
  for (int32_t n = 0; n < own.tensor_count; ++n) {
    Tensor& t = own.tensors[n];
    Shift(part, &t.in, &t.in_strides);
    Shift(part, &t.out, &t.out_strides);
  }
  if (plan.fused == nullptr) return own;
  *fused = *plan.fused;
  own.fused = fused;
  if (part.position_row >= 0 && kOperations[plan.operation].has_from()) {
    KeepRow(part.position_row, &fused->from);
  }
  for (int32_t n = 0; n < own.tensor_count; ++n) Shift(part, &fused->outputs[n]);
  for (int32_t n = 0; n < fused->copies.count; ++n) {
    Copy& copy = fused->copies.of[n];
    Shift(part, &copy.in, &copy.in_strides);
    Shift(part, &copy.out, &copy.out_strides);
    Shift(part, &copy.output);
  }
  ShiftNorm(part, plan, plan.fused->q_norm, &fused->q_norm, fused);
  ShiftNorm(part, plan, plan.fused->k_norm, &fused->k_norm, fused);
  ShiftNorm(part, plan, plan.fused->v_norm, &fused->v_norm, fused);
  return own;
}

FillPlan PlanOfPart(const FillPlan& plan, const BatchPart& part) {
  FillPlan own = plan;
  ShiftRows(part, &own);
  CosSinTable& rows = own.rows;
  const int64_t bytes = part.first * rows.stride_batch * ElementSize(rows.dtype);
  rows.data = static_cast<char*>(rows.data) + bytes;
  if (rows.sin != nullptr) rows.sin = static_cast<char*>(rows.sin) + bytes;
  rows.stride_batch = StrideOf(part, rows.stride_batch);
  return own;
}

}  // namespace rope::gpu
