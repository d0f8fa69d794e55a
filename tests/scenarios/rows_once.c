/* Decode with cos and sin computed once per step and used by all layers. */
#include "scenario.h"
enum { LAYERS = 32, HQ = 8, HK = 2, D = 128 };
int main(void) {
  float *q = random_floats(HQ * D), *k = random_floats(HK * D), *q1 = copy_of(q, HQ * D),
        *k1 = copy_of(k, HK * D);
  int64_t position = 12345;
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = D;
  config.theta = 500000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope;
  must_succeed(rope_context_create(&config, &rope));
  float row[D];
  rope_cos_sin rows = {.struct_size = sizeof rows,
                       .format = ROPE_COS_SIN_PACKED,
                       .dtype = ROPE_DTYPE_F32,
                       .pairs = D / 2,
                       .batch = 1,
                       .data = row};
  rope_positions pos = {.kind = ROPE_POSITIONS_OFFSET, .offset = position};
  must_succeed(rope_cos_sin_fill(rope, 1, 1, &pos, &rows, NULL));
  rope_qk_args args = {
      .struct_size = sizeof args,
      .batch = 1,
      .tokens = 1,
      .cos_sin = &rows,
      .q = {.data = q, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = HQ},
      .k = {.data = k, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = HK}};
  for (int layer = 0; layer < LAYERS; ++layer) must_succeed(rope_apply_qk(rope, &args));
  for (int layer = 0; layer < LAYERS; ++layer)
    must_succeed(rope_apply_thd(rope, ROPE_DTYPE_F32, 1, &position, q1, HQ, k1, HK));
  must_be(!memcmp(q, q1, HQ * D * 4) && !memcmp(k, k1, HK * D * 4)); /* the same bits */
  rope_context_destroy(rope);
  puts("ok");
  return 0;
}
