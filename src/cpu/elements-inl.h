// Vectors of f32, f16 and bf16 elements as f32: loading, rounding and storing, with our own 16-bit
// conversions (those of Highway before 1.2 truncate bf16 and lose f16 infinities on old targets;
// the f16 instructions of x86 and Arm are right, and used). Included once per target.
#if defined(LIBROPE_SRC_CPU_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LIBROPE_SRC_CPU_ELEMENTS_INL_H_
#undef LIBROPE_SRC_CPU_ELEMENTS_INL_H_
#else
#define LIBROPE_SRC_CPU_ELEMENTS_INL_H_
#endif

#include "cpu/target.h"

#undef ROPE_NATIVE_F16
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || HWY_ARCH_ARM_A64
#define ROPE_NATIVE_F16 1
#else
#define ROPE_NATIVE_F16 0
#endif

HWY_BEFORE_NAMESPACE();
namespace rope::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The vectors that rows are made and heads are rotated in, and a smaller one.
using FullTag = HWY_CAPPED(float, kMaxLanes);
using QuarterTag = HWY_CAPPED(float, 4);

template <class D>
int LanesOf(D d) {
  return static_cast<int>(hn::Lanes(d));
}

template <class D>
using Bits = hn::Vec<hn::RebindToUnsigned<D>>;

// bf16 is the upper half of an f32. The result is rounded to nearest even, lower half not cleared.
template <class D>
HWY_INLINE Bits<D> RoundNumberToBf16(D, Bits<D> bits) {
  const hn::RebindToUnsigned<D> du;
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  return hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
}

// The same, but NaN stays NaN.
template <class D>
HWY_INLINE Bits<D> RoundToBf16([[maybe_unused]] D d, hn::Vec<D> value) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, value);
  const auto rounded = RoundNumberToBf16(d, bits);
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000u));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(value)), quiet, rounded);
}

template <class D>
HWY_INLINE Bits<D> UpperHalves(D, Bits<D> bits) {
  const hn::RebindToUnsigned<D> du;
  return hn::And(bits, hn::Set(du, 0xffff0000u));
}

#if ROPE_NATIVE_F16

template <class D>
HWY_INLINE hn::Vec<D> FloatFromF16(D d, hn::Vec<hn::Rebind<uint16_t, D>> half) {
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), half));
}

template <class D>
HWY_INLINE hn::Vec<hn::Rebind<uint16_t, D>> F16Bits(D, hn::Vec<D> value) {
  const hn::Rebind<uint16_t, D> du16;
  return hn::BitCast(du16, hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), value));
}

#else

// f16 bits in the upper halves of 32-bit lanes, as f32. The exponent is 112 less than it should be,
// also that of subnormal numbers, until the multiplication.
template <class D>
HWY_INLINE hn::Vec<D> FloatFromUpperF16(D d, Bits<D> upper) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto spread = hn::ShiftRight<3>(hn::BitCast(di, upper));  // four copies of the sign
  const auto scaled = hn::And(hn::BitCast(du, spread), hn::Set(du, 0x8fffe000u));
  const auto value = hn::Mul(hn::BitCast(d, scaled), hn::Set(d, 0x1p112f));
  // Infinities and NaN have become 65536 and more.
  const auto is_special = hn::Ge(hn::Abs(value), hn::Set(d, 65536.0f));
  return hn::Or(value, hn::IfThenElseZero(is_special, hn::BitCast(d, hn::Set(du, 0x7f800000u))));
}

template <class D>
HWY_INLINE hn::Vec<D> FloatFromF16(D d, hn::Vec<hn::Rebind<uint16_t, D>> half) {
  const hn::RebindToUnsigned<D> du;
  return FloatFromUpperF16(d, hn::ShiftLeft<16>(hn::PromoteTo(du, half)));
}

// The power of two of a number's exponent, but not below that of f16's least normal number.
template <class D>
HWY_INLINE hn::Vec<D> Exponent(D d, hn::Vec<D> value) {
  const auto mask = hn::BitCast(d, hn::Set(hn::RebindToUnsigned<D>(), 0x7f800000u));
  return hn::Max(hn::And(value, mask), hn::Set(d, 0x1p-14f));
}

// f16, rounded to nearest even by the addition; NaN becomes 0x7fff.
template <class D>
HWY_INLINE hn::Vec<hn::Rebind<uint16_t, D>> F16Bits(D d, hn::Vec<D> value) {
  const hn::RebindToSigned<D> di;
  const hn::Rebind<int16_t, D> di16;
  const hn::Rebind<uint16_t, D> du16;
  const auto limit = hn::Set(d, 65536.0f);  // infinity in f16
  auto size = hn::Abs(value);
#if HWY_ARCH_X86
  size = hn::Min(limit, size);  // the second, if it is NaN
#else
  size = hn::IfThenElse(hn::Gt(size, limit), limit, size);
#endif
  // Units of the last place in the lower bits, the exponent behind them.
  const auto sum = hn::BitCast(di, hn::Add(size, hn::Mul(Exponent(d, size), hn::Set(d, 0x1p13f))));
  const auto exponent = hn::Sub(hn::ShiftRight<13>(sum), hn::Set(di, 126 << 10));
  const auto half = hn::DemoteTo(di16, hn::Add(exponent, hn::And(sum, hn::Set(di, 0xfff))));
  const auto sign = hn::DemoteTo(di16, hn::ShiftRight<16>(hn::BitCast(di, value)));
  return hn::Or(hn::BitCast(du16, half),
                hn::And(hn::BitCast(du16, sign), hn::Set(du16, uint16_t{0x8000})));
}

#endif

// Highway streams part of a 128-bit vector (four f16 on SSE) as all of it: beyond the end, and with
// a fault where that is not aligned. Such are stored.
template <bool kStream, class D, class T = hn::TFromD<D>>
HWY_INLINE void StoreOrStream(hn::Vec<D> value, D d, T* to) {
  if constexpr (kStream && hn::MaxLanes(D()) * sizeof(T) >= 16) {
    hn::Stream(value, d, to);
  } else {
    hn::StoreU(value, d, to);
  }
}

// An element type: n consecutive elements at index i of an array, or n adjacent pairs at pair i.
// Loaded are those of the type In.
struct F32 {
  static constexpr rope_dtype kDtype = ROPE_DTYPE_F32;
  using Raw = float;
  using In = Raw;
  static constexpr int32_t kInfinity = 0x7f800000;  // its bits
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const float* from) {
    return hn::LoadU(d, from);
  }
  template <bool kStream, class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> value, float* to) {
    StoreOrStream<kStream>(value, d, to);
  }
  template <bool kStream, class D>
  static HWY_INLINE void StoreBoth(D d, hn::Vec<D> a, float* to_a, hn::Vec<D> b, float* to_b) {
    Store<kStream>(d, a, to_a);
    Store<kStream>(d, b, to_b);
  }
  template <class D>
  static HWY_INLINE void LoadPairs(D d, const float* from, hn::Vec<D>& x0, hn::Vec<D>& x1) {
    hn::LoadInterleaved2(d, from, x0, x1);
  }
  template <bool, class D>
  static HWY_INLINE void StorePairs(D d, hn::Vec<D> y0, hn::Vec<D> y1, float* to) {
    hn::StoreInterleaved2(y0, y1, d, to);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> Round(D, hn::Vec<D> value) {
    return value;
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> RoundProduct(D, hn::Vec<D> value) {
    return value;
  }
};

// How two vectors become words of two bf16, the first in the lower half; or four vectors become two
// of words, and whether some values were ties. The lower half of a NaN must be zero, as it is in
// all results of bf16 elements and rows without other NaNs.
struct RoundByIntegers {
  using WithTies = RoundByIntegers;

  // To f32 again; any NaN stays one.
  template <class D>
  static HWY_INLINE hn::Vec<D> Round(D d, hn::Vec<D> value) {
    return hn::BitCast(d, UpperHalves(d, RoundToBf16(d, value)));
  }

  // Both at once, on 16-bit lanes: the upper halves get a carry where the lower halves, plus one if
  // the upper is odd, exceed one half.
  template <class D>
  static HWY_INLINE Bits<D> ToWords([[maybe_unused]] D d, hn::Vec<D> first, hn::Vec<D> second) {
    const hn::RebindToUnsigned<D> du;
    const hn::Repartition<uint16_t, decltype(du)> du16;
    const auto a = hn::BitCast(du, first), b = hn::BitCast(du, second);
    const auto upper = hn::OddEven(hn::BitCast(du16, b), hn::BitCast(du16, hn::ShiftRight<16>(a)));
    const auto lower = hn::OddEven(hn::BitCast(du16, hn::ShiftLeft<16>(b)), hn::BitCast(du16, a));
    const auto one = hn::Set(du16, uint16_t{1});
    const auto sum = hn::SaturatedAdd(lower, hn::And(upper, one));
    const auto half = hn::Set(du16, uint16_t{0x8000});
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
    // Two instructions, a comparison into a mask and an addition under it; the others are three, of
    // which two have one port (bench/README.md).
    return hn::BitCast(du, hn::IfThenElse(hn::Gt(sum, half), hn::Add(upper, one), upper));
#else
    const auto carry = hn::Min(hn::SaturatedSub(sum, half), one);
    return hn::BitCast(du, hn::Add(upper, carry));
#endif
  }
  template <class D>
  static HWY_INLINE bool ToWordsTwice(D d, hn::Vec<D> first, hn::Vec<D> second,
                                      hn::Vec<D> next_first, hn::Vec<D> next_second, Bits<D>& words,
                                      Bits<D>& next_words) {
    words = ToWords(d, first, second);
    next_words = ToWords(d, next_first, next_second);
    return false;
  }
};

#undef ROPE_ROUND_FROM_HALF
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_SSE4
#define ROPE_ROUND_FROM_HALF 1
// One half is added, which rounds all but ties, and those are looked for: they leave a lower half
// of zero. In rows of f32 one value in 65536 is a tie.
struct RoundFromHalf : RoundByIntegers {
  template <class D>
  static HWY_INLINE bool ToWordsTwice(D d, hn::Vec<D> first, hn::Vec<D> second,
                                      hn::Vec<D> next_first, hn::Vec<D> next_second, Bits<D>& words,
                                      Bits<D>& next_words) {
    const hn::RebindToUnsigned<D> du;
    const hn::Repartition<uint16_t, decltype(du)> du16;
    const auto plus_half = [du](hn::Vec<D> value) HWY_ATTR {
      return hn::Add(hn::BitCast(du, value), hn::Set(du, 0x8000u));
    };
    const auto least = [du16](Bits<D> a, Bits<D> b) HWY_ATTR {
      return hn::BitCast(hn::RebindToUnsigned<D>(),
                         hn::Min(hn::BitCast(du16, a), hn::BitCast(du16, b)));
    };
    const auto upper_halves = [du, du16](Bits<D> a, Bits<D> b) HWY_ATTR {
      return hn::BitCast(
          du, hn::OddEven(hn::BitCast(du16, b), hn::BitCast(du16, hn::ShiftRight<16>(a))));
    };
    const auto a = plus_half(first), b = plus_half(second);
    const auto next_a = plus_half(next_first), next_b = plus_half(next_second);
    const bool ties = HasZeroLower(du, least(least(a, b), least(next_a, next_b)));
    if (HWY_UNLIKELY(ties)) {
      RoundByIntegers::ToWordsTwice(d, first, second, next_first, next_second, words, next_words);
    } else {
      words = upper_halves(a, b);
      next_words = upper_halves(next_a, next_b);
    }
    return ties;
  }

 private:
  template <class DU>
  static HWY_INLINE bool HasZeroLower(DU du, hn::Vec<DU> words) {
    const auto lower = hn::Set(du, 0xffffu);
#if HWY_TARGET <= HWY_AVX3
    if constexpr (sizeof(words.raw) == 64) {
      return _mm512_testn_epi32_mask(words.raw, lower.raw) != 0;
    }
#endif
    return !hn::AllFalse(du, hn::Eq(hn::And(words, lower), hn::Zero(du)));
  }
};
#else
#define ROPE_ROUND_FROM_HALF 0
#endif

template <class Rounding>
struct Bf16RoundedBy {
  using WithTies = Bf16RoundedBy<typename Rounding::WithTies>;
  static constexpr rope_dtype kDtype = ROPE_DTYPE_BF16;
  using Raw = uint16_t;
  using In = Raw;
  static constexpr int16_t kInfinity = 0x7f80;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const uint16_t* from) {
    const hn::RebindToUnsigned<D> du;
    const hn::Rebind<uint16_t, D> du16;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(du16, from))));
  }
  // Two elements as one 32-bit word, the first in its lower half.
  template <class D>
  static HWY_INLINE Bits<D> LoadWords(D, const uint16_t* from) {
    const hn::RebindToUnsigned<D> du;
    const hn::Repartition<uint16_t, decltype(du)> du16;
    return hn::BitCast(du, hn::LoadU(du16, from));
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> First(D d, Bits<D> words) {
    return hn::BitCast(d, hn::ShiftLeft<16>(words));
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> Second(D d, Bits<D> words) {
    return hn::BitCast(d, UpperHalves(d, words));
  }
  template <bool kStream, class D>
  static HWY_INLINE void StoreWords(D d, hn::Vec<D> first, hn::Vec<D> second, uint16_t* to) {
    const hn::Repartition<uint16_t, D> du16;
    StoreOrStream<kStream>(hn::BitCast(du16, Rounding::ToWords(d, first, second)), du16, to);
  }
  template <bool kStream, class D>
  static HWY_INLINE bool StoreWordsTwice(D d, hn::Vec<D> first, hn::Vec<D> second, uint16_t* to,
                                         hn::Vec<D> next_first, hn::Vec<D> next_second,
                                         uint16_t* next_to) {
    const hn::Repartition<uint16_t, D> du16;
    Bits<D> words, next_words;
    const bool ties =
        Rounding::ToWordsTwice(d, first, second, next_first, next_second, words, next_words);
    StoreOrStream<kStream>(hn::BitCast(du16, words), du16, to);
    StoreOrStream<kStream>(hn::BitCast(du16, next_words), du16, next_to);
    return ties;
  }
  template <bool kStream, class D>
  static HWY_INLINE void StoreBoth(D d, hn::Vec<D> a, uint16_t* to_a, hn::Vec<D> b,
                                   uint16_t* to_b) {
    const hn::Rebind<uint16_t, D> du16;
    const auto words = Rounding::ToWords(d, a, b);
    StoreOrStream<kStream>(hn::TruncateTo(du16, words), du16, to_a);
    StoreOrStream<kStream>(hn::TruncateTo(du16, hn::ShiftRight<16>(words)), du16, to_b);
  }
  template <class D>
  static HWY_INLINE void LoadPairs(D d, const uint16_t* from, hn::Vec<D>& x0, hn::Vec<D>& x1) {
    const auto words = LoadWords(d, from);
    x0 = First(d, words);
    x1 = Second(d, words);
  }
  template <bool kStream, class D>
  static HWY_INLINE void StorePairs(D d, hn::Vec<D> y0, hn::Vec<D> y1, uint16_t* to) {
    StoreWords<kStream>(d, y0, y1, to);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> Round(D d, hn::Vec<D> value) {
    return Rounding::Round(d, value);
  }
  // Of elements and rows: the lower half of a NaN is zero, as above, so that it stays one.
  template <class D>
  static HWY_INLINE hn::Vec<D> RoundProduct(D d, hn::Vec<D> value) {
    return hn::BitCast(
        d, UpperHalves(d, RoundNumberToBf16(d, hn::BitCast(hn::RebindToUnsigned<D>(), value))));
  }
};

using BF16 = Bf16RoundedBy<RoundByIntegers>;

#undef ROPE_BF16_INSTRUCTION
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
#define ROPE_BF16_INSTRUCTION 1
// By vcvtne2ps2bf16 of AVX512-BF16, which Highway 1.0.3 has no name for. It takes subnormal numbers
// for zeros: where it left a zero and there was one, the words are rounded again, by integers.
struct RoundByInstruction {
  using WithTies = RoundByIntegers;

  template <class D>
  static HWY_INLINE hn::Vec<D> Round(D d, hn::Vec<D> value) {
    if constexpr (hn::MaxLanes(D()) == 16) {
      __m256i halves;
      asm("vcvtneps2bf16 %1, %0" : "=v"(halves) : "v"(value.raw));
      const bool has_zero = _mm256_testn_epi16_mask(halves, _mm256_set1_epi16(0x7fff)) != 0;
      if (HWY_LIKELY(!has_zero) || !HasSubnormal(value.raw)) {
        const __m512i words = _mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
        return hn::Vec<D>{_mm512_castsi512_ps(words)};
      }
    }
    return RoundByIntegers::Round(d, value);
  }

  template <class D>
  static HWY_INLINE Bits<D> ToWords(D d, hn::Vec<D> first, hn::Vec<D> second) {
    if constexpr (hn::MaxLanes(D()) == 16) {
      __m512i halves;
      if (HWY_LIKELY(Convert(first.raw, second.raw, &halves))) {
        const auto order = _mm512_set_epi32(
            0x1f000f, 0x1e000e, 0x1d000d, 0x1c000c, 0x1b000b, 0x1a000a, 0x190009, 0x180008,
            0x170007, 0x160006, 0x150005, 0x140004, 0x130003, 0x120002, 0x110001, 0x100000);
        return Bits<D>{_mm512_permutexvar_epi16(order, halves)};
      }
    }
    return RoundByIntegers::ToWords(d, first, second);
  }
  template <class D>
  static HWY_INLINE bool ToWordsTwice(D d, hn::Vec<D> first, hn::Vec<D> second,
                                      hn::Vec<D> next_first, hn::Vec<D> next_second, Bits<D>& words,
                                      Bits<D>& next_words) {
    words = ToWords(d, first, second);
    next_words = ToWords(d, next_first, next_second);
    return false;
  }
  // All of one, then all of the other; false: integers have to round, as some are subnormal.
  static HWY_INLINE bool Convert(__m512 first, __m512 second, __m512i* halves) {
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(*halves) : "v"(first), "v"(second));
    const bool has_zero = _mm512_testn_epi16_mask(*halves, _mm512_set1_epi16(0x7fff)) != 0;
    return HWY_LIKELY(!has_zero) || !(HasSubnormal(first) || HasSubnormal(second));
  }

 private:
  static HWY_INLINE bool HasSubnormal(__m512 value) {
    constexpr int kSubnormal = 0x20;
    return _mm512_fpclass_ps_mask(value, kSubnormal) != 0;
  }
};
using ConvertedBF16 = Bf16RoundedBy<RoundByInstruction>;

// CPUs with f16 arithmetic, too, make several operations of that instruction (bench/README.md).
inline bool RoundsByInstruction() { return HasBf16Conversion() && !HasF16Arithmetic(); }
#else
#define ROPE_BF16_INSTRUCTION 0
#endif

struct F16 {
  static constexpr rope_dtype kDtype = ROPE_DTYPE_F16;
  using Raw = uint16_t;
  using In = Raw;
  static constexpr int16_t kInfinity = 0x7c00;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const uint16_t* from) {
    return FloatFromF16(d, hn::LoadU(hn::Rebind<uint16_t, D>(), from));
  }
  template <bool kStream, class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> value, uint16_t* to) {
    StoreOrStream<kStream>(F16Bits(d, value), hn::Rebind<uint16_t, D>(), to);
  }
  template <bool kStream, class D>
  static HWY_INLINE void StoreBoth(D d, hn::Vec<D> a, uint16_t* to_a, hn::Vec<D> b,
                                   uint16_t* to_b) {
    Store<kStream>(d, a, to_a);
    Store<kStream>(d, b, to_b);
  }
  template <class D>
  static HWY_INLINE void LoadPairs(D d, const uint16_t* from, hn::Vec<D>& x0, hn::Vec<D>& x1) {
    const auto words = BF16::LoadWords(d, from);
#if ROPE_NATIVE_F16
    const hn::RebindToUnsigned<D> du;
    const hn::Rebind<uint16_t, D> du16;
    x0 = FloatFromF16(d, hn::TruncateTo(du16, hn::And(words, hn::Set(du, 0xffffu))));
    x1 = FloatFromF16(d, hn::TruncateTo(du16, hn::ShiftRight<16>(words)));
#else
    x0 = FloatFromUpperF16(d, hn::ShiftLeft<16>(words));
    x1 = FloatFromUpperF16(d, UpperHalves(d, words));
#endif
  }
  template <bool, class D>
  static HWY_INLINE void StorePairs(D d, hn::Vec<D> y0, hn::Vec<D> y1, uint16_t* to) {
    const hn::RebindToUnsigned<D> du;
    const hn::Repartition<uint16_t, decltype(du)> du16;
    const auto first = hn::PromoteTo(du, F16Bits(d, y0)),
               second = hn::PromoteTo(du, F16Bits(d, y1));
    hn::StoreU(hn::BitCast(du16, hn::Or(first, hn::ShiftLeft<16>(second))), du16, to);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> Round(D d, hn::Vec<D> value) {
#if ROPE_NATIVE_F16
    return FloatFromF16(d, F16Bits(d, value));
#else
    // The addition rounds; 65536, and what is larger, becomes infinity; -0 has its sign.
    const auto exponent = hn::Min(Exponent(d, value), hn::Set(d, 65536.0f));
    const auto units = hn::Mul(exponent, hn::Set(d, 0x1.8p13f));
    const auto rounded = hn::Sub(hn::Add(value, units), units);
    const auto limited = hn::Mul(hn::Mul(rounded, hn::Set(d, 0x1p112f)), hn::Set(d, 0x1p-112f));
    return hn::Or(limited, hn::And(value, hn::SignBit(d)));
#endif
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> RoundProduct(D d, hn::Vec<D> value) {
    return Round(d, value);
  }
};

// f32 that is read as E.
template <class E>
struct Widened : F32 {
  using In = typename E::Raw;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const In* from) {
    return E::Load(d, from);
  }
  template <class D>
  static HWY_INLINE void LoadPairs(D d, const In* from, hn::Vec<D>& x0, hn::Vec<D>& x1) {
    E::LoadPairs(d, from, x0, x1);
  }
};

// bf16 likewise, two elements from a 32-bit word.
template <class E>
struct WidenedWords : Widened<E> {
  using WithTies = WidenedWords;
  template <class D>
  static HWY_INLINE Bits<D> LoadWords(D d, const uint16_t* from) {
    return E::LoadWords(d, from);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> First(D d, Bits<D> words) {
    return E::First(d, words);
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> Second(D d, Bits<D> words) {
    return E::Second(d, words);
  }
  template <bool kStream, class D>
  static HWY_INLINE bool StoreWordsTwice(D d, hn::Vec<D> first, hn::Vec<D> second, float* to,
                                         hn::Vec<D> next_first, hn::Vec<D> next_second,
                                         float* next_to) {
    static_assert(!kStream);
    hn::StoreInterleaved2(first, second, d, to);
    hn::StoreInterleaved2(next_first, next_second, d, next_to);
    return false;
  }
};

template <class... E>
struct Elements {
  static_assert(sizeof...(E) == kDtypes);
};
using AllElements = Elements<F32, F16, BF16>;

}  // namespace HWY_NAMESPACE
}  // namespace rope::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard
