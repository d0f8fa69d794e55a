// Rows of cos and sin, one vector of pairs at a time: made by the operations of sincos.h in the
// same order, rounded, and brought into the order of a kernel. Included once per target.
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

// Ops: Native or Fused.
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
  const auto one = hn::Set(du, 1u), two = hn::Set(du, 2u);
  const auto swap = hn::RebindMask(d, hn::Eq(hn::And(quadrant, one), one));
  const auto cos_sign = hn::ShiftLeft<30>(hn::And(hn::Add(quadrant, one), two));
  const auto sin_sign = hn::ShiftLeft<30>(hn::And(quadrant, two));
  cos = hn::Xor(hn::IfThenElse(swap, s, c), hn::BitCast(d, cos_sign));
  sin = hn::Xor(hn::IfThenElse(swap, c, s), hn::BitCast(d, sin_sign));
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

// Angles in radians below kMaxFastAngle.
template <class Ops, class D, class V = hn::Vec<D>>
HWY_INLINE void CosSinOfAngle(D d, V angle, V& cos, V& sin) {
  const hn::RebindToSigned<D> di;
  const hn::RebindToUnsigned<D> du;
  const V per_radian = hn::Set(d, kQuartersPerRadian);
  const V quarters = hn::Mul(angle, per_radian);
  const V error = ProductError<Ops>(d, angle, per_radian, quarters);
  const V low = Ops::MulAdd(d, angle, hn::Set(d, kQuartersPerRadianLow), error);
  const V whole = hn::Round(quarters);
  const V rest = hn::Sub(quarters, whole);
  const V carry = hn::Round(hn::Add(rest, low));
  const V u = hn::Add(hn::Sub(rest, carry), low);
  const auto quadrant = hn::ConvertTo(di, hn::Add(whole, carry));
  CosSinOfQuarters<Ops>(d, hn::BitCast(du, quadrant), u, cos, sin);
}

// cos and sin of the phase (turns_high, turns_low) * (high, low), all 32-bit words of 64-bit
// numbers.
template <class Ops, class D, class V = hn::Vec<D>, class VU>
HWY_INLINE void CosSinOfPhase(D d, VU turns_high, VU turns_low, VU high, VU low, V& cos, V& sin) {
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
  const V u = hn::MulAdd(hn::ConvertTo(d, hn::BitCast(di, hn::ShiftRight<1>(phase_low))),
                         hn::Set(d, 0x1p-61f), upper);
  const auto quadrant = hn::ShiftRight<30>(hn::Add(phase_high, hn::Set(du, 0x20000000u)));
  CosSinOfQuarters<Ops>(d, quadrant, u, cos, sin);
}

// Angles of any size: the bits of sincos.h on every target.
template <class D, class V = hn::Vec<D>>
HWY_NOINLINE void CosSinOfAnyAngle(D d, V angle, V& cos, V& sin) {
  CosSinOfAngle<Fused>(d, angle, cos, sin);
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
  V large_cos, large_sin;
  CosSinOfPhase<Fused>(d, high, low, hn::Zero(du), mantissa, large_cos, large_sin);
  large_sin = hn::Xor(large_sin, hn::And(angle, hn::SignBit(d)));
  const auto is_finite = hn::Lt(size, hn::BitCast(d, hn::Set(du, 0x7f800000u)));
  const V nan = hn::Set(d, QuietNan());
  cos = hn::IfThenElse(is_fast, cos, hn::IfThenElse(is_finite, large_cos, nan));
  sin = hn::IfThenElse(is_fast, sin, hn::IfThenElse(is_finite, large_sin, nan));
}

// Stores a row in its order. make(i, cos, sin) gives a vector of each, for the pairs from i on.
template <class Make, class V = hn::Vec<FullTag>>
HWY_INLINE void StoreRow(const Row& row, Make make) {
  const FullTag d;
  const int n = LanesOf(d);
  const V cos_scale = hn::Set(d, row.cos_scale), sin_scale = hn::Set(d, row.sin_scale);
  V cos, sin;
  if (row.order == RowOrder::kEvenOdd) {
    for (int i = 0; i < row.pairs; i += 2 * n) {
      V next_cos, next_sin;
      make(i, cos, sin);
      make(i + n, next_cos, next_sin);
      cos = hn::Mul(cos, cos_scale), next_cos = hn::Mul(next_cos, cos_scale);
      sin = hn::Mul(sin, sin_scale), next_sin = hn::Mul(next_sin, sin_scale);
      hn::StoreU(hn::ConcatEven(d, next_cos, cos), d, row.cos + i);
      hn::StoreU(hn::ConcatOdd(d, next_cos, cos), d, row.cos + i + n);
      hn::StoreU(hn::ConcatEven(d, next_sin, sin), d, row.sin + i);
      hn::StoreU(hn::ConcatOdd(d, next_sin, sin), d, row.sin + i + n);
    }
    return;
  }
  for (int i = 0; i < row.pairs; i += n) {
    make(i, cos, sin);
    cos = hn::Mul(cos, cos_scale);
    sin = hn::Mul(sin, sin_scale);
    if (row.order == RowOrder::kPerChannel) {
      hn::StoreInterleaved2(cos, cos, d, row.cos + 2 * i);
      hn::StoreInterleaved2(hn::Neg(sin), sin, d, row.sin + 2 * i);
    } else {
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

// Rows with angles beyond kMaxFastAngle (positions above 8 million, Inf, NaN).
template <AngleRule kRule>
HWY_NOINLINE void LargeAngles(const FrequencySet& set, const float* positions, bool per_pair,
                              const Row& row) {
  const FullTag d;
  using V = hn::Vec<FullTag>;
  const V position = hn::Set(d, positions[0]);
  const float* const terms = TermsOf<kRule>(set).data();
  StoreRow(row, [&](int i, V& cos, V& sin) HWY_ATTR {
    const V p = per_pair ? hn::LoadU(d, positions + i) : position;
    CosSinOfAnyAngle(d, F32Angles<kRule>(p, hn::LoadU(d, terms + i)), cos, sin);
  });
}

template <AngleRule kRule>
void AngleRow(const FrequencySet& set, float position, const Row& row) {
  if (!(std::fabs(position) * set.max_inv_freq < kMaxFastAngle)) {
    LargeAngles<kRule>(set, &position, false, row);
    return;
  }
  const FullTag d;
  using V = hn::Vec<FullTag>;
  const V p = hn::Set(d, position);
  const float* const terms = TermsOf<kRule>(set).data();
  StoreRow(row, [&](int i, V& cos, V& sin) HWY_ATTR {
    CosSinOfAngle<Native>(d, F32Angles<kRule>(p, hn::LoadU(d, terms + i)), cos, sin);
  });
}

template <AngleRule kRule>
void AngleRowPerPair(const FrequencySet& set, const float* positions, const Row& row) {
  float largest = 0;
  for (int i = 0; i < row.pairs; ++i) {
    const float size = std::fabs(positions[i]);
    if (size > largest || size != size) largest = size;  // NaN wins, and nothing is above it
  }
  if (!(largest * set.max_inv_freq < kMaxFastAngle)) {
    LargeAngles<kRule>(set, positions, true, row);
    return;
  }
  const FullTag d;
  using V = hn::Vec<FullTag>;
  const float* const terms = TermsOf<kRule>(set).data();
  StoreRow(row, [&](int i, V& cos, V& sin) HWY_ATTR {
    const V angles = F32Angles<kRule>(hn::LoadU(d, positions + i), hn::LoadU(d, terms + i));
    CosSinOfAngle<Native>(d, angles, cos, sin);
  });
}

void PhaseRow(const FrequencySet& set, int64_t position, const Row& row) {
  const FullTag d;
  using V = hn::Vec<FullTag>;
  const hn::RebindToUnsigned<FullTag> du;
  const uint64_t size =
      position < 0 ? 0 - static_cast<uint64_t>(position) : static_cast<uint64_t>(position);
  const auto high = hn::Set(du, static_cast<uint32_t>(size >> 32));
  const auto low = hn::Set(du, static_cast<uint32_t>(size));
  Row signed_row = row;
  if (position < 0) signed_row.sin_scale = -row.sin_scale;
  const uint32_t *const turns_high = set.turns_high.data(), *const turns_low = set.turns_low.data();
  StoreRow(signed_row, [&](int i, V& cos, V& sin) HWY_ATTR {
    CosSinOfPhase<Native>(d, hn::LoadU(du, turns_high + i), hn::LoadU(du, turns_low + i), high, low,
                          cos, sin);
  });
}

void PhaseRowPerPair(const FrequencySet& set, const int64_t* positions, const Row& row) {
  const FullTag d;
  using V = hn::Vec<FullTag>;
  const hn::RebindToUnsigned<FullTag> du;
  const int n = LanesOf(d);
  StoreRow(row, [&](int i, V& cos, V& sin) HWY_ATTR {
    HWY_ALIGN uint32_t high[kMaxLanes], low[kMaxLanes], sign[kMaxLanes];
    for (int lane = 0; lane < n; ++lane) {
      const int64_t position = positions[i + lane];
      const uint64_t size =
          position < 0 ? 0 - static_cast<uint64_t>(position) : static_cast<uint64_t>(position);
      high[lane] = static_cast<uint32_t>(size >> 32);
      low[lane] = static_cast<uint32_t>(size);
      sign[lane] = position < 0 ? 0x80000000u : 0u;
    }
    CosSinOfPhase<Native>(d, hn::LoadU(du, set.turns_high.data() + i),
                          hn::LoadU(du, set.turns_low.data() + i), hn::Load(du, high),
                          hn::Load(du, low), cos, sin);
    sin = hn::Xor(sin, hn::BitCast(d, hn::Load(du, sign)));
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
        hn::Vec<FullTag> even, odd;
        hn::LoadInterleaved2(d, from[half] + i, even, odd);
        hn::StoreU(even, d, to[half] + i);
        hn::StoreU(odd, d, to[half] + i + n);
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
