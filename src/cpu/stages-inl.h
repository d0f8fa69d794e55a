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
#include "math/scale.h"
#include "math/tensor.h"

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

// Whole vectors, as many as there are, or four at a time where these become one; returns where they
// end. kBounded: no product is NaN, or beyond the largest code by more than a rounding.
template <class E, Code kCode, bool kBounded, bool kStream>
HWY_INLINE int64_t EncodeVectors(const typename E::Raw* elements, uint8_t* to, int64_t count,
                                 float inverse) {
  const FullTag d;
  const auto by = hn::Set(d, inverse);
  const int n = LanesOf(d);
  int64_t first = 0;
#if ROPE_PACKS_BYTES
  for (; first + 4 * n <= count; first += 4 * n) {
    hn::Vec<FullTag> values[4];
    for (int v = 0; v < 4; ++v) values[v] = hn::Mul(E::Load(d, elements + first + v * n), by);
    if (HWY_LIKELY(kBounded ||
                   !HasNan(values[0].raw, values[1].raw, values[2].raw, values[3].raw))) {
      StoreFourCodes<kCode, kBounded>(values, to + first, kStream);
    } else {
      for (int v = 0; v < 4; ++v) StoreCodes<kCode>(d, values[v], to + first + v * n);
    }
  }
#else
  HWY_UNROLL(4)
  for (; first + n <= count; first += n) {
    StoreCodes<kCode>(d, hn::Mul(E::Load(d, elements + first), by), to + first);
  }
#endif
  return first;
}

template <class E, Code kCode, bool kStream>
void Encode(const void* from, uint8_t* to, int64_t count, float inverse) {
  const auto* elements = static_cast<const typename E::Raw*>(from);
  const int64_t first = EncodeVectors<E, kCode, false, kStream>(elements, to, count, inverse);
  elements += first;
  to += first;
  ForEachVector(count - first, [&](auto d, int64_t i) HWY_ATTR {
    StoreCodes<kCode>(d, hn::Mul(E::Load(d, elements + i), hn::Set(d, inverse)), to + i);
  });
}

using SignedTag = hn::RebindToSigned<FullTag>;

// The largest bits of elements, without their signs: sizes are in the order of their bits, NaN
// behind all. Of whole vectors from *begin on, which moves behind them, the largest of each lane.
template <class E, bool kSkipsNan>
HWY_INLINE hn::Vec<SignedTag> LargestInLanes(const typename E::Raw* from, int64_t count,
                                             int64_t* begin) {
  using Size = hwy::MakeSigned<typename E::Raw>;
  const hn::Repartition<Size, FullTag> d;
  const SignedTag di;
  const auto size_at = [&](int64_t i) HWY_ATTR {
    const auto bits = hn::LoadU(d, reinterpret_cast<const Size*>(from + i));
    const auto size = hn::And(bits, hn::Set(d, hwy::LimitsMax<Size>()));
    if constexpr (!kSkipsNan) return size;
    return hn::IfThenZeroElse(hn::Gt(size, hn::Set(d, Size{E::kInfinity})), size);
  };
  auto largest = hn::Zero(d);
  int64_t i = *begin;
  const int n = LanesOf(d);
  for (; i + 4 * n <= count; i += 4 * n) {
    const auto first = hn::Max(size_at(i), size_at(i + n));
    const auto second = hn::Max(size_at(i + 2 * n), size_at(i + 3 * n));
    largest = hn::Max(largest, hn::Max(first, second));
  }
  for (; i + n <= count; i += n) largest = hn::Max(largest, size_at(i));
  *begin = i;
  const auto words = hn::BitCast(di, largest);
  if constexpr (sizeof(Size) == 4) return words;
  return hn::Max(hn::And(words, hn::Set(di, 0xffff)), hn::ShiftRight<16>(words));
}

// The same of all, in each lane.
template <class E, bool kSkipsNan>
HWY_INLINE hn::Vec<SignedTag> LargestBits(const typename E::Raw* from, int64_t count) {
  using Size = hwy::MakeSigned<typename E::Raw>;
  const SignedTag di;
  int64_t i = 0;
  auto words = hn::MaxOfLanes(di, LargestInLanes<E, kSkipsNan>(from, count, &i));
  for (; i < count; ++i) {
    Size bits;
    std::memcpy(&bits, from + i, sizeof(bits));
    const Size size = bits & hwy::LimitsMax<Size>();
    if (!kSkipsNan || size <= E::kInfinity) words = hn::Max(words, hn::Set(di, int32_t{size}));
  }
  return words;
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
// The largest lane of each of 16 vectors, in the lane of its number: two vectors become one that
// has the larger ones of both, until one is left.
HWY_INLINE hn::Vec<SignedTag> LargestOfEach(hn::Vec<SignedTag>* v) {
  const SignedTag d;
  const hn::Repartition<int64_t, SignedTag> wide;
  using V = hn::Vec<SignedTag>;
  for (int i = 0; i < 8; ++i) {
    v[i] = hn::Max(hn::InterleaveLower(d, v[2 * i], v[2 * i + 1]),
                   hn::InterleaveUpper(d, v[2 * i], v[2 * i + 1]));
  }
  for (int i = 0; i < 4; ++i) {
    const auto a = hn::BitCast(wide, v[2 * i]), b = hn::BitCast(wide, v[2 * i + 1]);
    v[i] = hn::Max(hn::BitCast(d, hn::InterleaveLower(wide, a, b)),
                   hn::BitCast(d, hn::InterleaveUpper(wide, a, b)));
  }
  for (int i = 0; i < 2; ++i) {
    const __m512i a = v[2 * i].raw, b = v[2 * i + 1].raw;
    v[i] = hn::Max(V{_mm512_shuffle_i32x4(a, b, 0x44)}, V{_mm512_shuffle_i32x4(a, b, 0xee)});
  }
  const __m512i a = v[0].raw, b = v[1].raw;
  return hn::Max(V{_mm512_shuffle_i32x4(a, b, 0x88)}, V{_mm512_shuffle_i32x4(a, b, 0xdd)});
}
#endif

// Groups of channels whose scales are computed side by side, each in its lane: one alone waits for
// a maximum and two divisions. Sizes are put together in a register: stored one by one and loaded
// at once, they would wait for all stores before them.
template <class E>
struct Groups {
  using Raw = typename E::Raw;
  const Raw* from[kMaxLanes];

  // What is added to the largest bits of the groups before.
  HWY_INLINE hn::Vec<SignedTag> Add(hn::Vec<SignedTag> bits, int lane, const Raw* group,
                                    int64_t channels) {
    from[lane] = group;
    return InLane(bits, lane, LargestBits<E, false>(group, channels));
  }
  static HWY_INLINE hn::Vec<SignedTag> InLane(hn::Vec<SignedTag> bits, int lane,
                                              hn::Vec<SignedTag> value) {
    const SignedTag di;
    return hn::IfThenElse(hn::Eq(hn::Iota(di, 0), hn::Set(di, lane)), value, bits);
  }
  // Adjacent blocks of Q8_0.
  HWY_INLINE hn::Vec<SignedTag> AddAll(const Raw* blocks, int count) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
    if (count == 16) {
      hn::Vec<SignedTag> lanes[16];
      for (int i = 0; i < 16; ++i) {
        int64_t begin = 0;
        from[i] = blocks + i * kQ8Channels;
        lanes[i] = LargestInLanes<E, false>(from[i], kQ8Channels, &begin);
      }
      return LargestOfEach(lanes);
    }
#endif
    auto bits = hn::Zero(SignedTag());
    for (int i = 0; i < count; ++i) bits = Add(bits, i, blocks + i * kQ8Channels, kQ8Channels);
    return bits;
  }
  static HWY_INLINE bool AreFinite(hn::Vec<SignedTag> bits) {
    const SignedTag di;
    return hn::AllTrue(di, hn::Lt(bits, hn::Set(di, int32_t{E::kInfinity})));
  }
  // The largest SizeForScale of each group.
  HWY_INLINE hn::Vec<FullTag> Sizes(hn::Vec<SignedTag> bits, int count, int64_t channels) const {
    const SignedTag di;
    const FullTag d;
    if (HWY_UNLIKELY(!AreFinite(bits))) {
      for (int i = 0; i < count; ++i) {
        bits = InLane(bits, i, LargestBits<E, true>(from[i], channels));
      }
    }
    const auto most = hn::Set(di, 0x7f7fffff);
    if constexpr (sizeof(Raw) == 4) {
      return hn::BitCast(d, hn::Min(bits, most));
    } else {
      HWY_ALIGN Raw elements[kMaxLanes];
      const hn::Rebind<Raw, FullTag> of_elements;
      hn::Store(hn::TruncateTo(of_elements, hn::BitCast(hn::RebindToUnsigned<FullTag>(), bits)),
                of_elements, elements);
      return hn::BitCast(d, hn::Min(hn::BitCast(di, E::Load(d, elements)), most));
    }
  }
};

// Calls group(from, to, scale) for all.
template <class E, class Group>
HWY_INLINE void ForEachGroup(const GroupedHeads& heads, const Group& group) {
  // What is stored cannot be part of these.
  const HeadStrides from_strides = heads.from_strides, to_strides = heads.to_strides,
                    scale_strides = heads.scales.strides;
  const int32_t tokens = heads.tokens, count = heads.heads, groups = heads.scales.groups,
                channels = heads.scales.group, scale_bytes = ElementSize(heads.scales.dtype);
  for (int32_t t = 0; t < tokens; ++t) {
    const char* from_head = heads.from + t * from_strides.token;
    char* to_head = heads.to + t * to_strides.token;
    char* scale_head = heads.first_scales + t * scale_strides.token;
    for (int32_t h = 0; h < count; ++h) {
      const auto* from = reinterpret_cast<const typename E::Raw*>(from_head);
      auto* to = reinterpret_cast<uint8_t*>(to_head);
      char* scale = scale_head;
      for (int32_t g = 0; g < groups; ++g) {
        group(from, to, scale);
        from += channels;
        to += channels;
        scale += scale_bytes;
      }
      from_head += from_strides.head;
      to_head += to_strides.head;
      scale_head += scale_strides.head;
    }
  }
}

// kChannels: of a group, whole steps of four vectors; 0: any number.
template <class E, Code kCode, int kChannels, bool kStream>
void EncodeByComputed(const GroupedHeads& heads) {
  const FullTag d;
  const GroupScales& scales = heads.scales;
  const int64_t channels = kChannels == 0 ? scales.group : kChannels;
  Groups<E> groups;
  uint8_t* codes_of[kMaxLanes];
  char* scale_of[kMaxLanes];
  auto bits = hn::Zero(SignedTag());
  int64_t left = int64_t{heads.tokens} * heads.heads * scales.groups;
  int count = 0;
  // Inlined: behind a call that takes vectors GCC 12 leaves out vzeroupper, without which the code
  // that follows, of no AVX, takes twice as long.
  const auto add = [&](const auto* from, uint8_t* to, char* scale) HWY_ATTR
      __attribute__((always_inline)) {
    bits = groups.Add(bits, count, from, channels);
    codes_of[count] = to;
    scale_of[count] = scale;
    --left;
    if (++count != LanesOf(d) && left != 0) return;
    const auto values =
        ScalesOf<kCode>(d, groups.Sizes(bits, count, channels), scales.least, scales.power_of_two);
    HWY_ALIGN float stored[kMaxLanes] = {}, inverse[kMaxLanes];
    hn::Store(values, d, stored);
    hn::Store(hn::Div(hn::Set(d, 1.0f), values), d, inverse);
    for (int i = 0; i < count; ++i) StoreScale(scales.dtype, scale_of[i], 0, stored[i]);
    if (kChannels != 0 && groups.AreFinite(bits)) {
      for (int i = 0; i < count; ++i) {
        EncodeVectors<E, kCode, true, kStream>(groups.from[i], codes_of[i], channels, inverse[i]);
      }
    } else {
      for (int i = 0; i < count; ++i) {
        Encode<E, kCode, kStream>(groups.from[i], codes_of[i], channels, inverse[i]);
      }
    }
    count = 0;
  };
  ForEachGroup<E>(heads, add);
}

template <class E, Code kCode, bool kStream>
void EncodeGroups(const GroupedHeads& heads) {
  const GroupScales& scales = heads.scales;
  if (!scales.computed) {
    ForEachGroup<E>(heads, [&](const auto* from, uint8_t* to, const char* scale) {
      Encode<E, kCode, kStream>(from, to, scales.group, 1.0f / LoadScale(scales.dtype, scale, 0));
    });
  } else if (scales.group == 128) {
    EncodeByComputed<E, kCode, 128, kStream>(heads);
  } else {
    EncodeByComputed<E, kCode, 0, kStream>(heads);
  }
}

void DecodeQ8(const void* from, float* to, int64_t blocks) {
  const FullTag d;
  static_assert(kQ8Channels % kMaxLanes == 0);
  const auto* block = static_cast<const uint8_t*>(from);
  for (int64_t i = 0; i < blocks; ++i, block += kQ8Bytes, to += kQ8Channels) {
    uint16_t stored;
    std::memcpy(&stored, block, sizeof(stored));
    const auto scale = hn::Set(d, hn::GetLane(F16::Load(OneTag(), &stored)));
    for (int c = 0; c < kQ8Channels; c += LanesOf(d)) {
      hn::StoreU(hn::Mul(ValuesOf<Code::kInt8>(d, block + 2 + c), scale), d, to + c);
    }
  }
}

// As Q8FromFloat of math/q8_0.h.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToSigned<D>> Q8CodesOf(D d, hn::Vec<D> value) {
  const auto most = hn::Set(d, LargestOf(Code::kInt8));
  const auto number = hn::IfThenZeroElse(hn::IsNaN(value), value);
  const auto limited = hn::Max(hn::Min(number, most), hn::Neg(most));
  const auto almost_half = hn::CopySign(hn::Set(d, kAlmostHalf), limited);
  return hn::ConvertTo(hn::RebindToSigned<D>(), hn::Add(limited, almost_half));
}

#if ROPE_PACKS_BYTES
// The codes of `count` adjacent blocks, of channels as Q8CodesOfFour() has them, behind their
// scales, each by its inverse.
template <class E>
HWY_INLINE void StoreQ8Codes(const typename E::Raw* elements, const float* inverses, int count,
                             uint8_t* blocks) {
  const FullTag d;
  constexpr int kVectors = kQ8Channels / hn::MaxLanes(FullTag()), kBlocks = 4 / kVectors;
  for (int i = 0; i < count; i += kBlocks) {
    const int many = HWY_MIN(kBlocks, count - i);
    hn::Vec<FullTag> values[4];
    for (int v = 0; v < 4; ++v) {
      const int at = HWY_MIN(v / kVectors, many - 1);  // the last one again where it is alone
      const auto by = hn::Set(d, inverses[i + at]);
      values[v] =
          hn::Mul(E::Load(d, elements + (i + at) * kQ8Channels + v % kVectors * LanesOf(d)), by);
    }
    const auto codes = Q8CodesOfFour(values);
    uint8_t* const to = blocks + i * kQ8Bytes + 2;
    const hn::Repartition<uint8_t, FullTag> du8;
#if HWY_TARGET <= HWY_AVX3
    const hn::Half<decltype(du8)> half;
    hn::StoreU(hn::LowerHalf(half, codes), half, to);
    if (many == kBlocks) hn::StoreU(hn::UpperHalf(half, codes), half, to + kQ8Bytes);
#else
    hn::StoreU(codes, du8, to);
#endif
  }
}
#endif

// Blocks whose scales are computed side by side.
template <class E>
void EncodeQ8(const void* from, void* to, int64_t blocks) {
  const FullTag d;
  const hn::RebindToUnsigned<FullTag> du;
  const hn::Rebind<uint8_t, FullTag> du8;
  static_assert(kQ8Channels % kMaxLanes == 0);
  const auto* elements = static_cast<const typename E::Raw*>(from);
  auto* block = static_cast<uint8_t*>(to);
  Groups<E> groups;
  HWY_ALIGN float inverses[kMaxLanes];
  HWY_ALIGN uint16_t stored[kMaxLanes];
  for (; blocks > 0; blocks -= LanesOf(d)) {
    const auto count = static_cast<int>(HWY_MIN(blocks, int64_t{LanesOf(d)}));
    const auto bits = groups.AddAll(elements, count);
    const auto size = groups.Sizes(bits, count, kQ8Channels);
    [[maybe_unused]] const bool bounded = StoreQ8Scales(d, size, inverses, stored);
#if ROPE_PACKS_BYTES
    if (HWY_LIKELY(bounded && Groups<E>::AreFinite(bits))) {
      for (int i = 0; i < count; ++i) std::memcpy(block + i * kQ8Bytes, &stored[i], 2);
      StoreQ8Codes<E>(elements, inverses, count, block);
      block += count * kQ8Bytes;
      elements += count * kQ8Channels;
      continue;
    }
#endif
    for (int i = 0; i < count; ++i, block += kQ8Bytes, elements += kQ8Channels) {
      std::memcpy(block, &stored[i], 2);
      const auto by = hn::Set(d, inverses[i]);
      for (int c = 0; c < kQ8Channels; c += LanesOf(d)) {
        const auto codes = Q8CodesOf(d, hn::Mul(E::Load(d, elements + c), by));
        hn::StoreU(hn::TruncateTo(du8, hn::BitCast(du, codes)), du8, block + 2 + c);
      }
    }
  }
}

template <int... kCode>
void FillDecoders(Kernels& kernels, std::integer_sequence<int, kCode...>) {
  ((kernels.decode[kCode] = &Decode<Code{kCode}>), ...);
}

template <class E, Code kCode, int kStreams>
void FillCoder(Kernels& kernels) {
  constexpr bool kStream = kStreams == 1 && ROPE_PACKS_BYTES;
  constexpr int kNumber = static_cast<int>(kCode);
  kernels.encode[E::kDtype - 1][kNumber][kStreams] = &Encode<E, kCode, kStream>;
  kernels.encode_groups[E::kDtype - 1][kNumber][kStreams] = &EncodeGroups<E, kCode, kStream>;
}

template <class E, int... kCode>
void FillCoders(Kernels& kernels, std::integer_sequence<int, kCode...>) {
  (FillCoder<E, Code{kCode}, 0>(kernels), ...);
  (FillCoder<E, Code{kCode}, 1>(kernels), ...);
  kernels.encode_q8[E::kDtype - 1] = &EncodeQ8<E>;
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
