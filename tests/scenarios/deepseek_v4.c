/* DeepSeek-V4: the last 64 of 512 channels turn, interleaved; K is V, so the attention output is
 * turned back. */
#include "scenario.h"
enum { T = 3, H = 2, D = 512, R = 64 };
int main(void) {
  float *q = random_floats(T * H * D), *q0 = copy_of(q, T * H * D), *k = random_floats(T * D);
  int32_t positions[T] = {70000, 70001, 70002};
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = D;
  config.rotary_dim = R;
  config.rotary_offset = D - R;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_INTERLEAVED;
  config.angle = ROPE_ANGLE_EXACT;
  rope_context* rope;
  must_succeed(rope_context_create(&config, &rope));
  rope_qk_args args = {
      .struct_size = sizeof args,
      .batch = 1,
      .tokens = T,
      .q = {.data = q, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = H},
      .k = {.data = k, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = 1},
      .positions = {.kind = ROPE_POSITIONS_IDS_T, .ids_i32 = positions}};
  must_succeed(rope_apply_qk(rope, &args));
  double want[D];
  for (int t = 0; t < T; ++t)
    for (int h = 0; h < H; ++h) {
      rotate_head(q0 + (t * H + h) * D, want, D, D - R, R, ADJACENT, ADJACENT,
                  angles_at(10000, R, positions[t]), 1);
      must_be_close(q + (t * H + h) * D, want, D, 2e-6);
    }
  float* output = q; /* stands for the attention output [T, H, D] */
  rope_qk_args undo = {
      .struct_size = sizeof undo,
      .batch = 1,
      .tokens = T,
      .operation = ROPE_OPERATION_INVERSE,
      .q = {.data = output, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = H},
      .positions = args.positions};
  must_succeed(rope_apply_qk(rope, &undo));
  for (int i = 0; i < T * H * D; ++i) must_be(fabsf(output[i] - q0[i]) < 2e-6f);
  rope_context_destroy(rope);
  puts("ok");
  return 0;
}
