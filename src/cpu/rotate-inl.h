// Rotation of heads by ready rows: one template over element type, channel order, rounding and
// stores. Included once per target.
#if defined(LIBROPE_SRC_CPU_ROTATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LIBROPE_SRC_CPU_ROTATE_INL_H_
#undef LIBROPE_SRC_CPU_ROTATE_INL_H_
#else
#define LIBROPE_SRC_CPU_ROTATE_INL_H_
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
template <class E>
struct Head {
  const typename E::Raw* in;  // the segment's first channel
  typename E::Raw* out;
  int pairs;

  int64_t bytes() const { return int64_t{2} * pairs * sizeof(*in); }
};

// Where channels of a head are read and written: of halves `second` is half a head behind.
template <class E>
struct Places {
  const typename E::Raw *in, *second_in;
  typename E::Raw *out, *second_out;

  HWY_INLINE Places(const Head<E>& head, int in_channel, int out_channel)
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

// A shape is the unit of work of a kernel: Step() rotates the channels that belong to one or two
// vectors of the row, those from the i-th value behind the places on. kRowPerPair is the length of
// a row in floats per pair, kRowVectors how many vectors of cos (and of sin) a step takes, kReads
// and kWrites how many channels that follow each other belong to a value; kSecond: as many belong
// to it half a head further on.

// Rows in natural order: a vector of first members, a vector of second members.
template <class E, ChannelOrder kChannels, Arithmetic kArithmetic>
struct Natural {
  using Element = E;
  static constexpr RowOrder kOrder = RowOrder::kNatural;
  static constexpr bool kMovesChannels = MovesChannels(kChannels);
  static constexpr int kRowPerPair = 1, kRowVectors = 1;
  static constexpr int kReads = ReadsInterleaved(kChannels) ? 2 : 1;
  static constexpr int kWrites = WritesInterleaved(kChannels) ? 2 : 1;
  static constexpr bool kSecond = kReads == 1;
  using SmallestTag = OneTag;

  template <bool kStream, class D, class V = hn::Vec<D>>
  static HWY_INLINE void Step(D d, const Places<E>& at, int i, V cos, V sin, V, V) {
    V x0, x1, y0, y1;
    if constexpr (ReadsInterleaved(kChannels)) {
      E::LoadPairs(d, at.in + 2 * i, x0, x1);
    } else {
      x0 = E::Load(d, at.in + i);
      x1 = E::Load(d, at.second_in + i);
    }
    LoadOnce(x0);
    LoadOnce(x1);
    RotatePair<E, kArithmetic>(d, x0, x1, cos, sin, y0, y1);
    if constexpr (WritesInterleaved(kChannels)) {
      E::template StorePairs<kStream>(d, y0, y1, at.out + 2 * i);
    } else {
      E::template StoreBoth<kStream>(d, y0, at.out + i, y1, at.second_out + i);
    }
  }
};

// bf16 in halves: a 32-bit word holds an even and an odd channel, so whole vectors are widened
// without a shuffle, if the row has its even pairs first.
template <class E, Arithmetic kArithmetic>
struct EvenOdd {
  using Element = E;
  static constexpr RowOrder kOrder = RowOrder::kEvenOdd;
  static constexpr Arithmetic kOwnArithmetic = kArithmetic;
  static constexpr bool kMovesChannels = false, kSecond = true;
  static constexpr int kRowPerPair = 1, kRowVectors = 2, kReads = 1, kWrites = 1;

  template <bool kStream, class D, class V = hn::Vec<D>>
  static HWY_INLINE void Step(D d, const Places<E>& at, int i, V even_cos, V even_sin, V odd_cos,
                              V odd_sin) {
    const auto words0 = E::LoadWords(d, at.in + i);
    const auto words1 = E::LoadWords(d, at.second_in + i);
    V even0, even1, odd0, odd1;
    RotatePair<E, kArithmetic>(d, E::First(d, words0), E::First(d, words1), even_cos, even_sin,
                               even0, even1);
    RotatePair<E, kArithmetic>(d, E::Second(d, words0), E::Second(d, words1), odd_cos, odd_sin,
                               odd0, odd1);
    E::template StoreWords<kStream>(d, even0, odd0, at.out + i);
    E::template StoreWords<kStream>(d, even1, odd1, at.second_out + i);
  }
};

// Interleaved f32 and f16: each channel times its cos, plus its neighbour times its signed sin. One
// shuffle per vector instead of the four that separating the members would take.
template <class E, Arithmetic kArithmetic>
struct PerChannel {
  using Element = E;
  static constexpr RowOrder kOrder = RowOrder::kPerChannel;
  static constexpr bool kMovesChannels = false;
  static constexpr int kRowPerPair = 2, kRowVectors = 1, kReads = 1, kWrites = 1;
  static constexpr bool kSecond = false;
  using SmallestTag = PairTag;

  template <bool kStream, class D, class V = hn::Vec<D>>
  static HWY_INLINE void Step(D d, const Places<E>& at, int i, V cos, V sin, V, V) {
    V x = E::Load(d, at.in + i);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
    LoadOnce(x);  // two loads of a whole register cost more here than the instruction
#endif
    const V neighbour = hn::Reverse2(d, x);
    const V y = SumOfProducts<E, kArithmetic>(d, x, cos, neighbour, sin);
    E::template Store<kStream>(d, y, at.out + i);
  }
};

// Heads of one token that follow each other at fixed distances.
template <class E>
struct HeadRun {
  Head<E> head;
  int64_t in_step, out_step;  // bytes
  int count;
  int64_t prefetch_ahead;  // bytes to what is asked for; 0: nothing
  bool in_cache;           // where the data of the call stays

  HWY_INLINE void Next() {
    head.in = MovedBy(head.in, in_step);
    head.out = MovedBy(head.out, out_step);
  }
};

// Asks for bytes ahead of time: the hardware's prefetcher stops at pages and leaves 16-bit elements
// half the speed of the memory. Into the L2 cache: asked into the L1 they cost some CPUs a quarter.
HWY_INLINE void Prefetch(const void* data, int64_t ahead, int64_t bytes) {
  constexpr int kLine = 64;
  for (int64_t at = 0; at < bytes; at += kLine) {
    __builtin_prefetch(static_cast<const char*>(data) + ahead + at, 1, 2);
  }
}

// The whole vectors of one head.
template <class Shape, bool kStream, class D>
HWY_INLINE void Steps(D d, const Head<typename Shape::Element>& h, const float* cos,
                      const float* sin) {
  const Places<typename Shape::Element> at(h, 0, 0);
  const int n = LanesOf(d), row = Shape::kRowPerPair * h.pairs;
  HWY_UNROLL(4)
  for (int i = 0; i + Shape::kRowVectors * n <= row; i += Shape::kRowVectors * n) {
    const int second = i + (Shape::kRowVectors - 1) * n;
    Shape::template Step<kStream>(d, at, i, hn::LoadU(d, cos + i), hn::LoadU(d, sin + i),
                                  hn::LoadU(d, cos + second), hn::LoadU(d, sin + second));
  }
}

// How many vectors of cos, and as many of sin, are held in registers: half of these.
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3
inline constexpr int kHeldVectors = 4;
#else
inline constexpr int kHeldVectors = 8;
#endif

#undef ROPE_PART
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ROPE_PART HWY_NOINLINE  // all inlined and sanitized, parts take GCC seven minutes
#else
#define ROPE_PART HWY_INLINE
#endif

// The part of every head of a run that belongs to kVectors vectors of the row, which are loaded
// once.
template <class Shape, bool kStream, bool kPrefetch, int kVectors, class D,
          class E = typename Shape::Element>
ROPE_PART void RotatePart(D d, const HeadRun<E>& run, const float* cos, const float* sin, int i) {
  constexpr int kStep = Shape::kRowVectors;
  static_assert(kVectors % kStep == 0);
  const int n = LanesOf(d);
#if HWY_HAVE_SCALABLE  // vectors without a size cannot be kept in arrays
  const auto c = [&](int v) HWY_ATTR { return hn::LoadU(d, cos + i + v * n); };
  const auto s = [&](int v) HWY_ATTR { return hn::LoadU(d, sin + i + v * n); };
#else
  hn::Vec<D> cos_of[kVectors], sin_of[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    cos_of[v] = hn::LoadU(d, cos + i + v * n);
    sin_of[v] = hn::LoadU(d, sin + i + v * n);
  }
  const auto c = [&](int v) HWY_ATTR { return cos_of[v]; };
  const auto s = [&](int v) HWY_ATTR { return sin_of[v]; };
#endif
  Places<E> at(run.head, Shape::kReads * i, Shape::kWrites * i);
  const int64_t in_step = run.in_step, out_step = run.out_step, ahead = run.prefetch_ahead;
  for (int left = run.count; left > 0; --left) {
    at.Separate();
    if constexpr (kPrefetch) {
      const int64_t bytes = Shape::kReads * kVectors * n * sizeof(typename E::Raw);
      Prefetch(at.in, ahead, bytes);
      if constexpr (Shape::kSecond) Prefetch(at.second_in, ahead, bytes);
    }
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; v += kStep) {
      Shape::template Step<kStream>(d, at, v * n, c(v), s(v), c(v + kStep - 1), s(v + kStep - 1));
    }
    at.MoveBy(in_step, out_step);
  }
}

// As many such parts as there are; returns where they end.
template <class Shape, bool kStream, bool kPrefetch, int kVectors, class D,
          class E = typename Shape::Element>
HWY_INLINE int RotateParts(D d, const HeadRun<E>& run, const float* cos, const float* sin, int i) {
  const int row = Shape::kRowPerPair * run.head.pairs, part = kVectors * LanesOf(d);
  for (; i + part <= row; i += part) {
    RotatePart<Shape, kStream, kPrefetch, kVectors>(d, run, cos, sin, i);
  }
  return i;
}

// All whole vectors of the row in parts; returns where they end.
template <class Shape, bool kStream, bool kPrefetch, class E = typename Shape::Element>
HWY_INLINE int RotateVectors(const HeadRun<E>& run, const float* cos, const float* sin) {
  const FullTag d;
  int i = RotateParts<Shape, kStream, kPrefetch, kHeldVectors>(d, run, cos, sin, 0);
  if constexpr (kHeldVectors > 4) {
    i = RotateParts<Shape, kStream, kPrefetch, 4>(d, run, cos, sin, i);
  }
  i = RotateParts<Shape, kStream, kPrefetch, 2>(d, run, cos, sin, i);
  if constexpr (Shape::kRowVectors == 1) {
    i = RotateParts<Shape, kStream, kPrefetch, 1>(d, run, cos, sin, i);
  }
  return i;
}

// What is left behind the whole vectors of a Shape. Rows in EvenOdd order end in natural order.
template <class Shape, class E = typename Shape::Element>
HWY_NOINLINE void RotateTail(const HeadRun<E>& run, const float* cos, const float* sin, int i) {
  const QuarterTag quarter;
  if constexpr (Shape::kOrder == RowOrder::kEvenOdd) {
    using Rest = Natural<E, kHalves, Shape::kOwnArithmetic>;
    i = RotateParts<Rest, false, false, 1>(FullTag(), run, cos, sin, i);
    i = RotateParts<Rest, false, false, 1>(quarter, run, cos, sin, i);
    RotateParts<Rest, false, false, 1>(OneTag(), run, cos, sin, i);
  } else {
    i = RotateParts<Shape, false, false, 1>(quarter, run, cos, sin, i);
    RotateParts<Shape, false, false, 1>(typename Shape::SmallestTag(), run, cos, sin, i);
  }
}

inline constexpr int64_t kPassedBytes = 24 << 10;  // of heads that are passed several times

// Whether a run is rotated in parts. They take fewer instructions, but where there are several,
// each head is passed several times. That pays where the next pass finds the run in the L1 cache
// and the first one finds it in some cache; from the memory it costs as much (bench/README.md).
template <class Shape, class E = typename Shape::Element>
HWY_INLINE bool InParts(const HeadRun<E>& run) {
  const int n = LanesOf(FullTag()), row = Shape::kRowPerPair * run.head.pairs;
  if (row == kHeldVectors * n || row == 4 * n || row == 2 * n) return true;  // one part
  return run.count > 1 && run.in_cache && run.count * run.head.bytes() <= kPassedBytes;
}

// The whole vectors of one head after the other; returns where they end.
template <class Shape, bool kStream, class E = typename Shape::Element>
HWY_INLINE int RotateOneByOne(HeadRun<E> run, const float* cos, const float* sin) {
  const FullTag d;
  const int row = Shape::kRowPerPair * run.head.pairs;
  for (int h = 0; h < run.count; ++h) {
    if (run.prefetch_ahead != 0) Prefetch(run.head.in, run.prefetch_ahead, run.head.bytes());
    Steps<Shape, kStream>(d, run.head, cos, sin);
    run.Next();
  }
  return row - row % (Shape::kRowVectors * LanesOf(d));
}

// All heads of a run.
template <class Shape, bool kStream, class E = typename Shape::Element>
HWY_INLINE void RotateRun(const HeadRun<E>& run, const float* cos, const float* sin) {
  int end;
  if (!InParts<Shape>(run)) {
    end = RotateOneByOne<Shape, kStream>(run, cos, sin);
  } else if (run.prefetch_ahead == 0) {
    end = RotateVectors<Shape, kStream, false>(run, cos, sin);
  } else {
    end = RotateVectors<Shape, kStream, true>(run, cos, sin);
  }
  if (end != Shape::kRowPerPair * run.head.pairs) RotateTail<Shape>(run, cos, sin, end);
}

// Orders that move channels would overwrite, in place, what they have not read yet: such heads
// are rotated from a copy.
template <class Shape, class E = typename Shape::Element>
HWY_INLINE void RotateMovedHeads(HeadRun<E> run, const float* cos, const float* sin) {
  HWY_ALIGN typename E::Raw copy[kMaxHeadDim];
  const int heads = run.count;
  run.count = 1;
  for (int n = 0; n < heads; ++n) {
    const auto* in = run.head.in;
    if (in == run.head.out) {
      std::memcpy(copy, in, static_cast<size_t>(2 * run.head.pairs) * sizeof(*in));
      run.head.in = copy;
      run.prefetch_ahead = 0;
    }
    const int end = RotateOneByOne<Shape, false>(run, cos, sin);
    if (end != Shape::kRowPerPair * run.head.pairs) RotateTail<Shape>(run, cos, sin, end);
    run.head.in = in;
    run.Next();
  }
}

template <class Shape, bool kStream>
void RotateBlock(const Block& b) {
  using E = typename Shape::Element;
  using Raw = typename E::Raw;
  const Tensor& tensor = *b.tensor;
  HeadRun<E> run;
  run.in_step = tensor.in_strides.head;
  run.out_step = tensor.out_strides.head;
  run.count = HeadsLieApart(tensor) ? 1 : tensor.heads;
  run.in_cache = b.in_cache;
  for (int32_t s = 0; s < b.segment_count; ++s) {
    const Segment& segment = b.segments[s];
    run.head.pairs = segment.pairs;
    for (int32_t h = 0; h < tensor.heads; h += run.count) {
      const char* in = b.in + HeadOffset(tensor.in_strides, 0, 0, h);
      char* out = b.out + HeadOffset(tensor.out_strides, 0, 0, h);
      const float* cos = b.cos + Shape::kRowPerPair * segment.first_pair;
      const float* sin = b.sin + Shape::kRowPerPair * segment.first_pair;
      for (int32_t t = 0; t < b.tokens; ++t) {
        run.head.in = reinterpret_cast<const Raw*>(in) + segment.first_channel;
        run.head.out = reinterpret_cast<Raw*>(out) + segment.first_channel;
        // For these heads, if all that would be asked for belongs to the task.
        const char* asked = in + (run.count - 1) * run.in_step + b.prefetch_ahead;
        run.prefetch_ahead = asked <= b.prefetch_last ? b.prefetch_ahead : 0;
        if constexpr (Shape::kMovesChannels) {
          RotateMovedHeads<Shape>(run, cos, sin);
        } else {
          RotateRun<Shape, kStream>(run, cos, sin);
        }
        in += tensor.in_strides.token;
        out += tensor.out_strides.token;
        cos += b.row_stride;
        sin += b.row_stride;
      }
    }
  }
}

// By a row with values for both channels of each pair, from pair `i` on: whole vectors of D of one
// segment. Rare, so that one function serves all orders, head by head.
template <class E, Arithmetic kArithmetic, class D>
HWY_INLINE int RotateByChannels(D d, ChannelOrder order, const typename E::Raw* in,
                                typename E::Raw* out, int pairs, const ChannelRow& row, int i) {
  for (const int n = LanesOf(d); i + n <= pairs; i += n) {
    hn::Vec<D> x0, x1, y0, y1;
    if (ReadsInterleaved(order)) {
      E::LoadPairs(d, in + 2 * i, x0, x1);
    } else {
      x0 = E::Load(d, in + i);
      x1 = E::Load(d, in + pairs + i);
    }
    const auto cos0 = hn::LoadU(d, row.cos0 + i), sin0 = hn::LoadU(d, row.sin0 + i),
               cos1 = hn::LoadU(d, row.cos1 + i), sin1 = hn::LoadU(d, row.sin1 + i);
    if constexpr (kArithmetic == Arithmetic::kFused) {  // as rotate.h, on every target
      y0 = Fused::MulAdd(d, x0, cos0, hn::Neg(hn::Mul(x1, sin0)));
      y1 = Fused::MulAdd(d, x1, cos1, hn::Mul(x0, sin1));
    } else {
      y0 = DifferenceOfProducts<E, kArithmetic>(d, x0, cos0, x1, sin0);
      y1 = SumOfProducts<E, kArithmetic>(d, x1, cos1, x0, sin1);
    }
    if (WritesInterleaved(order)) {
      E::template StorePairs<false>(d, y0, y1, out + 2 * i);
    } else {
      E::template StoreBoth<false>(d, y0, out + i, y1, out + pairs + i);
    }
  }
  return i;
}

template <class E, Arithmetic kArithmetic>
int RotateByChannels(ChannelOrder order, const void* in, void* out, int pairs,
                     const ChannelRow& row) {
  using Raw = typename E::Raw;
  const auto* from = static_cast<const Raw*>(in);
  auto* to = static_cast<Raw*>(out);
  const int done = RotateByChannels<E, kArithmetic>(FullTag(), order, from, to, pairs, row, 0);
  if constexpr (std::is_same_v<FullTag, QuarterTag>) return done;
  return RotateByChannels<E, kArithmetic>(QuarterTag(), order, from, to, pairs, row, done);
}

// The shape for an element type and a channel order: where it is not Natural, one that takes fewer
// shuffles.
template <class E, ChannelOrder kChannels, Arithmetic kArithmetic>
struct ShapeOf {
  using Type = Natural<E, kChannels, kArithmetic>;
};
template <class E, Arithmetic kArithmetic>
struct ShapeOf<E, kInterleaved, kArithmetic> {
  using Type = PerChannel<E, kArithmetic>;
};
template <class Rounding, Arithmetic kArithmetic>
struct ShapeOf<Bf16RoundedBy<Rounding>, kInterleaved, kArithmetic> {
  using Type = Natural<Bf16RoundedBy<Rounding>, kInterleaved, kArithmetic>;
};
template <class Rounding, Arithmetic kArithmetic>
struct ShapeOf<Bf16RoundedBy<Rounding>, kHalves, kArithmetic> {
  using Type = EvenOdd<Bf16RoundedBy<Rounding>, kArithmetic>;
};

// Streaming needs stores in order, and pays only where rounding is cheap.
template <class E, ChannelOrder kChannels, Arithmetic kArithmetic>
Kernels::Rotation RotationOf() {
  if constexpr (IsFor(kArithmetic, E::kDtype)) {
    using Shape = typename ShapeOf<E, kChannels, kArithmetic>::Type;
    Kernels::Rotation rotation{Shape::kOrder, &RotateBlock<Shape, false>, nullptr};
    if constexpr (!Shape::kMovesChannels && kArithmetic == Arithmetic::kFused) {
      rotation.rotate_streaming = &RotateBlock<Shape, true>;
    }
    return rotation;
  } else {
    return {};
  }
}

template <class E, Arithmetic kArithmetic, int... kOrders>
void FillOrders(Kernels& kernels, std::integer_sequence<int, kOrders...>) {
  auto& rotations = kernels.rotations[E::kDtype - 1];
  ((rotations[kOrders][static_cast<int>(kArithmetic)] =
        RotationOf<E, ChannelOrder{kOrders}, kArithmetic>()),
   ...);
  if constexpr (IsFor(kArithmetic, E::kDtype)) {
    kernels.rotate_by_channels[E::kDtype - 1][static_cast<int>(kArithmetic)] =
        &RotateByChannels<E, kArithmetic>;
  }
}

template <class E, int... kNumbers>
void FillArithmetics(Kernels& kernels, std::integer_sequence<int, kNumbers...>) {
  constexpr auto kOrders = std::make_integer_sequence<int, kChannelOrders>();
  (FillOrders<E, Arithmetic{kNumbers}>(kernels, kOrders), ...);
}

template <class... E>
void FillRotations(Kernels& kernels, Elements<E...>) {
  (FillArithmetics<E>(kernels, std::make_integer_sequence<int, kArithmetics>()), ...);
}

void FillRotations(Kernels& kernels) {
  FillRotations(kernels, AllElements());
#if ROPE_BF16_INSTRUCTION
  if (!HasBf16Conversion()) return;
  constexpr auto kArithmetic = Arithmetic::kFused;
  auto& rotations = kernels.rotations[ROPE_DTYPE_BF16 - 1];
  rotations[kHalves][static_cast<int>(kArithmetic)] =
      RotationOf<ConvertedBF16, kHalves, kArithmetic>();
  rotations[kInterleaved][static_cast<int>(kArithmetic)] =
      RotationOf<ConvertedBF16, kInterleaved, kArithmetic>();
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace rope::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard
