// The rotations of f32 heads, compiled once for every instruction set that Highway knows for this
// architecture. One file for each dtype: together they took one compiler minutes and 3 GB. -march
// must not be given for this file.
#include "cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rotations_f32.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if HWY_TARGET != HWY_SCALAR
#include "cpu/rotate-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rope::cpu {
namespace HWY_NAMESPACE {

void FillF32Rotations(Kernels& kernels) { FillRotations<F32>(kernels); }

}  // namespace HWY_NAMESPACE
}  // namespace rope::cpu
HWY_AFTER_NAMESPACE();
#endif
