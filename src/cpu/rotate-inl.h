// Rotation of heads by ready rows: heads of a token that follow each other, in the steps of a
// shape. Included once per target.
#if defined(LIBROPE_SRC_CPU_ROTATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LIBROPE_SRC_CPU_ROTATE_INL_H_
#undef LIBROPE_SRC_CPU_ROTATE_INL_H_
#else
#define LIBROPE_SRC_CPU_ROTATE_INL_H_
#endif

#include "cpu/shapes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rope::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Heads of one token that follow each other at fixed distances.
template <class In, class Out, class Norm>
struct HeadRun {
  Head<In, Out> head;
  Norm norm;                  // of the first
  int64_t in_step, out_step;  // bytes
  int count;
  int64_t prefetch_ahead;  // bytes to what is asked for; 0: nothing
  int64_t prefetch_near;   // and to what is asked for into the L1 cache besides; 0: nothing
  bool prefetch_into_l1;
  bool in_cache;  // where the data of the call stays

  HWY_INLINE void Next() {
    head.in = MovedBy(head.in, in_step);
    head.out = MovedBy(head.out, out_step);
    norm.MoveBy(1);
  }

  HWY_INLINE HeadRun Last(int heads) const {
    HeadRun run = *this;
    run.head.in = MovedBy(head.in, (count - heads) * in_step);
    run.head.out = MovedBy(head.out, (count - heads) * out_step);
    run.norm.MoveBy(count - heads);
    run.count = heads;
    return run;
  }
};

template <class Shape>
using RunOf =
    HeadRun<typename Shape::Element::In, typename Shape::Element::Raw, typename Shape::Norm>;

// Asks for `bytes` bytes ahead of time: the hardware's prefetcher stops at pages and leaves 16-bit
// elements half the speed of the memory. Two lines for each pass of the loop: unrolled, they come
// too fast, and f32 takes up to a third longer on Zen 5 (bench/README.md).
HWY_INLINE void Prefetch(const void* data, int64_t ahead, int64_t bytes, bool into_l1) {
  constexpr int kLine = 64;
  const char* at = static_cast<const char*>(data) + ahead;
  const char* const end = at + bytes;
  if (into_l1) {
    HWY_UNROLL(2)
    for (; at < end; at += kLine) __builtin_prefetch(at, 1, 3);
  } else {
    HWY_UNROLL(2)
    for (; at < end; at += kLine) __builtin_prefetch(at, 1, 2);
  }
}

// As a run says.
HWY_INLINE void Prefetch(const void* data, int64_t ahead, int64_t near, int64_t bytes,
                         bool into_l1) {
  Prefetch(data, ahead, bytes, into_l1);
  if (near != 0) Prefetch(data, near, bytes, true);
}

// The whole vectors of one head; returns whether a step met ties.
template <class Shape, bool kStream, class D>
HWY_INLINE bool Steps(D d, const HeadOf<typename Shape::Element>& h,
                      const typename Shape::Norm& norm, const float* cos, const float* sin) {
  const PlacesOf<typename Shape::Element> at(h, 0, 0);
  const auto head_norm = norm.OfHead();
  const int n = LanesOf(d), row = Shape::kRowPerPair * h.pairs;
  bool ties = false;
  HWY_UNROLL(4)
  for (int i = 0; i + Shape::kRowVectors * n <= row; i += Shape::kRowVectors * n) {
    auto c = hn::LoadU(d, cos + i), s = hn::LoadU(d, sin + i);
    if constexpr (Shape::kRowVectors == 1) {
      Shape::template Step<kStream>(d, at, head_norm, i, c, s, c, s);
    } else {
      auto next_c = hn::LoadU(d, cos + i + n), next_s = hn::LoadU(d, sin + i + n);
      LoadOnce(c);
      LoadOnce(s);
      LoadOnce(next_c);
      LoadOnce(next_s);
      ties |= Shape::template Step<kStream>(d, at, head_norm, i, c, s, next_c, next_s);
    }
  }
  return ties;
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
// once. Returns how many heads are left: it stops behind one with ties.
template <class Shape, bool kStream, bool kPrefetch, int kVectors, class D>
ROPE_PART int RotatePart(D d, const RunOf<Shape>& run, const float* cos, const float* sin, int i) {
  using E = typename Shape::Element;
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
  PlacesOf<E> at(run.head, Shape::kReads * i, Shape::kWrites * i);
  typename Shape::Norm norm = run.norm.From(i);
  const int64_t in_step = run.in_step, out_step = run.out_step, ahead = run.prefetch_ahead;
  [[maybe_unused]] const int64_t near = run.prefetch_near;
  [[maybe_unused]] const bool into_l1 = run.prefetch_into_l1;
  for (int left = run.count; left > 0;) {
    at.Separate();
    const auto head_norm = norm.OfHead();
    if constexpr (kPrefetch) {
      const int64_t bytes = int64_t{Shape::kReads} * kVectors * n * sizeof(typename E::In);
      if (!Shape::kSecond || kVectors * n == run.head.pairs) {
        Prefetch(at.in, ahead, near, Shape::kSecond ? 2 * bytes : bytes, into_l1);
      } else {
        Prefetch(at.in, ahead, near, bytes, into_l1);
        Prefetch(at.second_in, ahead, near, bytes, into_l1);
      }
    }
    --left;
    if constexpr (kStep == 1) {
      HWY_UNROLL(8)
      for (int v = 0; v < kVectors; ++v) {
        Shape::template Step<kStream>(d, at, head_norm, v * n, c(v), s(v), c(v), s(v));
      }
    } else {
      bool ties = false;
      HWY_UNROLL(4)
      for (int v = 0; v < kVectors; v += 2) {
        ties |=
            Shape::template Step<kStream>(d, at, head_norm, v * n, c(v), s(v), c(v + 1), s(v + 1));
      }
      if (HWY_UNLIKELY(ties)) return left;
    }
    at.MoveBy(in_step, out_step);
    norm.MoveBy(1);
  }
  return 0;
}

// The same for the heads behind one with ties: where there are some, there are mostly more.
template <class Shape, bool kStream, bool kPrefetch, int kVectors>
HWY_NOINLINE void RotateRestOfPart(const RunOf<Shape>& run, const float* cos, const float* sin,
                                   int i) {
  RotatePart<Shape, kStream, kPrefetch, kVectors>(FullTag(), run, cos, sin, i);
}

// As many such parts as there are; returns where they end.
template <class Shape, bool kStream, bool kPrefetch, int kVectors, class D>
HWY_INLINE int RotateParts(D d, const RunOf<Shape>& run, const float* cos, const float* sin,
                           int i) {
  const int row = Shape::kRowPerPair * run.head.pairs, part = kVectors * LanesOf(d);
  for (; i + part <= row; i += part) {
    const int left = RotatePart<Shape, kStream, kPrefetch, kVectors>(d, run, cos, sin, i);
    if constexpr (Shape::kRowVectors == 2) {
      using Rest = typename Shape::WithTies;
      if (HWY_UNLIKELY(left != 0)) {
        RotateRestOfPart<Rest, kStream, kPrefetch, kVectors>(run.Last(left), cos, sin, i);
      }
    }
  }
  return i;
}

// All whole vectors of the row in parts; returns where they end.
template <class Shape, bool kStream, bool kPrefetch>
HWY_INLINE int RotateVectors(const RunOf<Shape>& run, const float* cos, const float* sin) {
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
template <class Shape>
HWY_NOINLINE void RotateTail(const RunOf<Shape>& run, const float* cos, const float* sin, int i) {
  const QuarterTag quarter;
  if constexpr (Shape::kRowVectors == 2) {
    using Rest = typename Shape::Rest;
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
template <class Shape>
HWY_INLINE bool InParts(const RunOf<Shape>& run) {
  const int n = LanesOf(FullTag()), row = Shape::kRowPerPair * run.head.pairs;
  if (row == kHeldVectors * n || row == 4 * n || row == 2 * n) return true;  // one part
  return run.count > 1 && run.in_cache && run.count * run.head.bytes() <= kPassedBytes;
}

// The whole vectors of one head after the other, up to one with ties; returns how many heads are
// left.
template <class Shape, bool kStream>
HWY_INLINE int RotateWholeHeads(RunOf<Shape> run, const float* cos, const float* sin) {
  for (int left = run.count; left > 0;) {
    if (run.prefetch_ahead != 0) {
      Prefetch(run.head.in, run.prefetch_ahead, run.prefetch_near, run.head.bytes(),
               run.prefetch_into_l1);
    }
    --left;
    if (HWY_UNLIKELY((Steps<Shape, kStream>(FullTag(), run.head, run.norm, cos, sin)))) return left;
    run.Next();
  }
  return 0;
}
template <class Shape, bool kStream>
HWY_NOINLINE void RotateRestOfHeads(const RunOf<Shape>& run, const float* cos, const float* sin) {
  RotateWholeHeads<Shape, kStream>(run, cos, sin);
}

// The whole vectors of one head after the other; returns where they end.
template <class Shape, bool kStream>
HWY_INLINE int RotateOneByOne(const RunOf<Shape>& run, const float* cos, const float* sin) {
  const int left = RotateWholeHeads<Shape, kStream>(run, cos, sin);
  if constexpr (Shape::kRowVectors == 2) {
    if (HWY_UNLIKELY(left != 0)) {
      RotateRestOfHeads<typename Shape::WithTies, kStream>(run.Last(left), cos, sin);
    }
  }
  const int row = Shape::kRowPerPair * run.head.pairs;
  return row - row % (Shape::kRowVectors * LanesOf(FullTag()));
}

// All heads of a run.
template <class Shape, bool kStream>
HWY_INLINE void RotateRun(const RunOf<Shape>& run, const float* cos, const float* sin) {
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
template <class Shape>
HWY_INLINE void RotateMovedHeads(RunOf<Shape> run, const float* cos, const float* sin) {
  HWY_ALIGN typename Shape::Element::Raw copy[kMaxHeadDim];
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
  const Tensor& tensor = *b.tensor;
  RunOf<Shape> run;
  run.in_step = tensor.in_strides.head;
  run.out_step = tensor.out_strides.head;
  run.count = HeadsLieApart(tensor) ? 1 : tensor.heads;
  run.prefetch_near = b.prefetch_near;
  run.prefetch_into_l1 = b.prefetch_into_l1;
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
        run.head.in = reinterpret_cast<const typename E::In*>(in) + segment.first_channel;
        run.head.out = reinterpret_cast<typename E::Raw*>(out) + segment.first_channel;
        run.norm = Shape::Norm::Of(b, Shape::kRowPerPair * segment.first_pair, t, h);
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

// One token: what RotateBlock() asks for more tokens costs as much as a few heads.
template <class Shape>
void RotateToken(const Tensor* tensors, int count, const Segment& segment, const float* cos,
                 const float* sin) {
  using E = typename Shape::Element;
  for (const Tensor* t = tensors; t != tensors + count; ++t) {
    RunOf<Shape> run;
    run.head.in =
        reinterpret_cast<const typename E::In*>(t->in + t->in_span) + segment.first_channel;
    run.head.out = reinterpret_cast<typename E::Raw*>(t->out + t->out_span) + segment.first_channel;
    run.head.pairs = segment.pairs;
    run.in_step = t->in_strides.head;
    run.out_step = t->out_strides.head;
    run.count = t->heads;
    run.prefetch_ahead = 0;
    run.prefetch_near = 0;
    run.prefetch_into_l1 = false;
    run.in_cache = true;
    RotateRun<Shape, false>(run, cos, sin);
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
template <class E, ChannelOrder kChannels, Arithmetic kArithmetic, class Norm>
struct ShapeOf {
  using Type = Natural<E, kChannels, kArithmetic, Norm>;
};
template <class E, Arithmetic kArithmetic, class Norm>
struct ShapeOf<E, kInterleaved, kArithmetic, Norm> {
  using Type = PerChannel<E, kArithmetic, Norm>;
};
template <class Rounding, Arithmetic kArithmetic, class Norm>
struct ShapeOf<Bf16RoundedBy<Rounding>, kInterleaved, kArithmetic, Norm> {
  using Type = PairWords<Bf16RoundedBy<Rounding>, kArithmetic, Norm>;
};
template <class Rounding, Arithmetic kArithmetic, class Norm>
struct ShapeOf<Bf16RoundedBy<Rounding>, kHalves, kArithmetic, Norm> {
  using Type = EvenOdd<Bf16RoundedBy<Rounding>, kArithmetic, Norm>;
};

// Streaming needs stores in order, and pays only where rounding is cheap.
template <class E, ChannelOrder kChannels, Arithmetic kArithmetic, class Norm = AsTheyAre>
Kernels::Rotation RotationOf() {
  if constexpr (IsFor(kArithmetic, E::kDtype)) {
    using Shape = typename ShapeOf<E, kChannels, kArithmetic, Norm>::Type;
    Kernels::Rotation rotation{Shape::kOrder, &RotateBlock<Shape, false>, nullptr, nullptr};
    if constexpr (!Shape::kMovesChannels && std::is_same_v<Norm, AsTheyAre>) {
      rotation.rotate_token = &RotateToken<Shape>;
    }
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

// Heads that are f32 when they have turned, where channels stay: in two shapes, by rows as other
// heads of their dtype have them.
template <class Halves, class Interleaved>
void FillWidening(Kernels& kernels, rope_dtype dtype) {
  auto& widening = kernels.widening[dtype - 1];
  widening[kHalves] = {Halves::kOrder, &RotateBlock<Halves, false>, nullptr, nullptr};
  widening[kInterleaved] = {Interleaved::kOrder, &RotateBlock<Interleaved, false>, nullptr,
                            nullptr};
}

// Heads that are normed and turned in one pass. Only FORWARD has norms.
template <class E, rope_norm_rounding kRounding>
void FillNormed(Kernels& kernels) {
  using Norm = Normed<E, kRounding>;
  auto& rotations = kernels.normed_rotations[E::kDtype - 1][kRounding];
  rotations[kHalves] = RotationOf<E, kHalves, Arithmetic::kFused, Norm>();
  rotations[kInterleaved] = RotationOf<E, kInterleaved, Arithmetic::kFused, Norm>();
  rotations[kInterleavedToHalves] = RotationOf<E, kInterleavedToHalves, Arithmetic::kFused, Norm>();
}

template <class E>
void FillRotations(Kernels& kernels) {
  FillArithmetics<E>(kernels, std::make_integer_sequence<int, kArithmetics>());
  FillNormed<E, ROPE_NORM_ROUNDING_FLOAT32>(kernels);
}

}  // namespace HWY_NAMESPACE
}  // namespace rope::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard
