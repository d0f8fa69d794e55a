// How much of an output a cache keeps.
#ifndef LIBROPE_SRC_CPU_STREAMING_H_
#define LIBROPE_SRC_CPU_STREAMING_H_

#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace rope::cpu {

// Outputs from this size on are written around the cache, and no more than this stays in it from one
// pass to the next. The last cache, but no more than a usual one: virtual machines report that of
// the whole host. Asks the system: for attach, not for apply.
inline int64_t StreamingThreshold() {
  constexpr int64_t kUsual = int64_t{32} << 20;
  int64_t bytes = 0;
#if defined(_SC_LEVEL3_CACHE_SIZE)
  bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
  return bytes > 0 ? std::min(bytes, kUsual) : kUsual;
}

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_STREAMING_H_
