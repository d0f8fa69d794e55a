/* Gemma 4 vision: the head is two blocks, x and y; halves inside each block; integer (x, y) per
 * patch. */
#include "scenario.h"
enum { T = 6, H = 2, D = 64 };
int main(void) {
  float *q = random_floats(T * H * D), *q0 = copy_of(q, T * H * D);
  int32_t xy[T][2] = {{0, 0}, {1, 0}, {2, 0}, {0, 1}, {1, 1}, {2, 1}};
  double inv_freq[D / 2]; /* the same frequencies for each axis */
  for (int i = 0; i < D / 2; ++i) inv_freq[i] = pow(100, -4.0 * (i % (D / 4)) / D);
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = D;
  config.pairing = ROPE_PAIRING_HALVES_PER_AXIS;
  config.axes = 2;
  config.mrope_section[0] = D / 4;
  config.mrope_section[1] = D / 4;
  config.inv_freq = inv_freq;
  config.table_length = D / 2;
  rope_context* rope;
  must_succeed(rope_context_create(&config, &rope));
  rope_qk_args args = {
      .struct_size = sizeof args,
      .batch = 1,
      .tokens = T,
      .q = {.data = q, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = H},
      .positions = {.kind = ROPE_POSITIONS_IDS_BTA, .ids_i32 = xy[0]}};
  must_succeed(rope_apply_qk(rope, &args));
  double want[D];
  for (int t = 0; t < T; ++t)
    for (int h = 0; h < H; ++h)
      for (int a = 0; a < 2; ++a) {
        rotate_head(q0 + (t * H + h) * D + a * D / 2, want, D / 2, 0, D / 2, HALVES, HALVES,
                    angles_at(100, D / 2, xy[t][a]), 1);
        must_be_close(q + (t * H + h) * D + a * D / 2, want, D / 2, 2e-6);
      }
  rope_context_destroy(rope);
  puts("ok");
  return 0;
}
