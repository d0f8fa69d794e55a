// The rotations of bf16 heads that become codes of 8 bits as they turn, compiled once for every
// instruction set that Highway knows for this architecture. -march must not be given for this file.
#include "cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/rotations_coded.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if HWY_TARGET != HWY_SCALAR
#include "cpu/codes-inl.h"
#include "cpu/rotate-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rope::cpu {
namespace HWY_NAMESPACE {

// bf16 that is stored in 8 bits; what is stored is already divided by a scale.
template <Code kCode>
struct Coded : WidenedWords<BF16> {
  using Raw = uint8_t;
  using WithTies = Coded;
  template <bool, class D>
  static HWY_INLINE void StoreBoth(D d, hn::Vec<D> a, uint8_t* to_a, hn::Vec<D> b, uint8_t* to_b) {
    StoreCodes<kCode>(d, a, to_a);
    StoreCodes<kCode>(d, b, to_b);
  }
  template <bool kStream, class D>
  static HWY_INLINE void StorePairs(D d, hn::Vec<D> y0, hn::Vec<D> y1, uint8_t* to) {
    HWY_ALIGN float pairs[2 * kMaxLanes];
    F32::StorePairs<kStream>(d, y0, y1, pairs);
    const int n = LanesOf(d);
    StoreCodes<kCode>(d, hn::LoadU(d, pairs), to);
    StoreCodes<kCode>(d, hn::LoadU(d, pairs + n), to + n);
  }
  template <bool, class D>
  static HWY_INLINE bool StoreWordsTwice(D d, hn::Vec<D> first, hn::Vec<D> second, uint8_t* to,
                                         hn::Vec<D> next_first, hn::Vec<D> next_second,
                                         uint8_t* next_to) {
    StoreCodePairsTwice<kCode>(d, first, second, to, next_first, next_second, next_to);
    return false;
  }
};

template <Code kCode>
void FillCoding(Kernels& kernels) {
  auto& coding = kernels.coding[static_cast<int>(kCode)];
  using Halves = EvenOdd<Coded<kCode>, Arithmetic::kFused, CodedBy>;
  using Interleaved = PairWords<Coded<kCode>, Arithmetic::kFused, CodedBy>;
  coding[kHalves] = {Halves::kOrder, &RotateBlock<Halves, false>, nullptr, nullptr};
  coding[kInterleaved] = {Interleaved::kOrder, &RotateBlock<Interleaved, false>, nullptr, nullptr};
}

void FillCodedRotations(Kernels& kernels) {
  FillCoding<Code::kE4m3>(kernels);
  FillCoding<Code::kE5m2>(kernels);
  FillCoding<Code::kInt8>(kernels);
}

}  // namespace HWY_NAMESPACE
}  // namespace rope::cpu
HWY_AFTER_NAMESPACE();
#endif
