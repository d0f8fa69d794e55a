// The group of calls with BACKWARD and norms.
#ifndef LIBROPE_BENCH_GRADIENTS_H_
#define LIBROPE_BENCH_GRADIENTS_H_

namespace bench {

void RegisterGradients();

}  // namespace bench

#endif  // LIBROPE_BENCH_GRADIENTS_H_
