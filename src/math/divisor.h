// Integer division by a number that is known before a kernel starts: a multiplication by its
// reciprocal, because a GPU has no division. Host and device.
#ifndef LIBROPE_SRC_MATH_DIVISOR_H_
#define LIBROPE_SRC_MATH_DIVISOR_H_

#include <cstdint>

#include "math/host_device.h"

namespace rope {

// The upper half of a product.
ROPE_HD uint64_t MultiplyHigh(uint64_t a, uint64_t b) {
  const uint64_t a_low = static_cast<uint32_t>(a), a_high = a >> 32;
  const uint64_t b_low = static_cast<uint32_t>(b), b_high = b >> 32;
  const uint64_t middle = a_high * b_low + (a_low * b_low >> 32);
  const uint64_t other = a_low * b_high + static_cast<uint32_t>(middle);
  return a_high * b_high + (middle >> 32) + (other >> 32);
}

// n / divisor = n * multiplier >> (64 + shift) for every n from 0 on; multiplier 0: n itself.
struct Divisor {
  uint64_t multiplier;
  uint32_t shift;

  ROPE_HD int64_t operator()(int64_t n) const {
    if (multiplier == 0) return n;
    return static_cast<int64_t>(MultiplyHigh(static_cast<uint64_t>(n), multiplier) >> shift);
  }
};

// Of n from 1 to 2^31 - 1.
inline Divisor DivisorOf(int64_t n) {
  if (n == 1) return {0, 0};
  // 2^(bits - 1) < n <= 2^bits; the multiplier, 2^(63 + bits) / n rounded up, is below 2^64, and
  // too large by less than 2^bits / 2^(63 + bits) of one: exact below 2^63.
  uint32_t bits = 0;
  while (int64_t{1} << bits < n) ++bits;
  const auto d = static_cast<uint64_t>(n);
  const uint64_t half = uint64_t{1} << 63;
  return {(half / d << bits) + ((half % d << bits) + d - 1) / d, bits - 1};
}

// The same of numbers below 2^31: n * multiplier >> shift.
struct SmallDivisor {
  uint32_t multiplier, shift;

  ROPE_HD uint32_t operator()(uint32_t n) const {
    return static_cast<uint32_t>((static_cast<uint64_t>(n) * multiplier) >> shift);
  }
};

// Of n from 1 to 2^31 - 1.
inline SmallDivisor SmallDivisorOf(int64_t n) {
  // As above: 2^(31 + bits) / n rounded up is below 2^32.
  uint32_t bits = 0;
  while (int64_t{1} << bits < n) ++bits;
  const auto d = static_cast<uint64_t>(n);
  return {static_cast<uint32_t>(((uint64_t{1} << (31 + bits)) + d - 1) / d), 31 + bits};
}

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_DIVISOR_H_
