// The group of calls that norm q and k as they turn them.
#ifndef LIBROPE_BENCH_NORMS_H_
#define LIBROPE_BENCH_NORMS_H_

namespace bench {

void RegisterNorms();

}  // namespace bench

#endif  // LIBROPE_BENCH_NORMS_H_
