// How large the last cache is, as far as the system tells.
#ifndef LIBROPE_SRC_CPU_CACHE_H_
#define LIBROPE_SRC_CPU_CACHE_H_

#include <unistd.h>

#include <cstdint>

namespace rope::cpu {

// Outputs from this size on are written around the cache.
inline int64_t StreamingThreshold() {
  static const int64_t kThreshold = [] {
    long bytes = 0;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    return bytes > 0 ? int64_t{bytes} : int64_t{32} << 20;
  }();
  return kThreshold;
}

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_CACHE_H_
