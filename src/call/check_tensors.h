// The checks of q and k and of their outputs, in two steps: what they are, and where they lie. The
// checks of other tensors are made of the same parts.
#ifndef LIBROPE_SRC_CALL_CHECK_TENSORS_H_
#define LIBROPE_SRC_CALL_CHECK_TENSORS_H_

#include "call/call.h"
#include "call/overlap.h"
#include "math/element.h"
#include "math/tensor.h"

namespace rope {

// From the first byte of a tensor to the end of its last, and the bytes of one head.
struct Reach {
  int64_t extent, width;
};

// What is described: heads that turn (q, k), or others, which have any width and dtype. In a cache,
// pages and slots take the places of batch rows and tokens: those of the Call are theirs then.
enum class TensorKind { kHeads, kOthers, kCachedHeads, kCachedOthers };

constexpr bool DoesTurn(TensorKind kind) {
  return kind == TensorKind::kHeads || kind == TensorKind::kCachedHeads;
}
constexpr bool IsInCache(TensorKind kind) {
  return kind == TensorKind::kCachedHeads || kind == TensorKind::kCachedOthers;
}

// A tensor besides q, k and their outputs, as far as it is known without its address.
struct BesideShape {
  bool present;
  int32_t element;  // bytes
  Footprint of;
  int64_t extent;
};

// One that is present: its fields, and that it does not overlap itself, if it is written.
rope_status DescribeBeside(const Call& call, const char* name, const rope_tensor& t,
                           TensorKind kind, bool written, DataOf data_of, BesideShape* shape);

// The strides of a cache's k in bytes, and the bytes of its memory, if it has a named layout and no
// other field besides; heads are `width` bytes. Its pages, page_size and heads have been looked at.
bool DescribePages(const rope_kv_cache& cache, int64_t width, HeadStrides* strides, int64_t* bytes);

rope_status CheckAddressBeside(const Call& call, const char* name, const char* data_name,
                               const BesideShape& shape, TensorKind kind, const void* data);

inline bool IsAbsent(const rope_tensor& t) {
  return t.data == nullptr && t.dtype == 0 && t.layout == 0 && t.heads == 0 && t.head_dim == 0 &&
         (t.stride_batch | t.stride_token | t.stride_head | t.reserved) == 0 &&
         t.reserved_ptr == nullptr;
}

// Where in a head its span begins, in bytes.
inline int SpanStart(const rope_context& context, const rope_tensor& t) {
  const bool whole = t.head_dim == 0 || t.head_dim == context.head_dim;
  return whole ? context.rotary_offset * ElementSize(t.dtype) : 0;
}

inline HeadStrides InBytes(const HeadStrides& elements, int64_t size) {
  return {elements.batch * size, elements.token * size, elements.head * size};
}

// The bytes of a tensor in memory.
struct Memory {
  const char* name;
  Footprint of;
  uintptr_t base;
};

// q or k with its output, as far as it is known without addresses.
struct TensorShape {
  bool present, in_place;
  bool cached;    // k, whose result goes to a cache, and to an output only if there is one
  Reach in, out;  // out: without in_place only

  bool only_read() const { return cached && in_place; }
};

struct Shapes {
  TensorShape q, k;

  int32_t count() const { return q.present + k.present; }
  // Where in Plan::tensors k is with its own output: behind the one with slots, if there is one.
  int32_t k_at() const { return q.present + (k.cached && !k.in_place); }
};

// Where they lie; null where a tensor is absent or in place.
struct Addresses {
  void *q, *k, *q_out, *k_out;
};

// Writes the shapes, at least one present, and of `tensors` those that are present, all but their
// addresses. TensorShape::cached is given.
rope_status CheckShapes(const Call& call, const Names& names, const rope_qk_args& args,
                        DataOf data_of, Shapes* shapes, Tensor tensors[3]);

// The same of q alone, which may be absent: k comes from elsewhere.
rope_status CheckShapeOfQ(const Call& call, const Names& names, const rope_qk_args& args,
                          DataOf data_of, Shapes* shapes, Tensor tensors[3]);

// Completes the tensors of `batch` rows of `tokens`.
rope_status CheckAddresses(const Call& call, const Names& names, const Shapes& shapes,
                           const Addresses& addresses, Tensor tensors[3]);

// The memory of those that are present, after CheckAddresses: q, q_out, k, k_out, without the
// outputs of those in place.
void MemoryOf(const Call& call, const Names& names, const Shapes& shapes, const Tensor tensors[3],
              Memory memory[4]);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_CHECK_TENSORS_H_
