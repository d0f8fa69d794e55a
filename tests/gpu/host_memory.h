// What walked kernels read and write: the memory of walk.h.
#ifndef LIBROPE_TESTS_GPU_HOST_MEMORY_H_
#define LIBROPE_TESTS_GPU_HOST_MEMORY_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gpu/kernel.h"
#include "walk.h"

namespace rope::gpu {

// What virtual memory holds: small numbers, exact in every dtype.
inline uint32_t VirtualWord(uint64_t address) {
  const auto value = static_cast<float>((address >> 2) * 2654435761u >> 28 & 15) - 7;
  return FloatBits(value);
}

struct HostMemory {
  template <int kBytes>
  static Vector<kBytes> Load(const char* from) {
    Vector<kBytes> v{};
    const auto address = reinterpret_cast<uint64_t>(from);
    EXPECT_EQ(address % kBytes, 0u);
    ++arena->loads;
    if (arena->is_virtual) {
      for (int w = 0; w < (kBytes + 3) / 4; ++w) v.words[w] = VirtualWord(address + 4 * w);
      return v;
    }
    if (arena->Find(from, kBytes, false) == nullptr) {
      arena->failed = true;
    } else {
      std::memcpy(v.words, from, kBytes);
    }
    return v;
  }

  template <int kBytes>
  static void Store(char* to, const Vector<kBytes>& v) {
    const auto address = reinterpret_cast<uint64_t>(to);
    EXPECT_EQ(address % kBytes, 0u);
    arena->bytes_written += kBytes;
    if (arena->is_virtual) {
      const bool is_new =
          arena->stores.emplace(address, std::vector<uint32_t>(v.words, v.words + kBytes / 4))
              .second;
      EXPECT_TRUE(is_new);
      return;
    }
    const Arena::Range* range = arena->Find(to, kBytes, true);
    if (range == nullptr) {
      arena->failed = true;
      return;
    }
    for (int i = 0; i < kBytes; ++i) {
      if ((*range->writes)[static_cast<size_t>(to - range->begin + i)]++ != 0) arena->failed = true;
    }
    std::memcpy(to, v.words, kBytes);
  }

  template <bool kAgain>
  static TwoRows LoadRows(const CosSin* from) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(from) % 16, 0u);
    TwoRows rows;
    std::memcpy(&rows, from, sizeof(rows));
    return rows;
  }
  static void StoreRow(CosSin* to, CosSin value) { *to = value; }
  static void Increment(uint32_t* at) { ++*at; }
  static void Max(uint32_t* at, uint32_t value) { *at = std::max(*at, value); }
};

}  // namespace rope::gpu

#endif  // LIBROPE_TESTS_GPU_HOST_MEMORY_H_
