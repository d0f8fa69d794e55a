// The rotations of bf16 heads, compiled once for every instruction set that Highway knows for this
// architecture. One file for each dtype: together they took one compiler minutes and 3 GB. -march
// must not be given for this file.
#include "cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rotations_bf16.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if HWY_TARGET != HWY_SCALAR
#include "cpu/rotate-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rope::cpu {
namespace HWY_NAMESPACE {

// That is rounded once.
template <class E>
void FillRareTies(Kernels& kernels) {
  kernels.rotations_of_rare_ties[kHalves] = RotationOf<E, kHalves, Arithmetic::kFused>();
  kernels.rotations_of_rare_ties[kInterleaved] = RotationOf<E, kInterleaved, Arithmetic::kFused>();
  FillNormed<E>(kernels);  // normed channels have all digits of f32
}

void FillBf16Rotations(Kernels& kernels) {
  FillRotations<BF16>(kernels);
  FillWidening<BF16>(kernels);
#if ROPE_ROUND_FROM_HALF
  FillRareTies<Bf16RoundedBy<RoundFromHalf>>(kernels);
#endif
#if ROPE_BF16_INSTRUCTION
  if (RoundsByInstruction()) FillRareTies<ConvertedBF16>(kernels);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace rope::cpu
HWY_AFTER_NAMESPACE();
#endif
