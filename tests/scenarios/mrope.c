/* Qwen2-VL (sections) and Qwen3-VL (interleaved): three ids per token, from the prompt's runs. */
#include <librope/model.h>

#include "scenario.h"
enum { T = 14, H = 2, D = 128 };
int main(void) {
  float *q = random_floats(T * H * D), *q0 = copy_of(q, T * H * D), *r = copy_of(q, T * H * D);
  int64_t ids[3 * T], next;
  rope_prompt_part runs[2] = {{.text = 1, .t = 1, .h = 4, .w = 3}, {.text = 1}};
  must_succeed(rope_prompt_ids(runs, 2, 0, ids, T, &next));
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = D;
  config.theta = 1e6;
  config.pairing = ROPE_PAIRING_HALVES;
  config.axes = 3;
  config.mrope_section[0] = 16;
  config.mrope_section[1] = 24;
  config.mrope_section[2] = 24;
  rope_context *qwen2, *qwen3;
  must_succeed(rope_context_create(&config, &qwen2));
  config.theta = 5e6;
  config.mrope_interleaved = 1;
  config.mrope_section[0] = 24;
  config.mrope_section[1] = 20;
  config.mrope_section[2] = 20;
  must_succeed(rope_context_create(&config, &qwen3));
  rope_qk_args args = {
      .struct_size = sizeof args,
      .batch = 1,
      .tokens = T,
      .q = {.data = q, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = H},
      .positions = {.kind = ROPE_POSITIONS_IDS_ABT, .ids_i64 = ids}};
  must_succeed(rope_apply_qk(qwen2, &args));
  args.q.data = r;
  must_succeed(rope_apply_qk(qwen3, &args));
  static const int h_want[T] = {0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5},
                   w_want[T] = {0, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 5};
  for (int t = 0; t < T; ++t)
    must_be(ids[T + t] == h_want[t] && ids[2 * T + t] == w_want[t] &&
            ids[t] == (t == 0    ? 0
                       : t == 13 ? 5
                                 : 1));
  must_be(next == 6);
  double want[D], an[D / 2];
  for (int t = 0; t < T; ++t)
    for (int h = 0; h < H; ++h) {
      for (int i = 0; i < D / 2; ++i)
        an[i] = (double)ids[(i < 16 ? 0 : i < 40 ? 1 : 2) * T + t] * pow(1e6, -2.0 * i / D);
      rotate_head(q0 + (t * H + h) * D, want, D, 0, D, HALVES, HALVES, an, 1);
      must_be_close(q + (t * H + h) * D, want, D, 2e-6);
      for (int i = 0; i < D / 2; ++i)
        an[i] = (double)ids[(i < 60 ? i % 3 : 0) * T + t] * pow(5e6, -2.0 * i / D);
      rotate_head(q0 + (t * H + h) * D, want, D, 0, D, HALVES, HALVES, an, 1);
      must_be_close(r + (t * H + h) * D, want, D, 2e-6);
    }
  config.mrope_section[2] = 24; /* sum 68, not 64 */
  rope_context* bad;
  must_fail(ROPE_ERROR_INVALID_ARGUMENT, rope_context_create(&config, &bad));
  must_fail(ROPE_ERROR_INVALID_ARGUMENT,
            rope_apply_thd(qwen2, ROPE_DTYPE_F32, T, ids, q, H, NULL, 0));
  rope_context_destroy(qwen2);
  rope_context_destroy(qwen3);
  puts("ok");
  return 0;
}
