/* transformers: q, k are [batch, heads, tokens, head_dim]; results go to new tensors; position_ids
 * [batch, tokens] int64. */
#include "scenario.h"
enum { B = 2, T = 5, HQ = 4, HK = 2, D = 64 };
int main(void) {
  float *q = random_floats(B * T * HQ * D), *k = random_floats(B * T * HK * D);
  float *q_new = allocate(sizeof(float) * B * T * HQ * D),
        *k_new = allocate(sizeof(float) * B * T * HK * D);
  int64_t position_ids[B * T] = {0, 1, 2, 3,  4,
                                 7, 8, 9, 10, 11}; /* the second row is left-padded elsewhere */
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = D;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope;
  must_succeed(rope_context_create(&config, &rope));
  rope_qk_args args = {
      .struct_size = sizeof args,
      .batch = B,
      .tokens = T,
      .q = {.data = q, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BHSD, .heads = HQ},
      .k = {.data = k, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BHSD, .heads = HK},
      .positions = {.kind = ROPE_POSITIONS_IDS_BT, .ids_i64 = position_ids}};
  args.q_out = args.q;
  args.q_out.data = q_new;
  args.k_out = args.k;
  args.k_out.data = k_new;
  must_succeed(rope_apply_qk(rope, &args));
  double want[D];
  for (int b = 0; b < B; ++b)
    for (int h = 0; h < HQ; ++h)
      for (int t = 0; t < T; ++t) {
        rotate_head(q + ((b * HQ + h) * T + t) * D, want, D, 0, D, HALVES, HALVES,
                    angles_at(10000, D, (double)position_ids[b * T + t]), 1);
        must_be_close(q_new + ((b * HQ + h) * T + t) * D, want, D, 2e-6);
      }
  /* a failed allocation must not turn into "in place" */
  args.q_out.data = NULL;
  must_fail(ROPE_ERROR_INVALID_ARGUMENT, rope_apply_qk(rope, &args));
  rope_context_destroy(rope);
  puts("ok");
  return 0;
}
