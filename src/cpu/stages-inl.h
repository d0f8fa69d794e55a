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

#include "cpu/codes-inl.h"
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
  // Halves go away from zero: with the largest number below 1/2, what lies below a half stays below
  // the next integer, and a half, as 1 - 2^-25 is no f32, reaches it.
  const auto almost_half = hn::CopySign(hn::Set(d, 0x1.fffffep-2f), limited);
  return hn::ConvertTo(hn::RebindToSigned<D>(), hn::Add(limited, almost_half));
}

// As Q8ScaleOf of math/q8_0.h, of blocks whose scales are computed side by side: one alone waits
// for a maximum, two divisions and a conversion.
template <class E>
HWY_INLINE void ScaleBlocks(const typename E::Raw* elements, int count, float* inverses,
                            uint16_t* stored) {
  const FullTag d;
  HWY_ALIGN uint32_t largest[kMaxLanes] = {};
  for (int i = 0; i < count; ++i) {
    largest[i] = LargestSize<E>(elements + i * kQ8Channels, kQ8Channels);
  }
  for (int i = 0; i < count; i += LanesOf(d)) {
    const auto size = hn::BitCast(d, hn::Load(hn::RebindToUnsigned<FullTag>(), largest + i));
    const auto scale = hn::Div(size, hn::Set(d, LargestOf(Code::kInt8)));
    const auto inverse = hn::Div(hn::Set(d, 1.0f), scale);
    hn::Store(hn::IfThenZeroElse(hn::Eq(scale, hn::Zero(d)), inverse), d, inverses + i);
    F16::Store<false>(d, scale, stored + i);
  }
}

template <class E>
void EncodeQ8(const void* from, void* to, int64_t blocks) {
  const FullTag d;
  const hn::RebindToUnsigned<FullTag> du;
  const hn::Rebind<uint8_t, FullTag> du8;
  static_assert(kQ8Channels % kMaxLanes == 0);
  const auto* elements = static_cast<const typename E::Raw*>(from);
  auto* block = static_cast<uint8_t*>(to);
  HWY_ALIGN float inverses[kMaxLanes];
  HWY_ALIGN uint16_t stored[kMaxLanes];
  for (; blocks > 0; blocks -= kMaxLanes) {
    const auto count = static_cast<int>(HWY_MIN(blocks, int64_t{kMaxLanes}));
    ScaleBlocks<E>(elements, count, inverses, stored);
    for (int i = 0; i < count; ++i, block += kQ8Bytes, elements += kQ8Channels) {
      std::memcpy(block, &stored[i], 2);
      const auto inverse = hn::Set(d, inverses[i]);
      for (int c = 0; c < kQ8Channels; c += LanesOf(d)) {
        const auto codes = Q8CodesOf(d, hn::Mul(E::Load(d, elements + c), inverse));
        hn::StoreU(hn::TruncateTo(du8, hn::BitCast(du, codes)), du8, block + 2 + c);
      }
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
