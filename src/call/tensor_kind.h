// What the checks ask of a rope_tensor by itself.
#ifndef LIBROPE_SRC_CALL_TENSOR_KIND_H_
#define LIBROPE_SRC_CALL_TENSOR_KIND_H_

#include <cstdint>

#include "base/status.h"
#include "call/call.h"
#include "math/element.h"

namespace rope {

// What is described: heads that turn (q, k), or others, which have any width and dtype; and of both
// the outputs, which may be in 8 bits. In a cache, be it written or read, pages and slots take the
// places of batch rows and tokens: those of the Call are theirs then.
enum class TensorKind {
  kHeads,
  kOthers,
  kSourceHeads,
  kSourceOthers,
  kHeadsOut,
  kOthersOut,
  kCachedHeads,
  kCachedOthers
};

constexpr bool IsInput(TensorKind kind) { return kind <= TensorKind::kSourceOthers; }
constexpr bool DoesTurn(TensorKind kind) {
  return kind == TensorKind::kHeads || kind == TensorKind::kHeadsOut ||
         kind == TensorKind::kSourceHeads || kind == TensorKind::kCachedHeads;
}
constexpr bool IsInCache(TensorKind kind) {
  return kind == TensorKind::kSourceHeads || kind == TensorKind::kSourceOthers ||
         kind == TensorKind::kCachedHeads || kind == TensorKind::kCachedOthers;
}

inline bool IsAbsent(const rope_tensor& t) {
  return t.data == nullptr && t.dtype == 0 && t.layout == 0 && t.heads == 0 && t.head_dim == 0 &&
         (t.stride_batch | t.stride_token | t.stride_head | t.reserved) == 0 && t.scale == nullptr;
}

// In all but address, head_dim and scale, and reserved fields of b are 0.
inline bool AreAlike(const rope_tensor& a, const rope_tensor& b) {
  return a.dtype == b.dtype && a.layout == b.layout && a.heads == b.heads &&
         a.stride_batch == b.stride_batch && a.stride_token == b.stride_token &&
         a.stride_head == b.stride_head && b.reserved == 0;
}

inline bool IsWhole(const rope_context& context, const rope_tensor& t) {
  return t.head_dim == 0 || t.head_dim == context.head_dim;
}

// What an address is aligned to, which is no less than the bytes of a channel.
inline int AlignmentOf(rope_dtype dtype) {
  return dtype == ROPE_DTYPE_Q8_0 ? 2 : ElementSize(dtype);
}

// Where in a head its span begins, in bytes: of what is computed with, and of any.
inline int SpanStart(const rope_context& context, const rope_tensor& t) {
  return IsWhole(context, t) ? context.rotary_offset * ElementSize(t.dtype) : 0;
}
inline int StoredSpanStart(const rope_context& context, const rope_tensor& t) {
  return IsWhole(context, t) ? static_cast<int>(BytesOf(t.dtype, context.rotary_offset)) : 0;
}

__attribute__((noinline)) inline rope_status FailBeyond(const Call& call, const char* name,
                                                        int32_t heads, TensorKind kind) {
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              IsInCache(kind)
                  ? "%s: %s (pages %lld, page_size %lld, heads %d, its strides) reaches "
                    "beyond the address space"
                  : "%s: %s (batch %lld, tokens %lld, heads %d, its strides) reaches "
                    "beyond the address space",
              call.function, name, static_cast<long long>(call.batch),
              static_cast<long long>(call.tokens), heads);
}

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_TENSOR_KIND_H_
