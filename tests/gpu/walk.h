// The CUDA kernels without a GPU: every block and thread of a launch, with the very functions that
// the kernels consist of, on memory that knows its bounds and counts what is written.
#ifndef LIBROPE_TESTS_GPU_WALK_H_
#define LIBROPE_TESTS_GPU_WALK_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpu/kernel.h"
#include "gpu/launch.h"

namespace rope::gpu {

// Device memory as the test sees it: ranges that may be read or written, and how often each byte
// of an output was. With `content` null nothing is dereferenced: bytes follow from addresses, and
// stores are kept.
struct Arena {
  struct Range {
    const char* begin;
    const char* end;
    std::vector<uint8_t>* writes;  // null: read only
  };
  std::vector<Range> ranges;
  bool is_virtual = false;
  std::map<uint64_t, std::vector<uint32_t>> stores;
  int64_t loads = 0, bytes_written = 0;
  bool failed = false;

  const Range* Find(const char* at, int bytes, bool write) {
    for (const Range& r : ranges) {
      if (at >= r.begin && at + bytes <= r.end && (!write || r.writes != nullptr)) return &r;
    }
    return nullptr;
  }
};
inline Arena* arena;

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

inline std::set<int> walked, walked_fused;  // variants, by number

template <int kIndex, class P>
void WalkBlock(const LaunchOf<P>& l, uint32_t block_x, uint32_t block_y) {
  constexpr bool kFused = std::is_same_v<P, FusedParams>;
  constexpr Variant kVariant = VariantAt(kIndex);
  using Plain = Kernel<kVariant.dtype, kVariant.form, kVariant.arithmetic, HostMemory>;
  using Fused = FusedKernel<kVariant.dtype, kVariant.form, kVariant.arithmetic, HostMemory>;
  using Body = std::conditional_t<kFused, Fused, Plain>;
  std::vector<Thread> threads;
  for (uint32_t z = 0; z < l.shape.z; ++z) {
    for (uint32_t y = 0; y < l.shape.y; ++y) {
      for (uint32_t x = 0; x < l.shape.x; ++x) {
        threads.push_back({block_x, block_y, x, y, z, l.shape.x, l.shape.y, l.shape.z});
      }
    }
  }
  // Shared memory: not a byte more than the launch asks for, 16-byte aligned, content unknown.
  const size_t rows = l.shared_bytes / sizeof(CosSin);
  std::unique_ptr<CosSin[]> memory(new CosSin[rows + 2]);
  auto* shared =
      reinterpret_cast<CosSin*>((reinterpret_cast<uintptr_t>(memory.get()) + 15) & ~uintptr_t{15});
  std::fill(memory.get(), memory.get() + rows + 2, CosSin{1e30f, 1e30f});
  std::vector<typename Body::Held> held(threads.size());
  for (size_t i = 0; i < threads.size(); ++i) {
    Body::Locate(l.params, threads[i], &held[i]);
    Body::Load(l.params, threads[i], &held[i]);
  }
  for (size_t i = 0; i < threads.size(); ++i) {
    Body::MakeRow(l.params, threads[i], held[i].run, shared);
  }
  if constexpr (kFused) {
    SlotPlaces* const places = Body::PlacesOf(l.params, threads[0], shared);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(places) % alignof(SlotPlaces), 0u);
    for (size_t i = 0; i < threads.size(); ++i) {
      Body::FindSlot(l.params, threads[i], held[i].run, places);
    }
    for (size_t i = threads.size(); i-- > 0;) {
      Body::Store(l.params, threads[i], held[i], shared, places);
    }
  } else {
    for (size_t i = threads.size(); i-- > 0;) {
      Body::Rotate(l.params, threads[i], held[i], shared);
    }
  }
}

template <class P, size_t... kIndices>
void WalkBlockOf(const LaunchOf<P>& l, uint32_t x, uint32_t y, std::index_sequence<kIndices...>) {
  using Walk = void (*)(const LaunchOf<P>&, uint32_t, uint32_t);
  static constexpr Walk kWalks[] = {&WalkBlock<static_cast<int>(kIndices), P>...};
  kWalks[IndexOf(l.variant)](l, x, y);
}

template <class P>
void WalkBlock(const LaunchOf<P>& l, uint32_t x, uint32_t y) {
  WalkBlockOf(l, x, y, std::make_index_sequence<kVariants>());
}

template <class P>
struct WalkedOf {
  int launches = 0;
  std::vector<LaunchOf<P>> kept;  // if asked for
  bool walk = true, keep = false;
};
using Walked = WalkedOf<Params>;
using WalkedFused = WalkedOf<FusedParams>;

// A LaunchFn; `data` is a WalkedOf<P>.
template <class P>
rope_status WalkLaunch(const LaunchOf<P>& l, void* data) {
  auto* w = static_cast<WalkedOf<P>*>(data);
  ++w->launches;
  (std::is_same_v<P, FusedParams> ? walked_fused : walked).insert(IndexOf(l.variant));
  EXPECT_LE(l.shape.x * l.shape.y * l.shape.z, static_cast<uint32_t>(kMaxThreads));
  EXPECT_LE(l.shape.z, 64u);
  EXPECT_LE(l.shape.grid_y, 65535u);
  EXPECT_LE(l.shape.grid_x, static_cast<uint32_t>(INT32_MAX));
  EXPECT_LE(l.shared_bytes, 48u << 10);
  if (w->keep) w->kept.push_back(l);
  for (uint32_t y = 0; w->walk && y < l.shape.grid_y; ++y) {
    for (uint32_t x = 0; x < l.shape.grid_x; ++x) WalkBlock(l, x, y);
  }
  return ROPE_OK;
}
inline constexpr LaunchFn Walk = &WalkLaunch<Params>;
inline constexpr FusedLaunchFn WalkFused = &WalkLaunch<FusedParams>;

}  // namespace rope::gpu

#endif  // LIBROPE_TESTS_GPU_WALK_H_
