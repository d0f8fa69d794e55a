// Rotation of heads by ready rows: one template over element type, direction, rounding and stores.
// Included once per target.
#if defined(LIBROPE_SRC_CPU_KERNELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LIBROPE_SRC_CPU_KERNELS_INL_H_
#undef LIBROPE_SRC_CPU_KERNELS_INL_H_
#else
#define LIBROPE_SRC_CPU_KERNELS_INL_H_
#endif

#include "cpu/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rope::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors of a head, and the smaller ones that finish its tail: no masks, so nothing outside the
// span is touched.
using FullTag = HWY_CAPPED(float, kMaxLanes);
using QuarterTag = HWY_CAPPED(float, 4);
using PairTag = HWY_CAPPED(float, 2);
using OneTag = HWY_CAPPED(float, 1);

template <class D>
int LanesOf(D d) {
  return static_cast<int>(hn::Lanes(d));
}

// y0 = x0 cos - x1 sin, y1 = x1 cos + x0 sin. EAGER rounds both products to the element type; the
// store rounds the sum.
template <class E, bool kEager, class D, class V = hn::Vec<D>>
HWY_INLINE void RotatePair(D d, V x0, V x1, V cos, V sin, V& y0, V& y1) {
  if constexpr (kEager) {
    y0 = hn::Sub(E::Round(d, hn::Mul(x0, cos)), E::Round(d, hn::Mul(x1, sin)));
    y1 = hn::Add(E::Round(d, hn::Mul(x1, cos)), E::Round(d, hn::Mul(x0, sin)));
  } else {
    (void)d;
    y0 = hn::MulSub(x0, cos, hn::Mul(x1, sin));
    y1 = hn::MulAdd(x1, cos, hn::Mul(x0, sin));
  }
}

// One segment of one head. `in` and `out` point to its first channel, cos and sin to its first pair.
template <class E>
struct SegmentArgs {
  const typename E::Raw* in;
  typename E::Raw* out;
  const float* cos;
  const float* sin;
  int pairs;
};

// Rows in natural order: a vector of pairs at a time. Returns how many pairs are done.
template <class E, int kDirection, bool kEager, bool kStream, class D>
HWY_INLINE int NaturalPairs(D d, const SegmentArgs<E>& a, int i) {
  const int n = LanesOf(d);
  for (; i + n <= a.pairs; i += n) {
    hn::Vec<D> x0, x1, y0, y1;
    if constexpr (kDirection == kInterleaved || kDirection == kInterleavedToHalves) {
      E::LoadPairs(d, a.in + 2 * i, x0, x1);
    } else {
      x0 = E::Load(d, a.in + i);
      x1 = E::Load(d, a.in + a.pairs + i);
    }
    RotatePair<E, kEager>(d, x0, x1, hn::LoadU(d, a.cos + i), hn::LoadU(d, a.sin + i), y0, y1);
    if constexpr (kDirection == kInterleaved || kDirection == kHalvesToInterleaved) {
      E::StorePairs(d, y0, y1, a.out + 2 * i);
    } else {
      E::template Store<kStream>(d, y0, a.out + i);
      E::template Store<kStream>(d, y1, a.out + a.pairs + i);
    }
  }
  return i;
}

template <class E, int kDirection, bool kEager, bool kStream>
struct Natural {
  static constexpr RowOrder kOrder = RowOrder::kNatural;
  static HWY_INLINE void Segment(const SegmentArgs<E>& a) {
    int i = NaturalPairs<E, kDirection, kEager, kStream>(FullTag(), a, 0);
    i = NaturalPairs<E, kDirection, kEager, false>(QuarterTag(), a, i);
    NaturalPairs<E, kDirection, kEager, false>(OneTag(), a, i);
  }
};

// bf16 in halves: a 32-bit word holds an even and an odd channel, so whole vectors are widened
// without a shuffle, if the row has its even pairs first.
template <bool kEager, bool kStream, class D>
HWY_INLINE int EvenOddPairs(D d, const SegmentArgs<BF16>& a, int i) {
  const int n = LanesOf(d);
  for (; i + 2 * n <= a.pairs; i += 2 * n) {
    const auto words0 = BF16::LoadWords(d, a.in + i);
    const auto words1 = BF16::LoadWords(d, a.in + a.pairs + i);
    hn::Vec<D> even0, even1, odd0, odd1;
    RotatePair<BF16, kEager>(d, BF16::First(d, words0), BF16::First(d, words1),
                             hn::LoadU(d, a.cos + i), hn::LoadU(d, a.sin + i), even0, even1);
    RotatePair<BF16, kEager>(d, BF16::Second(d, words0), BF16::Second(d, words1),
                             hn::LoadU(d, a.cos + i + n), hn::LoadU(d, a.sin + i + n), odd0, odd1);
    BF16::StoreWords<kStream>(d, even0, odd0, a.out + i);
    BF16::StoreWords<kStream>(d, even1, odd1, a.out + a.pairs + i);
  }
  return i;
}

template <bool kEager, bool kStream>
struct EvenOdd {
  static constexpr RowOrder kOrder = RowOrder::kEvenOdd;
  static HWY_INLINE void Segment(const SegmentArgs<BF16>& a) {
    int i = EvenOddPairs<kEager, kStream>(FullTag(), a, 0);
    i = EvenOddPairs<kEager, false>(QuarterTag(), a, i);
    NaturalPairs<BF16, kHalves, kEager, false>(OneTag(), a, i);
  }
};

template <class D>
HWY_INLINE int OrderEvenOdd(D d, const float* natural, float* ordered, int pairs, int i) {
  const int n = LanesOf(d);
  for (; i + 2 * n <= pairs; i += 2 * n) {
    hn::Vec<D> even, odd;
    hn::LoadInterleaved2(d, natural + i, even, odd);
    hn::StoreU(even, d, ordered + i);
    hn::StoreU(odd, d, ordered + i + n);
  }
  return i;
}

// Interleaved f32 and f16: each channel times its cos, plus its neighbour times its signed sin. One
// shuffle per vector instead of the four that separating the members would take.
template <class E, bool kEager, bool kStream, class D>
HWY_INLINE int Channels(D d, const SegmentArgs<E>& a, int i) {
  const int n = LanesOf(d);
  for (; i + n <= 2 * a.pairs; i += n) {
    const auto x = E::Load(d, a.in + i);
    const auto neighbour = hn::Reverse2(d, x);
    const auto cos = hn::LoadU(d, a.cos + i), sin = hn::LoadU(d, a.sin + i);
    hn::Vec<D> y;
    if constexpr (kEager) {
      y = hn::Add(E::Round(d, hn::Mul(x, cos)), E::Round(d, hn::Mul(neighbour, sin)));
    } else {
      y = hn::MulAdd(x, cos, hn::Mul(neighbour, sin));
    }
    E::template Store<kStream>(d, y, a.out + i);
  }
  return i;
}

template <class E, bool kEager, bool kStream>
struct PerChannel {
  static constexpr RowOrder kOrder = RowOrder::kPerChannel;
  static HWY_INLINE void Segment(const SegmentArgs<E>& a) {
    int i = Channels<E, kEager, kStream>(FullTag(), a, 0);
    i = Channels<E, kEager, false>(QuarterTag(), a, i);
    Channels<E, kEager, false>(PairTag(), a, i);
  }
};

void OrderRow(RowOrder order, const Segment* segments, int32_t segment_count, float* cos,
              float* sin, const float* natural_cos, const float* natural_sin) {
  for (int32_t s = 0; s < segment_count; ++s) {
    const int first = segments[s].first_pair, pairs = segments[s].pairs;
    if (order == RowOrder::kPerChannel) {
      for (int i = first; i < first + pairs; ++i) {
        cos[2 * i] = cos[2 * i + 1] = natural_cos[i];
        sin[2 * i] = -natural_sin[i];
        sin[2 * i + 1] = natural_sin[i];
      }
      continue;
    }
    const float* const from[2] = {natural_cos + first, natural_sin + first};
    float* const to[2] = {cos + first, sin + first};
    for (int half = 0; half < 2; ++half) {
      int i = OrderEvenOdd(FullTag(), from[half], to[half], pairs, 0);
      i = OrderEvenOdd(QuarterTag(), from[half], to[half], pairs, i);
      for (; i < pairs; ++i) to[half][i] = from[half][i];
    }
  }
}

void RoundRow(rope_dtype dtype, float* values, int32_t count) {
  const FullTag d;
  for (int i = 0; i < count; i += LanesOf(d)) {
    const auto value = hn::LoadU(d, values + i);
    hn::StoreU(dtype == ROPE_BF16 ? BF16::Round(d, value) : F16::Round(d, value), d, values + i);
  }
}

// Reads ahead of the loop: the hardware's prefetcher stops at pages and starts late, and 16-bit
// elements leave it half the time. Distances were measured (bench/README.md).
HWY_INLINE void Prefetch(const char* head, int32_t bytes, const char* end) {
  constexpr int kNear = 2048, kFar = 8192, kLine = 64;
  if (head + kNear + bytes <= end) {
    for (int at = 0; at < bytes; at += kLine) __builtin_prefetch(head + kNear + at);
  }
  (void)kFar;
}

template <class E, class Shape, bool kMovesChannels>
HWY_INLINE void RotateHead(const Block& b, const char* in, char* out, const float* cos,
                           const float* sin) {
  using Raw = typename E::Raw;
  constexpr int kPerPair = Shape::kOrder == RowOrder::kPerChannel ? 2 : 1;
  HWY_ALIGN char copy[kMovesChannels ? 1024 * sizeof(float) : 1];
  if (kMovesChannels && in == out) {
    std::memcpy(copy, in, static_cast<size_t>(b.span_bytes));
    in = copy;
  }
  for (int32_t s = 0; s < b.segment_count; ++s) {
    const Segment& segment = b.segments[s];
    Shape::Segment({reinterpret_cast<const Raw*>(in) + segment.first_channel,
                    reinterpret_cast<Raw*>(out) + segment.first_channel,
                    cos + kPerPair * segment.first_pair, sin + kPerPair * segment.first_pair,
                    segment.pairs});
  }
}

template <class E, class Shape, bool kMovesChannels = false>
void RotateBlock(const Block& b) {
  const int32_t outer = b.heads_outer ? b.heads : b.tokens;
  const int32_t inner = b.heads_outer ? b.tokens : b.heads;
  for (int32_t o = 0; o < outer; ++o) {
    for (int32_t i = 0; i < inner; ++i) {
      const int64_t head = b.heads_outer ? o : i, token = b.heads_outer ? i : o;
      const char* in = b.in + head * b.in_head + token * b.in_token;
      char* out = b.out + head * b.out_head + token * b.out_token;
      Prefetch(in, b.span_bytes, b.prefetch_end);
      RotateHead<E, Shape, kMovesChannels>(b, in, out, b.cos + token * b.row_stride,
                                           b.sin + token * b.row_stride);
    }
  }
}

template <class E, template <class, bool, bool> class Shape, bool kEager>
Kernels::Rotation RotationOf() {
  Kernels::Rotation rotation{Shape<E, kEager, false>::kOrder,
                             &RotateBlock<E, Shape<E, kEager, false>>, nullptr};
  if constexpr (!kEager) rotation.rotate_streaming = &RotateBlock<E, Shape<E, false, true>>;
  return rotation;
}

template <class E, bool kEager, bool kStream>
using NaturalHalves = Natural<E, kHalves, kEager, kStream>;
template <class E, bool kEager, bool kStream>
using NaturalInterleaved = Natural<E, kInterleaved, kEager, kStream>;
template <class, bool kEager, bool kStream>
using EvenOddHalves = EvenOdd<kEager, kStream>;

// Directions that move channels have no streaming form: their stores are not in order.
template <class E, int kDirection, bool kEager>
Kernels::Rotation MovingRotation() {
  using Shape = Natural<E, kDirection, kEager, false>;
  return {Shape::kOrder, &RotateBlock<E, Shape, true>, nullptr};
}

template <class E, template <class, bool, bool> class Halves,
          template <class, bool, bool> class Interleaved>
void FillRotations(Kernels::Rotation (&rotations)[kDirections][2]) {
  rotations[kHalves][0] = RotationOf<E, Halves, false>();
  rotations[kHalves][1] = RotationOf<E, Halves, true>();
  rotations[kInterleaved][0] = RotationOf<E, Interleaved, false>();
  rotations[kInterleaved][1] = RotationOf<E, Interleaved, true>();
  rotations[kInterleavedToHalves][0] = MovingRotation<E, kInterleavedToHalves, false>();
  rotations[kInterleavedToHalves][1] = MovingRotation<E, kInterleavedToHalves, true>();
  rotations[kHalvesToInterleaved][0] = MovingRotation<E, kHalvesToInterleaved, false>();
  rotations[kHalvesToInterleaved][1] = MovingRotation<E, kHalvesToInterleaved, true>();
}

}  // namespace HWY_NAMESPACE
}  // namespace rope::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard
