/* ChatGLM2: sequence-first [tokens, batch, heads, head_dim], half of the head rotated, interleaved
 * pairs. */
#include "check.h"
enum { B = 2, T = 4, H = 3, D = 128, R = 64 };
int main(void) {
  float *q = randoms(B * T * H * D), *q0 = copyf(q, B * T * H * D);
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = D;
  config.rotary_dim = R;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_INTERLEAVED;
  rope_context* rope;
  OK(rope_context_create(&config, &rope));
  rope_qk_args args = {
      .struct_size = sizeof args,
      .batch = B,
      .tokens = T,
      .q = {.data = q, .dtype = ROPE_DTYPE_F32, .heads = H, .layout = ROPE_LAYOUT_SBHD},
      .positions = {.kind = ROPE_POSITIONS_OFFSET}};
  OK(rope_apply_qk(rope, &args));
  double want[D];
  for (int t = 0; t < T; ++t)
    for (int b = 0; b < B; ++b)
      for (int h = 0; h < H; ++h) {
        long at = ((t * B + b) * H + h) * D;
        ref_head(q0 + at, want, D, 0, R, 1, 1, angles(10000, R, t), 1);
        CHECK_HEAD(q + at, want, D, 1e-6);
      }
  rope_context_destroy(rope);
  puts("ok");
  return 0;
}
