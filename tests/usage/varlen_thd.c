/* Packed variable-length batch (thd): cu_seqlens, and each sequence continues at its own cache
 * length. */
#include "check.h"
enum { SEQS = 3, T = 11, HQ = 4, HK = 1, D = 80 };
int main(void) {
  int32_t cu_seqlens[SEQS + 1] = {0, 5, 5, T}; /* the middle one is empty */
  int32_t cached[SEQS] = {0, 900, 131072};
  float *q = randoms(T * HQ * D), *k = randoms(T * HK * D), *q0 = copyf(q, T * HQ * D);
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = D;
  config.theta = 1e6;
  config.pairing = ROPE_PAIRING_HALVES;
  config.angle = ROPE_ANGLE_EXACT;
  rope_context* rope;
  OK(rope_context_create(&config, &rope));
  rope_qk_args args = {
      .struct_size = sizeof args,
      .batch = 1,
      .tokens = T,
      .q = {.data = q, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = HQ},
      .k = {.data = k, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = HK},
      .positions = {.kind = ROPE_POSITIONS_SEQ_OFFSETS,
                    .offsets_i32 = cached,
                    .cu_seqlens = cu_seqlens,
                    .sequences = SEQS}};
  OK(rope_apply_qk(rope, &args));
  double want[D];
  for (int t = 0; t < T; ++t) {
    int s = t < 5 ? 0 : 2;
    for (int h = 0; h < HQ; ++h) {
      ref_head(q0 + (t * HQ + h) * D, want, D, 0, D, 0, 0,
               angles(1e6, D, cached[s] + t - cu_seqlens[s]), 1);
      CHECK_HEAD(q + (t * HQ + h) * D, want, D, 1e-6);
    }
  }
  cu_seqlens[1] = 6;
  FAILS(ROPE_ERROR_INVALID_ARGUMENT, rope_apply_qk(rope, &args));
  rope_context_destroy(rope);
  puts("ok");
  return 0;
}
