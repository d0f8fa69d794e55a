// Proofs about the memory that strided tensors touch: that one does not overlap itself, and that
// two are disjoint. Sound but not complete: what cannot be proved is refused.
#ifndef LIBROPE_SRC_CALL_OVERLAP_H_
#define LIBROPE_SRC_CALL_OVERLAP_H_

#include <cstdint>

namespace rope {

// The bytes of a tensor: all base + i * strides[0] + j * strides[1] + k * strides[2] + [0, width),
// with indices below counts. No stride is negative, and no address exceeds 63 bits.
struct Footprint {
  uint64_t base;
  int64_t counts[3], strides[3];  // batch, token, head
  int64_t width;

  int64_t extent() const;  // from base to the end of the last byte
};

// No two indices reach a common byte.
bool IsInjective(const Footprint& a);

// Equal bytes at equal indices.
bool IsSame(const Footprint& a, const Footprint& b);

bool AreDisjoint(const Footprint& a, const Footprint& b);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_OVERLAP_H_
