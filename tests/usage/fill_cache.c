/* Fill existing engines' caches in their own layouts: vLLM's bf16 cos_sin_cache, transformers' cos
 * and sin, Meta's freqs_cis. */
#include "check.h"
enum { P = 300, D = 64 };
int main(void) {
  static unsigned short vllm[P][D];
  static float hf_cos[P][D], hf_sin[P][D], freqs_cis[P][D / 2][2];
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = D;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope;
  OK(rope_context_create(&config, &rope));
  rope_positions all = {.kind = ROPE_POSITIONS_OFFSET};
  rope_cos_sin a = {.struct_size = sizeof a,
                    .format = ROPE_COS_SIN_PACKED,
                    .dtype = ROPE_BF16,
                    .pairs = D / 2,
                    .batch = 1,
                    .data = vllm};
  rope_cos_sin b = {.struct_size = sizeof b,
                    .format = ROPE_COS_SIN_FULL_HALVES,
                    .dtype = ROPE_F32,
                    .pairs = D / 2,
                    .batch = 1,
                    .data = hf_cos,
                    .sin = hf_sin};
  rope_cos_sin c = {.struct_size = sizeof c,
                    .format = ROPE_COS_SIN_COMPLEX,
                    .dtype = ROPE_F32,
                    .pairs = D / 2,
                    .batch = 1,
                    .data = freqs_cis};
  OK(rope_cos_sin_fill(rope, 1, P, &all, &a, NULL));
  OK(rope_cos_sin_fill(rope, 1, P, &all, &b, NULL));
  OK(rope_cos_sin_fill(rope, 1, P, &all, &c, NULL));
  a.pairs = D; /* a cache for head_dim 64 given as one for 128 would be written beyond its end */
  FAILS(ROPE_ERROR_INVALID_ARGUMENT, rope_cos_sin_fill(rope, 1, P, &all, &a, NULL));
  for (int p = 0; p < P; ++p)
    for (int i = 0; i < D / 2; ++i) {
      double an = angles(10000, D, p)[i];
      CHECK(fabs(hf_cos[p][i] - cos(an)) < 2e-5 && hf_cos[p][D / 2 + i] == hf_cos[p][i] &&
            fabs(hf_sin[p][i] - sin(an)) < 2e-5);
      CHECK(vllm[p][i] == bf16(hf_cos[p][i]) && vllm[p][D / 2 + i] == bf16(hf_sin[p][i]));
      CHECK(freqs_cis[p][i][0] == hf_cos[p][i] && freqs_cis[p][i][1] == hf_sin[p][i]);
    }
  rope_context_destroy(rope);
  puts("ok");
  return 0;
}
