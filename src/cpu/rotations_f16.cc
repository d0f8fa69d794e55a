// The rotations of f16 heads, compiled once for every instruction set that Highway knows for this
// architecture. One file for each dtype: together they took one compiler minutes and 3 GB. -march
// must not be given for this file.
#include "cpu/kernels.h"
#include "cpu/f16_arithmetic.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rotations_f16.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if HWY_TARGET != HWY_SCALAR
#include "cpu/rotate-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rope::cpu {
namespace HWY_NAMESPACE {

void FillF16Rotations(Kernels& kernels) {
  FillRotations<F16>(kernels);
  using Wide = Widened<F16>;
  FillWidening<Natural<Wide, kHalves, Arithmetic::kFused>, PerChannel<Wide, Arithmetic::kFused>>(
      kernels, ROPE_DTYPE_F16);
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3) || HWY_ARCH_ARM_A64
  for (int order = 0; order < kChannelOrders; ++order) {
    const F16Rotation own = F16RotationOf(ChannelOrder{order});
    if (own.rotate == nullptr) continue;
    auto& rotation =
        kernels.rotations[ROPE_DTYPE_F16 - 1][order][static_cast<int>(Arithmetic::kNative)];
    rotation.rotate = own.rotate;
    rotation.rotate_token = own.rotate_token;
  }
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace rope::cpu
HWY_AFTER_NAMESPACE();
#endif
