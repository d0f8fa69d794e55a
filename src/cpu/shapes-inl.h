// The shapes in which channels are rotated: one template over element type, channel order, rounding
// and stores for each order of rows. Included once per target.
#if defined(LIBROPE_SRC_CPU_SHAPES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LIBROPE_SRC_CPU_SHAPES_INL_H_
#undef LIBROPE_SRC_CPU_SHAPES_INL_H_
#else
#define LIBROPE_SRC_CPU_SHAPES_INL_H_
#endif

#include "cpu/elements-inl.h"
#include "cpu/fused-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rope::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The smaller vectors that finish a head's tail: no masks, so nothing outside the span is touched.
using PairTag = HWY_CAPPED(float, 2);
using OneTag = HWY_CAPPED(float, 1);

// GCC repeats a load as the memory operand of each use, and the load ports are the limit.
template <class V>
HWY_INLINE void LoadOnce(V& x) {
#if HWY_COMPILER_GCC_ACTUAL && HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  asm("" : "+v"(x.raw));
#else
  (void)x;
#endif
}

// What the store rounds to a * b + c * d, or their difference, by the functions of rotate.h. The
// product of c and d is the one that is rounded.
template <class E, Arithmetic kArithmetic, class D, class V = hn::Vec<D>>
HWY_INLINE V SumOfProducts([[maybe_unused]] D tag, V a, V b, V c, V d) {
  if constexpr (kArithmetic == Arithmetic::kEager) {
    return hn::Add(E::RoundProduct(tag, hn::Mul(a, b)), E::RoundProduct(tag, hn::Mul(c, d)));
  } else if constexpr (kArithmetic == Arithmetic::kNative) {
    return SumToOdd(tag, hn::Mul(a, b), E::Round(tag, hn::Mul(c, d)));
  } else {
    return hn::MulAdd(a, b, hn::Mul(c, d));
  }
}
template <class E, Arithmetic kArithmetic, class D, class V = hn::Vec<D>>
HWY_INLINE V DifferenceOfProducts([[maybe_unused]] D tag, V a, V b, V c, V d) {
  if constexpr (kArithmetic == Arithmetic::kEager) {
    return hn::Sub(E::RoundProduct(tag, hn::Mul(a, b)), E::RoundProduct(tag, hn::Mul(c, d)));
  } else if constexpr (kArithmetic == Arithmetic::kNative) {
    return SumToOdd(tag, hn::Mul(a, b), hn::Neg(E::Round(tag, hn::Mul(c, d))));
  } else {
    return hn::MulSub(a, b, hn::Mul(c, d));
  }
}

// y0 = x0 cos - x1 sin, y1 = x1 cos + x0 sin.
template <class E, Arithmetic kArithmetic, class D, class V = hn::Vec<D>>
HWY_INLINE void RotatePair(D d, V x0, V x1, V cos, V sin, V& y0, V& y1) {
  y0 = DifferenceOfProducts<E, kArithmetic>(d, x0, cos, x1, sin);
  y1 = SumOfProducts<E, kArithmetic>(d, x1, cos, x0, sin);
}

template <class T>
HWY_INLINE T* MovedBy(T* pointer, int64_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(pointer) + bytes);
}

// One segment of a head.
template <class In, class Out>
struct Head {
  const In* in;  // the segment's first channel
  Out* out;
  int pairs;

  int64_t bytes() const { return int64_t{2} * pairs * sizeof(*in); }
};

// Where channels of a head are read and written: of halves `second` is half a head behind.
template <class In, class Out>
struct Places {
  const In *in, *second_in;
  Out *out, *second_out;

  HWY_INLINE Places(const Head<In, Out>& head, int in_channel, int out_channel)
      : in(head.in + in_channel),
        second_in(in + head.pairs),
        out(head.out + out_channel),
        second_out(out + head.pairs) {}

  HWY_INLINE void MoveBy(int64_t in_bytes, int64_t out_bytes) {
    in = MovedBy(in, in_bytes);
    second_in = MovedBy(second_in, in_bytes);
    out = MovedBy(out, out_bytes);
    second_out = MovedBy(second_out, out_bytes);
  }

  // Keeps GCC from seeing that they are related: it would take a register for each place of a step.
  HWY_INLINE void Separate() {
#if HWY_COMPILER_GCC_ACTUAL
    asm("" : "+r"(second_in), "+r"(second_out));
#endif
  }
};

template <class E>
using HeadOf = Head<typename E::In, typename E::Raw>;
template <class E>
using PlacesOf = Places<typename E::In, typename E::Raw>;

// What becomes of the channels of heads before they are turned, and of what they turn to: nothing.
// First() has channels of first members, or of both where they are not separated, and Second()
// those of second ones; `i` is where the vector is in the row.
struct AsTheyAre {
  static HWY_INLINE AsTheyAre Of(const Block&, int, int, int) { return {}; }
  HWY_INLINE AsTheyAre From(int) const { return *this; }
  HWY_INLINE void MoveBy(int) {}
  HWY_INLINE AsTheyAre OfHead() const { return *this; }
  template <class D, class V>
  HWY_INLINE V First(D, V x, int) const {
    return x;
  }
  template <class D, class V>
  HWY_INLINE V Second(D, V x, int) const {
    return x;
  }
  template <class D, class V>
  HWY_INLINE V Turned(D, V y) const {
    return y;
  }
};

// Or a norm: times the inverse root of the head, then times the weight; rounded to E as a norm with
// a kernel of its own, or each step of it, would be.
template <class E, rope_norm_rounding kRounding>
struct NormedHead {
  const float *weight0, *weight1;  // in the order of the row
  float root;

  template <class D, class V>
  HWY_INLINE V First(D d, V x, int i) const {
    return Of(d, x, hn::LoadU(d, weight0 + i));
  }
  template <class D, class V>
  HWY_INLINE V Second(D d, V x, int i) const {
    return Of(d, x, hn::LoadU(d, weight1 + i));
  }
  template <class D, class V>
  HWY_INLINE V Turned(D, V y) const {
    return y;
  }

 private:
  template <class D, class V>
  HWY_INLINE V Of(D d, V x, V weight) const {
    V scaled = hn::Mul(x, hn::Set(d, root));
    if constexpr (kRounding == ROPE_NORM_ROUNDING_EAGER) scaled = E::RoundProduct(d, scaled);
    const V normed = hn::Mul(scaled, weight);
    if constexpr (kRounding == ROPE_NORM_ROUNDING_FLOAT32) return normed;
    return E::RoundProduct(d, normed);
  }
};
template <class E, rope_norm_rounding kRounding>
struct Normed {
  const float *weight0, *weight1;
  int weight_step;
  const float* roots;  // of the head, and of those that follow it

  // From the i-th value of the row on, of a token and a head of the block.
  static HWY_INLINE Normed Of(const Block& b, int i, int token, int head) {
    const int at = i + head * b.weight_step;
    return {b.weight0 + at, b.weight1 + at, b.weight_step, b.roots + token * b.root_stride + head};
  }
  HWY_INLINE Normed From(int i) const { return {weight0 + i, weight1 + i, weight_step, roots}; }
  HWY_INLINE void MoveBy(int heads) {
    weight0 += heads * weight_step;
    weight1 += heads * weight_step;
    roots += heads;
  }
  HWY_INLINE NormedHead<E, kRounding> OfHead() const { return {weight0, weight1, *roots}; }
};

// Or they turn to codes, whose scale has this inverse.
struct CodedBy : AsTheyAre {
  float inverse;

  static HWY_INLINE CodedBy Of(const Block& b, int, int, int) { return {{}, b.inverse}; }
  HWY_INLINE CodedBy From(int) const { return *this; }
  HWY_INLINE CodedBy OfHead() const { return *this; }
  template <class D, class V>
  HWY_INLINE V Turned(D d, V y) const {
    return hn::Mul(y, hn::Set(d, inverse));
  }
};

// A shape is the unit of work of a kernel: Step() rotates the channels that belong to one or two
// vectors of the row, those from the i-th value behind the places on, after the norm of the head.
// kRowPerPair is the length of a row in floats per pair, kRowVectors how many vectors of cos (and
// of sin) a step takes, kReads and kWrites how many channels that follow each other belong to a
// value; kSecond: as many belong to it half a head further on. A step of two vectors says whether
// it met ties (RoundFromHalf), and has a shape for what is left behind such steps, and one that
// expects ties.

// Rows in natural order: a vector of first members, a vector of second members.
template <class E, ChannelOrder kChannels, Arithmetic kArithmetic, class N = AsTheyAre>
struct Natural {
  using Element = E;
  using Norm = N;
  static constexpr RowOrder kOrder = RowOrder::kNatural;
  static constexpr bool kMovesChannels = MovesChannels(kChannels);
  static constexpr int kRowPerPair = 1, kRowVectors = 1;
  static constexpr int kReads = ReadsInterleaved(kChannels) ? 2 : 1;
  static constexpr int kWrites = WritesInterleaved(kChannels) ? 2 : 1;
  static constexpr bool kSecond = kReads == 1;
  using SmallestTag = OneTag;

  template <bool kStream, class D, class H, class V = hn::Vec<D>>
  static HWY_INLINE void Step(D d, const PlacesOf<E>& at, const H& norm, int i, V cos, V sin, V,
                              V) {
    V x0, x1, y0, y1;
    if constexpr (ReadsInterleaved(kChannels)) {
      E::LoadPairs(d, at.in + 2 * i, x0, x1);
    } else {
      x0 = E::Load(d, at.in + i);
      x1 = E::Load(d, at.second_in + i);
    }
    LoadOnce(x0);
    LoadOnce(x1);
    x0 = norm.First(d, x0, i);
    x1 = norm.Second(d, x1, i);
    RotatePair<E, kArithmetic>(d, x0, x1, cos, sin, y0, y1);
    y0 = norm.Turned(d, y0);
    y1 = norm.Turned(d, y1);
    if constexpr (WritesInterleaved(kChannels)) {
      E::template StorePairs<kStream>(d, y0, y1, at.out + 2 * i);
    } else {
      E::template StoreBoth<kStream>(d, y0, at.out + i, y1, at.second_out + i);
    }
  }
};

// bf16 in halves: a 32-bit word holds an even and an odd channel, so whole vectors are widened
// without a shuffle, if the row has its even pairs first.
template <class E, Arithmetic kArithmetic, class N = AsTheyAre>
struct EvenOdd {
  using Element = E;
  using Norm = N;
  using Rest = Natural<E, kHalves, kArithmetic, N>;
  using WithTies = EvenOdd<typename E::WithTies, kArithmetic, N>;
  static constexpr RowOrder kOrder = RowOrder::kEvenOdd;
  static constexpr bool kMovesChannels = false, kSecond = true;
  static constexpr int kRowPerPair = 1, kRowVectors = 2, kReads = 1, kWrites = 1;

  // What a step turns to: words of a first and a second channel, twice.
  template <class D, class H, class V = hn::Vec<D>>
  static HWY_INLINE void Turn(D d, const PlacesOf<E>& at, const H& norm, int i, V even_cos,
                              V even_sin, V odd_cos, V odd_sin, V& even0, V& odd0, V& even1,
                              V& odd1) {
    const int odd = i + LanesOf(d);
    auto words0 = E::LoadWords(d, at.in + i);
    auto words1 = E::LoadWords(d, at.second_in + i);
    LoadOnce(words0);
    LoadOnce(words1);
    RotatePair<E, kArithmetic>(d, norm.First(d, E::First(d, words0), i),
                               norm.Second(d, E::First(d, words1), i), even_cos, even_sin, even0,
                               even1);
    RotatePair<E, kArithmetic>(d, norm.First(d, E::Second(d, words0), odd),
                               norm.Second(d, E::Second(d, words1), odd), odd_cos, odd_sin, odd0,
                               odd1);
  }
  // Where the next words go.
  template <class D>
  static HWY_INLINE typename E::Raw* NextOut(D, const PlacesOf<E>& at, int i) {
    return at.second_out + i;
  }
  template <bool kStream, class D, class H, class V = hn::Vec<D>>
  static HWY_INLINE bool Step(D d, const PlacesOf<E>& at, const H& norm, int i, V even_cos,
                              V even_sin, V odd_cos, V odd_sin) {
    V even0, odd0, even1, odd1;
    Turn(d, at, norm, i, even_cos, even_sin, odd_cos, odd_sin, even0, odd0, even1, odd1);
    return E::template StoreWordsTwice<kStream>(d, norm.Turned(d, even0), norm.Turned(d, odd0),
                                                at.out + i, norm.Turned(d, even1),
                                                norm.Turned(d, odd1), NextOut(d, at, i));
  }
};

// Interleaved bf16: a 32-bit word holds a pair.
template <class E, Arithmetic kArithmetic, class N = AsTheyAre>
struct PairWords {
  using Element = E;
  using Norm = N;
  using Rest = Natural<E, kInterleaved, kArithmetic, N>;
  using WithTies = PairWords<typename E::WithTies, kArithmetic, N>;
  static constexpr RowOrder kOrder = RowOrder::kNatural;
  static constexpr bool kMovesChannels = false, kSecond = false;
  static constexpr int kRowPerPair = 1, kRowVectors = 2, kReads = 2, kWrites = 2;

  template <class D, class H, class V = hn::Vec<D>>
  static HWY_INLINE void Turn(D d, const PlacesOf<E>& at, const H& norm, int i, V cos, V sin,
                              V next_cos, V next_sin, V& y0, V& y1, V& next_y0, V& next_y1) {
    const int next = i + LanesOf(d);
    auto words = E::LoadWords(d, at.in + 2 * i), next_words = E::LoadWords(d, at.in + 2 * next);
    LoadOnce(words);
    LoadOnce(next_words);
    RotatePair<E, kArithmetic>(d, norm.First(d, E::First(d, words), i),
                               norm.Second(d, E::Second(d, words), i), cos, sin, y0, y1);
    RotatePair<E, kArithmetic>(d, norm.First(d, E::First(d, next_words), next),
                               norm.Second(d, E::Second(d, next_words), next), next_cos, next_sin,
                               next_y0, next_y1);
  }
  template <class D>
  static HWY_INLINE typename E::Raw* NextOut(D d, const PlacesOf<E>& at, int i) {
    return at.out + 2 * (i + LanesOf(d));
  }
  template <bool kStream, class D, class H, class V = hn::Vec<D>>
  static HWY_INLINE bool Step(D d, const PlacesOf<E>& at, const H& norm, int i, V cos, V sin,
                              V next_cos, V next_sin) {
    V y0, y1, next_y0, next_y1;
    Turn(d, at, norm, i, cos, sin, next_cos, next_sin, y0, y1, next_y0, next_y1);
    return E::template StoreWordsTwice<kStream>(d, norm.Turned(d, y0), norm.Turned(d, y1),
                                                at.out + 2 * i, norm.Turned(d, next_y0),
                                                norm.Turned(d, next_y1), NextOut(d, at, i));
  }
};

// Interleaved f32 and f16: each channel times its cos, plus its neighbour times its signed sin. One
// shuffle per vector instead of the four that separating the members would take.
template <class E, Arithmetic kArithmetic, class N = AsTheyAre>
struct PerChannel {
  using Element = E;
  using Norm = N;
  static constexpr RowOrder kOrder = RowOrder::kPerChannel;
  static constexpr bool kMovesChannels = false;
  static constexpr int kRowPerPair = 2, kRowVectors = 1, kReads = 1, kWrites = 1;
  static constexpr bool kSecond = false;
  using SmallestTag = PairTag;

  template <bool kStream, class D, class H, class V = hn::Vec<D>>
  static HWY_INLINE void Step(D d, const PlacesOf<E>& at, const H& norm, int i, V cos, V sin, V,
                              V) {
    V x = E::Load(d, at.in + i);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
    LoadOnce(x);  // two loads of a whole register cost more here than the instruction
#endif
    x = norm.First(d, x, i);
    const V neighbour = hn::Reverse2(d, x);
    const V y = SumOfProducts<E, kArithmetic>(d, x, cos, neighbour, sin);
    E::template Store<kStream>(d, y, at.out + i);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace rope::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard
