// Proofs about the memory that strided tensors touch: that one does not overlap itself, and that
// two are disjoint. Sound but not complete: what cannot be proved is refused.
#ifndef LIBROPE_SRC_CALL_OVERLAP_H_
#define LIBROPE_SRC_CALL_OVERLAP_H_

#include <cstdint>

#include "base/status.h"
#include "librope/rope.h"

namespace rope {

// The bytes of a tensor, from its first one: all i * strides[0] + j * strides[1] + k * strides[2] +
// [0, width), with indices below counts. No stride is negative, and no offset exceeds 63 bits.
struct Footprint {
  int64_t counts[3], strides[3];  // batch, token, head
  int64_t width;

  // From the first byte to the end of the last.
  int64_t extent() const {
    return (counts[0] - 1) * strides[0] + (counts[1] - 1) * strides[1] +
           (counts[2] - 1) * strides[2] + width;
  }
};

// Where it lies. No address exceeds 64 bits.
struct Region {
  const Footprint& of;
  uint64_t base;
};

// No two indices reach a common byte.
bool IsInjective(const Footprint& a);

// Equal bytes at equal indices, from the same first byte on.
bool AreEqual(const Footprint& a, const Footprint& b);

// For tensors in one packed buffer, too, and for such parts of the pages of a cache.
bool AreDisjoint(const Region& a, const Region& b);

// All bytes from one to another.
struct Range {
  uintptr_t base, end;

  bool fits() const { return end >= base; }
};
inline Range RangeOf(const void* data, int64_t bytes) {
  const auto base = reinterpret_cast<uintptr_t>(data);
  return {base, base + static_cast<uintptr_t>(bytes)};
}
// Without a branch for each.
inline bool AreApart(const Range& a, const Range& b) {
  return (a.end <= b.base) | (b.end <= a.base);
}

// The bytes of a tensor in memory.
struct Memory {
  const char* name;
  Footprint of;
  uintptr_t base;
};

// That one overlaps another, and how far each reaches. `rule`: what is allowed besides being apart.
inline constexpr char kExactlyOrApart[] = ", and must be exactly it or disjoint from it";
rope_status FailOverlap(const char* function, const Memory& added, const Memory& before,
                        const char* rule);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_OVERLAP_H_
