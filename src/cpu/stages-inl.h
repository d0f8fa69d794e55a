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

// As Float8FromFloat of math/code.h, of numbers: the lower byte of each lane is the code without
// its sign, more by that of BaseOf(). Anything may be above it.
template <Code kCode, class D>
HWY_INLINE Bits<D> SizesAboveBase(D d, hn::Vec<D> value) {
  const hn::RebindToUnsigned<D> du;
  constexpr Float8 kFormat = Float8Of(kCode);
  constexpr int kShift = kFormat.Shift();
  const auto least = hn::Set(du, static_cast<uint32_t>(127 + kFormat.LeastExponent()) << 23);
  const auto limited = hn::Min(hn::Abs(value), hn::Set(d, kFormat.largest));
  const auto exponent = hn::And(limited, hn::BitCast(d, hn::Set(du, 0x7f800000u)));
  // Rounded once on every target: the product is exact.
  const auto sum =
      hn::BitCast(du, hn::MulAdd(hn::Max(exponent, hn::BitCast(d, least)),
                                 hn::Set(d, static_cast<float>(1 << kShift)), limited));
  return hn::Add(hn::ShiftRight<kShift>(sum), sum);
}
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
    const auto code = hn::Sub(SizesAboveBase<kCode>(d, value), hn::Set(du, BaseOf<kCode>()));
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
HWY_INLINE Packed NearestIntegers(__m256 value) { return _mm256_cvtps_epi32(value); }
HWY_INLINE bool HasNan(__m256 a, __m256 b, __m256 c, __m256 d) {
  return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q),
                                         _mm256_cmp_ps(c, d, _CMP_UNORD_Q))) != 0;
}
#endif
HWY_INLINE Packed SignedBytes(const Packed words[4]) {
  return PackSigned(PackWords(words[0], words[1]), PackWords(words[2], words[3]));
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
    const hn::RebindToUnsigned<FullTag> du;
    Packed bits[4];
    for (int i = 0; i < 4; ++i) {
      bits[i] = hn::BitCast(du, value[i]).raw;
      words[i] = hn::And(SizesAboveBase<kCode>(d, value[i]), hn::Set(du, 0xffu)).raw;
    }
    codes.raw = PackUnsigned(PackWords(words[0], words[1]), PackWords(words[2], words[3]));
    codes = hn::Sub(codes, hn::Set(du8, static_cast<uint8_t>(BaseOf<kCode>())));
    const hn::Vec<decltype(du8)> signs{SignedBytes(bits)};
    codes = hn::Or(codes, hn::And(signs, hn::Set(du8, uint8_t{0x80})));
  }
  codes.raw = InOrder(codes.raw);
  hn::StoreU(codes, du8, to);
}
#else
#define ROPE_PACKS_BYTES 0
#endif

template <Code kCode>
void Encode(const float* from, uint8_t* to, int64_t count, float inverse) {
  const auto value = [&](auto d, int64_t i)
                         HWY_ATTR { return hn::Mul(hn::LoadU(d, from + i), hn::Set(d, inverse)); };
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
  from += first;
  to += first;
  ForEachVector(count - first, [&](auto tag, int64_t i)
                                   HWY_ATTR { StoreCodes<kCode>(tag, value(tag, i), to + i); });
}

// The largest bits of whole vectors without their signs: sizes are in the order of their bits, NaN
// behind all.
template <bool kSkipsNan, class D>
HWY_INLINE int32_t LargestBits(D d, const float* from, int64_t first, int64_t last) {
  const hn::RebindToSigned<D> di;
  auto largest = hn::Zero(di);
  for (int64_t i = first; i < last; i += LanesOf(d)) {
    auto size = hn::BitCast(di, hn::Abs(hn::LoadU(d, from + i)));
    if constexpr (kSkipsNan) {
      size = hn::IfThenZeroElse(hn::Gt(size, hn::Set(di, 0x7f800000)), size);
    }
    largest = hn::Max(largest, size);
  }
  return hn::GetLane(hn::MaxOfLanes(di, largest));
}

template <bool kSkipsNan>
HWY_INLINE int32_t LargestBits(const float* from, int64_t count) {
  const FullTag full;
  const int64_t whole = count - count % LanesOf(full);
  return HWY_MAX(LargestBits<kSkipsNan>(full, from, 0, whole),
                 LargestBits<kSkipsNan>(OneTag(), from, whole, count));
}

// The largest SizeForScale.
uint32_t LargestSize(const float* from, int64_t count) {
  int32_t largest = LargestBits<false>(from, count);
  if (HWY_UNLIKELY(largest > 0x7f800000)) largest = LargestBits<true>(from, count);
  return static_cast<uint32_t>(HWY_MIN(largest, 0x7f7fffff));  // infinity: the largest float
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

void EncodeQ8(const float* from, void* to, int64_t blocks) {
  auto* block = static_cast<uint8_t*>(to);
  for (int64_t i = 0; i < blocks; ++i, block += kQ8Bytes, from += kQ8Channels) {
    const Q8Scale scale = Q8ScaleOf(BitsFloat(LargestSize(from, kQ8Channels)));
    std::memcpy(block, &scale.stored, 2);
    ForEachVector(kQ8Channels, [&](auto d, int64_t c) HWY_ATTR {
      const hn::RebindToUnsigned<decltype(d)> du;
      const hn::Rebind<uint8_t, decltype(d)> du8;
      const auto codes = Q8CodesOf(d, hn::Mul(hn::LoadU(d, from + c), hn::Set(d, scale.inverse)));
      hn::StoreU(hn::TruncateTo(du8, hn::BitCast(du, codes)), du8, block + 2 + c);
    });
  }
}

template <int... kCode>
void FillCoders(Kernels& kernels, std::integer_sequence<int, kCode...>) {
  ((kernels.decode[kCode] = &Decode<Code{kCode}>), ...);
  ((kernels.encode[kCode] = &Encode<Code{kCode}>), ...);
}

template <class... E>
void FillStages(Kernels& kernels, Elements<E...>) {
  ((kernels.widen[E::kDtype - 1] = &Widen<E>, kernels.narrow[E::kDtype - 1] = &Narrow<E>), ...);
}

void FillStages(Kernels& kernels) {
  FillStages(kernels, AllElements());
  FillCoders(kernels, std::make_integer_sequence<int, kCodes>());
  kernels.decode_q8 = &DecodeQ8;
  kernels.encode_q8 = &EncodeQ8;
  kernels.largest_size = &LargestSize;
}

}  // namespace HWY_NAMESPACE
}  // namespace rope::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard
