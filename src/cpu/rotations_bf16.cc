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

// Of rows with all digits of f32.
template <class E>
void FillRareTies(Kernels& kernels) {
  kernels.rotations_of_rare_ties[kHalves] = RotationOf<E, kHalves, Arithmetic::kFused>();
  kernels.rotations_of_rare_ties[kInterleaved] = RotationOf<E, kInterleaved, Arithmetic::kFused>();
  FillNormed<E, ROPE_NORM_ROUNDING_FLOAT32>(kernels);  // normed channels have all digits, too
}

// Norms that round before the rotation. By integers a pass of the norm's own takes longer: it
// rounds as often, and has the words to make and to take apart again. By an instruction it does
// not.
template <class E>
void FillRoundedNorms(Kernels& kernels) {
  FillNormed<E, ROPE_NORM_ROUNDING_ROUNDED>(kernels);
  FillNormed<E, ROPE_NORM_ROUNDING_EAGER>(kernels);
}

void FillBf16Rotations(Kernels& kernels) {
  FillRotations<BF16>(kernels);
  using Wide = WidenedWords<BF16>;
  FillWidening<EvenOdd<Wide, Arithmetic::kFused>, PairWords<Wide, Arithmetic::kFused>>(
      kernels, ROPE_DTYPE_BF16);
#if ROPE_BF16_INSTRUCTION
  if (RoundsByInstruction()) return FillRareTies<ConvertedBF16>(kernels);
#endif
#if ROPE_ROUND_FROM_HALF
  FillRareTies<Bf16RoundedBy<RoundFromHalf>>(kernels);
  FillRoundedNorms<Bf16RoundedBy<RoundFromHalf>>(kernels);
#else
  FillRoundedNorms<BF16>(kernels);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace rope::cpu
HWY_AFTER_NAMESPACE();
#endif
