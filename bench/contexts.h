// Contexts of the benchmarks.
#ifndef LIBROPE_BENCH_CONTEXTS_H_
#define LIBROPE_BENCH_CONTEXTS_H_

#include <librope/rope.h>

#include "handles.h"
#include "tensors.h"

namespace bench {

// Of heads that turn, or with ROPE_SCALING_NOPE do not; null if there is none.
inline Context Create(rope_pairing pairing, rope_scaling scaling) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = kDim;
  if (scaling != ROPE_SCALING_NOPE) config.theta = 500000;
  config.pairing = pairing;
  config.scaling = scaling;
  rope_context* context = nullptr;
  return Context(rope_context_create(&config, &context) == ROPE_OK ? context : nullptr);
}

}  // namespace bench

#endif  // LIBROPE_BENCH_CONTEXTS_H_
