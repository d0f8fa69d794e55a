#include "cpu/caches.h"

#include <algorithm>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

namespace rope::cpu {
namespace {

constexpr int64_t kKiB = 1 << 10, kMiB = 1 << 20;
constexpr Caches kUnknown = {512 * kKiB, 16 * kMiB, Ask::kIntoL2, Ask::kIntoL2, 8 * kKiB,
                             6 * kKiB,   0,         true};
constexpr int64_t kMostInner = 2 * kMiB, kMostLast = 16 * kMiB;

enum Type : unsigned { kNone, kData, kInstructions, kUnified };  // bits 0 to 4 of eax

}  // namespace

Caches CachesOf(const CacheLeaf* leaves, int count) {
  Caches caches = kUnknown;
  int64_t data = 0;  // of the L1 cache
  for (int i = 0; i < count; ++i) {
    const auto [eax, ebx, ecx] = leaves[i];
    const unsigned level = eax >> 5 & 7;
    if ((eax & 31) == kInstructions) continue;
    const int64_t ways = (ebx >> 22) + 1, partitions = (ebx >> 12 & 0x3ff) + 1;
    const int64_t line = (ebx & 0xfff) + 1, sets = int64_t{ecx} + 1;
    const int64_t bytes = ways * partitions * line * sets;
    if (level == 1) data = bytes;
    if (level == 2) caches.inner = std::min(bytes, kMostInner);
    if (level == 3) caches.last = std::min(bytes / 2, kMostLast);
  }
  // What comes with these sizes loses or gains by it (bench/README.md, "Asking the memory ahead").
  if (data == 32 * kKiB && caches.inner >= kMiB) {  // Zen 4
    caches.f32 = Ask::kNot;
    caches.asks_in_sums = false;
  }
  if (data == 32 * kKiB && caches.inner < kMiB) caches.tile_channels = 2048;  // Zen 2, Zen 3
  if (data > 32 * kKiB) caches.narrow = Ask::kIntoL1;                         // Zen 5, and Xeons
  if (data > 32 * kKiB && caches.inner < kMostInner) {                        // Zen 5
    caches.f32 = Ask::kIntoL1;
    caches.l1_ahead = 12 * kKiB;
  }
  return caches;
}

#if defined(__x86_64__) || defined(__i386__)

Caches FindCaches() {
  CacheLeaf leaves[kMaxCacheLeaves];
  unsigned eax, ebx, ecx, edx;
  // AMD's CPUs have a leaf of their own, and say so with their "topology extensions".
  const bool amd = __get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx) != 0 && (ecx >> 22 & 1) != 0;
  const unsigned leaf = amd ? 0x8000001D : 4;
  int count = 0;
  while (count < kMaxCacheLeaves &&
         __get_cpuid_count(leaf, static_cast<unsigned>(count), &eax, &ebx, &ecx, &edx) != 0 &&
         (eax & 31) != kNone) {
    leaves[count++] = {eax, ebx, ecx};
  }
  return CachesOf(leaves, count);
}

#else

Caches FindCaches() { return kUnknown; }

#endif

}  // namespace rope::cpu
