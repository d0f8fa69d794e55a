/* A bf16 model whose framework hands over its own cos and sin [1, tokens, D]: the same bits as
 * eager PyTorch. */
#include "scenario.h"
enum { B = 2, T = 5, H = 3, D = 64 };
int main(void) {
  static unsigned short q[B][H][T][D], q0[B][H][T][D], cosv[T][D], sinv[T][D];
  for (int i = 0; i < B * H * T * D; ++i) (&q[0][0][0][0])[i] = to_bf16(random_float());
  memcpy(q0, q, sizeof q);
  for (int t = 0; t < T; ++t)
    for (int i = 0; i < D; ++i) {
      double an = angles_at(10000, D, 1000 + t)[i % (D / 2)];
      cosv[t][i] = to_bf16((float)cos(an));
      sinv[t][i] = to_bf16((float)sin(an));
    }
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = D;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  config.rounding = ROPE_ROUNDING_EAGER;
  rope_context* rope;
  must_succeed(rope_context_create(&config, &rope));
  rope_cos_sin rows = {.struct_size = sizeof rows,
                       .format = ROPE_COS_SIN_FULL_HALVES,
                       .dtype = ROPE_DTYPE_BF16,
                       .pairs = D / 2,
                       .batch = 1,
                       .data = cosv,
                       .sin = sinv};
  rope_qk_args args = {
      .struct_size = sizeof args,
      .batch = B,
      .tokens = T,
      .cos_sin = &rows,
      .q = {.data = q, .dtype = ROPE_DTYPE_BF16, .layout = ROPE_LAYOUT_BHSD, .heads = H}};
  must_succeed(rope_apply_qk(rope, &args));
  for (int b = 0; b < B; ++b)
    for (int h = 0; h < H; ++h)
      for (int t = 0; t < T; ++t)
        for (int i = 0; i < D; ++i) {
          float rot =
              i < D / 2 ? -from_bf16(q0[b][h][t][i + D / 2]) : from_bf16(q0[b][h][t][i - D / 2]);
          volatile float m1 = from_bf16(q0[b][h][t][i]) * from_bf16(cosv[t][i]),
                         m2 = rot * from_bf16(sinv[t][i]);
          volatile float s = from_bf16(to_bf16(m1)) + from_bf16(to_bf16(m2));
          must_be(q[b][h][t][i] == to_bf16(s));
        }
  rows.batch = 0; /* B = 2: shared or per row must be said */
  must_fail(ROPE_ERROR_INVALID_ARGUMENT, rope_apply_qk(rope, &args));
  rope_context_destroy(rope);
  puts("ok");
  return 0;
}
