// The group of calls that norm q and k, turn them, and store keys and values in pages.
#ifndef LIBROPE_BENCH_NORM_APPEND_H_
#define LIBROPE_BENCH_NORM_APPEND_H_

namespace bench {

void RegisterNormAppend();

}  // namespace bench

#endif  // LIBROPE_BENCH_NORM_APPEND_H_
