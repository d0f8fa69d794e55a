/* Dynamic NTK while a sequence grows: a new context where the frequencies change; cached keys keep
 * theirs. */
#include "scenario.h"
enum { H = 1, D = 64, S = 16, STEPS = 40 };
int main(void) {
  int made = 0;
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = D;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  config.scaling = ROPE_SCALING_DYNAMIC;
  config.factor = 2;
  config.max_position_embeddings = S;
  rope_context* rope = NULL;
  int64_t valid_below = 0;
  for (int64_t pos = 0; pos < STEPS; ++pos) {
    if (pos + 1 >= valid_below) {
      rope_context_destroy(rope);
      config.seq_len = pos + 1;
      must_succeed(rope_context_create(&config, &rope));
      must_succeed(rope_config_next_change(&config, config.seq_len, &valid_below));
      made++;
    }
    float *q = random_floats(H * D), *q0 = copy_of(q, H * D);
    must_succeed(rope_apply_thd(rope, ROPE_DTYPE_F32, 1, &pos, q, H, NULL, 0));
    double len = pos + 1 > S ? (double)pos + 1 : S,
           base = 10000 * pow(2 * len / S - 1, D / (D - 2.0)), want[D];
    rotate_head(q0, want, D, 0, D, HALVES, HALVES, angles_at(base, D, (double)pos), 1);
    must_be_close(q, want, D, 1e-5);
  }
  must_be(made == 1 + STEPS - S);
  rope_context_destroy(rope);
  puts("ok");
  return 0;
}
