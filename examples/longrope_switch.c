/* LongRoPE (Phi-3 and relatives): the frequencies change when a sequence grows beyond the length
 * that the model was first trained with. So a context has an end, which it tells
 * (rope_info.valid_below) and keeps (larger positions are an error). What to do with the keys that
 * are cached by then is the engine's choice, and both are shown:
 *
 *   leave them   as transformers does: cached keys keep the old frequencies;
 *   move them    as if the whole prompt had been long from the start, exact up to rounding: by one
 *                call of a context with both sets of frequencies, or undone with the old context
 *                and rotated with the new one, which rounds twice.
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

static rope_qk_args keys_at(int64_t first, int64_t count, float* keys) {
  return (rope_qk_args){
      .struct_size = sizeof(rope_qk_args),
      .batch = 1,
      .tokens = count,
      .k = {.data = keys, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = HEADS},
      .positions = {.kind = ROPE_POSITIONS_OFFSET, .offset = first}};
}

static rope_status rotate(const rope_context* rope, rope_operation operation, int64_t first,
                          int64_t count, float* keys) {
  rope_qk_args args = keys_at(first, count, keys);
  args.operation = operation;
  return rope_apply_qk(rope, &args);
}

/* Keys of positions 0 to count - 1 go from the first set of frequencies to the second. */
static rope_status rerotate(const rope_context* both, int64_t count, float* keys) {
  static const int32_t old_set = 0, new_set = 1; /* of the one sequence */
  rope_qk_args args = keys_at(0, count, keys);
  rope_positions old = args.positions;
  old.freq_sets = &old_set;
  const rope_fused fused = {.struct_size = sizeof fused, .from_positions = &old};
  args.operation = ROPE_OPERATION_REROTATE;
  args.positions.freq_sets = &new_set;
  args.fused = &fused;
  return rope_apply_qk(both, &args);
}

static double largest_difference(const float* a, const float* b, int64_t tokens) {
  double worst = 0;
  for (int64_t i = 0; i < tokens * ROW; ++i) worst = fmax(worst, fabs((double)a[i] - b[i]));
  return worst;
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

  rope_config shorter = config, longer = config;
  shorter.seq_len = 1;
  rope_context *before, *after, *both;
  check(rope_context_create(&shorter, &before));
  rope_info info = ROPE_INIT(rope_info);
  check(rope_context_info(before, 0, &info));
  const int64_t switch_at = info.valid_below;
  longer.seq_len = switch_at;
  check(rope_context_create(&longer, &after));
  const rope_config* const sets[] = {&shorter, &longer};
  check(rope_context_create_sets(sets, 2, &both));
  printf("frequencies change at %d tokens\n", (int)switch_at);

  static float keys[TOKENS * ROW], cache[TOKENS * ROW], undone[TOKENS * ROW], direct[TOKENS * ROW];
  for (int i = 0; i < TOKENS * ROW; ++i) keys[i] = (float)sin(0.37 * i);
  memcpy(cache, keys, sizeof cache);
  memcpy(direct, keys, sizeof direct);

  const rope_context* rope = before;
  for (int64_t token = 0; token < TOKENS; ++token) { /* decoding: one key at a time */
    const int64_t length = token + 1;
    if (length == switch_at) {
      memcpy(undone, cache, sizeof undone);
      /* Move the cached keys. An engine that leaves them skips this line. */
      check(rerotate(both, token, cache));
      rope = after;
    }
    check(rotate(rope, ROPE_OPERATION_FORWARD, token, 1, cache + token * ROW));
  }
  check(rotate(after, ROPE_OPERATION_FORWARD, 0, TOKENS, direct)); /* long from the start */
  const double moved = largest_difference(cache, direct, TOKENS);
  printf("moved keys differ from those of a prompt that was long at once by at most %.1e\n", moved);

  /* The same by the two contexts. */
  const int64_t cached = switch_at - 1;
  check(rotate(before, ROPE_OPERATION_INVERSE, 0, cached, undone));
  check(rotate(after, ROPE_OPERATION_FORWARD, 0, cached, undone));
  const double rotated_again = largest_difference(undone, direct, cached);
  printf("those that were undone and rotated again, by %.1e\n", rotated_again);

  /* The old context does not serve positions beyond its end by mistake. */
  const int refused = rotate(before, ROPE_OPERATION_FORWARD, cached, 1, cache) != ROPE_OK;
  printf("refused: %s\n", rope_last_error());
  rope_context_destroy(before);
  rope_context_destroy(after);
  rope_context_destroy(both);
  /* rope.h: three rotations, and cos and sin of the move, of pairs of up to 2 sqrt(2) */
  const double allowed = (3 * 4 * ldexp(1, -24) + 4e-7) * 2 * sqrt(2);
  return !(moved < allowed && rotated_again < allowed && refused);
}
