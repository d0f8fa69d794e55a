/* How far cosines and sines are from those of the true angle, position times theta^(-2i /
 * head_dim), by the angle policy: the figures of guides/precision.md, as CSV. Each line is the
 * largest error over all pairs and 512 positions from there to twice as far. */
#include <math.h>

#include "check.h"

enum { HEAD_DIM = 128, PAIRS = HEAD_DIM / 2, SAMPLES = 512 };
static const double theta = 500000; /* Llama 3 */

static long double true_cos[SAMPLES][PAIRS], true_sin[SAMPLES][PAIRS];

static double error_of(rope_angle angle, const int64_t* positions) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = HEAD_DIM;
  config.theta = theta;
  config.pairing = ROPE_PAIRING_HALVES;
  config.angle = angle;
  rope_context* rope;
  check(rope_context_create(&config, &rope));
  static float cosines[SAMPLES][PAIRS], sines[SAMPLES][PAIRS];
  rope_cos_sin rows = ROPE_INIT(rope_cos_sin);
  rows.format = ROPE_COS_SIN_SPLIT;
  rows.dtype = ROPE_DTYPE_F32;
  rows.pairs = PAIRS;
  rows.batch = 1;
  rows.data = cosines;
  rows.sin = sines;
  const rope_positions at = {.kind = ROPE_POSITIONS_IDS_T, .ids_i64 = positions};
  check(rope_cos_sin_fill(rope, 1, SAMPLES, &at, &rows, NULL));
  rope_context_destroy(rope);

  double worst = 0;
  for (int s = 0; s < SAMPLES; ++s) {
    for (int i = 0; i < PAIRS; ++i) {
      worst = fmax(worst, fabs((double)(cosines[s][i] - true_cos[s][i])));
      worst = fmax(worst, fabs((double)(sines[s][i] - true_sin[s][i])));
    }
  }
  return worst;
}

int main(void) {
  puts("position,FLOAT32,EXACT,GGML");
  uint32_t state = 1;
  for (int64_t first = 1; first <= (int64_t)1 << 26; first *= 4) {
    static int64_t positions[SAMPLES];
    for (int s = 0; s < SAMPLES; ++s) {
      state = state * 1664525u + 1013904223u;
      positions[s] = first + (int64_t)((double)first * (state / 4294967296.0));
    }
    for (int i = 0; i < PAIRS; ++i) {
      const long double inv_freq = powl((long double)theta, -2.0L * i / HEAD_DIM);
      for (int s = 0; s < SAMPLES; ++s) {
        true_cos[s][i] = cosl((long double)positions[s] * inv_freq);
        true_sin[s][i] = sinl((long double)positions[s] * inv_freq);
      }
    }
    const double f32 = error_of(ROPE_ANGLE_FLOAT32, positions);
    const double exact = error_of(ROPE_ANGLE_EXACT, positions);
    printf("%ld,%.1e,%.1e,%.1e\n", (long)first, f32, exact, error_of(ROPE_ANGLE_GGML, positions));
    expect(exact < 1.5e-7, "EXACT keeps its bound");
    /* inv_freq is off by up to 2 units, and the product by half of one. */
    expect(f32 < 2.5 * 0x1p-23 * 2 * (double)first + 1.5e-7,
           "FLOAT32 is explained by its roundings");
  }
  return 0;
}
