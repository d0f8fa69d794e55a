#include "cpu/caches.h"

#include <algorithm>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

namespace rope::cpu {
namespace {

constexpr int64_t kKiB = 1 << 10, kMiB = 1 << 20;
constexpr NormTiles kUnknownTiles = {Ask::kIntoL2, 0, 2};
constexpr Caches kUnknown = {512 * kKiB, 16 * kMiB, Ask::kIntoL2,  Ask::kIntoL2,
                             8 * kKiB,   6 * kKiB,  kUnknownTiles, kUnknownTiles};
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
    caches.f32 = Ask::kNot;  // a norm leaves the memory time to bring what a rotation waits for
    caches.normed_f32 = caches.normed_narrow = {Ask::kIntoL2, 0, 0};
  }
  if (data == 32 * kKiB && caches.inner < kMiB) {  // Zen 2, Zen 3
    caches.normed_f32 = caches.normed_narrow = {Ask::kIntoL2, 2048, 2};
  }
  if (data > 32 * kKiB) {  // Zen 5, and Xeons
    caches.f32 = caches.narrow = Ask::kIntoL1;
    caches.l1_ahead = 12 * kKiB;
    caches.normed_f32 = caches.normed_narrow = {Ask::kIntoL1, 0, 2};
  }
  if (data > 32 * kKiB && caches.inner == kMostInner) {  // Emerald Rapids
    caches.f32 = caches.narrow = Ask::kIntoBoth;
    caches.l1_ahead = 4 * kKiB;
    caches.l2_ahead = 24 * kKiB;
    caches.normed_f32 = {Ask::kIntoL2, 2048, 1};
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
