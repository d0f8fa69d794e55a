/* ChatGLM2: sequence-first [tokens, batch, heads, head_dim], half of the head rotated, interleaved
 * pairs. */
#include "scenario.h"
enum { B = 2, T = 4, H = 3, D = 128, R = 64 };
int main(void) {
  float *q = random_floats(B * T * H * D), *q0 = copy_of(q, B * T * H * D);
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = D;
  config.rotary_dim = R;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_INTERLEAVED;
  rope_context* rope;
  must_succeed(rope_context_create(&config, &rope));
  rope_qk_args args = {
      .struct_size = sizeof args,
      .batch = B,
      .tokens = T,
      .q = {.data = q, .dtype = ROPE_DTYPE_F32, .heads = H, .layout = ROPE_LAYOUT_SBHD},
      .positions = {.kind = ROPE_POSITIONS_OFFSET}};
  must_succeed(rope_apply_qk(rope, &args));
  double want[D];
  for (int t = 0; t < T; ++t)
    for (int b = 0; b < B; ++b)
      for (int h = 0; h < H; ++h) {
        long at = ((t * B + b) * H + h) * D;
        rotate_head(q0 + at, want, D, 0, R, ADJACENT, ADJACENT, angles_at(10000, R, t), 1);
        must_be_close(q + at, want, D, 1e-6);
      }
  rope_context_destroy(rope);
  puts("ok");
  return 0;
}
