/* Engines that keep a table of cos and sin can let librope fill it, in their own layout: here
 * vLLM's bf16 cos_sin_cache, the cos and sin of transformers, and freqs_cis of Meta's code. The
 * frequencies are then librope's (any scaling), and the rest of the engine stays as it is.
 *
 *     cc fill_cache.c $(pkg-config --cflags --libs librope) -lm && ./a.out */
#include <librope/rope.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LENGTH = 4096, DIM = 64, PAIRS = DIM / 2 };

static uint16_t vllm[LENGTH][DIM]; /* [max_position, rotary_dim]: cos then sin, bf16 */
static float hf_cos[LENGTH][DIM];  /* each value twice: for channel i and i + 32 */
static float hf_sin[LENGTH][DIM];
static float freqs_cis[LENGTH][PAIRS][2]; /* complex: cos + i sin */

static void check(rope_status status) {
  if (status == ROPE_OK) return;
  fprintf(stderr, "%s\n", rope_last_error());
  exit(1);
}

static float bf16_to_float(uint16_t x) {
  union {
    uint32_t bits;
    float value;
  } u = {(uint32_t)x << 16};
  return u.value;
}

int main(void) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = DIM;
  config.theta = 500000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope;
  check(rope_context_create(&config, &rope));

  const rope_positions all = {.kind = ROPE_POSITIONS_OFFSET}; /* 0, 1, 2, ... */
  rope_cos_sin rows = {.struct_size = sizeof rows,
                       .pairs = PAIRS,
                       .batch = 1,
                       .dtype = ROPE_DTYPE_BF16,
                       .data = vllm};
  rows.format = ROPE_COS_SIN_PACKED;
  check(rope_cos_sin_fill(rope, 1, LENGTH, &all, &rows, NULL));

  rows.dtype = ROPE_DTYPE_F32;
  rows.format = ROPE_COS_SIN_FULL_HALVES;
  rows.data = hf_cos;
  rows.sin = hf_sin;
  check(rope_cos_sin_fill(rope, 1, LENGTH, &all, &rows, NULL));

  rows.format = ROPE_COS_SIN_COMPLEX;
  rows.data = freqs_cis;
  rows.sin = NULL;
  check(rope_cos_sin_fill(rope, 1, LENGTH, &all, &rows, NULL));

  /* A table made for another head size would be overrun: it is refused. */
  rows.pairs = DIM;
  if (rope_cos_sin_fill(rope, 1, LENGTH, &all, &rows, NULL) == ROPE_OK) return 1;
  printf("refused: %s\n\n", rope_last_error());

  printf("position 100    vLLM (bf16)   transformers   Meta\n");
  for (int i = 0; i < 3; ++i) {
    printf("cos of pair %d   %11.6f   %12.6f   %8.6f\n", i, bf16_to_float(vllm[100][i]),
           hf_cos[100][i], freqs_cis[100][i][0]);
  }
  for (int p = 0; p < LENGTH; ++p) {
    for (int i = 0; i < PAIRS; ++i) {
      /* The angle as the default policy makes it: f32 position times f32 frequency. */
      const float inv_freq = (float)(1.0 / pow(500000, 2.0 * i / DIM));
      const double c = cos((float)p * inv_freq), s = sin((float)p * inv_freq);
      const float got_c = hf_cos[p][i], got_s = hf_sin[p][i];
      /* powf of a framework may differ from pow in the last bit: p * 2^-24 of leeway. */
      if (fabs(got_c - c) > 1e-6 + p * 1.2e-7 || fabs(got_s - s) > 1e-6 + p * 1.2e-7) return 1;
      if (hf_cos[p][PAIRS + i] != got_c || hf_sin[p][PAIRS + i] != got_s) return 1;
      if (freqs_cis[p][i][0] != got_c || freqs_cis[p][i][1] != got_s) return 1;
      if (fabsf(bf16_to_float(vllm[p][i]) - got_c) > 0x1p-9f) return 1;
      if (fabsf(bf16_to_float(vllm[p][PAIRS + i]) - got_s) > 0x1p-9f) return 1;
    }
  }
  rope_context_destroy(rope);
  return 0;
}
