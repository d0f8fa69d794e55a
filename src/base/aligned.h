// A rule of every array that crosses the C edge: aligned to its element.
#ifndef LIBROPE_SRC_BASE_ALIGNED_H_
#define LIBROPE_SRC_BASE_ALIGNED_H_

#include <cstddef>
#include <cstdint>

namespace rope {

// `size` is a power of two.
inline bool IsAligned(const void* pointer, size_t size) {
  return (reinterpret_cast<uintptr_t>(pointer) & (size - 1)) == 0;
}

}  // namespace rope

#endif  // LIBROPE_SRC_BASE_ALIGNED_H_
