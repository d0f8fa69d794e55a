/* Context shift: the cache is full, the oldest tokens are dropped, and the kept keys move down to
 * the freed positions without being computed again. SHIFT rotates keys that are already rotated.
 *
 * It needs ROPE_ANGLE_EXACT: there, angles add up. Under the default FLOAT32 each angle carries the
 * rounding of a float, and a moved key differs from one rotated at its new position. Both are
 * measured here. */
#include <librope/rope.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { CELLS = 4096, DROP = 1024, HEADS = 2, DIM = 64, ROW = HEADS * DIM };

static void check(rope_status status) {
  if (status == ROPE_OK) return;
  fprintf(stderr, "%s\n", rope_last_error());
  exit(1);
}

static rope_qk_args keys(float* k, int64_t tokens) {
  rope_qk_args args = {
      .struct_size = sizeof args,
      .batch = 1,
      .tokens = tokens,
      .k = {.data = k, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = HEADS},
      .positions = {.kind = ROPE_POSITIONS_OFFSET}};
  return args;
}

/* The largest difference between shifted keys and keys rotated at their new positions. */
static double shift_error(rope_angle angle, int64_t start) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = DIM;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  config.angle = angle;
  config.scaling = ROPE_SCALING_YARN; /* has an attention factor: SHIFT leaves it as it is */
  config.factor = 8;
  config.original_max_position_embeddings = 4096;
  rope_context* rope;
  check(rope_context_create(&config, &rope));

  static float cache[CELLS * ROW], want[(CELLS - DROP) * ROW];
  unsigned state = 1;
  for (int i = 0; i < CELLS * ROW; ++i) {
    state = state * 1664525u + 1013904223u;
    cache[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    if (i >= DROP * ROW) want[i - DROP * ROW] = cache[i];
  }
  rope_qk_args rotate = keys(cache, CELLS);
  rotate.positions.offset = start;
  check(rope_apply_qk(rope, &rotate)); /* the cache as decoding filled it */

  /* Drop the first cells, move the others, all by one distance: an id whose strides are 0. An
   * engine that moves only some has IDS_T, one distance per cell. */
  const int32_t distance = -DROP;
  rope_qk_args shift = keys(cache + DROP * ROW, CELLS - DROP);
  shift.operation = ROPE_OPERATION_SHIFT;
  shift.positions.kind = ROPE_POSITIONS_IDS_STRIDED;
  shift.positions.ids_i32 = &distance;
  check(rope_apply_qk(rope, &shift));

  rope_qk_args direct = keys(want, CELLS - DROP); /* computed anew at the new positions */
  direct.positions.offset = start;
  check(rope_apply_qk(rope, &direct));
  rope_context_destroy(rope);
  double worst = 0;
  for (int i = 0; i < (CELLS - DROP) * ROW; ++i) {
    const double difference = fabs((double)cache[DROP * ROW + i] - want[i]);
    if (!(difference <= worst)) worst = difference;
  }
  return worst;
}

int main(void) {
  const int64_t starts[] = {0, 65536, 1048576};
  int good = 1;
  printf("%d keys moved down by %d: largest error of a channel\n", CELLS - DROP, DROP);
  printf("first position      EXACT    FLOAT32\n");
  for (int i = 0; i < 3; ++i) {
    const double exact = shift_error(ROPE_ANGLE_EXACT, starts[i]);
    printf("%14d   %8.1e   %8.1e\n", (int)starts[i], exact,
           shift_error(ROPE_ANGLE_FLOAT32, starts[i]));
    good = good && exact < 2e-6;
  }
  return !good;
}
