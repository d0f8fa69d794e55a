// Owners of contexts and prepared calls, and how heads are described, in all benchmarks.
#ifndef LIBROPE_BENCH_HANDLES_H_
#define LIBROPE_BENCH_HANDLES_H_

#include <librope/rope.h>

#include <memory>

namespace bench {

struct Destroy {
  void operator()(rope_context* context) const { rope_context_destroy(context); }
  void operator()(rope_prepared* prepared) const { rope_prepared_destroy(prepared); }
};
using Context = std::unique_ptr<rope_context, Destroy>;
using Prepared = std::unique_ptr<rope_prepared, Destroy>;

// Null if it cannot be made; applying null is an error with a message.
inline Prepared Prepare(const rope_context* context, const rope_qk_args& args) {
  rope_prepared* prepared = nullptr;
  return Prepared(rope_prepared_create(context, &args, &prepared) == ROPE_OK ? prepared : nullptr);
}

inline rope_tensor Heads(void* data, rope_dtype dtype, int heads,
                         rope_layout layout = ROPE_LAYOUT_BSHD) {
  rope_tensor tensor{};
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.layout = layout;
  tensor.heads = heads;
  return tensor;
}

}  // namespace bench

#endif  // LIBROPE_BENCH_HANDLES_H_
