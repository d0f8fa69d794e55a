// The groups of calls that move keys and values in the pages of a cache.
#ifndef LIBROPE_BENCH_MOVES_H_
#define LIBROPE_BENCH_MOVES_H_

namespace bench {

void RegisterMoves();

}  // namespace bench

#endif  // LIBROPE_BENCH_MOVES_H_
