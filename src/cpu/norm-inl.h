// Sums of heads in the order of math/norm.h, and their roots. All heads are summed before the first
// is turned: a rotation that waits for its own head's root takes twice as long (docs/serving.md,
// "Choice 2"). Included once per target.
#if defined(LIBROPE_SRC_CPU_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LIBROPE_SRC_CPU_NORM_INL_H_
#undef LIBROPE_SRC_CPU_NORM_INL_H_
#else
#define LIBROPE_SRC_CPU_NORM_INL_H_
#endif

#include "cpu/rotate-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rope::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Adds what channels x contribute: those before `count`, if not kWhole; the others are zeros, which
// count only where they have a distance from the mean. Without fused multiply-add the square is
// rounded.
template <NormSum kSum, bool kWhole, class D, class V = hn::Vec<D>>
HWY_INLINE V AddTerm([[maybe_unused]] D d, V x, [[maybe_unused]] V mean, V sum,
                     [[maybe_unused]] int count) {
  if constexpr (kSum == NormSum::kValues) return hn::Add(sum, x);
  if constexpr (kSum == NormSum::kDistances) {
    x = hn::Sub(x, mean);
    if constexpr (!kWhole) {
      x = hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(std::max(count, 0))), x);
    }
  }
  return hn::MulAdd(x, x, sum);
}

// Adds the upper half of a vector's lanes to the lower one, until one is left.
template <class D>
HWY_INLINE float AddHalves([[maybe_unused]] D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) == 1) {
    return hn::GetLane(v);
  } else {
    const hn::Half<D> half;
    return AddHalves(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

#if !HWY_HAVE_SCALABLE

// The same of lanes that fill several vectors; down to four of them.
template <int kVectors, class D>
HWY_INLINE hn::Vec<QuarterTag> AddHalvesToFour(D d, hn::Vec<D>* sums) {
  if constexpr (kVectors > 1) {
    for (int v = 0; v < kVectors / 2; ++v) sums[v] = hn::Add(sums[v], sums[v + kVectors / 2]);
    return AddHalvesToFour<kVectors / 2>(d, sums);
  } else if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    hn::Vec<decltype(half)> sum =
        hn::Add(hn::LowerHalf(half, sums[0]), hn::UpperHalf(half, sums[0]));
    return AddHalvesToFour<1>(half, &sum);
  } else {
    return sums[0];
  }
}

// The running sums of a head, of terms in the order of channels.
struct RunningSums {
  static constexpr int kVectors = kRunningSums / hn::MaxLanes(FullTag());
  using V = hn::Vec<FullTag>;
  V sums[kVectors];

  HWY_INLINE RunningSums() {
    for (V& sum : sums) sum = hn::Zero(FullTag());
  }
  static constexpr int Vectors() { return kVectors; }
  HWY_INLINE V Get(int v) const { return sums[v]; }
  HWY_INLINE void Set(int v, V sum) { sums[v] = sum; }
  HWY_INLINE float Total() {
    return AddHalves(QuarterTag(), AddHalvesToFour<kVectors>(FullTag(), sums));
  }
};

// Of the channels of a head, each vector of adjacent ones in sums of its own.
template <class E, NormSum kSum>
struct HeadSum : RunningSums {
  HWY_INLINE HeadSum() : RunningSums() {}  // for this target
  // kRunningSums channels.
  template <bool kWhole>
  HWY_INLINE void Add(const typename E::Raw* x, V mean, [[maybe_unused]] int count) {
    const FullTag d;
    constexpr int n = hn::MaxLanes(FullTag());
    for (int v = 0; v < kVectors; ++v) {
      sums[v] = AddTerm<kSum, kWhole>(d, E::Load(d, x + v * n), mean, sums[v], count - v * n);
    }
  }
};

// bf16: words of an even and an odd channel are widened without a shuffle, and each is added into
// sums of its own.
template <NormSum kSum>
struct HeadSum<BF16, kSum> {
  static constexpr int kVectors = kRunningSums / 2 / hn::MaxLanes(FullTag());
  using V = hn::Vec<FullTag>;
  V even[kVectors], odd[kVectors];

  HWY_INLINE HeadSum() {
    for (int v = 0; v < kVectors; ++v) even[v] = odd[v] = hn::Zero(FullTag());
  }
  template <bool kWhole>
  HWY_INLINE void Add(const uint16_t* x, V mean, [[maybe_unused]] int count) {
    const FullTag d;
    constexpr int n = hn::MaxLanes(FullTag());
    for (int v = 0; v < kVectors; ++v) {
      const auto words = BF16::LoadWords(d, x + 2 * v * n);
      const int left = count - 2 * v * n;
      even[v] = AddTerm<kSum, kWhole>(d, BF16::First(d, words), mean, even[v], (left + 1) / 2);
      odd[v] = AddTerm<kSum, kWhole>(d, BF16::Second(d, words), mean, odd[v], left / 2);
    }
  }
  HWY_INLINE float Total() {
    const QuarterTag d;  // words 0 to 3: both of their channels are halved at once
    const auto e = AddHalvesToFour<kVectors>(FullTag(), even),
               o = AddHalvesToFour<kVectors>(FullTag(), odd);
    const auto words = hn::Add(hn::ConcatLowerLower(d, o, e), hn::ConcatUpperUpper(d, o, e));
    const auto sums = hn::Add(words, hn::Reverse2(d, words));  // e e o o
    return hn::GetLane(hn::Add(sums, hn::Reverse4(d, sums)));
  }
};

#else  // vectors without a size cannot be kept in arrays

struct RunningSums {
  using V = hn::Vec<FullTag>;
  HWY_ALIGN float sums[kRunningSums] = {};

  static int Vectors() { return kRunningSums / LanesOf(FullTag()); }
  V Get(int v) const { return hn::Load(FullTag(), sums + v * LanesOf(FullTag())); }
  void Set(int v, V sum) { hn::Store(sum, FullTag(), sums + v * LanesOf(FullTag())); }
  float Total() {
    for (int half = kRunningSums / 2; half > 0; half /= 2) {
      for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
    }
    return sums[0];
  }
};

template <class E, NormSum kSum>
struct HeadSum : RunningSums {
  template <bool kWhole>
  void Add(const typename E::Raw* x, V mean, int count) {
    const FullTag d;
    const int n = LanesOf(d);
    for (int v = 0; v < Vectors(); ++v) {
      Set(v, AddTerm<kSum, kWhole>(d, E::Load(d, x + v * n), mean, Get(v), count - v * n));
    }
  }
};

#endif

// The memory is asked for a part of a head ahead with each: as the heads turn, for all of it. In
// one of the two alone, the memory may rest while the other runs (bench/README.md, "Norms").
template <class E, NormSum kSum>
void SumHeads(const SummedHeads& summed) {
  using Raw = typename E::Raw;
  const FullTag d;
  const SummedHeads heads = summed;  // which the sums cannot be part of
  const int channels = heads.channels;
  const char* in = heads.in;
  for (int h = 0; h < heads.count; ++h, in += heads.step) {
    if (HWY_UNLIKELY(heads.prefetch_ahead != 0)) {
      const int64_t quarter = channels * static_cast<int64_t>(sizeof(Raw)) / 4;
      Prefetch(in, heads.prefetch_ahead, heads.quarters * quarter, heads.prefetch_into_l1);
    }
    const auto* x = reinterpret_cast<const Raw*>(in);
    const auto mean = kSum == NormSum::kDistances ? hn::Set(d, heads.means[h]) : hn::Zero(d);
    HeadSum<E, kSum> sum;
    int c = 0;
    for (; c + kRunningSums <= channels; c += kRunningSums) {
      sum.template Add<true>(x + c, mean, kRunningSums);
    }
    if (c != channels) {  // nothing behind the head is read
      HWY_ALIGN Raw rest[kRunningSums] = {};
      std::memcpy(rest, x + c, static_cast<size_t>(channels - c) * sizeof(Raw));
      sum.template Add<false>(rest, mean, channels - c);
    }
    heads.sums[h] = sum.Total();
  }
}

// In place; the arrays have whole vectors.
void InverseRoots(float* sums, int count, float channels, float eps) {
  const FullTag d;
  const auto n = hn::Set(d, channels), e = hn::Set(d, eps), one = hn::Set(d, 1.0f);
  for (int i = 0; i < count; i += LanesOf(d)) {
    const auto square = hn::Add(hn::Div(hn::Load(d, sums + i), n), e);
    hn::Store(hn::Div(one, hn::Sqrt(square)), d, sums + i);
  }
}

// Two vectors of channels that follow each other.
template <class E, class D>
HWY_INLINE void StoreTwo(D d, hn::Vec<D> first, hn::Vec<D> second, typename E::Raw* to) {
#if ROPE_BF16_INSTRUCTION
  if constexpr (std::is_same_v<E, ConvertedBF16> && hn::MaxLanes(D()) == 16) {
    __m512i halves;
    if (HWY_LIKELY(RoundByInstruction::Convert(first.raw, second.raw, &halves))) {
      _mm512_storeu_si512(to, halves);
      return;
    }
  }
#endif
  E::template StoreBoth<false>(d, first, to, second, to + LanesOf(d));
}

// Channels of heads that do not turn, by the steps of NormedChannel() in math/norm.h.
template <class E, bool kMeans, bool kEager, class D>
HWY_INLINE int NormVectors(D d, const NormedHeads& heads, int h, const typename E::Raw* in,
                           typename E::Raw* out, float root, float mean, int c) {
  const int n = LanesOf(d);
  const float *const weights = heads.WeightsOf(h), *const biases = heads.BiasesOf(h);
  const auto rounded = [d](hn::Vec<D> v) HWY_ATTR { return kEager ? E::Round(d, v) : v; };
  const auto normed = [&](int at) HWY_ATTR {
    auto x = E::Load(d, in + at);
    if constexpr (kMeans) x = hn::Sub(x, hn::Set(d, mean));
    x = rounded(hn::Mul(x, hn::Set(d, root)));
    x = hn::Mul(x, hn::LoadU(d, weights + at));
    if constexpr (kMeans) {
      if (biases != nullptr) x = hn::Add(rounded(x), hn::LoadU(d, biases + at));
    }
    return x;
  };
  for (; c + 2 * n <= heads.channels; c += 2 * n) {
    const auto first = normed(c), second = normed(c + n);
    StoreTwo<E>(d, first, second, out + c);
  }
  return c;
}

template <class E, bool kMeans, bool kEager>
void NormHeads(const NormedHeads& heads) {
  using Raw = typename E::Raw;
  const char* in = heads.in;
  char* out = heads.out;
  const auto round = [](float value) { return kEager ? RoundTo(E::kDtype, value) : value; };
  for (int h = 0; h < heads.count; ++h, in += heads.in_step, out += heads.out_step) {
    const auto* x = reinterpret_cast<const Raw*>(in);
    auto* y = reinterpret_cast<Raw*>(out);
    const float root = heads.roots[h], mean = kMeans ? heads.means[h] : 0.0f;
    int c = NormVectors<E, kMeans, kEager>(FullTag(), heads, h, x, y, root, mean, 0);
    c = NormVectors<E, kMeans, kEager>(QuarterTag(), heads, h, x, y, root, mean, c);
    const float *const weights = heads.WeightsOf(h), *const biases = heads.BiasesOf(h);
    for (; c < heads.channels; ++c) {
      const float bias = biases != nullptr ? biases[c] : kNoBias;
      StoreElement(
          E::kDtype, y, c,
          NormedChannel(LoadElement(E::kDtype, x, c), mean, root, weights[c], bias, round));
    }
  }
}

template <class E>
void NormAnyHeads(const NormedHeads& heads) {
  if (heads.means != nullptr) {
    heads.eager ? NormHeads<E, true, true>(heads) : NormHeads<E, true, false>(heads);
  } else {
    heads.eager ? NormHeads<E, false, true>(heads) : NormHeads<E, false, false>(heads);
  }
}

// A weight, or one more. NaN is the one that narrowing to bf16 keeps.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Weight(D d, V w, bool one_plus) {
  if (one_plus) w = hn::Add(w, hn::Set(d, 1.0f));
  return hn::IfThenElse(hn::IsNaN(w), hn::Set(d, QuietNan()), w);
}

template <class E>
void WidenWeights(const void* from, int count, bool one_plus, float* to) {
  const FullTag d;
  const auto* weights = static_cast<const typename E::Raw*>(from);
  const int n = LanesOf(d);
  int c = 0;
  for (; c + n <= count; c += n) {
    hn::StoreU(Weight(d, E::Load(d, weights + c), one_plus), d, to + c);
  }
  for (; c < count; ++c) {
    float w = LoadElement(E::kDtype, from, c);
    if (one_plus) w += 1.0f;
    to[c] = std::isnan(w) ? QuietNan() : w;
  }
}

// Words of an even and an odd channel are widened without a shuffle.
void WidenEvenOdd(const void* from, int count, bool one_plus, float* to) {
  const FullTag d;
  const auto* weights = static_cast<const uint16_t*>(from);
  const int n = LanesOf(d);
  for (int c = 0; c < count; c += 2 * n) {
    const auto words = BF16::LoadWords(d, weights + c);
    hn::StoreU(Weight(d, BF16::First(d, words), one_plus), d, to + c);
    hn::StoreU(Weight(d, BF16::Second(d, words), one_plus), d, to + c + n);
  }
}

template <class E>
void FillNorms(Kernels& kernels) {
  kernels.norm_sums[E::kDtype - 1][static_cast<int>(NormSum::kValues)] =
      &SumHeads<E, NormSum::kValues>;
  kernels.norm_sums[E::kDtype - 1][static_cast<int>(NormSum::kSquares)] =
      &SumHeads<E, NormSum::kSquares>;
  kernels.norm_sums[E::kDtype - 1][static_cast<int>(NormSum::kDistances)] =
      &SumHeads<E, NormSum::kDistances>;
  kernels.norm_heads[E::kDtype - 1] = &NormAnyHeads<E>;
  kernels.widen_weights[E::kDtype - 1] = &WidenWeights<E>;
}

template <class... E>
void FillNorms(Kernels& kernels, Elements<E...>) {
  (FillNorms<E>(kernels), ...);
}

void FillNorms(Kernels& kernels) {
  FillNorms(kernels, AllElements());
#if ROPE_BF16_INSTRUCTION
  if (RoundsByInstruction()) kernels.norm_heads[ROPE_DTYPE_BF16 - 1] = &NormAnyHeads<ConvertedBF16>;
#endif
  kernels.widen_even_odd = &WidenEvenOdd;
  kernels.inverse_roots = &InverseRoots;
}

}  // namespace HWY_NAMESPACE
}  // namespace rope::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard
