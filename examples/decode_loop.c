/* An engine's loop: prefill a prompt, then decode token by token. New keys are projected straight
 * into the KV cache and rotated there, once; keys that are already in it stay as they are. Scores
 * then depend on distances only, which is what the program checks.
 *
 *     cc decode_loop.c $(pkg-config --cflags --libs librope) -lm && ./a.out */
#include <librope/rope.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 4, Q_HEADS = 8, K_HEADS = 2, DIM = 64, CONTEXT = 64, PROMPT = 20, STEPS = 12 };

static float q[PROMPT][Q_HEADS][DIM];
static float k_cache[LAYERS][CONTEXT][K_HEADS][DIM];

/* Stands for the projections of a layer: every token of a layer has the same q and the same k, so
 * that scores differ by position alone. */
static float weight(int layer, int head, int channel) {
  return sinf((float)(1 + layer * 31 + head * 7 + channel * 3));
}
static void project(int layer, int past, int tokens) {
  for (int t = 0; t < tokens; ++t) {
    for (int c = 0; c < DIM; ++c) {
      for (int h = 0; h < Q_HEADS; ++h) q[t][h][c] = weight(layer, h, c);
      for (int h = 0; h < K_HEADS; ++h) k_cache[layer][past + t][h][c] = weight(layer, 50 + h, c);
    }
  }
}

static double score(const float* query, const float* key) {
  double sum = 0;
  for (int c = 0; c < DIM; ++c) sum += (double)query[c] * key[c];
  return sum;
}

int main(void) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = DIM;
  config.theta = 500000;
  config.pairing = ROPE_PAIRING_INTERLEAVED; /* as in a GGUF of Llama */
  rope_context* rope;
  if (rope_context_create(&config, &rope) != ROPE_OK) {
    fprintf(stderr, "%s\n", rope_last_error());
    return 1;
  }

  double at_distance_5[LAYERS] = {0}, worst = 0;
  int past = 0;
  for (int step = 0; step <= STEPS; ++step) {
    const int tokens = step == 0 ? PROMPT : 1;
    /* Kept over the layers; only the address of the keys changes. */
    rope_qk_args args = {
        .struct_size = sizeof args,
        .batch = 1,
        .tokens = tokens,
        .q = {.data = q, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = Q_HEADS},
        .k = {.dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = K_HEADS},
        .positions = {.kind = ROPE_POSITIONS_OFFSET, .offset = past}};
    for (int layer = 0; layer < LAYERS; ++layer) {
      project(layer, past, tokens);
      args.k.data = k_cache[layer][past];
      if (rope_apply_qk(rope, &args) != ROPE_OK) {
        fprintf(stderr, "%s\n", rope_last_error());
        return 1;
      }
      /* Attention of the newest token to the key five tokens back. */
      const double s = score(q[tokens - 1][0], k_cache[layer][past + tokens - 1 - 5][0]);
      if (step == 0) at_distance_5[layer] = s;
      worst = fmax(worst, fabs(s - at_distance_5[layer]));
    }
    past += tokens;
  }
  printf("%d tokens of prompt and %d decoded, %d layers\n", PROMPT, STEPS, LAYERS);
  printf("layer 0, score at distance 5: %.6f at position %d\n", at_distance_5[0], PROMPT - 1);
  printf("it changes by at most %.1e up to position %d\n", worst, past - 1);
  rope_context_destroy(rope);
  return worst < 1e-4 ? 0 : 1;
}
