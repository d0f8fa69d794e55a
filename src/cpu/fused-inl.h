// Multiply-add with one rounding on every target, as math/sincos.h has it. Included once per
// target.
#if defined(LIBROPE_SRC_CPU_FUSED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LIBROPE_SRC_CPU_FUSED_INL_H_
#undef LIBROPE_SRC_CPU_FUSED_INL_H_
#else
#define LIBROPE_SRC_CPU_FUSED_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace rope::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The same as in rotate.h; also of doubles.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V SumToOdd(D d, V a, V b) {
  const hn::RebindToUnsigned<D> du;
  const V sum = hn::Add(a, b);
  const V b_there = hn::Sub(sum, a), a_there = hn::Sub(sum, b_there);
  const V error = hn::Add(hn::Sub(a, a_there), hn::Sub(b, b_there));
  const auto bits = hn::BitCast(du, sum);
  // The neighbour towards zero, if the error is the other way than the sum; its last bit set.
  const auto one = hn::Set(du, 1u);
  constexpr int kSignBit = 8 * sizeof(hn::TFromD<D>) - 1;
  const auto beyond = hn::ShiftRight<kSignBit>(hn::Xor(bits, hn::BitCast(du, error)));
  const V odd = hn::BitCast(d, hn::Or(hn::Sub(bits, beyond), one));
  return hn::IfThenElse(hn::Gt(hn::Abs(error), hn::Zero(d)), odd, sum);
}

// a * b + c. hn::MulAdd rounds the product, too, where the target has no such instruction.
struct Fused {
#if HWY_NATIVE_FMA
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V MulAdd(D, V a, V b, V c) {
    return hn::MulAdd(a, b, c);
  }
#else
  template <class D, class V = hn::Vec<D>>
  static HWY_NOINLINE V MulAdd(D d, V a, V b, V c) {
    const hn::Half<D> half;
    return hn::Combine(
        d, InDoubles(half, hn::UpperHalf(half, a), hn::UpperHalf(half, b), hn::UpperHalf(half, c)),
        InDoubles(half, hn::LowerHalf(half, a), hn::LowerHalf(half, b), hn::LowerHalf(half, c)));
  }

 private:
  // Doubles have a product of floats exactly, and more than two digits beyond those of the result:
  // from a sum rounded to odd it is rounded as from the sum itself.
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V InDoubles(D d, V a, V b, V c) {
    const hn::Rebind<double, D> dd;
    const auto product = hn::Mul(hn::PromoteTo(dd, a), hn::PromoteTo(dd, b));
    return hn::DemoteTo(d, SumToOdd(dd, product, hn::PromoteTo(dd, c)));
  }
#endif
};

// What rows are made by: the target's own, with two roundings where it is not one instruction.
#if HWY_NATIVE_FMA
using Native = Fused;
#else
struct Native {
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE V MulAdd(D, V a, V b, V c) {
    return hn::MulAdd(a, b, c);
  }
};
#endif

}  // namespace HWY_NAMESPACE
}  // namespace rope::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard
