// The rotations of bf16 and f32 heads that become codes of 8 bits as they turn, by a scale that is
// given or that of their largest number, or blocks of Q8_0, compiled once for every instruction set
// that Highway knows for this architecture. -march must not be given for this file.
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
#include "math/q8_0.h"

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
  template <bool kStream, class D>
  static HWY_INLINE bool StoreWordsTwice(D d, hn::Vec<D> first, hn::Vec<D> second, uint8_t* to,
                                         hn::Vec<D> next_first, hn::Vec<D> next_second,
                                         uint8_t* next_to) {
    StoreCodePairsTwice<kCode, false, kStream>(d, first, second, to, next_first, next_second,
                                               next_to);
    return false;
  }
};

// Only where registers hold a head and its row: in memory it waits no better than in stages.
#undef ROPE_CODES_WHOLE_HEADS
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
#define ROPE_CODES_WHOLE_HEADS 1
#else
#define ROPE_CODES_WHOLE_HEADS 0
#endif

#if ROPE_CODES_WHOLE_HEADS

// A row whose values are those of pairs.
template <int kPairs>
struct RowOfPairVectors {
  hn::Vec<FullTag> cos[kPairs], sin[kPairs];
  HWY_INLINE RowOfPairVectors(const float* from_cos, const float* from_sin) {
    constexpr int kLanes = hn::MaxLanes(FullTag());
    for (int v = 0; v < kPairs; ++v) {
      cos[v] = hn::LoadU(FullTag(), from_cos + v * kLanes);
      sin[v] = hn::LoadU(FullTag(), from_sin + v * kLanes);
    }
  }
};

// How heads turn whole in registers, to kNumbers vectors, and where the codes of these go: of
// kPairs vectors of pairs.

// bf16 in a shape of words.
template <Code kCode, template <class, Arithmetic, class> class ShapeOf, int kPairs>
struct TurnedWords {
  using Shape = ShapeOf<Coded<kCode>, Arithmetic::kFused, AsTheyAre>;
  using In = uint16_t;
  using V = hn::Vec<FullTag>;
  static constexpr RowOrder kOrder = Shape::kOrder;
  static constexpr int kLanes = hn::MaxLanes(FullTag()), kNumbers = 2 * kPairs;

  using RowInRegisters = RowOfPairVectors<kPairs>;
  static HWY_INLINE void Turn(const In* in, uint8_t* out, const RowInRegisters& row, V* y) {
    const PlacesOf<Coded<kCode>> at({in, out, kPairs * kLanes}, 0, 0);
    for (int v = 0; v < kPairs; v += 2) {
      Shape::Turn(FullTag(), at, AsTheyAre(), v * kLanes, row.cos[v], row.sin[v], row.cos[v + 1],
                  row.sin[v + 1], y[2 * v], y[2 * v + 1], y[2 * v + 2], y[2 * v + 3]);
    }
  }
  // Where the second vector of channels that a step of Shape writes is.
  static constexpr int NextOf(int i) {
    return Shape::kWrites == 2 ? 2 * (i + kLanes) : kPairs * kLanes + i;
  }
  // kBounded: none is NaN, or beyond the largest code by more than a rounding.
  template <bool kBounded, bool kStream>
  static HWY_INLINE void Store(const V* y, V by, uint8_t* out) {
    const FullTag d;
    for (int v = 0; v < kPairs; v += 2, y += 4) {
      const int i = v * kLanes;
      StoreCodePairsTwice<kCode, kBounded, kStream>(d, hn::Mul(y[0], by), hn::Mul(y[1], by),
                                                    out + Shape::kWrites * i, hn::Mul(y[2], by),
                                                    hn::Mul(y[3], by), out + NextOf(i));
    }
  }
  // Of blocks of Q8_0: where that of y[2 * pair] and y[2 * pair + 1] is, and the codes of all.
  static constexpr int BlockOf(int pair) {
    return Shape::kWrites == 2 ? pair : pair % 2 * (kPairs / 2) + pair / 2;
  }
  // Which channel of a block is in a lane of the two vectors.
  static constexpr int ChannelOf(int lane) { return lane % kLanes * 2 + lane / kLanes; }
  static HWY_INLINE void StoreQ8(const V* y, uint8_t* out) {
    for (int pair = 0; pair < kPairs; pair += 2, y += 4) {
      const hn::Repartition<uint16_t, FullTag> du16;
      const hn::Vec<decltype(du16)> words{PackWords(Q8Integers(y[0]), Q8Integers(y[2]))};
      StorePairsOfWords<false>(hn::And(words, hn::Set(du16, uint16_t{0xff})).raw,
                               PackWords(Q8Integers(y[1]), Q8Integers(y[3])),
                               out + BlockOf(pair) * kQ8Bytes + 2,
                               out + BlockOf(pair + 1) * kQ8Bytes + 2);
    }
  }
};

// f32, whose vectors stay in the order of channels.
template <Code kCode, int kPairs>
struct TurnedFloats {
  using In = float;
  using V = hn::Vec<FullTag>;
  static constexpr int kLanes = hn::MaxLanes(FullTag()), kNumbers = 2 * kPairs;

  template <bool kBounded, bool kStream>
  static HWY_INLINE void Store(const V* y, V by, uint8_t* out) {
    const FullTag d;
    for (int v = 0; v < kNumbers; v += 4) {
      V scaled[4];
      for (int i = 0; i < 4; ++i) scaled[i] = hn::Mul(y[v + i], by);
      if (HWY_LIKELY(kBounded ||
                     !HasNan(scaled[0].raw, scaled[1].raw, scaled[2].raw, scaled[3].raw))) {
        StoreFourCodes<kCode, kBounded>(scaled, out + v * kLanes, kStream);
      } else {
        for (int i = 0; i < 4; ++i) StoreCodes<kCode>(d, scaled[i], out + (v + i) * kLanes);
      }
    }
  }
  static constexpr int BlockOf(int pair) { return pair; }
  static constexpr int ChannelOf(int lane) { return lane; }
  static HWY_INLINE void StoreQ8(const V* y, uint8_t* out) {
    for (int pair = 0; pair < kPairs; pair += 2, out += 2 * kQ8Bytes) {
      const auto codes = Q8CodesOfFour(y + 2 * pair);
      const hn::Half<hn::Repartition<uint8_t, FullTag>> half;
      hn::StoreU(hn::LowerHalf(half, codes), half, out + 2);
      hn::StoreU(hn::UpperHalf(half, codes), half, out + kQ8Bytes + 2);
    }
  }
};
template <Code kCode, int kPairs>
struct TurnedHalves : TurnedFloats<kCode, kPairs> {
  using typename TurnedFloats<kCode, kPairs>::V;
  static constexpr RowOrder kOrder = RowOrder::kNatural;
  static constexpr int kLanes = hn::MaxLanes(FullTag());

  using RowInRegisters = RowOfPairVectors<kPairs>;
  static HWY_INLINE void Turn(const float* in, uint8_t*, const RowInRegisters& row, V* y) {
    const FullTag d;
    for (int v = 0; v < kPairs; ++v) {
      V x0 = hn::LoadU(d, in + v * kLanes), x1 = hn::LoadU(d, in + (kPairs + v) * kLanes);
      LoadOnce(x0);
      LoadOnce(x1);
      RotatePair<F32, Arithmetic::kFused>(d, x0, x1, row.cos[v], row.sin[v], y[v], y[kPairs + v]);
    }
  }
};
template <Code kCode, int kPairs>
struct TurnedInterleaved : TurnedFloats<kCode, kPairs> {
  using typename TurnedFloats<kCode, kPairs>::V;
  static constexpr RowOrder kOrder = RowOrder::kPerChannel;
  static constexpr int kLanes = hn::MaxLanes(FullTag());

  struct RowInRegisters {  // but for its sines: a head of 128 leaves them no room
    V cos[2 * kPairs];
    const float* sin;
    HWY_INLINE RowInRegisters(const float* from_cos, const float* from_sin) : sin(from_sin) {
      for (int v = 0; v < 2 * kPairs; ++v) cos[v] = hn::LoadU(FullTag(), from_cos + v * kLanes);
    }
  };
  static HWY_INLINE void Turn(const float* in, uint8_t*, const RowInRegisters& row, V* y) {
    const FullTag d;
    for (int v = 0; v < 2 * kPairs; ++v) {
      V x = hn::LoadU(d, in + v * kLanes);
      LoadOnce(x);
      y[v] = SumOfProducts<F32, Arithmetic::kFused>(d, x, row.cos[v], hn::Reverse2(d, x),
                                                    hn::LoadU(d, row.sin + v * kLanes));
    }
  }
};

// The largest bits of what a head turns to, without signs, NaN behind all; or of what is no NaN.
template <int kNumbers, bool kSkipsNan>
HWY_INLINE int32_t LargestOfHead(const hn::Vec<FullTag>* turned) {
  const hn::RebindToSigned<FullTag> di;
  auto largest = hn::Zero(di);
  for (int i = 0; i < kNumbers; ++i) {
    const auto size = hn::BitCast(di, hn::Abs(turned[i]));
    largest = hn::Max(
        largest,
        kSkipsNan ? hn::IfThenZeroElse(hn::Gt(size, hn::Set(di, F32::kInfinity)), size) : size);
  }
  return hn::GetLane(hn::MaxOfLanes(di, largest));
}

// The codes of a head by the scale of its largest number, and that scale.
template <Code kCode, class Turned, bool kFinite, bool kStream>
HWY_INLINE void CodeHead(const hn::Vec<FullTag>* turned, int32_t largest, const GroupScales& scales,
                         char* to_scale, uint8_t* out) {
  const FullTag d;
  const OneTag one;
  const hn::RebindToSigned<OneTag> of_bits;
  const auto scale = ScalesOf<kCode>(one, hn::BitCast(one, hn::Set(of_bits, largest)), scales.least,
                                     scales.power_of_two);
  StoreScale(scales.dtype, to_scale, 0, hn::GetLane(scale));
  const auto inverse = hn::Set(d, hn::GetLane(hn::Div(hn::Set(one, 1.0f), scale)));
  Turned::template Store<kFinite, kStream>(turned, inverse, out);
}
// Apart, so that the others need not be kept for it.
template <Code kCode, class Turned>
HWY_NOINLINE void CodeHeadWithNan(const float* turned, const GroupScales& scales, char* to_scale,
                                  uint8_t* out) {
  const FullTag d;
  hn::Vec<FullTag> y[Turned::kNumbers];
  for (int i = 0; i < Turned::kNumbers; ++i) y[i] = hn::Load(d, turned + i * Turned::kLanes);
  const int32_t largest = std::min(LargestOfHead<Turned::kNumbers, true>(y), F32::kInfinity - 1);
  CodeHead<kCode, Turned, false, false>(y, largest, scales, to_scale, out);
}

// By the scale of each head, for which it waits in registers.
template <Code kCode, class Turned, bool kStream>
struct ByLargest {
  GroupScales scales;
  char* to_scale = nullptr;

  HWY_INLINE explicit ByLargest(const Block& b) : scales(*b.scales) {}
  HWY_INLINE void At(const Block& b, int32_t token, int32_t head) {
    to_scale = b.first_scale + HeadOffset(scales.strides, 0, token, head);
  }
  HWY_INLINE void Next() { to_scale += scales.strides.head; }
  HWY_INLINE void Store(const hn::Vec<FullTag>* y, uint8_t* out) const {
    const int32_t largest = LargestOfHead<Turned::kNumbers, false>(y);
    if (HWY_LIKELY(largest < F32::kInfinity)) {
      CodeHead<kCode, Turned, true, kStream>(y, largest, scales, to_scale, out);
      return;
    }
    HWY_ALIGN float turned[Turned::kNumbers * Turned::kLanes];
    for (int i = 0; i < Turned::kNumbers; ++i) {
      hn::Store(y[i], FullTag(), turned + i * Turned::kLanes);
    }
    CodeHeadWithNan<kCode, Turned>(turned, scales, to_scale, out);
  }
};
// By one that is given.
template <Code kCode, class Turned, bool kStream>
struct ByGiven {
  float inverse;

  HWY_INLINE explicit ByGiven(const Block& b) : inverse(b.inverse) {}
  HWY_INLINE void At(const Block&, int32_t, int32_t) {}
  HWY_INLINE void Next() {}
  HWY_INLINE void Store(const hn::Vec<FullTag>* y, uint8_t* out) const {
    Turned::template Store<false, kStream>(y, hn::Set(FullTag(), inverse), out);
  }
};

// Blocks of Q8_0: two vectors each, by the scale of their largest number. The code is not used.
template <Code, class Turned, bool>
struct ByBlock {
  HWY_INLINE explicit ByBlock(const Block&) {}
  HWY_INLINE void At(const Block&, int32_t, int32_t) {}
  HWY_INLINE void Next() {}
  HWY_INLINE void Store(const hn::Vec<FullTag>* y, uint8_t* out) const {
    const FullTag d;
    const QuarterTag of_blocks;
    const hn::RebindToSigned<QuarterTag> of_bits;
    constexpr int kBlocks = Turned::kNumbers / 2;
    const auto bits = LargestOfBlocks<kBlocks>(y);
    HWY_ALIGN float inverses[4];
    HWY_ALIGN uint16_t stored[4];
    const bool bounded = StoreQ8Scales(of_blocks, hn::BitCast(of_blocks, bits), inverses, stored);
    const auto is_finite = hn::Lt(bits, hn::Set(of_bits, int32_t{F32::kInfinity}));
    if (HWY_UNLIKELY(!bounded || !hn::AllTrue(of_bits, is_finite))) {
      HWY_ALIGN float turned[Turned::kNumbers * Turned::kLanes];
      for (int i = 0; i < Turned::kNumbers; ++i) hn::Store(y[i], d, turned + i * Turned::kLanes);
      return StoreOneByOne(turned, out);
    }
    hn::Vec<FullTag> scaled[Turned::kNumbers];
    for (int block = 0; block < kBlocks; ++block) {
      std::memcpy(out + Turned::BlockOf(block) * kQ8Bytes, &stored[block], 2);
      const auto by = hn::Set(d, inverses[block]);
      scaled[2 * block] = hn::Mul(y[2 * block], by);
      scaled[2 * block + 1] = hn::Mul(y[2 * block + 1], by);
    }
    Turned::StoreQ8(scaled, out);
  }

 private:
  // The largest bits of two vectors each, without signs; of two blocks twice.
  template <int kBlocks>
  static HWY_INLINE hn::Vec<hn::RebindToSigned<QuarterTag>> LargestOfBlocks(
      const hn::Vec<FullTag>* y) {
    const hn::RebindToSigned<FullTag> di;
    const hn::Repartition<int64_t, decltype(di)> wide;
    hn::Vec<decltype(di)> v[4];
    for (int block = 0; block < 4; ++block) {
      const auto* const of = y + 2 * (block % kBlocks);
      v[block] = hn::Max(hn::BitCast(di, hn::Abs(of[0])), hn::BitCast(di, hn::Abs(of[1])));
    }
    for (int i = 0; i < 2; ++i) {
      v[i] = hn::Max(hn::InterleaveLower(di, v[2 * i], v[2 * i + 1]),
                     hn::InterleaveUpper(di, v[2 * i], v[2 * i + 1]));
    }
    const auto a = hn::BitCast(wide, v[0]), b = hn::BitCast(wide, v[1]);
    const auto four = hn::Max(hn::BitCast(di, hn::InterleaveLower(wide, a, b)),
                              hn::BitCast(di, hn::InterleaveUpper(wide, a, b)));
    const hn::Half<decltype(di)> half;
    const hn::Half<decltype(half)> quarter;
    const auto two = hn::Max(hn::LowerHalf(half, four), hn::UpperHalf(half, four));
    return hn::Max(hn::LowerHalf(quarter, two), hn::UpperHalf(quarter, two));
  }

  // Some are NaN, or infinite, or have a scale of few digits.
  static HWY_NOINLINE void StoreOneByOne(const float* turned, uint8_t* out) {
    for (int block = 0; block < Turned::kNumbers / 2; ++block, turned += kQ8Channels) {
      uint8_t* const to = out + Turned::BlockOf(block) * kQ8Bytes;
      uint32_t largest = 0;
      for (int c = 0; c < kQ8Channels; ++c) largest = std::max(largest, SizeForScale(turned[c]));
      const Q8Scale scale = Q8ScaleOf(BitsFloat(largest));
      std::memcpy(to, &scale.stored, 2);
      for (int c = 0; c < kQ8Channels; ++c) {
        to[2 + Turned::ChannelOf(c)] = static_cast<uint8_t>(Q8FromFloat(turned[c] * scale.inverse));
      }
    }
  }
};

// Whole heads.
template <class Turned, class By>
HWY_INLINE void CodeHeadsBy(const Block& b) {
  using In = typename Turned::In;
  const Tensor& tensor = *b.tensor;
  const HeadStrides in_strides = tensor.in_strides, out_strides = tensor.out_strides;
  By by(b);
  constexpr int64_t kHeadBytes = Turned::kNumbers * Turned::kLanes * sizeof(In);
  const int32_t run = HeadsLieApart(tensor) ? 1 : tensor.heads;
  for (int32_t first = 0; first < tensor.heads; first += run) {
    const float *cos = b.cos, *sin = b.sin;
    for (int32_t t = 0; t < b.tokens; ++t, cos += b.row_stride, sin += b.row_stride) {
      const char* in = b.in + HeadOffset(in_strides, 0, t, first);
      char* out = b.out + HeadOffset(out_strides, 0, t, first);
      by.At(b, t, first);
      const char* asked = in + (run - 1) * in_strides.head + b.prefetch_ahead;
      const int64_t ahead = asked <= b.prefetch_last ? b.prefetch_ahead : 0;
      const typename Turned::RowInRegisters row(cos, sin);
      for (int32_t h = 0; h < run; ++h) {
        const auto* const head = reinterpret_cast<const In*>(in);
        if (ahead != 0) Prefetch(head, ahead, b.prefetch_near, kHeadBytes, b.prefetch_into_l1);
        hn::Vec<FullTag> y[Turned::kNumbers];
        auto* const codes = reinterpret_cast<uint8_t*>(out);
        Turned::Turn(head, codes, row, y);
        by.Store(y, codes);
        in += in_strides.head;
        out += out_strides.head;
        by.Next();
      }
    }
  }
}

// Of 4 or 2 vectors of pairs.
template <Code kCode, template <int> class TurnedOf, template <Code, class, bool> class By,
          bool kStream>
void CodeHeads(const Block& b) {
  if (b.segments[0].pairs == 4 * static_cast<int>(hn::MaxLanes(FullTag()))) {
    CodeHeadsBy<TurnedOf<4>, By<kCode, TurnedOf<4>, kStream>>(b);
  } else {
    CodeHeadsBy<TurnedOf<2>, By<kCode, TurnedOf<2>, kStream>>(b);
  }
}

template <Code kCode>
struct Turned {
  template <int kPairs>
  using WordHalves = TurnedWords<kCode, EvenOdd, kPairs>;
  template <int kPairs>
  using WordPairs = TurnedWords<kCode, PairWords, kPairs>;
  template <int kPairs>
  using FloatHalves = TurnedHalves<kCode, kPairs>;
  template <int kPairs>
  using FloatPairs = TurnedInterleaved<kCode, kPairs>;
};

template <Code kCode, template <int> class TurnedOf, template <Code, class, bool> class By>
Kernels::Rotation WholeHeads() {
  return {TurnedOf<4>::kOrder, &CodeHeads<kCode, TurnedOf, By, false>,
          &CodeHeads<kCode, TurnedOf, By, true>, nullptr};
}

template <Code kCode>
void FillWholeHeads(Kernels& kernels) {
  using Of = Turned<kCode>;
  constexpr int kNumber = static_cast<int>(kCode);
  auto& bf16 = kernels.coding_by_largest[ROPE_DTYPE_BF16 - 1][kNumber];
  bf16[kHalves] = WholeHeads<kCode, Of::template WordHalves, ByLargest>();
  bf16[kInterleaved] = WholeHeads<kCode, Of::template WordPairs, ByLargest>();
  auto& f32 = kernels.coding_by_largest[ROPE_DTYPE_F32 - 1][kNumber];
  f32[kHalves] = WholeHeads<kCode, Of::template FloatHalves, ByLargest>();
  f32[kInterleaved] = WholeHeads<kCode, Of::template FloatPairs, ByLargest>();
  auto& f32_by_given = kernels.coding[ROPE_DTYPE_F32 - 1][kNumber];
  f32_by_given[kHalves] = WholeHeads<kCode, Of::template FloatHalves, ByGiven>();
  f32_by_given[kInterleaved] = WholeHeads<kCode, Of::template FloatPairs, ByGiven>();
}

#endif

template <class Shape>
Kernels::Rotation CodingIn() {
  Kernels::Rotation rotation{Shape::kOrder, &RotateBlock<Shape, false>, nullptr, nullptr};
#if ROPE_PACKS_BYTES
  rotation.rotate_streaming = &RotateBlock<Shape, true>;
#endif
  return rotation;
}

template <Code kCode>
void FillCoding(Kernels& kernels) {
  auto& coding = kernels.coding[ROPE_DTYPE_BF16 - 1][static_cast<int>(kCode)];
  coding[kHalves] = CodingIn<EvenOdd<Coded<kCode>, Arithmetic::kFused, CodedBy>>();
  coding[kInterleaved] = CodingIn<PairWords<Coded<kCode>, Arithmetic::kFused, CodedBy>>();
#if ROPE_CODES_WHOLE_HEADS
  FillWholeHeads<kCode>(kernels);
#endif
}

#if ROPE_CODES_WHOLE_HEADS
void FillQ8(Kernels& kernels) {
  using Of = Turned<Code::kInt8>;
  const auto rotation_of = [](Kernels::Rotation rotation) {
    rotation.rotate_streaming = nullptr;  // blocks are no lines
    return rotation;
  };
  auto& bf16 = kernels.coding_q8[ROPE_DTYPE_BF16 - 1];
  bf16[kHalves] = rotation_of(WholeHeads<Code::kInt8, Of::WordHalves, ByBlock>());
  bf16[kInterleaved] = rotation_of(WholeHeads<Code::kInt8, Of::WordPairs, ByBlock>());
  auto& f32 = kernels.coding_q8[ROPE_DTYPE_F32 - 1];
  f32[kHalves] = rotation_of(WholeHeads<Code::kInt8, Of::FloatHalves, ByBlock>());
  f32[kInterleaved] = rotation_of(WholeHeads<Code::kInt8, Of::FloatPairs, ByBlock>());
}
#endif

void FillCodedRotations(Kernels& kernels) {
#if ROPE_CODES_WHOLE_HEADS
  FillQ8(kernels);
#endif
  FillCoding<Code::kE4m3>(kernels);
  FillCoding<Code::kE5m2>(kernels);
  FillCoding<Code::kInt8>(kernels);
}

}  // namespace HWY_NAMESPACE
}  // namespace rope::cpu
HWY_AFTER_NAMESPACE();
#endif
