/* DINOv3: [batch, heads, tokens, head_dim]; 5 prefix tokens stay; patch centres in [-1, 1] times 2
 * pi as float coordinates. */
#include "scenario.h"
enum { H = 2, D = 64, PREFIX = 5, GRID = 4, PATCHES = GRID * GRID, T = PREFIX + PATCHES };
int main(void) {
  float *q = random_floats(H * T * D), *q0 = copy_of(q, H * T * D);
  float coords[PATCHES][2]; /* (y, x) of each patch */
  for (int i = 0; i < PATCHES; ++i)
    for (int a = 0; a < 2; ++a)
      coords[i][a] = 6.28318530717958647692f *
                     ((0.5f + (float)(a ? i % GRID : i / GRID)) / GRID * 2.0f - 1.0f);
  double inv_freq[D / 2];
  uint8_t axis[D / 2];
  for (int i = 0; i < D / 2; ++i) {
    inv_freq[i] = pow(100, -4.0 * (i % (D / 4)) / D);
    axis[i] = i >= D / 4;
  }
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = D;
  config.pairing = ROPE_PAIRING_HALVES;
  config.axes = 2;
  config.inv_freq = inv_freq;
  config.pair_axis = axis;
  config.table_length = D / 2;
  rope_context* rope;
  must_succeed(rope_context_create(&config, &rope));
  rope_qk_args args = {.struct_size = sizeof args,
                       .batch = 1,
                       .tokens = PATCHES,
                       .q = {.data = q + PREFIX * D,
                             .dtype = ROPE_DTYPE_F32,
                             .heads = H,
                             .layout = ROPE_LAYOUT_STRIDED,
                             .stride_token = D,
                             .stride_head = T * D},
                       .positions = {.kind = ROPE_POSITIONS_IDS_BTA, .ids_f32 = coords[0]}};
  must_succeed(rope_apply_qk(rope, &args));
  double want[D], an[D / 2];
  for (int h = 0; h < H; ++h)
    for (int t = 0; t < T; ++t) {
      for (int i = 0; i < D / 2; ++i)
        an[i] = t < PREFIX ? 0 : coords[t - PREFIX][axis[i]] * inv_freq[i];
      rotate_head(q0 + (h * T + t) * D, want, D, 0, D, HALVES, HALVES, an, 1);
      must_be_close(q + (h * T + t) * D, want, D, t < PREFIX ? 1e-30 : 2e-6);
    }
  rope_context_destroy(rope);
  puts("ok");
  return 0;
}
