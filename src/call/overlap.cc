#include "call/overlap.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace rope {
namespace {

// The bytes that the dimensions with strides below `cut` reach, and the greatest common divisor of
// the strides from `cut` on.
struct Split {
  int64_t window;
  int64_t pitch;
};

Split SplitAt(const Footprint& a, int64_t cut) {
  Split split{a.width, 0};
  for (int d = 0; d < 3; ++d) {
    if (a.counts[d] == 1) continue;
    if (a.strides[d] < cut) {
      split.window += (a.counts[d] - 1) * a.strides[d];
    } else {
      split.pitch = std::gcd(split.pitch, a.strides[d]);
    }
  }
  return split;
}

int64_t LargestStride(const Footprint& a) {
  int64_t largest = 0;
  for (int d = 0; d < 3; ++d) {
    if (a.counts[d] != 1) largest = std::max(largest, a.strides[d]);
  }
  return largest;
}

// Without the dimensions of this stride.
Footprint Inside(const Footprint& a, int64_t stride) {
  Footprint inner = a;
  for (int d = 0; d < 3; ++d) {
    if (a.strides[d] == stride) inner.counts[d] = 1;
  }
  return inner;
}

// b - a modulo a number.
int64_t GapModulo(const Region& a, const Region& b, int64_t modulus) {
  const bool ahead = b.base >= a.base;
  const auto step = static_cast<int64_t>((ahead ? b.base - a.base : a.base - b.base) %
                                         static_cast<uint64_t>(modulus));
  return ahead || step == 0 ? step : modulus - step;
}

// Both step through memory with the same outer stride, as k and v, or codes and scales, do in the
// pages of a cache, or one stays inside a step of the other. If what they reach without that stride
// lies within one step, it meets nothing of another step, and the question is that of one step
// alone.
bool AreDisjointInside(const Region& a, const Region& b) {
  const int64_t stride = std::max(LargestStride(a.of), LargestStride(b.of));
  if (stride == 0) return false;
  const Footprint in_a = Inside(a.of, stride), in_b = Inside(b.of, stride);
  const int64_t reach_a = in_a.extent(), reach_b = in_b.extent();
  const int64_t gap = GapModulo(a, b, stride);
  // b begins behind a in the step, or a behind b.
  if (reach_a <= stride && reach_b <= stride - gap) {
    return AreDisjoint({in_a, 0}, {in_b, static_cast<uint64_t>(gap)});
  }
  if (gap != 0 && reach_b <= stride && reach_a <= gap) {
    return AreDisjoint({in_a, static_cast<uint64_t>(stride - gap)}, {in_b, 0});
  }
  return false;
}

}  // namespace

bool IsInjective(const Footprint& a) {
  // From the smallest stride up, each must step over all that the smaller ones reach.
  int order[3] = {0, 1, 2};
  if (a.strides[order[0]] > a.strides[order[1]]) std::swap(order[0], order[1]);
  if (a.strides[order[1]] > a.strides[order[2]]) std::swap(order[1], order[2]);
  if (a.strides[order[0]] > a.strides[order[1]]) std::swap(order[0], order[1]);
  int64_t window = a.width;
  for (int d : order) {
    if (a.counts[d] == 1) continue;
    if (a.strides[d] < window) return false;
    window += (a.counts[d] - 1) * a.strides[d];
  }
  return true;
}

bool AreEqual(const Footprint& a, const Footprint& b) {
  if (a.width != b.width) return false;
  for (int d = 0; d < 3; ++d) {
    if (a.counts[d] != b.counts[d]) return false;
    if (a.counts[d] != 1 && a.strides[d] != b.strides[d]) return false;
  }
  return true;
}

bool AreDisjoint(const Region& a, const Region& b) {
  if (a.base + static_cast<uint64_t>(a.of.extent()) <= b.base) return true;
  if (b.base + static_cast<uint64_t>(b.of.extent()) <= a.base) return true;
  // The ranges meet, as those of q and k in one packed buffer do. Cut both tensors at a stride:
  // from there on all steps are multiples of a pitch, so modulo the pitch a stays in one window and
  // b in another. If these do not touch, nothing does. Tokens first: rows of a cache, and of packed
  // buffers, are apart there.
  for (const int d : {1, 0, 2}) {
    for (const Footprint* from : {&a.of, &b.of}) {
      const int64_t cut = from->strides[d];
      if (from->counts[d] == 1 || cut == 0) continue;
      const Split x = SplitAt(a.of, cut), y = SplitAt(b.of, cut);
      const int64_t pitch = std::gcd(x.pitch, y.pitch);
      const int64_t gap = GapModulo(a, b, pitch);
      if (gap >= x.window && y.window <= pitch - gap) return true;  // no sum: it could wrap
    }
  }
  return AreDisjointInside(a, b);
}

rope_status FailOverlap(const char* function, const Memory& added, const Memory& before,
                        const char* rule) {
  const auto reaches = [](const Memory& memory) {
    return static_cast<long long>(memory.of.extent());
  };
  if (added.base == before.base) {
    return Fail(
        ROPE_ERROR_INVALID_ARGUMENT,
        "%s: %s overlaps %s%s: they reach over %lld and %lld bytes, and begin at the same one",
        function, added.name, before.name, rule, reaches(added), reaches(before));
  }
  const bool behind = added.base > before.base;
  const uintptr_t distance = behind ? added.base - before.base : before.base - added.base;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: %s overlaps %s%s: they reach over %lld and %lld bytes, and begin %llu apart, %s "
              "first",
              function, added.name, before.name, rule, reaches(added), reaches(before),
              static_cast<unsigned long long>(distance), behind ? before.name : added.name);
}

}  // namespace rope
