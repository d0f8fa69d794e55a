// The stages around a rotation in f32, where no kernel reads and writes what a call has: channels
// are widened to f32, or decoded from 8 bits, which stays in the L1 cache, and from it narrowed or
// coded.
// Included once per target.
#if defined(LIBROPE_SRC_CPU_STAGES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LIBROPE_SRC_CPU_STAGES_INL_H_
#undef LIBROPE_SRC_CPU_STAGES_INL_H_
#else
#define LIBROPE_SRC_CPU_STAGES_INL_H_
#endif

#include "cpu/elements-inl.h"
#include "cpu/shapes-inl.h"
#include "math/code.h"
#include "math/q8_0.h"

HWY_BEFORE_NAMESPACE();
namespace rope::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Calls step(d, i) for whole vectors from i on, the last ones smaller: nothing behind `count` is
// touched.
template <class Step>
HWY_INLINE void ForEachVector(int64_t count, const Step& step) {
  const FullTag full;
  const QuarterTag quarter;
  int64_t i = 0;
  for (const int n = LanesOf(full); i + n <= count; i += n) step(full, i);
  for (const int n = LanesOf(quarter); i + n <= count; i += n) step(quarter, i);
  for (; i < count; ++i) step(OneTag(), i);
}

template <class E>
void Widen(const void* from, float* to, int64_t count) {
  const auto* elements = static_cast<const typename E::Raw*>(from);
  ForEachVector(
      count, [&](auto d, int64_t i) HWY_ATTR { hn::StoreU(E::Load(d, elements + i), d, to + i); });
}

// Unlike kernels, which store what they have rotated, this may meet any NaN.
template <class E, class D>
HWY_INLINE void StoreNarrow(D d, hn::Vec<D> value, typename E::Raw* to) {
  if constexpr (E::kDtype == ROPE_DTYPE_BF16) {
    const hn::Rebind<uint16_t, D> du16;
    hn::StoreU(hn::TruncateTo(du16, hn::ShiftRight<16>(RoundToBf16(d, value))), du16, to);
  } else {
    E::template Store<false>(d, value, to);
  }
}

template <class E>
void Narrow(const float* from, void* to, int64_t count) {
  auto* elements = static_cast<typename E::Raw*>(to);
  ForEachVector(count, [&](auto d, int64_t i)
                           HWY_ATTR { StoreNarrow<E>(d, hn::LoadU(d, from + i), elements + i); });
}

// As FloatFromCode of math/code.h.
template <Code kCode, class D>
HWY_INLINE hn::Vec<D> ValuesOf(D d, const uint8_t* codes) {
  const hn::RebindToSigned<D> di;
  if constexpr (kCode == Code::kInt8) {
    const hn::Rebind<int8_t, D> di8;
    const auto numbers = hn::LoadU(di8, reinterpret_cast<const int8_t*>(codes));
    return hn::ConvertTo(d, hn::PromoteTo(di, numbers));
  } else {
    constexpr Float8 kFormat = Float8Of(kCode);
    constexpr int32_t kSubnormals = 1 << kFormat.mantissa_bits, kBias = (127 - kFormat.bias) << 23;
    const auto code = hn::PromoteTo(di, hn::LoadU(hn::Rebind<uint8_t, D>(), codes));
    const auto size = hn::And(code, hn::Set(di, 0x7f));
    const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(di, 0x80)));
    const auto normal = hn::Add(hn::ShiftLeft<kFormat.Shift()>(size), hn::Set(di, kBias));
    const auto unit = hn::Set(d, FloatFromFloat8(kFormat, 1));
    const auto subnormal = hn::BitCast(di, hn::Mul(hn::ConvertTo(d, size), unit));
    auto bits = hn::IfThenElse(hn::Lt(size, hn::Set(di, kSubnormals)), subnormal, normal);
    // Behind the numbers: infinity, if there is one, and NaN.
    constexpr bool kHasInfinity = kCode == Code::kE5m2;
    constexpr int32_t kLast = kHasInfinity ? 31 << kFormat.mantissa_bits : kNanOfFloat8 - 1;
    if constexpr (kHasInfinity) {
      bits = hn::IfThenElse(hn::Eq(size, hn::Set(di, kLast)), hn::Set(di, 0x7f800000), bits);
    }
    bits = hn::Or(bits, sign);
    bits = hn::IfThenElse(hn::Gt(size, hn::Set(di, kLast)), hn::Set(di, 0x7fc00000), bits);
    return hn::BitCast(d, bits);
  }
}

template <Code kCode>
void Decode(const uint8_t* from, float* to, int64_t count, float scale) {
  ForEachVector(count, [&](auto d, int64_t i) HWY_ATTR {
    hn::StoreU(hn::Mul(ValuesOf<kCode>(d, from + i), hn::Set(d, scale)), d, to + i);
  });
}

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
HWY_INLINE bool HasNan(__m256 a, __m256 b, __m256 c, __m256 d) {
  return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q),
                                         _mm256_cmp_ps(c, d, _CMP_UNORD_Q))) != 0;
}
#endif
HWY_INLINE Packed SignedBytes(const Packed words[4]) {
  return PackSigned(PackWords(words[0], words[1]), PackWords(words[2], words[3]));
}

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

// The codes of four vectors of numbers, in one store.
template <Code kCode>
HWY_INLINE void StoreFourCodes(const hn::Vec<FullTag>* value, uint8_t* to) {
  const FullTag d;
  const hn::Repartition<uint8_t, FullTag> du8;
  hn::Vec<decltype(du8)> codes;
  Packed words[4];
  if constexpr (kCode == Code::kInt8) {  // below the least integer is what saturates to -128
    for (int i = 0; i < 4; ++i) {
      words[i] = NearestIntegers(hn::Min(value[i], hn::Set(d, kMostInt8)).raw);
    }
    codes.raw = SignedBytes(words);
  } else {
    // With a margin the largest code is 255, to which packing limits what is beyond.
    constexpr int kMargin = kCode == Code::kE4m3 ? 0xff - 0x7e : 0xff - 0x7b;
    const hn::RebindToUnsigned<FullTag> du;
    codes.raw =
        PackUnsigned(SizesInWords<kCode, kMargin>(value), SizesInWords<kCode, kMargin>(value + 2));
    codes = hn::Sub(codes, hn::Set(du8, uint8_t{kMargin}));
    for (int i = 0; i < 4; ++i) words[i] = hn::BitCast(du, value[i]).raw;
    const hn::Vec<decltype(du8)> signs{SignedBytes(words)};
    codes = hn::Or(codes, hn::And(signs, hn::Set(du8, uint8_t{0x80})));
  }
  codes.raw = InOrder(codes.raw);
  hn::StoreU(codes, du8, to);
}
#else
#define ROPE_PACKS_BYTES 0
#endif

template <class E, Code kCode>
void Encode(const void* from, uint8_t* to, int64_t count, float inverse) {
  const auto* elements = static_cast<const typename E::Raw*>(from);
  const auto value = [&](auto d, int64_t i) HWY_ATTR {
    return hn::Mul(E::Load(d, elements + i), hn::Set(d, inverse));
  };
  int64_t first = 0;
#if ROPE_PACKS_BYTES
  const FullTag d;
  for (const int n = LanesOf(d); first + 4 * n <= count; first += 4 * n) {
    hn::Vec<FullTag> values[4];
    for (int v = 0; v < 4; ++v) values[v] = value(d, first + v * n);
    if (HWY_UNLIKELY(HasNan(values[0].raw, values[1].raw, values[2].raw, values[3].raw))) {
      for (int v = 0; v < 4; ++v) StoreCodes<kCode>(d, values[v], to + first + v * n);
    } else {
      StoreFourCodes<kCode>(values, to + first);
    }
  }
#endif
  elements += first;
  to += first;
  ForEachVector(count - first, [&](auto tag, int64_t i)
                                   HWY_ATTR { StoreCodes<kCode>(tag, value(tag, i), to + i); });
}

// The largest bits of whole vectors of elements, without their signs: sizes are in the order of
// their bits, NaN behind all.
template <class E, bool kSkipsNan>
HWY_INLINE int32_t LargestBits(const typename E::Raw* from, int64_t count) {
  using Size = hwy::MakeSigned<typename E::Raw>;
  const hn::Repartition<Size, FullTag> d;
  const auto size_at = [&](int64_t i) HWY_ATTR {
    const auto bits = hn::LoadU(d, reinterpret_cast<const Size*>(from + i));
    const auto size = hn::And(bits, hn::Set(d, hwy::LimitsMax<Size>()));
    if constexpr (!kSkipsNan) return size;
    return hn::IfThenZeroElse(hn::Gt(size, hn::Set(d, Size{E::kInfinity})), size);
  };
  auto largest = hn::Zero(d);
  int64_t i = 0;
  for (const int n = LanesOf(d); i + 4 * n <= count; i += 4 * n) {
    const auto first = hn::Max(size_at(i), size_at(i + n));
    const auto second = hn::Max(size_at(i + 2 * n), size_at(i + 3 * n));
    largest = hn::Max(largest, hn::Max(first, second));
  }
  for (; i < count; i += LanesOf(d)) largest = hn::Max(largest, size_at(i));
  const hn::RebindToSigned<FullTag> di;
  auto words = hn::BitCast(di, largest);
  if constexpr (sizeof(Size) == 2) {
    words = hn::Max(hn::And(words, hn::Set(di, 0xffff)), hn::ShiftRight<16>(words));
  }
  return hn::GetLane(hn::MaxOfLanes(di, words));
}

// The largest SizeForScale.
template <class E>
uint32_t LargestSize(const void* from, int64_t count) {
  const auto* elements = static_cast<const typename E::Raw*>(from);
  const int64_t whole =
      count - count % LanesOf(hn::Repartition<hwy::MakeSigned<typename E::Raw>, FullTag>());
  int32_t bits = LargestBits<E, false>(elements, whole);
  if (HWY_UNLIKELY(bits > E::kInfinity)) bits = LargestBits<E, true>(elements, whole);
  const auto element = static_cast<hwy::MakeUnsigned<typename E::Raw>>(bits);
  uint32_t largest = SizeForScale(LoadElement(E::kDtype, &element, 0));
  for (int64_t i = whole; i < count; ++i) {
    largest = HWY_MAX(largest, SizeForScale(LoadElement(E::kDtype, from, i)));
  }
  return largest;
}

void DecodeQ8(const void* from, float* to, int64_t blocks) {
  const auto* block = static_cast<const uint8_t*>(from);
  for (int64_t i = 0; i < blocks; ++i, block += kQ8Bytes, to += kQ8Channels) {
    Decode<Code::kInt8>(block + 2, to, kQ8Channels, LoadElement(ROPE_DTYPE_F16, block, 0));
  }
}

// As Q8FromFloat of math/q8_0.h.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToSigned<D>> Q8CodesOf(D d, hn::Vec<D> value) {
  const hn::RebindToSigned<D> di;
  const auto most = hn::Set(d, LargestOf(Code::kInt8));
  const auto number = hn::IfThenZeroElse(hn::IsNaN(value), value);
  const auto limited = hn::Max(hn::Min(number, most), hn::Neg(most));
  const auto whole = hn::ConvertTo(di, limited);
  const auto rest = hn::Sub(limited, hn::ConvertTo(d, whole));
  const auto half = hn::Set(d, 0.5f);
  const auto one = hn::Set(di, 1);
  const auto up = hn::IfThenElseZero(hn::RebindMask(di, hn::Ge(rest, half)), one);
  const auto down = hn::IfThenElseZero(hn::RebindMask(di, hn::Le(rest, hn::Neg(half))), one);
  return hn::Sub(hn::Add(whole, up), down);
}

template <class E>
void EncodeQ8(const void* from, void* to, int64_t blocks) {
  const FullTag d;
  const hn::RebindToUnsigned<FullTag> du;
  const hn::Rebind<uint8_t, FullTag> du8;
  static_assert(kQ8Channels % kMaxLanes == 0);
  const auto* elements = static_cast<const typename E::Raw*>(from);
  auto* block = static_cast<uint8_t*>(to);
  for (int64_t i = 0; i < blocks; ++i, block += kQ8Bytes, elements += kQ8Channels) {
    const Q8Scale scale = Q8ScaleOf(BitsFloat(LargestSize<E>(elements, kQ8Channels)));
    std::memcpy(block, &scale.stored, 2);
    for (int c = 0; c < kQ8Channels; c += LanesOf(d)) {
      const auto value = hn::Mul(E::Load(d, elements + c), hn::Set(d, scale.inverse));
      const auto codes = Q8CodesOf(d, value);
      hn::StoreU(hn::TruncateTo(du8, hn::BitCast(du, codes)), du8, block + 2 + c);
    }
  }
}

template <int... kCode>
void FillDecoders(Kernels& kernels, std::integer_sequence<int, kCode...>) {
  ((kernels.decode[kCode] = &Decode<Code{kCode}>), ...);
}

template <class E, int... kCode>
void FillCoders(Kernels& kernels, std::integer_sequence<int, kCode...>) {
  ((kernels.encode[E::kDtype - 1][kCode] = &Encode<E, Code{kCode}>), ...);
  kernels.encode_q8[E::kDtype - 1] = &EncodeQ8<E>;
  kernels.largest_size[E::kDtype - 1] = &LargestSize<E>;
}

template <class... E>
void FillStages(Kernels& kernels, Elements<E...>) {
  constexpr auto kAllCodes = std::make_integer_sequence<int, kCodes>();
  ((kernels.widen[E::kDtype - 1] = &Widen<E>, kernels.narrow[E::kDtype - 1] = &Narrow<E>), ...);
  (FillCoders<E>(kernels, kAllCodes), ...);
  FillDecoders(kernels, kAllCodes);
}

void FillStages(Kernels& kernels) {
  FillStages(kernels, AllElements());
  kernels.decode_q8 = &DecodeQ8;
}

}  // namespace HWY_NAMESPACE
}  // namespace rope::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard
