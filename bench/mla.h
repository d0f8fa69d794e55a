// The groups of calls that store rows of MLA.
#ifndef LIBROPE_BENCH_MLA_H_
#define LIBROPE_BENCH_MLA_H_

namespace bench {

void RegisterMla();

}  // namespace bench

#endif  // LIBROPE_BENCH_MLA_H_
