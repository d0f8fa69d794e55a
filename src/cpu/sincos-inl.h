// Rows of cos and sin, made by the operations of sincos.h in the same order, rounded, and brought
// into the order of a kernel. In two passes, angles to quarter turns and quarter turns to cos and
// sin: each is a short chain of operations, so that a CPU works on many vectors at a time where one
// long chain leaves its pipelines empty. Included once per target.
#if defined(LIBROPE_SRC_CPU_SINCOS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LIBROPE_SRC_CPU_SINCOS_INL_H_
#undef LIBROPE_SRC_CPU_SINCOS_INL_H_
#else
#define LIBROPE_SRC_CPU_SINCOS_INL_H_
#endif

#include "cpu/elements-inl.h"
#include "cpu/fused-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rope::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows and tables are padded to kMaxLanes, so rows are made in whole vectors.

// `yes` where the sign bit of `sign` is set. IfNegativeThenElse of Highway 1.0 takes `sign` for a
// mask where there is no blend by sign.
template <class D, class VU, class V = hn::Vec<D>>
HWY_INLINE V IfSignThenElse(D d, VU sign, V yes, V no) {
#if HWY_ARCH_X86 && HWY_TARGET > HWY_SSE4
  const auto all = hn::BroadcastSignBit(hn::BitCast(hn::RebindToSigned<D>(), sign));
  return hn::IfThenElse(hn::MaskFromVec(hn::BitCast(d, all)), yes, no);
#else
  return hn::IfNegativeThenElse(hn::BitCast(d, sign), yes, no);
#endif
}

// cos and sin of (quadrant + u) quarter turns. Ops: Native or Fused.
template <class Ops, class D, class V = hn::Vec<D>, class VU = hn::Vec<hn::RebindToUnsigned<D>>>
HWY_INLINE void CosSinOfQuarters(D d, VU quadrant, V u, V& cos, V& sin) {
  const hn::RebindToUnsigned<D> du;
  const V z = hn::Mul(u, u);
  V s = Ops::MulAdd(d, z, hn::Set(d, kSin3), hn::Set(d, kSin2));
  s = Ops::MulAdd(d, z, s, hn::Set(d, kSin1));
  s = Ops::MulAdd(d, z, s, hn::Set(d, kSin0));
  s = hn::Mul(u, s);
  V c = Ops::MulAdd(d, z, hn::Set(d, kCos4), hn::Set(d, kCos3));
  c = Ops::MulAdd(d, z, c, hn::Set(d, kCos2));
  c = Ops::MulAdd(d, z, c, hn::Set(d, kCos1));
  c = Ops::MulAdd(d, z, c, hn::Set(d, 1.0f));
  // The sign bits of these say whether cos and sin change places, and which of them is negative.
  const auto swap = hn::ShiftLeft<31>(quadrant);
  const auto sin_sign = hn::And(hn::ShiftLeft<30>(quadrant), hn::Set(du, 0x80000000u));
  const auto cos_sign = hn::Xor(sin_sign, swap);
  cos = hn::Xor(IfSignThenElse(d, swap, s, c), hn::BitCast(d, cos_sign));
  sin = hn::Xor(IfSignThenElse(d, swap, c, s), hn::BitCast(d, sin_sign));
}

// Whole numbers within the range of int32: ConvertTo also minds others, by four instructions.
template <class D, class V = hn::Vec<D>, class DI = hn::RebindToSigned<D>>
HWY_INLINE hn::Vec<DI> WholeToInteger([[maybe_unused]] D d, V whole) {
#if HWY_ARCH_X86 && HWY_TARGET < HWY_EMU128
  if constexpr (sizeof(whole.raw) == 64)
    return hn::Vec<DI>{_mm512_cvttps_epi32(whole.raw)};
  else if constexpr (sizeof(whole.raw) == 32)
    return hn::Vec<DI>{_mm256_cvttps_epi32(whole.raw)};
  else
    return hn::Vec<DI>{_mm_cvttps_epi32(whole.raw)};
#else
  return hn::ConvertTo(DI(), whole);
#endif
}

// a * b - product, where product is a * b rounded: the exact error of the product.
template <class Ops, class D, class V = hn::Vec<D>>
HWY_INLINE V ProductError(D d, V a, V b, V product) {
  if constexpr (std::is_same_v<Ops, Fused>) return Fused::MulAdd(d, a, b, hn::Neg(product));
  // Dekker: halves of 12 bits multiply exactly.
  const hn::RebindToUnsigned<D> du;
  const auto upper = hn::BitCast(d, hn::Set(du, 0xfffff000u));
  const V a_high = hn::And(a, upper), b_high = hn::And(b, upper);
  const V a_low = hn::Sub(a, a_high), b_low = hn::Sub(b, b_high);
  V error = hn::Sub(hn::Mul(a_high, b_high), product);
  error = hn::Add(error, hn::Mul(a_high, b_low));
  error = hn::Add(error, hn::Mul(a_low, b_high));
  return hn::Add(error, hn::Mul(a_low, b_low));
}

// An angle in radians below kMaxFastAngle as quarter turns.
template <class Ops, class D, class V = hn::Vec<D>, class VU>
HWY_INLINE void QuartersOfAngle(D d, V angle, VU& quadrant, V& u) {
  const hn::RebindToUnsigned<D> du;
  const V per_radian = hn::Set(d, kQuartersPerRadian);
  const V quarters = hn::Mul(angle, per_radian);
  const V error = ProductError<Ops>(d, angle, per_radian, quarters);
  const V low = Ops::MulAdd(d, angle, hn::Set(d, kQuartersPerRadianLow), error);
  const V whole = hn::Round(quarters);
  const V rest = hn::Sub(quarters, whole);
  const V carry = hn::Round(hn::Add(rest, low));
  u = hn::Add(hn::Sub(rest, carry), low);
  quadrant = hn::BitCast(du, WholeToInteger(d, hn::Add(whole, carry)));
}

// The phase (turns_high, turns_low) * (high, low), all 32-bit words of 64-bit numbers, as quarter
// turns.
template <class D, class V = hn::Vec<D>, class VU>
HWY_INLINE void QuartersOfPhase(D d, VU turns_high, VU turns_low, VU high, VU low, VU& quadrant,
                                V& u) {
  const hn::RebindToSigned<D> di;
  const hn::RebindToUnsigned<D> du;
  const hn::RepartitionToWide<decltype(du)> du64;
  // turns_low * low as 64 bits: even lanes, then odd lanes moved to even ones.
  const auto even = hn::MulEven(turns_low, low);
  const auto odd = hn::MulEven(hn::BitCast(du, hn::ShiftRight<32>(hn::BitCast(du64, turns_low))),
                               hn::BitCast(du, hn::ShiftRight<32>(hn::BitCast(du64, low))));
  const auto carry = hn::OddEven(hn::BitCast(du, odd), hn::BitCast(du, hn::ShiftRight<32>(even)));
  const auto phase_low =
      hn::OddEven(hn::BitCast(du, hn::ShiftLeft<32>(odd)), hn::BitCast(du, even));
  const auto phase_high =
      hn::Add(carry, hn::Add(hn::Mul(turns_high, low), hn::Mul(turns_low, high)));
  const V upper = hn::Mul(hn::ConvertTo(d, hn::BitCast(di, hn::ShiftLeft<2>(phase_high))),
                          hn::Set(d, 0x1p-32f));
  u = hn::MulAdd(hn::ConvertTo(d, hn::BitCast(di, hn::ShiftRight<1>(phase_low))),
                 hn::Set(d, 0x1p-61f), upper);
  quadrant = hn::ShiftRight<30>(hn::Add(phase_high, hn::Set(du, 0x20000000u)));
}

// The opposite where `sign` has its bit set.
template <class D, class V = hn::Vec<D>, class VU>
HWY_INLINE void TurnBack(D d, VU sign, VU& quadrant, V& u) {
  const hn::RebindToSigned<D> di;
  const auto all =
      hn::BitCast(hn::RebindToUnsigned<D>(), hn::BroadcastSignBit(hn::BitCast(di, sign)));
  quadrant = hn::Sub(hn::Xor(quadrant, all), all);
  u = hn::Xor(u, hn::BitCast(d, sign));
}

// Angles of any size: with Fused, the bits of sincos.h on every target.
template <class D, class V = hn::Vec<D>, class VU>
HWY_NOINLINE void QuartersOfAnyAngle(D d, V angle, VU& quadrant, V& u) {
  QuartersOfAngle<Fused>(d, angle, quadrant, u);
  const V size = hn::Abs(angle);
  const auto is_fast = hn::Lt(size, hn::Set(d, kMaxFastAngle));
  if (hn::AllTrue(d, is_fast)) return;
  // size = m * 2^e with e >= 0, times the 64 bits of 1 / (2 pi) behind fraction bit e: three words
  // from a table, for the words where the bits may begin.
  constexpr int kFirstWords = 4;  // a power of two
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, size);
  const auto exponent = hn::Sub(hn::ShiftRight<23>(bits), hn::Set(du, 150u));
  const auto begin =
      hn::IndicesFromVec(du, hn::And(hn::ShiftRight<5>(exponent), hn::Set(du, kFirstWords - 1u)));
  const auto first = hn::TableLookupLanes(hn::LoadDup128(du, kInverseTwoPi), begin),
             second = hn::TableLookupLanes(hn::LoadDup128(du, kInverseTwoPi + 1), begin),
             third = hn::TableLookupLanes(hn::LoadDup128(du, kInverseTwoPi + 2), begin);
  const auto shift = hn::And(exponent, hn::Set(du, 31u));
  const auto others = hn::Sub(hn::Set(du, 31u), shift);  // less one: a shift by 32 is none
  const auto high = hn::Or(hn::Shl(first, shift), hn::Shr(hn::ShiftRight<1>(second), others)),
             low = hn::Or(hn::Shl(second, shift), hn::Shr(hn::ShiftRight<1>(third), others));
  const auto mantissa = hn::Or(hn::And(bits, hn::Set(du, 0x7fffffu)), hn::Set(du, 0x800000u));
  VU large_quadrant;
  V large_u;
  QuartersOfPhase(d, high, low, hn::Zero(du), mantissa, large_quadrant, large_u);
  TurnBack(d, hn::BitCast(du, hn::And(angle, hn::SignBit(d))), large_quadrant, large_u);
  const auto is_finite = hn::Lt(size, hn::BitCast(d, hn::Set(du, 0x7f800000u)));
  const V nan = hn::Set(d, QuietNan());  // with quadrant 0 it becomes cos and sin
  const auto of_fast = hn::RebindMask(du, is_fast), of_finite = hn::RebindMask(du, is_finite);
  u = hn::IfThenElse(is_fast, u, hn::IfThenElse(is_finite, large_u, nan));
  quadrant = hn::IfThenElse(of_fast, quadrant, hn::IfThenElseZero(of_finite, large_quadrant));
}

// Makes a row in its order. quarters(i, quadrant, u) gives a vector of each, for the pairs from i
// on; they wait in the row itself. The row is a copy, as stores of vectors might change what a
// reference leads to.
template <class Ops, class Quarters, class V = hn::Vec<FullTag>>
HWY_INLINE void MakeRow(Row row, Quarters quarters) {
  const FullTag d;
  const hn::RebindToUnsigned<FullTag> du;
  const int n = LanesOf(d);
  // Rows by channels are filled from their first half on: what waits lies in the second.
  const int wait = row.order == RowOrder::kPerChannel ? PaddedPairs(row.pairs) : 0;
  float *const waiting_u = row.cos + wait, *const waiting_quadrant = row.sin + wait;
  for (int i = 0; i < row.pairs; i += n) {
    hn::Vec<decltype(du)> quadrant;
    V u;
    quarters(i, quadrant, u);
    hn::StoreU(u, d, waiting_u + i);
    hn::StoreU(hn::BitCast(d, quadrant), d, waiting_quadrant + i);
  }

  const V cos_scale = hn::Set(d, row.cos_scale), sin_scale = hn::Set(d, row.sin_scale);
  const auto make = [&](int i, V& cos, V& sin) HWY_ATTR {
    const auto quadrant = hn::BitCast(du, hn::LoadU(d, waiting_quadrant + i));
    CosSinOfQuarters<Ops>(d, quadrant, hn::LoadU(d, waiting_u + i), cos, sin);
    cos = hn::Mul(cos, cos_scale);
    sin = hn::Mul(sin, sin_scale);
  };
  V cos, sin;
  if (row.order == RowOrder::kEvenOdd) {
    for (int i = 0; i < row.pairs; i += 2 * n) {
      V next_cos, next_sin;
      make(i, cos, sin);
      make(i + n, next_cos, next_sin);
      hn::StoreU(hn::ConcatEven(d, next_cos, cos), d, row.cos + i);
      hn::StoreU(hn::ConcatOdd(d, next_cos, cos), d, row.cos + i + n);
      hn::StoreU(hn::ConcatEven(d, next_sin, sin), d, row.sin + i);
      hn::StoreU(hn::ConcatOdd(d, next_sin, sin), d, row.sin + i + n);
    }
  } else if (row.order == RowOrder::kPerChannel) {
    for (int i = 0; i < row.pairs; i += n) {
      make(i, cos, sin);
      hn::StoreInterleaved2(cos, cos, d, row.cos + 2 * i);
      hn::StoreInterleaved2(hn::Neg(sin), sin, d, row.sin + 2 * i);
    }
  } else {
    for (int i = 0; i < row.pairs; i += n) {
      make(i, cos, sin);
      hn::StoreU(cos, d, row.cos + i);
      hn::StoreU(sin, d, row.sin + i);
    }
  }
}

// Angles under FLOAT32 or DIVIDE; `terms` are those of TermsOf.
template <AngleRule kRule, class V>
HWY_INLINE V F32Angles(V positions, V terms) {
  if constexpr (kRule == AngleRule::kDivide) {
    return hn::Div(positions, terms);
  } else {
    return hn::Mul(positions, terms);
  }
}

// Whether no angle is beyond kMaxFastAngle, as those of positions above 8 million, Inf and NaN are.
inline bool HasFastAngles(const FrequencySet& set, float position) {
  return std::fabs(position) * set.max_inv_freq < kMaxFastAngle;
}

// Rows [begin, end) of those from the first on.
template <AngleRule kRule>
HWY_NOINLINE void FastAngleRows(const FrequencySet& set, const float* positions, int begin, int end,
                                const Row& first) {
  const FullTag d;
  using V = hn::Vec<FullTag>;
  using VU = hn::Vec<hn::RebindToUnsigned<FullTag>>;
  const float* const terms = TermsOf<kRule>(set).data();
  for (int t = begin; t < end; ++t) {
    const V p = hn::Set(d, positions[t]);
    MakeRow<Native>(first.Behind(t), [&](int i, VU& quadrant, V& u) HWY_ATTR {
      QuartersOfAngle<Native>(d, F32Angles<kRule>(p, hn::LoadU(d, terms + i)), quadrant, u);
    });
  }
}

template <AngleRule kRule>
HWY_NOINLINE void AnyAngleRow(const FrequencySet& set, const float* positions, bool per_pair,
                              const Row& row) {
  const FullTag d;
  using V = hn::Vec<FullTag>;
  using VU = hn::Vec<hn::RebindToUnsigned<FullTag>>;
  const V position = hn::Set(d, positions[0]);
  const float* const terms = TermsOf<kRule>(set).data();
  MakeRow<Fused>(row, [&](int i, VU& quadrant, V& u) HWY_ATTR {
    const V p = per_pair ? hn::LoadU(d, positions + i) : position;
    QuartersOfAnyAngle(d, F32Angles<kRule>(p, hn::LoadU(d, terms + i)), quadrant, u);
  });
}

template <AngleRule kRule>
void AngleRows(const FrequencySet& set, const float* positions, int count, const Row& first) {
  for (int t = 0; t < count; ++t) {
    const int begin = t;
    while (t < count && HasFastAngles(set, positions[t])) ++t;
    FastAngleRows<kRule>(set, positions, begin, t, first);
    if (t < count) AnyAngleRow<kRule>(set, positions + t, false, first.Behind(t));
  }
}

template <AngleRule kRule>
void AngleRowPerPair(const FrequencySet& set, const float* positions, const Row& row) {
  float largest = 0;
  for (int i = 0; i < row.pairs; ++i) {
    const float size = std::fabs(positions[i]);
    if (size > largest || size != size) largest = size;  // NaN wins, and nothing is above it
  }
  if (!HasFastAngles(set, largest)) {
    AnyAngleRow<kRule>(set, positions, true, row);
    return;
  }
  const FullTag d;
  using V = hn::Vec<FullTag>;
  using VU = hn::Vec<hn::RebindToUnsigned<FullTag>>;
  const float* const terms = TermsOf<kRule>(set).data();
  MakeRow<Native>(row, [&](int i, VU& quadrant, V& u) HWY_ATTR {
    const V angles = F32Angles<kRule>(hn::LoadU(d, positions + i), hn::LoadU(d, terms + i));
    QuartersOfAngle<Native>(d, angles, quadrant, u);
  });
}

void PhaseRows(const FrequencySet& set, const int64_t* positions, int count, const Row& first) {
  const FullTag d;
  using V = hn::Vec<FullTag>;
  const hn::RebindToUnsigned<FullTag> du;
  using VU = hn::Vec<hn::RebindToUnsigned<FullTag>>;
  const uint32_t *const turns_high = set.turns_high.data(), *const turns_low = set.turns_low.data();
  for (int t = 0; t < count; ++t) {
    const int64_t position = positions[t];
    const uint64_t size =
        position < 0 ? 0 - static_cast<uint64_t>(position) : static_cast<uint64_t>(position);
    const auto high = hn::Set(du, static_cast<uint32_t>(size >> 32));
    const auto low = hn::Set(du, static_cast<uint32_t>(size));
    Row row = first.Behind(t);
    if (position < 0) row.sin_scale = -row.sin_scale;
    MakeRow<Native>(row, [&](int i, VU& quadrant, V& u) HWY_ATTR {
      QuartersOfPhase(d, hn::LoadU(du, turns_high + i), hn::LoadU(du, turns_low + i), high, low,
                      quadrant, u);
    });
  }
}

void PhaseRowPerPair(const FrequencySet& set, const int64_t* positions, const Row& row) {
  const FullTag d;
  using V = hn::Vec<FullTag>;
  const hn::RebindToUnsigned<FullTag> du;
  using VU = hn::Vec<hn::RebindToUnsigned<FullTag>>;
  const int n = LanesOf(d);
  MakeRow<Native>(row, [&](int i, VU& quadrant, V& u) HWY_ATTR {
    HWY_ALIGN uint32_t high[kMaxLanes], low[kMaxLanes], sign[kMaxLanes];
    for (int lane = 0; lane < n; ++lane) {
      const int64_t position = positions[i + lane];
      const uint64_t size =
          position < 0 ? 0 - static_cast<uint64_t>(position) : static_cast<uint64_t>(position);
      high[lane] = static_cast<uint32_t>(size >> 32);
      low[lane] = static_cast<uint32_t>(size);
      sign[lane] = position < 0 ? 0x80000000u : 0u;
    }
    QuartersOfPhase(d, hn::LoadU(du, set.turns_high.data() + i),
                    hn::LoadU(du, set.turns_low.data() + i), hn::Load(du, high), hn::Load(du, low),
                    quadrant, u);
    TurnBack(d, hn::Load(du, sign), quadrant, u);
  });
}

void OrderRow(RowOrder order, const Segment* segments, int32_t segment_count, float* cos,
              float* sin, const float* natural_cos, const float* natural_sin) {
  const FullTag d;
  const int n = LanesOf(d);
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
      int i = 0;
      for (; i + 2 * n <= pairs; i += 2 * n) {
        const auto lower = hn::LoadU(d, from[half] + i), upper = hn::LoadU(d, from[half] + i + n);
        hn::StoreU(hn::ConcatEven(d, upper, lower), d, to[half] + i);
        hn::StoreU(hn::ConcatOdd(d, upper, lower), d, to[half] + i + n);
      }
      for (; i < pairs; ++i) to[half][i] = from[half][i];
    }
  }
}

template <class E>
void RoundRow(float* values, int32_t count) {
  const FullTag d;
  for (int i = 0; i < count; i += LanesOf(d)) {
    hn::StoreU(E::Round(d, hn::LoadU(d, values + i)), d, values + i);
  }
}

template <class... E>
void FillRoundings(Kernels& kernels, Elements<E...>) {
  ((kernels.round_row[E::kDtype - 1] = &RoundRow<E>), ...);
}

void FillRoundings(Kernels& kernels) { FillRoundings(kernels, AllElements()); }

}  // namespace HWY_NAMESPACE
}  // namespace rope::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard
