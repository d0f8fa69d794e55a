/* Cosines and sines once per step, for all layers that share a context: for guides/engine.md. */
#include <string.h>

#include "check.h"

enum { LAYERS = 32, TOKENS = 3, Q_HEADS = 8, KV_HEADS = 2, HEAD_DIM = 128, PAIRS = HEAD_DIM / 2 };

static float q[TOKENS][Q_HEADS][HEAD_DIM], k[TOKENS][KV_HEADS][HEAD_DIM];
static float by_positions[TOKENS][Q_HEADS][HEAD_DIM];

int main(void) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = HEAD_DIM;
  config.theta = 500000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope;
  check(rope_context_create(&config, &rope));
  fill(q[0][0], sizeof q / sizeof(float));
  memcpy(by_positions, q, sizeof q);
  const int64_t positions[TOKENS] = {12345, 12346, 12347};
  for (int layer = 0; layer < LAYERS; ++layer) {
    check(rope_apply_thd(rope, ROPE_DTYPE_F32, TOKENS, positions, by_positions, Q_HEADS, NULL, 0));
  }

  /* Once per step: */
  float values[TOKENS][2 * PAIRS]; /* per token the cosines, then the sines */
  rope_cos_sin rows = ROPE_INIT(rope_cos_sin);
  rows.format = ROPE_COS_SIN_PACKED;
  rows.dtype = ROPE_DTYPE_F32;
  rows.pairs = PAIRS;
  rows.batch = 1;
  rows.data = values;
  rope_positions at = {.kind = ROPE_POSITIONS_IDS_T, .ids_i64 = positions};
  check(rope_cos_sin_fill(rope, 1, TOKENS, &at, &rows, NULL));

  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = 1;
  args.tokens = TOKENS;
  args.cos_sin = &rows; /* instead of positions */
  args.q.dtype = args.k.dtype = ROPE_DTYPE_F32;
  args.q.layout = args.k.layout = ROPE_LAYOUT_BSHD;
  args.q.heads = Q_HEADS;
  args.k.heads = KV_HEADS;
  for (int layer = 0; layer < LAYERS; ++layer) {
    args.q.data = q; /* of this layer */
    args.k.data = k;
    check(rope_apply_qk(rope, &args));
  }

  expect(memcmp(q, by_positions, sizeof q) == 0, "rows of f32 give the bits of positions");
  rope_context_destroy(rope);
  puts("rows once per step: the same bits");
  return 0;
}
