/* The RoPE that anyone would write: a table of cos and sin, a loop over tokens, heads and pairs,
 * and the compiler left to vectorise it. Every ratio called "plain C" is against this file. Built
 * twice: with -O3, and with -O3 -march=native (BASELINE_NATIVE). */
#include "baseline.h"

#include <string.h>

#ifdef BASELINE_NATIVE
#define NAME(name) name##_native
#else
#define NAME(name) name##_generic
#endif

static inline float FromBf16(uint16_t x) {
  uint32_t bits = (uint32_t)x << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint16_t ToBf16(float value) { /* to nearest even; NaN is not thought of */
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#define KEEP(x) (x)

/* Two functions per type and order of pairs: x, [tokens, heads, dim], rotated in place, and into y.
 */
#define ROTATE(function, Type, Load, Store, FIRST, SECOND)                          \
  static void function(const struct baseline_table* table, int64_t tokens,          \
                       const int64_t* positions, void* data, int32_t heads) {       \
    const int32_t dim = table->dim, half = dim / 2;                                 \
    for (int64_t t = 0; t < tokens; ++t) {                                          \
      const float* restrict c = table->cos + positions[t] * half;                   \
      const float* restrict s = table->sin + positions[t] * half;                   \
      for (int32_t h = 0; h < heads; ++h) {                                         \
        Type* restrict x = (Type*)data + (t * heads + h) * dim;                     \
        for (int32_t i = 0; i < half; ++i) {                                        \
          const float x0 = Load(x[FIRST]), x1 = Load(x[SECOND]);                    \
          x[FIRST] = Store(x0 * c[i] - x1 * s[i]);                                  \
          x[SECOND] = Store(x1 * c[i] + x0 * s[i]);                                 \
        }                                                                           \
      }                                                                             \
    }                                                                               \
  }                                                                                 \
  static void function##Copy(const struct baseline_table* table, int64_t tokens,    \
                             const int64_t* positions, const void* data, void* out, \
                             int32_t heads) {                                       \
    const int32_t dim = table->dim, half = dim / 2;                                 \
    for (int64_t t = 0; t < tokens; ++t) {                                          \
      const float* restrict c = table->cos + positions[t] * half;                   \
      const float* restrict s = table->sin + positions[t] * half;                   \
      for (int32_t h = 0; h < heads; ++h) {                                         \
        const Type* restrict x = (const Type*)data + (t * heads + h) * dim;         \
        Type* restrict y = (Type*)out + (t * heads + h) * dim;                      \
        for (int32_t i = 0; i < half; ++i) {                                        \
          const float x0 = Load(x[FIRST]), x1 = Load(x[SECOND]);                    \
          y[FIRST] = Store(x0 * c[i] - x1 * s[i]);                                  \
          y[SECOND] = Store(x1 * c[i] + x0 * s[i]);                                 \
        }                                                                           \
      }                                                                             \
    }                                                                               \
  }

ROTATE(HalvesF32, float, KEEP, KEEP, i, i + half)
ROTATE(InterleavedF32, float, KEEP, KEEP, 2 * i, 2 * i + 1)
ROTATE(HalvesBf16, uint16_t, FromBf16, ToBf16, i, i + half)
ROTATE(InterleavedBf16, uint16_t, FromBf16, ToBf16, 2 * i, 2 * i + 1)
#ifdef __FLT16_MAX__ /* the compiler knows _Float16 */
ROTATE(HalvesF16, _Float16, (float), (_Float16), i, i + half)
ROTATE(InterleavedF16, _Float16, (float), (_Float16), 2 * i, 2 * i + 1)
#else
#define HalvesF16 NULL
#define InterleavedF16 NULL
#define HalvesF16Copy NULL
#define InterleavedF16Copy NULL
#endif

const struct baseline NAME(baseline) = {
    {HalvesF32, HalvesF16, HalvesBf16},
    {InterleavedF32, InterleavedF16, InterleavedBf16},
    {HalvesF32Copy, HalvesF16Copy, HalvesBf16Copy},
    {InterleavedF32Copy, InterleavedF16Copy, InterleavedBf16Copy},
};
