/* The first call of docs/index.md in C. */
#include "check.h"

int main(void) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = 128;
  config.theta = 500000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope;
  check(rope_context_create(&config, &rope));

  enum { TOKENS = 2 };
  const int64_t positions[TOKENS] = {5, 6};
  static float q[TOKENS][32][128], k[TOKENS][8][128]; /* [tokens, heads, head_dim] */
  fill(q[0][0], sizeof q / sizeof(float));
  fill(k[0][0], sizeof k / sizeof(float));
  check(rope_apply_thd(rope, ROPE_DTYPE_F32, TOKENS, positions, q, 32, k, 8)); /* every layer */

  printf("rotated on %s\n", rope_context_backend(rope));
  rope_context_destroy(rope);
  return 0;
}
