// The rotations of bf16 heads that become codes of 8 bits as they turn, by a scale that is given or
// that of their largest number, compiled once for every instruction set that Highway knows for this
// architecture. -march must not be given for this file.
#include "cpu/kernels.h"

#include <algorithm>
#include <cstdint>

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
    StoreCodePairsTwice<kCode, false>(d, first, second, to, next_first, next_second, next_to);
    return false;
  }
};

// Only where registers hold a head and its row: in memory it waits no better than in stages.
#undef ROPE_CODES_BY_LARGEST
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
#define ROPE_CODES_BY_LARGEST 1
#else
#define ROPE_CODES_BY_LARGEST 0
#endif

#if ROPE_CODES_BY_LARGEST

// The largest bits of what a head turns to, without signs, NaN behind all; or of what is no NaN.
template <int kVectors, bool kSkipsNan>
HWY_INLINE int32_t LargestOfHead(const hn::Vec<FullTag>* turned) {
  const hn::RebindToSigned<FullTag> di;
  auto largest = hn::Zero(di);
  for (int i = 0; i < kVectors; ++i) {
    const auto size = hn::BitCast(di, hn::Abs(turned[i]));
    largest = hn::Max(
        largest,
        kSkipsNan ? hn::IfThenZeroElse(hn::Gt(size, hn::Set(di, F32::kInfinity)), size) : size);
  }
  return hn::GetLane(hn::MaxOfLanes(di, largest));
}

// The codes of a head by the scale of its largest number, and that scale.
template <Code kCode, class Shape, int kVectors, bool kFinite>
HWY_INLINE void CodeHead(const hn::Vec<FullTag>* turned, int32_t largest, const GroupScales& scales,
                         char* to_scale, const PlacesOf<typename Shape::Element>& at) {
  const FullTag d;
  const OneTag one;
  const hn::RebindToSigned<OneTag> of_bits;
  const auto scale = ScalesOf<kCode>(one, hn::BitCast(one, hn::Set(of_bits, largest)), scales.least,
                                     scales.power_of_two);
  StoreScale(scales.dtype, to_scale, 0, hn::GetLane(scale));
  const auto inverse = hn::Set(d, hn::GetLane(hn::Div(hn::Set(one, 1.0f), scale)));
  for (int v = 0; v < kVectors; v += 2) {
    const auto* const y = turned + 2 * v;
    const int i = v * static_cast<int>(hn::MaxLanes(FullTag()));
    StoreCodePairsTwice<kCode, kFinite>(d, hn::Mul(y[0], inverse), hn::Mul(y[1], inverse),
                                        at.out + Shape::kWrites * i, hn::Mul(y[2], inverse),
                                        hn::Mul(y[3], inverse), Shape::NextOut(d, at, i));
  }
}
// Apart, so that the others need not be kept for it.
template <Code kCode, class Shape, int kVectors>
HWY_NOINLINE void CodeHeadWithNan(const float* turned, const GroupScales& scales, char* to_scale,
                                  const PlacesOf<typename Shape::Element>& at) {
  const FullTag d;
  hn::Vec<FullTag> y[2 * kVectors];
  for (int i = 0; i < 2 * kVectors; ++i) y[i] = hn::Load(d, turned + i * hn::MaxLanes(FullTag()));
  const int32_t largest = std::min(LargestOfHead<2 * kVectors, true>(y), F32::kInfinity - 1);
  CodeHead<kCode, Shape, kVectors, false>(y, largest, scales, to_scale, at);
}

// A head by its row, which waits for its scale in registers.
template <Code kCode, class Shape, int kVectors>
HWY_INLINE void TurnAndCode(const PlacesOf<typename Shape::Element>& at,
                            const hn::Vec<FullTag>* cos, const hn::Vec<FullTag>* sin,
                            const GroupScales& scales, char* to_scale) {
  const FullTag d;
  constexpr int n = hn::MaxLanes(FullTag());
  hn::Vec<FullTag> y[2 * kVectors];
  for (int v = 0; v < kVectors; v += 2) {
    Shape::Turn(d, at, AsTheyAre(), v * n, cos[v], sin[v], cos[v + 1], sin[v + 1], y[2 * v],
                y[2 * v + 1], y[2 * v + 2], y[2 * v + 3]);
  }
  const int32_t largest = LargestOfHead<2 * kVectors, false>(y);
  if (HWY_LIKELY(largest < F32::kInfinity)) {
    CodeHead<kCode, Shape, kVectors, true>(y, largest, scales, to_scale, at);
    return;
  }
  HWY_ALIGN float turned[2 * kVectors * n];
  for (int i = 0; i < 2 * kVectors; ++i) hn::Store(y[i], d, turned + i * n);
  CodeHeadWithNan<kCode, Shape, kVectors>(turned, scales, to_scale, at);
}

// Whole heads by the scale of each; kVectors: of the row.
template <Code kCode, template <class, Arithmetic, class> class ShapeOf, int kVectors>
void CodeHeads(const Block& b) {
  using Shape = ShapeOf<Coded<kCode>, Arithmetic::kFused, AsTheyAre>;
  using V = hn::Vec<FullTag>;
  const FullTag d;
  constexpr int n = hn::MaxLanes(FullTag());
  const Tensor& tensor = *b.tensor;
  const HeadStrides in_strides = tensor.in_strides, out_strides = tensor.out_strides;
  const GroupScales scales = *b.scales;
  const int channel = b.segments[0].first_channel;
  const int32_t run = HeadsLieApart(tensor) ? 1 : tensor.heads;
  for (int32_t first = 0; first < tensor.heads; first += run) {
    const float *cos = b.cos, *sin = b.sin;
    for (int32_t t = 0; t < b.tokens; ++t, cos += b.row_stride, sin += b.row_stride) {
      const char* in = b.in + HeadOffset(in_strides, 0, t, first);
      char* out = b.out + HeadOffset(out_strides, 0, t, first);
      char* scale = b.first_scale + HeadOffset(scales.strides, 0, t, first);
      const char* asked = in + (run - 1) * in_strides.head + b.prefetch_ahead;
      const int64_t ahead = asked <= b.prefetch_last ? b.prefetch_ahead : 0;
      V c[kVectors], s[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        c[v] = hn::LoadU(d, cos + v * n);
        s[v] = hn::LoadU(d, sin + v * n);
      }
      for (int32_t h = 0; h < run; ++h) {
        const Head<uint16_t, uint8_t> head = {reinterpret_cast<const uint16_t*>(in) + channel,
                                              reinterpret_cast<uint8_t*>(out) + channel,
                                              kVectors * n};
        if (ahead != 0) Prefetch(head.in, ahead, b.prefetch_near, head.bytes(), b.prefetch_into_l1);
        TurnAndCode<kCode, Shape, kVectors>({head, 0, 0}, c, s, scales, scale);
        in += in_strides.head;
        out += out_strides.head;
        scale += scales.strides.head;
      }
    }
  }
}

template <Code kCode, template <class, Arithmetic, class> class ShapeOf>
void CodeHeads(const Block& b) {
  if (b.segments[0].pairs == 4 * static_cast<int>(hn::MaxLanes(FullTag()))) {
    CodeHeads<kCode, ShapeOf, 4>(b);
  } else {
    CodeHeads<kCode, ShapeOf, 2>(b);
  }
}

#endif

template <Code kCode>
void FillCoding(Kernels& kernels) {
  auto& coding = kernels.coding[static_cast<int>(kCode)];
  using Halves = EvenOdd<Coded<kCode>, Arithmetic::kFused, CodedBy>;
  using Interleaved = PairWords<Coded<kCode>, Arithmetic::kFused, CodedBy>;
  coding[kHalves] = {Halves::kOrder, &RotateBlock<Halves, false>, nullptr, nullptr};
  coding[kInterleaved] = {Interleaved::kOrder, &RotateBlock<Interleaved, false>, nullptr, nullptr};
#if ROPE_CODES_BY_LARGEST
  auto& by_largest = kernels.coding_by_largest[static_cast<int>(kCode)];
  by_largest[kHalves] = {Halves::kOrder, &CodeHeads<kCode, EvenOdd>, nullptr, nullptr};
  by_largest[kInterleaved] = {Interleaved::kOrder, &CodeHeads<kCode, PairWords>, nullptr, nullptr};
#endif
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
