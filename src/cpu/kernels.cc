// Compiles the kernels once for every instruction set that Highway knows for this architecture, and
// chooses among them when a context is made. -march must not be given for this file.
#include "cpu/kernels.h"

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "cpu/scalar.h"
#include "rotate.h"
#include "sincos_constants.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/rows-inl.h"
#if HWY_TARGET != HWY_SCALAR
#include "cpu/kernels-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace rope::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

template <rope_dtype kDtype, Direction kDirection, bool kEager>
void RotateBlock(const Block& b) {
  for (int32_t t = 0; t < b.tokens; ++t) {
    const float *cos = b.cos + t * b.row_stride, *sin = b.sin + t * b.row_stride;
    for (int32_t h = 0; h < b.heads; ++h) {
      RotateHeadScalar(kDtype, kDirection, kEager, b.segments, b.segment_count,
                       b.in + h * b.in_head + t * b.in_token,
                       b.out + h * b.out_head + t * b.out_token, {cos, sin, cos, sin});
    }
  }
}

template <rope_dtype kDtype, Direction kDirection>
void FillDirection(Kernels::Rotation (&rotations)[kDirections][2]) {
  rotations[kDirection][0] = {RowOrder::kNatural, &RotateBlock<kDtype, kDirection, false>, nullptr};
  rotations[kDirection][1] = {RowOrder::kNatural, &RotateBlock<kDtype, kDirection, true>, nullptr};
}

template <rope_dtype kDtype>
void FillRotations(Kernels::Rotation (&rotations)[kDirections][2]) {
  FillDirection<kDtype, kHalves>(rotations);
  FillDirection<kDtype, kInterleaved>(rotations);
  FillDirection<kDtype, kInterleavedToHalves>(rotations);
  FillDirection<kDtype, kHalvesToInterleaved>(rotations);
}

void RoundRow(rope_dtype dtype, float* values, int32_t count) {
  for (int i = 0; i < count; ++i) values[i] = RoundTo(dtype, values[i]);
}

#endif

Kernels MakeKernels() {
  Kernels kernels{};
  kernels.target = hwy::TargetName(HWY_TARGET);
  kernels.angle_row = &AngleRow;
  kernels.angle_row_per_pair = &AngleRowPerPair;
  kernels.phase_row = &PhaseRow;
  kernels.phase_row_per_pair = &PhaseRowPerPair;
  kernels.round_row = &RoundRow;
#if HWY_TARGET == HWY_SCALAR
  kernels.fused = true;  // std::fma
  FillRotations<ROPE_F32>(kernels.rotations[ROPE_F32 - 1]);
  FillRotations<ROPE_F16>(kernels.rotations[ROPE_F16 - 1]);
  FillRotations<ROPE_BF16>(kernels.rotations[ROPE_BF16 - 1]);
#else
  kernels.fused = HWY_NATIVE_FMA != 0;
  kernels.order_row = &OrderRow;
  FillRotations(kernels);
#endif
  return kernels;
}

const Kernels* GetKernels() {
  static const Kernels kKernels = MakeKernels();
  return &kKernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace rope::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rope::cpu {
namespace {

HWY_EXPORT(GetKernels);

// A choice of our own: Highway's is shared by all users of libhwy.so in the process.
const Kernels* KernelsOf(int64_t targets) {
  hwy::ChosenTarget chosen;
  chosen.Update(targets);
  return HWY_DISPATCH_TABLE(GetKernels)[chosen.GetIndex()]();
}

}  // namespace

std::vector<const Kernels*> ListKernels() {
  std::vector<const Kernels*> all;
  int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  while (targets != 0) {
    const int64_t best = targets & -targets;  // a lower bit is a better target
    all.push_back(KernelsOf(best));
    targets ^= best;
  }
  return all;
}

const Kernels& ChooseKernels() {
  const std::vector<const Kernels*> all = ListKernels();
  const char* wanted = std::getenv("LIBROPE_CPU_TARGET");
  for (const Kernels* kernels : all) {
    if (wanted != nullptr && std::strcmp(wanted, kernels->target) == 0) return *kernels;
  }
  return *all.front();
}

}  // namespace rope::cpu
#endif  // HWY_ONCE
