/* QK norm, as in Qwen3: the heads of q and k are normed and turned in one call. The program
 * compares that with two calls, a norm by a layer without RoPE and a rotation, bit for bit. Then as
 * in OLMo 2, where the heads of a token are normed together: beside a loop in double. */
#include <librope/rope.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 3, Q_HEADS = 4, K_HEADS = 2, DIM = 128 };

static uint16_t q[TOKENS][Q_HEADS][DIM], k[TOKENS][K_HEADS][DIM]; /* bf16 */
static uint16_t q_weight[DIM], k_weight[DIM];

static void check(rope_status status) {
  if (status == ROPE_OK) return;
  fprintf(stderr, "%s\n", rope_last_error());
  exit(1);
}

/* Norms and turns q as OLMo 2 does. Returns by how much of a pair the result is off. */
static double norm_all_heads(const rope_context* rope, double theta) {
  static float x[TOKENS][Q_HEADS][DIM], y[TOKENS][Q_HEADS][DIM], weight[Q_HEADS][DIM];
  for (int i = 0; i < Q_HEADS * DIM; ++i) (&weight[0][0])[i] = 0.5f + (float)(i % 9) / 8;
  for (int i = 0; i < TOKENS * Q_HEADS * DIM; ++i) { /* the last head is the largest */
    (&x[0][0][0])[i] = (float)(sin(0.7 * i) * (1 + i / DIM % Q_HEADS));
  }
  rope_norm norm = ROPE_INIT(rope_norm);
  norm.kind = ROPE_NORM_KIND_RMS;
  norm.span = ROPE_NORM_SPAN_ALL_HEADS;
  norm.eps = 1e-6;
  norm.weight = weight; /* of the model: [Q_HEADS * DIM] */
  norm.weight_dtype = ROPE_DTYPE_F32;
  norm.weight_stride_head = DIM; /* each head has its own */
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.q_norm = &norm;
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = 1;
  args.tokens = TOKENS;
  args.q = (rope_tensor){
      .data = x, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = Q_HEADS};
  args.q_out = args.q;
  args.q_out.data = y;
  args.positions.kind = ROPE_POSITIONS_OFFSET;
  args.positions.offset = 1000;
  args.fused = &fused;
  check(rope_apply_qk(rope, &args));

  double off = 0;
  for (int t = 0; t < TOKENS; ++t) {
    double squares = 0;
    for (int i = 0; i < Q_HEADS * DIM; ++i) squares += pow((&x[t][0][0])[i], 2);
    const double r = 1 / sqrt(squares / (Q_HEADS * DIM) + norm.eps);
    for (int h = 0; h < Q_HEADS; ++h) {
      for (int i = 0, j = DIM / 2; j < DIM; ++i, ++j) {
        const double a = x[t][h][i] * r * weight[h][i], b = x[t][h][j] * r * weight[h][j];
        const double angle = (1000 + t) * pow(theta, -2.0 * i / DIM);
        const double of_a = y[t][h][i] - (a * cos(angle) - b * sin(angle));
        const double of_b = y[t][h][j] - (b * cos(angle) + a * sin(angle));
        const double of_pair = hypot(of_a, of_b) / hypot(a, b);
        if (!(of_pair <= off)) off = of_pair; /* NaN, too */
      }
    }
  }
  return off;
}

int main(void) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = DIM;
  config.theta = 1000000;
  config.pairing = ROPE_PAIRING_HALVES;
  config.rounding = ROPE_ROUNDING_EAGER;
  rope_context* rope;
  check(rope_context_create(&config, &rope));
  for (int i = 0; i < TOKENS * Q_HEADS * DIM; ++i) (&q[0][0][0])[i] = (uint16_t)(0x3c00 + i % 767);
  for (int i = 0; i < TOKENS * K_HEADS * DIM; ++i) (&k[0][0][0])[i] = (uint16_t)(0x3d00 + i % 511);
  for (int i = 0; i < DIM; ++i) q_weight[i] = k_weight[i] = (uint16_t)(0x3f80 + i % 64);
  static uint16_t q_apart[TOKENS][Q_HEADS][DIM], k_apart[TOKENS][K_HEADS][DIM];
  memcpy(q_apart, q, sizeof q);
  memcpy(k_apart, k, sizeof k);

  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = 1;
  args.tokens = TOKENS;
  args.q = (rope_tensor){
      .data = q, .dtype = ROPE_DTYPE_BF16, .layout = ROPE_LAYOUT_BSHD, .heads = Q_HEADS};
  args.k = (rope_tensor){
      .data = k, .dtype = ROPE_DTYPE_BF16, .layout = ROPE_LAYOUT_BSHD, .heads = K_HEADS};
  args.positions.kind = ROPE_POSITIONS_OFFSET;
  args.positions.offset = 1000;

  /* The weights of a layer, in the dtype in which they are stored. */
  rope_norm q_norm = ROPE_INIT(rope_norm);
  q_norm.kind = ROPE_NORM_KIND_RMS;
  q_norm.eps = 1e-6;
  q_norm.weight = q_weight;
  q_norm.weight_dtype = ROPE_DTYPE_BF16;
  q_norm.rounding = ROPE_NORM_ROUNDING_EAGER; /* as transformers computes it */
  rope_norm k_norm = q_norm;
  k_norm.weight = k_weight;
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.q_norm = &q_norm;
  fused.k_norm = &k_norm;
  args.fused = &fused;
  check(rope_apply_qk(rope, &args));

  /* The same by two calls. */
  config.scaling = ROPE_SCALING_NOPE;
  rope_context* no_rope;
  check(rope_context_create(&config, &no_rope));
  args.q.data = q_apart;
  args.k.data = k_apart;
  check(rope_apply_qk(no_rope, &args));
  args.fused = NULL;
  check(rope_apply_qk(rope, &args));
  const double off = norm_all_heads(rope, config.theta);
  rope_context_destroy(rope);
  rope_context_destroy(no_rope);
  if (memcmp(q, q_apart, sizeof q) != 0 || memcmp(k, k_apart, sizeof k) != 0) {
    fprintf(stderr, "one call and two have different bits\n");
    return 1;
  }
  printf("one call and two have the same bits; all heads together are off by %.0e\n", off);
  return !(off < 1e-4);
}
