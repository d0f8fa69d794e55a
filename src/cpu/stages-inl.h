// The stages around a rotation in f32, where no kernel reads and writes what a call has: channels
// are widened to f32, which stays in the L1 cache, and narrowed from it. Included once per target.
#if defined(LIBROPE_SRC_CPU_STAGES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LIBROPE_SRC_CPU_STAGES_INL_H_
#undef LIBROPE_SRC_CPU_STAGES_INL_H_
#else
#define LIBROPE_SRC_CPU_STAGES_INL_H_
#endif

#include "cpu/elements-inl.h"
#include "cpu/shapes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rope::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Calls step(d, i) for whole vectors from i on, the last ones smaller: nothing behind `count` is
// touched.
template <class Step>
HWY_INLINE void ForEachVector(int64_t count, const Step& step) {
  const FullTag full;
  const QuarterTag quarter;
  int64_t i = 0;
  for (const int n = LanesOf(full); i + n <= count; i += n) step(full, i);
  for (const int n = LanesOf(quarter); i + n <= count; i += n) step(quarter, i);
  for (; i < count; ++i) step(OneTag(), i);
}

template <class E>
void Widen(const void* from, float* to, int64_t count) {
  const auto* elements = static_cast<const typename E::Raw*>(from);
  ForEachVector(
      count, [&](auto d, int64_t i) HWY_ATTR { hn::StoreU(E::Load(d, elements + i), d, to + i); });
}

// Unlike kernels, which store what they have rotated, this may meet any NaN.
template <class E, class D>
HWY_INLINE void StoreNarrow(D d, hn::Vec<D> value, typename E::Raw* to) {
  if constexpr (E::kDtype == ROPE_DTYPE_BF16) {
    const hn::Rebind<uint16_t, D> du16;
    hn::StoreU(hn::TruncateTo(du16, hn::ShiftRight<16>(RoundToBf16(d, value))), du16, to);
  } else {
    E::template Store<false>(d, value, to);
  }
}

template <class E>
void Narrow(const float* from, void* to, int64_t count) {
  auto* elements = static_cast<typename E::Raw*>(to);
  ForEachVector(count, [&](auto d, int64_t i)
                           HWY_ATTR { StoreNarrow<E>(d, hn::LoadU(d, from + i), elements + i); });
}

template <class... E>
void FillStages(Kernels& kernels, Elements<E...>) {
  ((kernels.widen[E::kDtype - 1] = &Widen<E>, kernels.narrow[E::kDtype - 1] = &Narrow<E>), ...);
}

void FillStages(Kernels& kernels) { FillStages(kernels, AllElements()); }

}  // namespace HWY_NAMESPACE
}  // namespace rope::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard
