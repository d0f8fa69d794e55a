// The checks of q and k and of their outputs, in two steps: what they are, and where they lie. The
// checks of other tensors are made of the same parts.
#ifndef LIBROPE_SRC_CALL_CHECK_TENSORS_H_
#define LIBROPE_SRC_CALL_CHECK_TENSORS_H_

#include "call/beside_shape.h"
#include "call/call.h"
#include "call/fused_plan.h"
#include "call/overlap.h"
#include "call/tensor_kind.h"
#include "math/tensor.h"

namespace rope {

// From the first byte of a tensor to the end of its last, and the bytes of one head.
struct Reach {
  int64_t extent, width;
};

// Whether what two of them reach is apart, as of most that do not overlap.
inline bool ReachApart(const void* a, const Reach& of_a, const void* b, const Reach& of_b) {
  const auto *at_a = static_cast<const char*>(a), *at_b = static_cast<const char*>(b);
  return at_a + of_a.extent <= at_b || at_b + of_b.extent <= at_a;
}

// A tensor that is present: its fields, and that it does not overlap itself, if it is written.
rope_status DescribeBeside(const Call& call, const char* name, const rope_tensor& t,
                           TensorKind kind, DataOf data_of, BesideShape* shape);

// The strides of a cache's k in bytes, and the bytes of its memory, if it has a named layout and no
// other field besides but a scale; heads are `width` bytes. Its pages, page_size and heads have
// been looked at.
bool DescribePages(const rope_kv_cache& cache, int64_t width, HeadStrides* strides, int64_t* bytes);

rope_status CheckAddressBeside(const Call& call, const char* name, const char* data_name,
                               const BesideShape& shape, TensorKind kind, const void* data);

inline HeadStrides InBytes(const HeadStrides& elements, int64_t size) {
  return {elements.batch * size, elements.token * size, elements.head * size};
}
inline HeadStrides StoredInBytes(const HeadStrides& elements, rope_dtype dtype) {
  if (dtype != ROPE_DTYPE_Q8_0) return InBytes(elements, ElementSize(dtype));
  return {BytesOf(dtype, elements.batch), BytesOf(dtype, elements.token),
          BytesOf(dtype, elements.head)};
}

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

// No status of the library: the call needs a FusedPlan, as an output has another dtype or more
// heads than its input.
inline constexpr rope_status kNeedsFusedPlan = 1;

// Writes the shapes, at least one present, and of `tensors` those that are present, all but their
// addresses. TensorShape::cached is given. With a FusedPlan also its outputs, as tensors, and their
// scales in `beside`; without, an output that is not like its input is kNeedsFusedPlan.
rope_status CheckShapes(const Call& call, const Names& names, const rope_qk_args& args,
                        DataOf data_of, Shapes* shapes, Tensor tensors[3]);
rope_status CheckShapes(const Call& call, const Names& names, const rope_qk_args& args,
                        DataOf data_of, Shapes* shapes, Tensor tensors[3], Output outputs[3],
                        BesideShape* beside);

// The same of q alone, which may be absent: k comes from elsewhere.
rope_status CheckShapeOfQ(const Call& call, const Names& names, const rope_qk_args& args,
                          DataOf data_of, Shapes* shapes, Tensor tensors[3], Output outputs[3],
                          BesideShape* beside);

// Completes the tensors of `batch` rows of `tokens`.
rope_status CheckAddresses(const Call& call, const Names& names, const Shapes& shapes,
                           const Addresses& addresses, Tensor tensors[3]);
rope_status CheckAddresses(const Call& call, const Names& names, const Shapes& shapes,
                           const Addresses& addresses, const Output outputs[3], Tensor tensors[3]);

// The memory of those that are present, after CheckAddresses: q, q_out, k, k_out, without the
// outputs of those in place.
void MemoryOf(const Call& call, const Names& names, const Shapes& shapes, const Tensor tensors[3],
              const Output outputs[3], Memory memory[4]);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_CHECK_TENSORS_H_
