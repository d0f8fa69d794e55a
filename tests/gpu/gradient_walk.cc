// Gradients on the walked grid: the kernels that call_walk.h calls.
#include "call_walk.h"
#include "gpu/gradient.h"
#include "gpu/gradient_columns.h"
#include "host_memory.h"
#include "shared_memory.h"

namespace rope::gpu {
namespace {

template <rope_dtype kType>
void WalkBlockOf(const GradientLaunch& l, const HostBlock& block) {
  const SharedMemory shared(l.shared_bytes);
  RunBlock(block, [&](const HostBlock& own) {
    if (l.columns) {
      GradientColumnKernel<kType, HostMemory>::Run(l.params, own, shared.data());
    } else {
      GradientKernel<kType, HostMemory>::Run(l.params, own, shared.data());
    }
  });
}

}  // namespace

void WalkGradientBlock(const GradientLaunch& l, const HostBlock& block) {
  constexpr decltype(&WalkBlockOf<ROPE_DTYPE_F32>) kWalks[] = {
      &WalkBlockOf<ROPE_DTYPE_F32>, &WalkBlockOf<ROPE_DTYPE_F16>, &WalkBlockOf<ROPE_DTYPE_BF16>};
  kWalks[l.dtype - 1](l, block);
}

}  // namespace rope::gpu
