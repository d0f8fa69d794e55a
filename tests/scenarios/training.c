/* Training: forward out of place (x is kept), gradient in place; with a YaRN attention factor the
 * gradient is not the inverse. */
#include "scenario.h"
enum { B = 2, T = 6, H = 2, D = 32, N = B * T * H * D };
int main(void) {
  float *x = random_floats(N), *y = allocate(N * 4), *g = random_floats(N), *g0 = copy_of(g, N);
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = D;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  config.scaling = ROPE_SCALING_YARN;
  config.factor = 32;
  config.original_max_position_embeddings = 4096;
  rope_context* rope;
  must_succeed(rope_context_create(&config, &rope));
  rope_qk_args backward = {
      .struct_size = sizeof backward,
      .operation = ROPE_OPERATION_BACKWARD,
      .batch = B,
      .tokens = T,
      .q = {.data = g, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = H},
      .positions = {.kind = ROPE_POSITIONS_OFFSET}};
  rope_qk_args forward = backward;
  forward.operation = ROPE_OPERATION_FORWARD;
  forward.q.data = x;
  forward.q_out = forward.q;
  forward.q_out.data = y;
  must_succeed(rope_apply_qk(rope, &forward));
  must_succeed(rope_apply_qk(rope, &backward));
  double lhs = 0, rhs = 0; /* <g, J x> = <J^T g, x> */
  for (int i = 0; i < N; ++i) {
    lhs += (double)g0[i] * y[i];
    rhs += (double)g[i] * x[i];
  }
  must_be(fabs(lhs - rhs) < 1e-5);
  backward.q.data = y;
  backward.operation = ROPE_OPERATION_INVERSE;
  must_succeed(rope_apply_qk(rope, &backward));
  for (int i = 0; i < N; ++i) must_be(fabsf(y[i] - x[i]) < 1e-5f);
  rope_context_destroy(rope);
  puts("ok");
  return 0;
}
