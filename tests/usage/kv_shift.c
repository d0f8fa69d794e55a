/* Context shift: the oldest tokens are dropped, the kept keys move down by a per-cell delta,
 * without the attention factor. */
#include "check.h"
enum { CELLS = 32, DROP = 8, H = 2, D = 64, ROW = H * D };
int main(void) {
  float *raw = randoms(CELLS * ROW), *cache = copyf(raw, CELLS * ROW),
        *want = copyf(raw + DROP * ROW, (CELLS - DROP) * ROW);
  int32_t delta[CELLS];
  for (int i = 0; i < CELLS; ++i) delta[i] = -DROP;
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = D;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  config.angle = ROPE_ANGLE_EXACT;
  config.scaling = ROPE_SCALING_YARN;
  config.factor = 8;
  config.original_max_position_embeddings = 4096;
  rope_context* rope;
  OK(rope_context_create(&config, &rope));
  int64_t p[CELLS];
  for (int i = 0; i < CELLS; ++i) p[i] = i;
  OK(rope_apply_thd(rope, ROPE_F32, CELLS, p, NULL, 0, cache, H));
  OK(rope_apply_thd(rope, ROPE_F32, CELLS - DROP, p, NULL, 0, want, H));
  rope_qk_args shift = {
      .struct_size = sizeof shift,
      .operation = ROPE_SHIFT,
      .batch = 1,
      .tokens = CELLS - DROP,
      .k = {.data = cache + DROP * ROW, .dtype = ROPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = H},
      .positions = {.kind = ROPE_POSITIONS_IDS_T, .ids_i32 = delta + DROP}};
  OK(rope_apply_qk(rope, &shift));
  for (int i = 0; i < (CELLS - DROP) * ROW; ++i)
    CHECK(fabsf(cache[DROP * ROW + i] - want[i]) < 1e-6f);
  rope_context_destroy(rope);
  puts("ok");
  return 0;
}
