// Compiles the kernels once for every instruction set that Highway knows for this architecture, but
// for the rotations (rotations_*.cc), and chooses among them when a context is made. -march must
// not be given for this file.
#include "cpu/kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "base/status.h"
#include "cpu/scalar.h"
#include "cpu/target.h"
#include "math/angle.h"
#include "math/norm.h"
#include "math/rotate.h"
#include "math/sincos.h"
#include "math/sincos_constants.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if HWY_TARGET == HWY_SCALAR
#include "cpu/scalar-inl.h"
#else
#include "cpu/gradient-inl.h"
#include "cpu/norm-inl.h"
#include "cpu/sincos-inl.h"
#include "cpu/stages-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace rope::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR
void FillF32Rotations(Kernels& kernels);
void FillF16Rotations(Kernels& kernels);
void FillBf16Rotations(Kernels& kernels);
void FillCodedRotations(Kernels& kernels);

void FillRotations(Kernels& kernels) {
  FillF32Rotations(kernels);
  FillF16Rotations(kernels);
  FillBf16Rotations(kernels);
  FillCodedRotations(kernels);
}

void CopyStreaming(void* to, const void* from, int64_t bytes) {
  const HWY_CAPPED(uint8_t, 64) d;  // a line
  const auto step = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < bytes; i += step) {
    hn::Stream(hn::LoadU(d, static_cast<const uint8_t*>(from) + i), d,
               static_cast<uint8_t*>(to) + i);
  }
}

void TurnBackRows(const float* from_cos, const float* from_sin, double factor, int count,
                  float* cos, float* sin) {
  const hn::Half<FullTag> d;
  const hn::Rebind<double, hn::Half<FullTag>> dd;
  const auto scale = hn::Set(dd, factor);
  const auto step = static_cast<int>(hn::Lanes(d));
  for (int i = 0; i < count; i += step) {
    const auto wide = [&](const float* row) { return hn::PromoteTo(dd, hn::LoadU(d, row + i)); };
    const auto c = wide(cos), s = wide(sin), from_c = wide(from_cos), from_s = wide(from_sin);
    const auto to_c = hn::Mul(hn::Add(hn::Mul(c, from_c), hn::Mul(s, from_s)), scale);
    const auto to_s = hn::Mul(hn::Sub(hn::Mul(s, from_c), hn::Mul(c, from_s)), scale);
    hn::StoreU(hn::DemoteTo(d, to_c), d, cos + i);
    hn::StoreU(hn::DemoteTo(d, to_s), d, sin + i);
  }
}
#endif

Kernels MakeKernels() {
  Kernels kernels{};
  kernels.target = hwy::TargetName(HWY_TARGET);
  kernels.angle_rows = &AngleRows<AngleRule::kFloat32>;
  kernels.angle_row_per_pair = &AngleRowPerPair<AngleRule::kFloat32>;
  kernels.divided_rows = &AngleRows<AngleRule::kDivide>;
  kernels.divided_row_per_pair = &AngleRowPerPair<AngleRule::kDivide>;
  kernels.phase_rows = &PhaseRows;
  kernels.phase_row_per_pair = &PhaseRowPerPair;
#if HWY_TARGET == HWY_SCALAR
  kernels.fused = true;  // std::fma; its rotations take natural rows
  kernels.lanes = 1;
#else
  kernels.fused = HWY_NATIVE_FMA != 0;
  kernels.lanes = LanesOf(FullTag());
  kernels.order_row = &OrderRow;
  kernels.copy_streaming = &CopyStreaming;
  kernels.turn_back = &TurnBackRows;
#endif
  FillRoundings(kernels);
  FillRotations(kernels);
  FillNorms(kernels);
  FillGradients(kernels);
  FillStages(kernels);
  return kernels;
}

const Kernels* GetKernels() {
  static const Kernels kKernels = MakeKernels();
  return &kKernels;
}

}  // namespace HWY_NAMESPACE

template <>
inline constexpr KernelsGetter kKernelsGetter<HWY_TARGET> = &HWY_NAMESPACE::GetKernels;

}  // namespace rope::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#ifndef __linux__
#include <unistd.h>  // issetugid
#endif

namespace rope::cpu {
namespace {

// The kernels of every bit that a target can have; null where none were compiled.
template <size_t... kBits>
constexpr std::array<KernelsGetter, sizeof...(kBits)> Getters(std::index_sequence<kBits...>) {
  return {kKernelsGetter<int64_t{1} << kBits>...};
}

const char* WantedTarget() {
  constexpr char kName[] = "LIBROPE_CPU_TARGET";
#ifdef __linux__
  const char* wanted = secure_getenv(kName);
#else
  const char* wanted = issetugid() != 0 ? nullptr : std::getenv(kName);
#endif
  return wanted == nullptr || *wanted == '\0' ? nullptr : wanted;
}

}  // namespace

std::vector<const Kernels*> ListKernels() {
  constexpr auto kGetters = Getters(std::make_index_sequence<63>());  // HWY_SCALAR is bit 62
  // What the compiler may use anywhere needs no check: the library would not run without. Asked
  // once: in a virtual machine each question to the CPU takes microseconds.
  static const int64_t targets = DetectTargets() | HWY_STATIC_TARGET;
  std::vector<const Kernels*> all;
  for (size_t bit = 0; bit < kGetters.size(); ++bit) {  // a lower bit is a better target
    if ((targets >> bit & 1) != 0 && kGetters[bit] != nullptr) all.push_back(kGetters[bit]());
  }
  return all;
}

rope_status ChooseKernels(const char* function, const Kernels** kernels) {
  const std::vector<const Kernels*> all = ListKernels();
  const char* wanted = WantedTarget();
  *kernels = all.front();
  if (wanted == nullptr) return ROPE_OK;
  std::string names;
  for (const Kernels* candidate : all) {
    *kernels = candidate;
    if (std::strcmp(wanted, candidate->target) == 0) return ROPE_OK;
    names += names.empty() ? candidate->target : std::string(", ") + candidate->target;
  }
  return Fail(
      ROPE_ERROR_INVALID_ARGUMENT,
      "%s: the environment variable LIBROPE_CPU_TARGET (\"%.40s\") must be unset, empty, or "
      "a target of this library and CPU: %s",
      function, wanted, names.c_str());
}

}  // namespace rope::cpu
#endif  // HWY_ONCE
