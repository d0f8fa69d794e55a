#include "walk.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpu/kernel.h"
#include "gpu/plain.h"
#include "host_memory.h"

namespace rope::gpu {
namespace {

// The bodies of Apply and ApplyFused, and of ApplyPlain and ApplyPlainFused.
template <class P, class Body>
void WalkSteps(const LaunchOf<P>& l, const std::vector<Thread>& threads, CosSin* shared) {
  constexpr bool kFused = std::is_same_v<P, FusedParams>;
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

template <class P, class Body>
void WalkPlainSteps(const LaunchOf<P>& l, const std::vector<Thread>& threads, CosSin* shared) {
  std::vector<typename Body::Held> held(threads.size());
  for (size_t i = 0; i < threads.size(); ++i) {
    Body::Locate(l.params, threads[i], &held[i]);
    Body::Ask(&held[i]);
    if constexpr (std::is_same_v<P, FusedParams>) Body::AskPage(l.params, threads[i], &held[i]);
  }
  for (size_t i = 0; i < threads.size(); ++i) {
    Body::MakeRow(l.params, threads[i], held[i], shared);
  }
  for (size_t i = threads.size(); i-- > 0;) {
    Body::Rotate(l.params, threads[i], held[i], shared);
  }
}

template <int kIndex, class P>
void WalkBlockOf(const LaunchOf<P>& l, uint32_t block_x, uint32_t block_y) {
  constexpr bool kFused = std::is_same_v<P, FusedParams>;
  constexpr Variant kVariant = VariantAt(kIndex);
  constexpr rope_dtype kType = kVariant.dtype;
  constexpr Form kForm = kVariant.form;
  constexpr Arithmetic kArithmetic = kVariant.arithmetic;
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
  if (l.plain) {
    if constexpr (HasPlain(kVariant)) {
      using Plain = PlainKernel<kType, kForm, kArithmetic, HostMemory>;
      using PlainFused = PlainFusedKernel<kType, kForm, kArithmetic, HostMemory>;
      WalkPlainSteps<P, std::conditional_t<kFused, PlainFused, Plain>>(l, threads, shared);
    }
  } else {
    using Other = Kernel<kType, kForm, kArithmetic, HostMemory>;
    using Fused = FusedKernel<kType, kForm, kArithmetic, HostMemory>;
    WalkSteps<P, std::conditional_t<kFused, Fused, Other>>(l, threads, shared);
  }
}

template <class P, int... kIndices>
void WalkAnyBlock(const LaunchOf<P>& l, uint32_t x, uint32_t y,
                  std::integer_sequence<int, kIndices...>) {
  using Walk = void (*)(const LaunchOf<P>&, uint32_t, uint32_t);
  static constexpr Walk kWalks[] = {&WalkBlockOf<kIndices, P>...};
  kWalks[IndexOf(l.variant)](l, x, y);
}
constexpr auto kAllVariants = std::make_integer_sequence<int, kVariants>();

}  // namespace

void WalkBlock(const LaunchOf<Params>& l, uint32_t x, uint32_t y) {
  WalkAnyBlock(l, x, y, kAllVariants);
}
void WalkBlock(const LaunchOf<FusedParams>& l, uint32_t x, uint32_t y) {
  WalkAnyBlock(l, x, y, kAllVariants);
}

}  // namespace rope::gpu
