// The checks of q and k and of their outputs, in two steps: what they are, and where they lie.
#ifndef LIBROPE_SRC_CALL_CHECK_TENSORS_H_
#define LIBROPE_SRC_CALL_CHECK_TENSORS_H_

#include "call/call.h"
#include "math/tensor.h"

namespace rope {

// From the first byte of a tensor to the end of its last, and the bytes of one head.
struct Reach {
  int64_t extent, width;
};

// q or k with its output, as far as it is known without addresses.
struct TensorShape {
  bool present, in_place;
  Reach in, out;  // out: without in_place only
};

struct Shapes {
  TensorShape q, k;

  int32_t count() const { return q.present + k.present; }
};

// Where they lie; null where a tensor is absent or in place.
struct Addresses {
  void *q, *k, *q_out, *k_out;
};

// Writes the shapes, at least one present, and of `tensors` those that are present, all but their
// addresses.
rope_status CheckShapes(const Call& call, const Names& names, const rope_qk_args& args,
                        DataOf data_of, Shapes* shapes, Tensor tensors[2]);

// Completes the tensors of `batch` rows of `tokens`.
rope_status CheckAddresses(const Call& call, const Names& names, const Shapes& shapes,
                           const Addresses& addresses, Tensor tensors[2]);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_CHECK_TENSORS_H_
