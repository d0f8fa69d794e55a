/* LongRoPE (Phi-3 and relatives): the frequencies change when a sequence grows beyond the length
 * that the model was first trained with. So a context has an end, which it tells
 * (rope_info.valid_below) and keeps (larger positions are an error). What to do with the keys that
 * are cached by then is the engine's choice, and both are shown:
 *
 *   leave them   as transformers does: cached keys keep the old frequencies;
 *   move them    as if the whole prompt had been long from the start: undo the rotation with the
 * old context, apply that of the new one. Exact up to the rounding of the cache.
 *
 * Dynamic NTK works alike, but changes with every token beyond max_position_embeddings: 16-bit keys
 * that are moved each time wear out (rope_config_next_change tells how fast), so there the cache is
 * f32 or holds keys before the rotation.
 *
 *     cc longrope_switch.c $(pkg-config --cflags --libs librope) -lm && ./a.out */
#include <librope/rope.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ORIGINAL = 64, TOKENS = 80, HEADS = 2, DIM = 32, PAIRS = DIM / 2, ROW = HEADS * DIM };

static void check(rope_status status) {
  if (status == ROPE_OK) return;
  fprintf(stderr, "%s\n", rope_last_error());
  exit(1);
}

static rope_status rotate(const rope_context* rope, rope_operation operation, int64_t first,
                          int64_t count, float* keys) {
  const rope_qk_args args = {
      .struct_size = sizeof args,
      .operation = operation,
      .batch = 1,
      .tokens = count,
      .k = {.data = keys, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = HEADS},
      .positions = {.kind = ROPE_POSITIONS_OFFSET, .offset = first}};
  return rope_apply_qk(rope, &args);
}

int main(void) {
  double short_factor[PAIRS], long_factor[PAIRS];
  for (int i = 0; i < PAIRS; ++i) {
    short_factor[i] = 1 + 0.02 * i;
    long_factor[i] = 1 + 0.9 * i;
  }
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = DIM;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  config.scaling = ROPE_SCALING_LONGROPE;
  config.short_factor = short_factor;
  config.long_factor = long_factor;
  config.table_length = PAIRS;
  config.original_max_position_embeddings = ORIGINAL;
  config.max_position_embeddings = 4096;

  config.seq_len = 1; /* a short sequence so far */
  rope_context *before, *after;
  check(rope_context_create(&config, &before));
  rope_info info = ROPE_INIT(rope_info);
  check(rope_context_info(before, 0, &info));
  const int64_t switch_at = info.valid_below;
  config.seq_len = switch_at;
  check(rope_context_create(&config, &after));
  printf("frequencies change at %d tokens\n", (int)switch_at);

  static float keys[TOKENS * ROW], cache[TOKENS * ROW], direct[TOKENS * ROW];
  for (int i = 0; i < TOKENS * ROW; ++i) keys[i] = (float)sin(0.37 * i);
  memcpy(cache, keys, sizeof cache);
  memcpy(direct, keys, sizeof direct);

  const rope_context* rope = before;
  for (int64_t token = 0; token < TOKENS; ++token) { /* decoding: one key at a time */
    const int64_t length = token + 1;
    if (length == switch_at) {
      /* Move the cached keys. An engine that leaves them skips these two lines. */
      check(rotate(before, ROPE_OPERATION_INVERSE, 0, token, cache));
      check(rotate(after, ROPE_OPERATION_FORWARD, 0, token, cache));
      rope = after;
    }
    check(rotate(rope, ROPE_OPERATION_FORWARD, token, 1, cache + token * ROW));
  }
  check(rotate(after, ROPE_OPERATION_FORWARD, 0, TOKENS, direct)); /* long from the start */
  double worst = 0;
  for (int i = 0; i < TOKENS * ROW; ++i) worst = fmax(worst, fabs((double)cache[i] - direct[i]));
  printf("moved keys differ from those of a prompt that was long at once by at most %.1e\n", worst);

  /* The old context does not serve positions beyond its end by mistake. */
  const int refused = rotate(before, ROPE_OPERATION_FORWARD, switch_at - 1, 1, cache) != ROPE_OK;
  printf("refused: %s\n", rope_last_error());
  rope_context_destroy(before);
  rope_context_destroy(after);
  return !(worst < 2e-6 && refused);
}
