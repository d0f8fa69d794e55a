// What memory allows, to measure rotations against: read-modify-write sweeps and copies that do no
// arithmetic to speak of, compiled for every instruction set. None is always the fastest, so a
// measurement takes all of them and keeps the fastest.
#ifndef LIBROPE_BENCH_SWEEPS_H_
#define LIBROPE_BENCH_SWEEPS_H_

#include <cstddef>
#include <string>
#include <vector>

namespace bench {

// x *= c over `bytes` bytes (a multiple of 256) of floats in place.
struct Sweep {
  std::string name;  // such as "rmw_AVX3_near": instruction set, prefetch
  int vector_bytes;
  void (*run)(float* x, size_t bytes, float c);
};
std::vector<Sweep> RmwSweeps();

// A copy whose stores go around the cache; both sides aligned to 64.
struct Copy {
  std::string name;  // such as "nt_copy_AVX3"
  void (*run)(float* to, const float* from, size_t bytes);
};
std::vector<Copy> StreamingCopies();

}  // namespace bench

#endif  // LIBROPE_BENCH_SWEEPS_H_
