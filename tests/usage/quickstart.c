/* The 90 % case: contiguous q and k, an array of positions. */
#include "check.h"
int main(void) {
  enum { T = 3, HQ = 4, HK = 2, D = 64 };
  float *q = randoms(T * HQ * D), *k = randoms(T * HK * D), *q0 = copyf(q, T * HQ * D);
  int64_t positions[T] = {10, 11, 12};
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = D;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope;
  OK(rope_context_create(&config, &rope));
  OK(rope_apply_thd(rope, ROPE_F32, T, positions, q, HQ, k, HK));
  rope_context_destroy(rope);
  double want[D];
  for (int t = 0; t < T; ++t)
    for (int h = 0; h < HQ; ++h) {
      ref_head(q0 + (t * HQ + h) * D, want, D, 0, D, 0, 0, angles(10000, D, (double)positions[t]),
               1);
      CHECK_HEAD(q + (t * HQ + h) * D, want, D, 2e-6);
    }
  puts("ok");
  return 0;
}
