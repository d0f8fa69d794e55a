/* Phi-3.5 style LongRoPE: a decode batch with sequences on both sides of the switch at 4096. */
#include "scenario.h"
enum { B = 4, H = 2, D = 96, O = 4096 };
int main(void) {
  double shortf[D / 2], longf[D / 2];
  for (int i = 0; i < D / 2; ++i) {
    shortf[i] = 1 + 0.01 * i;
    longf[i] = 1 + 1.3 * i;
  }
  int32_t seq_lens[B] = {100, 4096, 4097, 90000};
  float *q = random_floats(B * H * D), *q0 = copy_of(q, B * H * D);
  rope_config below = ROPE_INIT(rope_config);
  below.head_dim = D;
  below.theta = 10000;
  below.pairing = ROPE_PAIRING_HALVES;
  below.scaling = ROPE_SCALING_LONGROPE;
  below.original_max_position_embeddings = O;
  below.max_position_embeddings = 131072;
  below.short_factor = shortf;
  below.long_factor = longf;
  below.table_length = D / 2;
  below.seq_len = 1;
  rope_config above = below;
  must_succeed(rope_config_next_change(&below, below.seq_len, &above.seq_len));
  const rope_config* sets[2] = {&below, &above};
  rope_context* rope;
  must_succeed(rope_context_create_sets(sets, 2, &rope));
  int32_t set[B], at[B];
  for (int b = 0; b < B; ++b) {
    set[b] = seq_lens[b] >= above.seq_len;
    at[b] = seq_lens[b] - 1;
  }
  rope_qk_args args = {
      .struct_size = sizeof args,
      .batch = B,
      .tokens = 1,
      .q = {.data = q, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = H},
      .positions = {.kind = ROPE_POSITIONS_SEQ_OFFSETS, .offsets_i32 = at, .freq_sets = set}};
  must_succeed(rope_apply_qk(rope, &args));
  double want[D], an[D / 2], a = sqrt(1 + log(131072.0 / O) / log(O));
  for (int b = 0; b < B; ++b)
    for (int h = 0; h < H; ++h) {
      for (int i = 0; i < D / 2; ++i)
        an[i] = (seq_lens[b] - 1) /
                ((seq_lens[b] > O ? longf : shortf)[i] * pow(10000, -(-2.0 * i / D)));
      rotate_head(q0 + (b * H + h) * D, want, D, 0, D, HALVES, HALVES, an, a);
      must_be_close(q + (b * H + h) * D, want, D,
                    2e-2 * (seq_lens[b] > 50000 ? 1 : 0.1)); /* f32 angles */
    }
  /* nobody can forget which set, or which length */
  args.positions.freq_sets = NULL;
  must_fail(ROPE_ERROR_INVALID_ARGUMENT, rope_apply_qk(rope, &args));
  rope_context* one;
  below.seq_len = 0;
  must_fail(ROPE_ERROR_INVALID_ARGUMENT, rope_context_create(&below, &one));
  rope_context_destroy(rope);
  puts("ok");
  return 0;
}
