/* One buffer [tokens, (h_q + 2 h_kv) * d] from a fused QKV projection, bf16, rotated in place. */
#include "scenario.h"
enum { T = 9, HQ = 6, HK = 2, D = 64, ROW = (HQ + 2 * HK) * D };
int main(void) {
  float* f = random_floats(T * ROW);
  unsigned short* qkv = allocate(T * ROW * 2);
  for (int i = 0; i < T * ROW; ++i) qkv[i] = to_bf16(f[i]), f[i] = from_bf16(qkv[i]);
  int32_t positions[T];
  for (int t = 0; t < T; ++t) positions[t] = 100 + 3 * t;
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = D;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope;
  must_succeed(rope_context_create(&config, &rope));
  rope_qk_args args = {.struct_size = sizeof args,
                       .batch = 1,
                       .tokens = T,
                       .q = {.data = qkv,
                             .dtype = ROPE_DTYPE_BF16,
                             .heads = HQ,
                             .layout = ROPE_LAYOUT_STRIDED,
                             .stride_token = ROW,
                             .stride_head = D},
                       .positions = {.kind = ROPE_POSITIONS_IDS_T, .ids_i32 = positions}};
  args.k = args.q;
  args.k.data = qkv + HQ * D;
  args.k.heads = HK;
  must_succeed(rope_apply_qk(rope, &args));
  double want[D];
  for (int t = 0; t < T; ++t)
    for (int h = 0; h < HQ + 2 * HK; ++h) {
      rotate_head(f + t * ROW + h * D, want, D, 0, h < HQ + HK ? D : 0, HALVES, HALVES,
                  angles_at(10000, D, positions[t]), 1);
      float got[D];
      for (int i = 0; i < D; ++i) got[i] = from_bf16(qkv[t * ROW + h * D + i]);
      must_be_close(got, want, D, h < HQ + HK ? 0.01 : 1e-30); /* v is untouched */
    }
  /* what happens to a row that overlaps: k begins inside q */
  args.k.data = qkv + (HQ - 1) * D;
  must_fail(ROPE_ERROR_INVALID_ARGUMENT, rope_apply_qk(rope, &args));
  args.k = args.q;
  must_fail(ROPE_ERROR_INVALID_ARGUMENT,
            rope_apply_qk(rope, &args)); /* q given twice: would rotate twice */
  rope_context_destroy(rope);
  puts("ok");
  return 0;
}
