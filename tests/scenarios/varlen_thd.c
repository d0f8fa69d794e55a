/* Packed variable-length batch (thd): cu_seqlens, and each sequence continues at its own cache
 * length. */
#include "scenario.h"
enum { SEQS = 3, T = 11, HQ = 4, HK = 1, D = 80 };
int main(void) {
  int32_t cu_seqlens[SEQS + 1] = {0, 5, 5, T}; /* the middle one is empty */
  int32_t cached[SEQS] = {0, 900, 131072};
  float *q = random_floats(T * HQ * D), *k = random_floats(T * HK * D),
        *q0 = copy_of(q, T * HQ * D);
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = D;
  config.theta = 1e6;
  config.pairing = ROPE_PAIRING_HALVES;
  config.angle = ROPE_ANGLE_EXACT;
  rope_context* rope;
  must_succeed(rope_context_create(&config, &rope));
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
  must_succeed(rope_apply_qk(rope, &args));
  double want[D];
  for (int t = 0; t < T; ++t) {
    int s = t < 5 ? 0 : 2;
    for (int h = 0; h < HQ; ++h) {
      rotate_head(q0 + (t * HQ + h) * D, want, D, 0, D, HALVES, HALVES,
                  angles_at(1e6, D, cached[s] + t - cu_seqlens[s]), 1);
      must_be_close(q + (t * HQ + h) * D, want, D, 1e-6);
    }
  }
  cu_seqlens[1] = 6;
  must_fail(ROPE_ERROR_INVALID_ARGUMENT, rope_apply_qk(rope, &args));
  rope_context_destroy(rope);
  puts("ok");
  return 0;
}
