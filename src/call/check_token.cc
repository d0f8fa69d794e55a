#include "call/check_token.h"

#include <cstddef>
#include <cstdint>

#include "base/struct_size.h"
#include "call/check_tensors.h"
#include "math/element.h"
#include "math/operation.h"

namespace rope {
namespace {

// A position that is counted, or one id.
bool ReadPosition(const rope_positions& p, WholeSource* source) {
  constexpr size_t kIds = offsetof(rope_positions, ids_i32);
  constexpr size_t kBehindIds = offsetof(rope_positions, ids_f32);
  if (p.sequences != 0) return false;
  *source = WholeSource{};
  if (p.kind == ROPE_POSITIONS_OFFSET) {
    source->offset = p.offset;
    return IsZeroFrom<offsetof(rope_positions, offsets_i32)>(p);
  }
  if (p.kind != ROPE_POSITIONS_IDS_T && p.kind != ROPE_POSITIONS_IDS_BT) return false;
  if (!IsZeroFrom<offsetof(rope_positions, offset), kIds>(p) || !IsZeroFrom<kBehindIds>(p)) {
    return false;
  }
  const bool narrow = p.ids_i32 != nullptr;
  if (narrow == (p.ids_i64 != nullptr)) return false;
  source->type = narrow ? WholeSource::kInt32 : WholeSource::kInt64;
  source->data = narrow ? static_cast<const void*>(p.ids_i32) : p.ids_i64;
  return (reinterpret_cast<uintptr_t>(source->data) & (narrow ? 3 : 7)) == 0;
}

// All but positions and tensors.
__attribute__((always_inline)) inline bool IsOneToken(const rope_context& context,
                                                      const rope_qk_args& args) {
  if (((args.batch ^ 1) | (args.tokens ^ 1)) != 0 || !context.has_one_row) return false;
  if (args.cos_sin != nullptr || args.stream != nullptr) return false;
  return args.runner == nullptr || args.runner->parallel_for != nullptr;
}

// All but the tensors.
__attribute__((always_inline)) inline bool DescribePlace(const rope_context& context,
                                                         const rope_qk_args& args,
                                                         WholeSource* positions) {
  return IsOneToken(context, args) && kOperations[args.operation].positions == Positions::kPlaces &&
         ReadPosition(args.positions, positions);
}

// Sizes up to these have no product that could overflow.
constexpr int32_t kMostHeads = 1 << 16;
constexpr int64_t kMostStride = 1 << 29;

// Where another token would be is not asked for.
__attribute__((always_inline)) inline bool DescribeHeads(const rope_context& context,
                                                         const rope_tensor& t, Tensor* tensor,
                                                         Reach* reach) {
  if (t.data == nullptr || t.scale != nullptr || t.reserved != 0) return false;
  if (!IsDtype(t.dtype) || !IsFor(context.rounding.arithmetic, t.dtype)) return false;
  if (t.heads < 1 || t.heads > kMostHeads) return false;
  const bool whole = t.head_dim == 0 || t.head_dim == context.head_dim;
  if (!whole && t.head_dim != context.rotary_dim) return false;
  const int size = ElementSize(t.dtype);
  const int64_t dim = whole ? context.head_dim : context.rotary_dim;
  int64_t stride = dim;
  const auto strides = static_cast<uint64_t>(t.stride_batch | t.stride_token | t.stride_head);
  if (t.layout == ROPE_LAYOUT_STRIDED) {
    stride = t.stride_head;
    if (strides >= kMostStride || (stride < dim && t.heads > 1)) return false;
  } else if (t.layout < ROPE_LAYOUT_BSHD || t.layout > ROPE_LAYOUT_STRIDED || strides != 0) {
    return false;
  }
  const int64_t step = stride * size;
  reach->width = dim * size;
  reach->extent = (t.heads - 1) * step + reach->width;
  tensor->in = static_cast<const char*>(t.data);
  tensor->out = static_cast<char*>(t.data);
  tensor->in_strides = {step, step, step};  // from registers: a copy would wait for these stores
  tensor->out_strides = {step, step, step};
  tensor->in_span = tensor->out_span = whole ? context.rotary_offset * size : 0;
  tensor->heads = t.heads;
  tensor->dtype = t.dtype;
  tensor->copies_rest = false;
  const auto base = reinterpret_cast<uintptr_t>(t.data);
  return (base & static_cast<uintptr_t>(size - 1)) == 0 &&
         static_cast<uintptr_t>(reach->extent) <= UINTPTR_MAX - base;
}

}  // namespace

bool ReadPlace(const rope_context& context, const rope_qk_args& args, WholeSource* positions) {
  return DescribePlace(context, args, positions);
}

bool ReadMovedPlace(const rope_context& context, const rope_qk_args& args, WholeSource* positions,
                    WholeSource* from) {
  if (!IsOneToken(context, args) || !ReadPosition(args.positions, positions)) return false;
  const bool by_distance = kOperations[args.operation].by_distance();
  if (by_distance && positions->type == WholeSource::kNone) return false;
  const rope_positions* const before = args.fused->from_positions;
  return before == nullptr || ReadPosition(*before, from);
}

bool ReadHeads(const rope_context& context, const rope_tensor& t, Tensor* tensor, Reach* reach) {
  return DescribeHeads(context, t, tensor, reach);
}

int32_t CheckToken(const rope_context& context, const rope_qk_args& args, WholeSource* positions,
                   Tensor tensors[2]) {
  if (args.fused != nullptr || !DescribePlace(context, args, positions)) return 0;
  constexpr size_t kOutputs = offsetof(rope_qk_args, q_out),
                   kBehindOutputs = offsetof(rope_qk_args, positions);
  if (!IsZeroFrom<kOutputs, kBehindOutputs>(args)) return 0;
  Reach of_q, of_k;
  if (!DescribeHeads(context, args.q, &tensors[0], &of_q)) return 0;
  if (IsAbsent(args.k)) return 1;
  if (!DescribeHeads(context, args.k, &tensors[1], &of_k)) return 0;
  return ReachApart(args.q.data, of_q, args.k.data, of_k) ? 2 : 0;
}

}  // namespace rope
