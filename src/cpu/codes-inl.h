// Codes of 8 bits from vectors of numbers, as math/code.h has them. Included once per target.
#if defined(LIBROPE_SRC_CPU_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LIBROPE_SRC_CPU_CODES_INL_H_
#undef LIBROPE_SRC_CPU_CODES_INL_H_
#else
#define LIBROPE_SRC_CPU_CODES_INL_H_
#endif

#include "cpu/elements-inl.h"
#include "math/code.h"

HWY_BEFORE_NAMESPACE();
namespace rope::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The largest number below 1/2. With it added before a conversion that cuts, halves go away from
// zero: what lies below a half stays below the next integer, and a half, as 1 - 2^-25 is no f32,
// reaches it.
inline constexpr float kAlmostHalf = 0x1.fffffep-2f;

// The sum of Float8FromFloat of math/code.h, of sizes: units of the code in its lowest bits, its
// exponent above 23 bits, and nothing between.
template <Code kCode, class D>
HWY_INLINE Bits<D> SumOfUnits(D d, hn::Vec<D> size) {
  const hn::RebindToUnsigned<D> du;
  constexpr Float8 kFormat = Float8Of(kCode);
  const auto least = hn::Set(du, static_cast<uint32_t>(127 + kFormat.LeastExponent()) << 23);
  const auto exponent = hn::And(size, hn::BitCast(d, hn::Set(du, 0x7f800000u)));
  // Rounded once on every target: the product is exact.
  return hn::BitCast(du, hn::MulAdd(hn::Max(exponent, hn::BitCast(d, least)),
                                    hn::Set(d, static_cast<float>(1 << kFormat.Shift())), size));
}
// What the code of such a sum, without its sign, is less than exponent and units together.
template <Code kCode>
constexpr uint32_t BaseOf() {
  constexpr Float8 kFormat = Float8Of(kCode);
  return static_cast<uint32_t>(127 + kFormat.LeastExponent() + kFormat.Shift())
         << kFormat.mantissa_bits;
}

// As CodeFromFloat of math/code.h; the code in the lower byte of each lane, anything above it.
template <Code kCode, class D>
HWY_INLINE Bits<D> CodesOf(D d, hn::Vec<D> value) {
  const hn::RebindToUnsigned<D> du;
  if constexpr (kCode == Code::kInt8) {
    const auto number = hn::IfThenZeroElse(hn::IsNaN(value), value);
    const auto limited = hn::Max(hn::Min(number, hn::Set(d, kMostInt8)), hn::Set(d, kLeastInt8));
    return hn::BitCast(du, hn::Add(limited, hn::Set(d, kRoundsToInteger)));
  } else {
    constexpr Float8 kFormat = Float8Of(kCode);
    const auto size = hn::Min(hn::Abs(value), hn::Set(d, kFormat.largest));
    const auto sum = SumOfUnits<kCode>(d, size);
    const auto code =
        hn::Sub(hn::Add(hn::ShiftRight<kFormat.Shift()>(sum), sum), hn::Set(du, BaseOf<kCode>()));
    const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(du, value)), hn::Set(du, 0x80u));
    return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), hn::Set(du, uint32_t{kNanOfFloat8}),
                          hn::Or(code, sign));
  }
}

template <Code kCode, class D>
HWY_INLINE void StoreCodes(D d, hn::Vec<D> value, uint8_t* to) {
  const hn::Rebind<uint8_t, D> du8;
  hn::StoreU(hn::TruncateTo(du8, CodesOf<kCode>(d, value)), du8, to);
}

// As ScaleOf of math/code.h.
template <Code kCode, class D>
HWY_INLINE hn::Vec<D> ScalesOf(D d, hn::Vec<D> largest, float least, bool power_of_two) {
  const hn::RebindToUnsigned<D> du;
  const auto scale = hn::Max(hn::Div(largest, hn::Set(d, LargestOf(kCode))), hn::Set(d, least));
  if (!power_of_two) return scale;
  const auto above = hn::Add(hn::BitCast(du, scale), hn::Set(du, 0x7fffffu));
  return hn::BitCast(d, hn::And(above, hn::Set(du, 0x7f800000u)));
}

// As Q8ScaleOf of math/q8_0.h, of blocks side by side. Returns whether no number of these is, over
// its scale, beyond the largest code by more than a rounding: of a scale of few digits it may be.
template <class D>
HWY_INLINE bool StoreQ8Scales(D d, hn::Vec<D> size, float* inverses, uint16_t* stored) {
  const auto zero = hn::Zero(d);
  const auto scale = hn::Div(size, hn::Set(d, LargestOf(Code::kInt8)));
  const auto inverse = hn::Div(hn::Set(d, 1.0f), scale);
  hn::Store(hn::IfThenZeroElse(hn::Eq(scale, zero), inverse), d, inverses);
  F16::Store<false>(d, scale, stored);
  return hn::AllTrue(d, hn::Or(hn::Ge(scale, hn::Set(d, 0x1p-126f)), hn::Eq(size, zero)));
}

#undef ROPE_PACKS_BYTES
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
#define ROPE_PACKS_BYTES 1
// Instructions that Highway 1.0.3 has no names for. Packing makes lanes of half the width of those
// of two vectors, which saturate, and takes 128 bits of each in turn: InOrder() puts the bytes of
// four vectors back in order.
#if HWY_TARGET <= HWY_AVX3
using Packed = __m512i;
HWY_INLINE Packed PackWords(Packed a, Packed b) { return _mm512_packs_epi32(a, b); }
HWY_INLINE Packed PackSigned(Packed a, Packed b) { return _mm512_packs_epi16(a, b); }
HWY_INLINE Packed PackUnsigned(Packed a, Packed b) { return _mm512_packus_epi16(a, b); }
HWY_INLINE Packed InOrder(Packed bytes) {
  return _mm512_permutexvar_epi32(
      _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0), bytes);
}
HWY_INLINE Packed AddProducts(Packed a, Packed b) { return _mm512_madd_epi16(a, b); }
HWY_INLINE Packed NearestIntegers(__m512 value) { return _mm512_cvtps_epi32(value); }
HWY_INLINE Packed TowardsZero(__m512 value) { return _mm512_cvttps_epi32(value); }
HWY_INLINE bool HasNan(__m512 a, __m512 b, __m512 c, __m512 d) {
  return (_mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) | _mm512_cmp_ps_mask(c, d, _CMP_UNORD_Q)) != 0;
}
#else
using Packed = __m256i;
HWY_INLINE Packed PackWords(Packed a, Packed b) { return _mm256_packs_epi32(a, b); }
HWY_INLINE Packed PackSigned(Packed a, Packed b) { return _mm256_packs_epi16(a, b); }
HWY_INLINE Packed PackUnsigned(Packed a, Packed b) { return _mm256_packus_epi16(a, b); }
HWY_INLINE Packed InOrder(Packed bytes) {
  return _mm256_permutevar8x32_epi32(bytes, _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0));
}
HWY_INLINE Packed AddProducts(Packed a, Packed b) { return _mm256_madd_epi16(a, b); }
HWY_INLINE Packed NearestIntegers(__m256 value) { return _mm256_cvtps_epi32(value); }
HWY_INLINE Packed TowardsZero(__m256 value) { return _mm256_cvttps_epi32(value); }
HWY_INLINE bool HasNan(__m256 a, __m256 b, __m256 c, __m256 d) {
  return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q),
                                         _mm256_cmp_ps(c, d, _CMP_UNORD_Q))) != 0;
}
#endif
HWY_INLINE Packed SignedBytes(const Packed words[4]) {
  return PackSigned(PackWords(words[0], words[1]), PackWords(words[2], words[3]));
}

// The code of the largest number.
template <Code kCode>
inline constexpr int kLargestSize = kCode == Code::kE4m3 ? 0x7e : 0x7b;

// Of two vectors of numbers the codes without their signs, and kMargin more, in 16 bits; what is
// beyond the largest code is beyond it there.
template <Code kCode, int kMargin>
HWY_INLINE Packed SizesInWords(const hn::Vec<FullTag>* value) {
  const FullTag d;
  const hn::RebindToUnsigned<FullTag> du;
  const hn::Repartition<uint16_t, FullTag> du16;
  constexpr int kShift = Float8Of(kCode).Shift() - 16;  // in the upper half of a sum
  // Of a sum the upper half, and the units shifted to the exponent there.
  const auto weights = hn::Set(du, (uint32_t{1} << 16) | (uint32_t{1} << kShift));
  Packed sums[2];
  for (int i = 0; i < 2; ++i) {
    sums[i] = AddProducts(SumOfUnits<kCode>(d, hn::Abs(value[i])).raw, weights.raw);
  }
  const hn::Vec<decltype(du16)> words{PackWords(sums[0], sums[1])};
  constexpr auto kBase = static_cast<uint16_t>(BaseOf<kCode>() - kMargin);
  return hn::Sub(hn::ShiftRight<kShift>(words), hn::Set(du16, kBase)).raw;
}

// Past the caches, to what is aligned to the bytes that are stored, or as usual.
template <class D>
HWY_INLINE void StoreOrStream(D d, hn::Vec<D> bytes, uint8_t* to, bool streams) {
  if (streams) {
    hn::Stream(bytes, d, to);
  } else {
    hn::StoreU(bytes, d, to);
  }
}

// The codes of four vectors of numbers, in one store. kBounded: none is beyond the largest code by
// more than a rounding.
template <Code kCode, bool kBounded>
HWY_INLINE void StoreFourCodes(const hn::Vec<FullTag>* value, uint8_t* to, bool streams) {
  const FullTag d;
  const hn::Repartition<uint8_t, FullTag> du8;
  hn::Vec<decltype(du8)> codes;
  Packed words[4];
  if constexpr (kCode == Code::kInt8) {  // below the least integer is what saturates to -128
    for (int i = 0; i < 4; ++i) {
      const auto number = kBounded ? value[i] : hn::Min(value[i], hn::Set(d, kMostInt8));
      words[i] = NearestIntegers(number.raw);
    }
    codes.raw = SignedBytes(words);
  } else {
    // With a margin the largest code is 255, to which packing limits what is beyond.
    constexpr int kMargin = 0xff - kLargestSize<kCode>;
    const hn::RebindToUnsigned<FullTag> du;
    codes.raw =
        PackUnsigned(SizesInWords<kCode, kMargin>(value), SizesInWords<kCode, kMargin>(value + 2));
    codes = hn::Sub(codes, hn::Set(du8, uint8_t{kMargin}));
    for (int i = 0; i < 4; ++i) words[i] = hn::BitCast(du, value[i]).raw;
    const hn::Vec<decltype(du8)> signs{SignedBytes(words)};
    codes = hn::Or(codes, hn::And(signs, hn::Set(du8, uint8_t{0x80})));
  }
  codes.raw = InOrder(codes.raw);
  StoreOrStream(du8, codes, to, streams);
}

// Of 16-bit lanes of two packed vectors, 64 bits of each in turn, all of the one, then of the
// other.
#if HWY_TARGET <= HWY_AVX3
HWY_INLINE Packed OneThenOther(Packed words) {
  return _mm512_permutexvar_epi64(_mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0), words);
}
#else
HWY_INLINE Packed OneThenOther(Packed words) { return _mm256_permute4x64_epi64(words, 0xd8); }
#endif

// The codes of two vectors of numbers, in the lower bytes of 16-bit lanes with nothing above.
// kBounded: as above.
template <Code kCode, bool kBounded>
HWY_INLINE Packed CodesInWords(const hn::Vec<FullTag>* value) {
  const FullTag d;
  const hn::RebindToUnsigned<FullTag> du;
  const hn::Repartition<uint16_t, FullTag> du16;
  using Words = hn::Vec<decltype(du16)>;
  if constexpr (kCode == Code::kInt8) {
    const hn::Repartition<int16_t, FullTag> di16;
    Packed words[2];
    for (int i = 0; i < 2; ++i) {
      const auto number = kBounded ? value[i] : hn::Min(value[i], hn::Set(d, kMostInt8));
      words[i] = NearestIntegers(number.raw);
    }
    hn::Vec<decltype(di16)> limited{PackWords(words[0], words[1])};
    if constexpr (!kBounded) {
      limited = hn::Max(limited, hn::Set(di16, static_cast<int16_t>(kLeastInt8)));
    }
    return hn::And(hn::BitCast(du16, limited), hn::Set(du16, uint16_t{0xff})).raw;
  } else {
    constexpr uint16_t kLargest = kLargestSize<kCode>;
    const auto size = hn::Min(Words{SizesInWords<kCode, 0>(value)}, hn::Set(du16, kLargest));
    const Words numbers{PackWords(hn::BitCast(du, value[0]).raw, hn::BitCast(du, value[1]).raw)};
    const auto sign = hn::And(hn::ShiftRight<8>(numbers), hn::Set(du16, uint16_t{0x80}));
    return hn::Or(size, sign).raw;
  }
}

// The lower bytes of 16-bit lanes of `lower`, which has nothing above them, each with that of
// `upper` behind it: of the vector that was packed first to `to`, of the other to `next_to`.
template <bool kStream>
HWY_INLINE void StorePairsOfWords(Packed lower, Packed upper, uint8_t* to, uint8_t* next_to) {
  const hn::Repartition<uint16_t, FullTag> du16;
  const hn::Repartition<uint8_t, FullTag> du8;
  const hn::Half<decltype(du8)> half;
  using Words = hn::Vec<decltype(du16)>;
  const Words codes = hn::Or(Words{lower}, hn::ShiftLeft<8>(Words{upper}));
  const auto bytes = hn::BitCast(du8, Words{OneThenOther(codes.raw)});
  StoreOrStream(half, hn::LowerHalf(half, bytes), to, kStream);
  StoreOrStream(half, hn::UpperHalf(half, bytes), next_to, kStream);
}

// As Q8FromFloat of math/q8_0.h, of numbers that are not NaN, or beyond the largest code by more
// than a rounding.
HWY_INLINE Packed Q8Integers(hn::Vec<FullTag> value) {
  const FullTag d;
  const auto almost_half = hn::CopySign(hn::Set(d, kAlmostHalf), value);
  return TowardsZero(hn::Add(value, almost_half).raw);
}
// The codes of four vectors of adjacent channels.
HWY_INLINE hn::Vec<hn::Repartition<uint8_t, FullTag>> Q8CodesOfFour(const hn::Vec<FullTag>* value) {
  Packed words[4];
  for (int i = 0; i < 4; ++i) words[i] = Q8Integers(value[i]);
  return hn::Vec<hn::Repartition<uint8_t, FullTag>>{InOrder(SignedBytes(words))};
}
#else
#define ROPE_PACKS_BYTES 0
#endif

// The codes of first[0], second[0], first[1], .. to `to`.
template <Code kCode, class D>
HWY_INLINE void StoreCodePairs(D d, hn::Vec<D> first, hn::Vec<D> second, uint8_t* to) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> du16;
  const auto below = hn::And(CodesOf<kCode>(d, first), hn::Set(du, 0xffu));
  const auto words = hn::Or(below, hn::ShiftLeft<8>(CodesOf<kCode>(d, second)));
  const hn::Repartition<uint8_t, decltype(du16)> du8;
  hn::StoreU(hn::BitCast(du8, hn::TruncateTo(du16, words)), du8, to);
}

// The same twice. kBounded: as above, and no number is NaN. kStream: past the caches, but for NaN.
template <Code kCode, bool kBounded, bool kStream, class D>
HWY_INLINE void StoreCodePairsTwice(D d, hn::Vec<D> first, hn::Vec<D> second, uint8_t* to,
                                    hn::Vec<D> next_first, hn::Vec<D> next_second,
                                    uint8_t* next_to) {
#if ROPE_PACKS_BYTES
  static_assert(sizeof(first.raw) == sizeof(Packed));
  if (HWY_LIKELY(kBounded || !HasNan(first.raw, second.raw, next_first.raw, next_second.raw))) {
    const hn::Vec<D> lower[2] = {first, next_first}, upper[2] = {second, next_second};
    StorePairsOfWords<kStream>(CodesInWords<kCode, kBounded>(lower),
                               CodesInWords<kCode, kBounded>(upper), to, next_to);
    return;
  }
#endif
  StoreCodePairs<kCode>(d, first, second, to);
  StoreCodePairs<kCode>(d, next_first, next_second, next_to);
}

}  // namespace HWY_NAMESPACE
}  // namespace rope::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard
