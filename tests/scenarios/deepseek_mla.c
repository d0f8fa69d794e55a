/* DeepSeek-V3: q heads are [nope 128 | rope 64]; one shared k_pe head of 64 inside the row [kv_lora
 * 512 | k_pe 64]; interleaved in, halves out. k_pe is then written into every head of k [heads,
 * 192]. */
#include "scenario.h"
enum { T = 3, H = 4, NOPE = 128, R = 64, D = NOPE + R, LORA = 512 };
int main(void) {
  float *q = random_floats(T * H * D), *q0 = copy_of(q, T * H * D),
        *kv = random_floats(T * (LORA + R)), *k = random_floats(T * H * D),
        *k0 = copy_of(k, T * H * D);
  int64_t positions[T] = {5, 6, 7};
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = D;
  config.rotary_dim = R;
  config.rotary_offset = NOPE;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_INTERLEAVED_TO_HALVES;
  config.scaling = ROPE_SCALING_YARN;
  config.factor = 40;
  config.original_max_position_embeddings = 4096;
  config.mscale = 1;
  config.mscale_all_dim = 1;
  rope_context* rope;
  must_succeed(rope_context_create(&config, &rope));
  rope_info info = ROPE_INIT(rope_info);
  must_succeed(rope_context_info(rope, 0, &info));
  double softmax_scale = info.softmax_factor / sqrt(D);
  rope_qk_args args = {
      .struct_size = sizeof args,
      .batch = 1,
      .tokens = T,
      .q = {.data = q, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = H},
      .k = {.data = kv + LORA,
            .dtype = ROPE_DTYPE_F32,
            .heads = H,
            .head_dim = R, /* k_pe, expanded to all heads */
            .layout = ROPE_LAYOUT_STRIDED,
            .stride_token = LORA + R,
            .stride_head = 0},
      .k_out = {.data = k, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = H},
      .positions = {.kind = ROPE_POSITIONS_IDS_T, .ids_i64 = positions}};
  must_succeed(rope_apply_qk(rope, &args));
  must_be(fabs(softmax_scale - pow(0.1 * log(40) + 1, 2) / sqrt(D)) < 1e-12 &&
          info.attention_factor == 1);
  double inv[R / 2], want[D], an[R / 2];
  must_succeed(rope_context_inv_freq(rope, 0, inv, R / 2));
  for (int t = 0; t < T; ++t) {
    for (int i = 0; i < R / 2; ++i) an[i] = inv[i] * (double)positions[t];
    for (int h = 0; h < H; ++h) {
      rotate_head(q0 + (t * H + h) * D, want, D, NOPE, R, ADJACENT, HALVES, an, 1);
      must_be_close(q + (t * H + h) * D, want, D, 2e-6);
      rotate_head(kv + t * (LORA + R) + LORA, want, R, 0, R, ADJACENT, HALVES, an, 1);
      must_be_close(k + (t * H + h) * D + NOPE, want, R, 2e-6);
      must_be(!memcmp(k + (t * H + h) * D, k0 + (t * H + h) * D,
                      NOPE * 4)); /* nope channels of k are left alone */
    }
  }
  /* the same k_pe, in place inside the latent cache row, one head */
  rope_qk_args only_k = {.struct_size = sizeof only_k,
                         .batch = 1,
                         .tokens = T,
                         .k = args.k,
                         .positions = args.positions};
  only_k.k.heads = 1;
  must_succeed(rope_apply_qk(rope, &only_k));
  for (int t = 0; t < T; ++t)
    must_be(!memcmp(kv + t * (LORA + R) + LORA, k + t * H * D + NOPE, R * 4));
  /* an expanded head as an output is refused; a head_dim that belongs to another model is refused
   */
  only_k.k.heads = H;
  must_fail(ROPE_ERROR_INVALID_ARGUMENT, rope_apply_qk(rope, &only_k));
  only_k.k.heads = 1;
  only_k.k.head_dim = 128;
  must_fail(ROPE_ERROR_INVALID_ARGUMENT, rope_apply_qk(rope, &only_k));
  rope_context_destroy(rope);
  puts("ok");
  return 0;
}
