#include "staged_walk.h"

#include <type_traits>
#include <utility>

#include "gpu/held.h"
#include "gpu/staged.h"
#include "host_memory.h"
#include "shared_memory.h"

namespace rope::gpu {
namespace {

template <int kIndex>
void WalkStagedBlockOf(const StagedLaunch& l, const HostBlock& block) {
  const SharedMemory shared(l.shared_bytes);
  constexpr StagedVariant kVariant = StagedVariantAt(kIndex);
  using Body = std::conditional_t<
      kVariant.held != 0, HeldKernel<kVariant.dtype, kVariant.held, HostMemory>,
      StagedKernel<kVariant.dtype, kVariant.wide, kVariant.converts, HostMemory>>;
  RunBlock(block, [&](const HostBlock& own) { Body::Run(l.params, own, shared.data()); });
}

template <int... kIndices>
void WalkAnyStagedBlock(const StagedLaunch& l, const HostBlock& block,
                        std::integer_sequence<int, kIndices...>) {
  using Walk = void (*)(const StagedLaunch&, const HostBlock&);
  static constexpr Walk kWalks[] = {&WalkStagedBlockOf<kIndices>...};
  kWalks[StagedIndexOf(l.variant)](l, block);
}

}  // namespace

void WalkStagedBlock(const StagedLaunch& l, const HostBlock& block) {
  WalkAnyStagedBlock(l, block, std::make_integer_sequence<int, kStagedKernels>());
}

}  // namespace rope::gpu
