/* The shortest use: contiguous queries and keys, an array of positions.
 *
 *     cc quickstart.c $(pkg-config --cflags --libs librope) -lm */
#include <librope/rope.h>

#include <math.h>
#include <stdio.h>

enum { TOKENS = 3, Q_HEADS = 4, K_HEADS = 2, DIM = 64 };

int main(void) {
  /* Once per model: what its config.json says. */
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = DIM;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES; /* transformers' weights; GGUF and Meta: INTERLEAVED */
  rope_context* rope;
  if (rope_context_create(&config, &rope) != ROPE_OK) {
    fprintf(stderr, "%s\n", rope_last_error());
    return 1;
  }

  /* Every layer of every step: rotate q and k, in place. */
  static float q[TOKENS][Q_HEADS][DIM], k[TOKENS][K_HEADS][DIM];
  const int64_t positions[TOKENS] = {10, 11, 12};
  for (int t = 0; t < TOKENS; ++t) {
    for (int h = 0; h < Q_HEADS; ++h) q[t][h][0] = 1; /* the pair (1, 0) */
    for (int h = 0; h < K_HEADS; ++h) k[t][h][0] = 1;
  }
  if (rope_apply_thd(rope, ROPE_DTYPE_F32, TOKENS, positions, q, Q_HEADS, k, K_HEADS) != ROPE_OK) {
    fprintf(stderr, "%s\n", rope_last_error());
    return 1;
  }

  /* Pair 0 turns by one radian per position. */
  printf("on %s\nposition   channel 0   cos(position)\n", rope_context_backend(rope));
  int wrong = 0;
  for (int t = 0; t < TOKENS; ++t) {
    const double want = cos((double)positions[t]);
    printf("%8d   %9.6f   %13.6f\n", (int)positions[t], q[t][0][0], want);
    if (fabs(q[t][Q_HEADS - 1][0] - want) > 1e-6 || fabs(k[t][0][0] - want) > 1e-6) wrong = 1;
  }
  rope_context_destroy(rope);
  return wrong;
}
