// What the caches of this CPU keep: calls choose by it whether to ask the memory for data ahead of
// its use, and whether to write around the caches.
#ifndef LIBROPE_SRC_CPU_CACHES_H_
#define LIBROPE_SRC_CPU_CACHES_H_

#include <cstdint>

namespace rope::cpu {

// How a call that leaves the L2 cache asks the memory for what lies in order before it needs it.
// kIntoBoth: far ahead into the L2 cache, and from there into the L1 cache.
enum class Ask : uint8_t { kNot, kIntoL2, kIntoL1, kIntoBoth };

// How heads that come from the memory are normed.
struct NormTiles {
  Ask ask;           // for the next tile
  int32_t channels;  // of a tile; 0: as many as in a cache
  int32_t quarters;  // of the next tile that are asked for as heads are summed, not as they turn
};

struct Caches {
  int64_t inner;  // bytes of one core's own: the L2 cache
  int64_t last;   // bytes of the shared L3 cache that one call can count on: half of it
  // The hardware's own prefetcher sees data in order, too, but stops at pages. f32 has twice as
  // much to fetch for the same arithmetic as elements of 16 bits.
  Ask f32, narrow;
  int32_t l1_ahead, l2_ahead;  // by how many bytes
  NormTiles normed_f32, normed_narrow;
};

// Asks the CPU, not the C library: glibc adds up the last caches of all cores of a package, of
// which a core fills only the one beside it. Virtual machines may say too much, or nothing: no more
// than usual sizes, which also stand for what is not known. Takes microseconds: for attach, not for
// apply.
Caches FindCaches();

// The same of what the instruction cpuid answers for its caches: leaf 4, or 0x8000001D of AMD's.
struct CacheLeaf {
  unsigned eax, ebx, ecx;
};
constexpr int kMaxCacheLeaves = 8;
Caches CachesOf(const CacheLeaf* leaves, int count);

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_CACHES_H_
