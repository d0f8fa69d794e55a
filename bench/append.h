// The group of calls that store keys and values in the pages of a cache.
#ifndef LIBROPE_BENCH_APPEND_H_
#define LIBROPE_BENCH_APPEND_H_

namespace bench {

void RegisterAppend();

}  // namespace bench

#endif  // LIBROPE_BENCH_APPEND_H_
