// Rotation by instructions that multiply f16: AVX512-FP16 and NEON fp16, which Highway 1.0.3 has
// no names for. Channels in halves and interleaved; those that move are rotated in f32.
#include "cpu/f16_arithmetic.h"

#include <hwy/base.h>

#include <cstdint>
#include <cstring>

#include "base/limits.h"
#include "cpu/target.h"

#if HWY_ARCH_X86
#include <immintrin.h>
#define ROPE_F16_TARGET "avx512f,avx512bw,avx512fp16"
#elif HWY_ARCH_ARM_A64
#include <arm_neon.h>
#if HWY_COMPILER_CLANG
#define ROPE_F16_TARGET "fullfp16"
#else
#define ROPE_F16_TARGET "+fp16"
#endif
#endif

namespace rope::cpu {

#ifndef ROPE_F16_TARGET

F16Rotation F16RotationOf(ChannelOrder) { return {}; }

#else

namespace {

// A segment of a head, and its part of a row.
struct Run {
  const uint16_t* in;
  uint16_t* out;
  const uint16_t *cos, *sin;
  int pairs;
};

// The arithmetic itself is written in assembly: Clang 14 has intrinsics for it only in files that
// are compiled for such CPUs as a whole.
HWY_PUSH_ATTRIBUTES(ROPE_F16_TARGET)

#if HWY_ARCH_X86

using Vector = __m512i;
constexpr int kLanes = 32;

inline Vector Multiply(Vector a, Vector b) {
  asm("vmulph %1, %0, %0" : "+v"(a) : "v"(b));
  return a;
}
// a * b + c, and a * b - c.
inline Vector MultiplyAdd(Vector a, Vector b, Vector c) {
  asm("vfmadd213ph %2, %1, %0" : "+v"(a) : "v"(b), "v"(c));
  return a;
}
inline Vector MultiplySubtract(Vector a, Vector b, Vector c) {
  asm("vfmsub213ph %2, %1, %0" : "+v"(a) : "v"(b), "v"(c));
  return a;
}
inline Vector SwapPairs(Vector x) {
  asm("vprold $16, %0, %0" : "+v"(x));
  return x;
}
inline Vector Load(const uint16_t* from) { return _mm512_loadu_si512(from); }
inline void Store(Vector value, uint16_t* to) { _mm512_storeu_si512(to, value); }
inline __mmask32 First(int count) { return static_cast<__mmask32>((1u << count) - 1); }
inline Vector LoadFirst(int count, const uint16_t* from) {
  return _mm512_maskz_loadu_epi16(First(count), from);
}
inline void StoreFirst(int count, Vector value, uint16_t* to) {
  _mm512_mask_storeu_epi16(to, First(count), value);
}
inline void Narrow16(const float* from, uint16_t* to) {
  constexpr __mmask16 kAll = 0xffff;
  _mm256_storeu_si256(
      reinterpret_cast<__m256i*>(to),
      _mm512_maskz_cvtps_ph(kAll, _mm512_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT));
}

#else

using Vector = uint16x8_t;
constexpr int kLanes = 8;

inline Vector Multiply(Vector a, Vector b) {
  Vector product;
  asm("fmul %0.8h, %1.8h, %2.8h" : "=w"(product) : "w"(a), "w"(b));
  return product;
}
// a * b + c, and a * b - c.
inline Vector MultiplyAdd(Vector a, Vector b, Vector c) {
  asm("fmla %0.8h, %1.8h, %2.8h" : "+w"(c) : "w"(a), "w"(b));
  return c;
}
inline Vector MultiplySubtract(Vector a, Vector b, Vector c) {
  return MultiplyAdd(a, b, veorq_u16(c, vdupq_n_u16(0x8000)));
}
inline Vector SwapPairs(Vector x) { return vrev32q_u16(x); }
inline Vector Load(const uint16_t* from) { return vld1q_u16(from); }
inline void Store(Vector value, uint16_t* to) { vst1q_u16(to, value); }
inline Vector LoadFirst(int count, const uint16_t* from) {
  uint16_t values[kLanes] = {};
  std::memcpy(values, from, static_cast<size_t>(count) * sizeof(*from));
  return Load(values);
}
inline void StoreFirst(int count, Vector value, uint16_t* to) {
  uint16_t values[kLanes];
  Store(value, values);
  std::memcpy(to, values, static_cast<size_t>(count) * sizeof(*to));
}
inline void Narrow16(const float* from, uint16_t* to) {
  for (int i = 0; i < 16; i += 4) {
    vst1_u16(to + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(from + i))));
  }
}

#endif

// Rows of f32 whose values are f16.
void Narrow(const float* from, int count, uint16_t* to) {
  for (int i = 0; i < count; i += 16) Narrow16(from + i, to + i);
}

inline void RotateHalves(Vector x0, Vector x1, Vector cos, Vector sin, Vector* y0, Vector* y1) {
  *y0 = MultiplySubtract(x0, cos, Multiply(x1, sin));
  *y1 = MultiplyAdd(x1, cos, Multiply(x0, sin));
}

void RotateHalves(Run run) {
  const uint16_t* const in = run.in;
  uint16_t* const out = run.out;
  const int n = run.pairs;
  Vector y0, y1;
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    RotateHalves(Load(in + i), Load(in + n + i), Load(run.cos + i), Load(run.sin + i), &y0, &y1);
    Store(y0, out + i);
    Store(y1, out + n + i);
  }
  if (i == n) return;
  RotateHalves(LoadFirst(n - i, in + i), LoadFirst(n - i, in + n + i),
               LoadFirst(n - i, run.cos + i), LoadFirst(n - i, run.sin + i), &y0, &y1);
  StoreFirst(n - i, y0, out + i);
  StoreFirst(n - i, y1, out + n + i);
}

// Each channel has its cos and its signed sin.
inline Vector RotateInterleaved(Vector x, Vector cos, Vector sin) {
  return MultiplyAdd(x, cos, Multiply(SwapPairs(x), sin));
}

void RotateInterleaved(Run run) {
  const int n = 2 * run.pairs;
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Store(RotateInterleaved(Load(run.in + i), Load(run.cos + i), Load(run.sin + i)), run.out + i);
  }
  if (i == n) return;
  StoreFirst(n - i,
             RotateInterleaved(LoadFirst(n - i, run.in + i), LoadFirst(n - i, run.cos + i),
                               LoadFirst(n - i, run.sin + i)),
             run.out + i);
}

HWY_POP_ATTRIBUTES

// A row, narrowed once for all heads of its token.
template <int kRowPerPair>
struct NarrowRow {
  alignas(64) uint16_t cos[kRowPerPair * kMaxPairs], sin[kRowPerPair * kMaxPairs];

  void Take(const float* from_cos, const float* from_sin, int pairs) {
    Narrow(from_cos, kRowPerPair * pairs, cos);
    Narrow(from_sin, kRowPerPair * pairs, sin);
  }
};

// A segment of the heads of a token, whose first one is at `in` and `out`.
template <int kRowPerPair, void (*kRotate)(Run)>
void RotateHeadsOf(const Tensor& tensor, const char* in, char* out, const Segment& segment,
                   const NarrowRow<kRowPerPair>& row) {
  const int first = kRowPerPair * segment.first_pair;
  for (int32_t h = 0; h < tensor.heads; ++h) {
    kRotate({reinterpret_cast<const uint16_t*>(in) + segment.first_channel,
             reinterpret_cast<uint16_t*>(out) + segment.first_channel, row.cos + first,
             row.sin + first, segment.pairs});
    in += tensor.in_strides.head;
    out += tensor.out_strides.head;
  }
}

template <int kRowPerPair, void (*kRotate)(Run)>
void RotateBlock(const Block& b) {
  NarrowRow<kRowPerPair> row;
  const Tensor& tensor = *b.tensor;
  const Segment& last = b.segments[b.segment_count - 1];
  for (int32_t t = 0; t < b.tokens; ++t) {
    row.Take(b.cos + t * b.row_stride, b.sin + t * b.row_stride, last.first_pair + last.pairs);
    for (int32_t s = 0; s < b.segment_count; ++s) {
      RotateHeadsOf<kRowPerPair, kRotate>(tensor, b.in + HeadOffset(tensor.in_strides, 0, t, 0),
                                          b.out + HeadOffset(tensor.out_strides, 0, t, 0),
                                          b.segments[s], row);
    }
  }
}

template <int kRowPerPair, void (*kRotate)(Run)>
void RotateToken(const Tensor* tensors, int count, const Segment& segment, const float* cos,
                 const float* sin) {
  NarrowRow<kRowPerPair> row;
  row.Take(cos, sin, segment.pairs);
  for (const Tensor* t = tensors; t != tensors + count; ++t) {
    RotateHeadsOf<kRowPerPair, kRotate>(*t, t->in + t->in_span, t->out + t->out_span, segment, row);
  }
}

template <int kRowPerPair, void (*kRotate)(Run)>
constexpr F16Rotation kRotationBy = {&RotateBlock<kRowPerPair, kRotate>,
                                     &RotateToken<kRowPerPair, kRotate>};

}  // namespace

F16Rotation F16RotationOf(ChannelOrder order) {
  if (!HasF16Arithmetic()) return {};
  switch (order) {
    case kHalves: return kRotationBy<1, &RotateHalves>;
    case kInterleaved: return kRotationBy<2, &RotateInterleaved>;
    default: return {};
  }
}

#endif

}  // namespace rope::cpu
