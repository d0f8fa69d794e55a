/* What the rounding policies cost, next to a rotation in double: the figures of
 * guides/precision.md, as CSV. Errors of a pair are relative to the pair; the angles are exact, so
 * that the rounding of values is all there is. */
#include <math.h>
#include <string.h>

#include "check.h"

enum { TOKENS = 4096, HEAD_DIM = 128, PAIRS = HEAD_DIM / 2 };

static float x[TOKENS][HEAD_DIM];
static double cosines[TOKENS][PAIRS], sines[TOKENS][PAIRS];

/* bfloat16 and IEEE half precision; what is converted to half is a normal number there. */
static uint16_t to_16(rope_dtype dtype, float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if (dtype == ROPE_DTYPE_BF16) return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  const uint32_t rounded = bits + 0xfff + ((bits >> 13) & 1);
  return (uint16_t)((rounded >> 16 & 0x8000) | (((rounded & 0x7fffffff) - (112u << 23)) >> 13));
}
static double from_16(rope_dtype dtype, uint16_t value) {
  const int digits = dtype == ROPE_DTYPE_BF16 ? 7 : 10, bias = dtype == ROPE_DTYPE_BF16 ? 127 : 15;
  const int exponent = (value & 0x7fff) >> digits, fraction = value & ((1 << digits) - 1);
  const double size = exponent == 0 ? ldexp(fraction, 1 - bias - digits)
                                    : ldexp(fraction + (1 << digits), exponent - bias - digits);
  return value & 0x8000 ? -size : size;
}

static double print_errors(rope_dtype dtype, rope_rounding rounding, const char* name) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = HEAD_DIM;
  config.theta = 500000;
  config.pairing = ROPE_PAIRING_HALVES;
  config.angle = ROPE_ANGLE_EXACT;
  config.rounding = rounding;
  rope_context* rope;
  check(rope_context_create(&config, &rope));
  static uint16_t q[TOKENS][HEAD_DIM];
  static int64_t positions[TOKENS];
  for (int t = 0; t < TOKENS; ++t) {
    positions[t] = t;
    for (int i = 0; i < HEAD_DIM; ++i) q[t][i] = to_16(dtype, x[t][i]);
  }
  check(rope_apply_thd(rope, dtype, TOKENS, positions, q, 1, NULL, 0));
  rope_context_destroy(rope);
  double worst = 0, squares = 0;
  for (int t = 0; t < TOKENS; ++t) {
    for (int i = 0; i < PAIRS; ++i) {
      const double x0 = from_16(dtype, to_16(dtype, x[t][i]));
      const double x1 = from_16(dtype, to_16(dtype, x[t][i + PAIRS]));
      const double y0 = x0 * cosines[t][i] - x1 * sines[t][i];
      const double y1 = x1 * cosines[t][i] + x0 * sines[t][i];
      const double off = hypot(from_16(dtype, q[t][i]) - y0, from_16(dtype, q[t][i + PAIRS]) - y1);
      const double error = off / hypot(x0, x1);
      worst = fmax(worst, error);
      squares += error * error;
    }
  }
  printf("%s,%s,%.1e,%.1e\n", dtype == ROPE_DTYPE_BF16 ? "bf16" : "f16", name,
         sqrt(squares / TOKENS / PAIRS), worst);
  return worst;
}

int main(void) {
  for (int t = 0; t < TOKENS; ++t) {
    fill(x[t], HEAD_DIM);
    for (int i = 0; i < HEAD_DIM; ++i) x[t][i] += x[t][i] < 0 ? -0.25f : 0.25f; /* no tiny ones */
    for (int i = 0; i < PAIRS; ++i) {
      const double angle = t * pow(500000, -2.0 * i / HEAD_DIM);
      cosines[t][i] = cos(angle);
      sines[t][i] = sin(angle);
    }
  }
  puts("dtype,rounding,typical (rms),largest");
  static const rope_dtype dtypes[] = {ROPE_DTYPE_BF16, ROPE_DTYPE_F16};
  for (int d = 0; d < 2; ++d) {
    const double once = print_errors(dtypes[d], ROPE_ROUNDING_FLOAT32, "FLOAT32");
    const double rows = print_errors(dtypes[d], ROPE_ROUNDING_COS_SIN, "COS_SIN");
    const double eager = print_errors(dtypes[d], ROPE_ROUNDING_EAGER, "EAGER");
    const double unit = dtypes[d] == ROPE_DTYPE_BF16 ? 0x1p-8 : 0x1p-11; /* half of a last place */
    expect(once <= unit && once < rows && rows < eager && eager <= 4 * unit, "each rounding costs");
    if (dtypes[d] != ROPE_DTYPE_F16) continue;
    const double native = print_errors(dtypes[d], ROPE_ROUNDING_NATIVE, "NATIVE");
    expect(rows < native && native < eager, "NATIVE rounds one product");
  }
  return 0;
}
