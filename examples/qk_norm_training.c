/* Training with QK norm and grouped queries: one call turns the gradients of q and of repeated k,
 * as attention gives them, into that of a packed projection, and into those of the norm's weights.
 * The program compares some of them with how much the loss grows. */
#include <librope/rope.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 5, Q_HEADS = 4, K_HEADS = 2, DIM = 64, WIDTH = (Q_HEADS + K_HEADS) * DIM };

static rope_context* rope;
static rope_norm norm;
static rope_fused fused;
static float qk[TOKENS][WIDTH], weight[DIM]; /* qk: what the projection has given */
static float q_up[TOKENS][Q_HEADS][DIM], k_up[TOKENS][Q_HEADS][DIM]; /* gradients */

static void check(rope_status status) {
  if (status == ROPE_OK) return;
  fprintf(stderr, "%s\n", rope_last_error());
  exit(1);
}

/* Heads that follow each other, `row` channels from token to token. */
static rope_tensor rows(void* data, int heads, int row) {
  return (rope_tensor){data, 0, ROPE_DTYPE_F32, ROPE_LAYOUT_STRIDED, heads, 0, 0, row, DIM, 0};
}

static rope_qk_args call(void) {
  norm = (rope_norm)ROPE_INIT(rope_norm);
  norm.kind = ROPE_NORM_KIND_RMS;
  norm.eps = 1e-6;
  norm.weight = weight;
  norm.weight_dtype = ROPE_DTYPE_F32;
  fused = (rope_fused)ROPE_INIT(rope_fused);
  fused.q_norm = &norm;
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = 1;
  args.tokens = TOKENS;
  args.positions.kind = ROPE_POSITIONS_OFFSET;
  args.fused = &fused;
  return args;
}

/* What attention reads times the gradients; a head of k serves two of q. */
static double loss(void) {
  static float q[TOKENS][Q_HEADS][DIM], k[TOKENS][K_HEADS][DIM];
  rope_qk_args args = call();
  args.q = rows(qk, Q_HEADS, WIDTH);
  args.k = rows(&qk[0][Q_HEADS * DIM], K_HEADS, WIDTH);
  args.q_out = rows(q, Q_HEADS, Q_HEADS * DIM);
  args.k_out = rows(k, K_HEADS, K_HEADS * DIM);
  check(rope_apply_qk(rope, &args));
  double sum = 0;
  for (int i = 0; i < TOKENS * Q_HEADS * DIM; ++i) {
    const int t = i / (Q_HEADS * DIM), h = i / DIM % Q_HEADS, c = i % DIM;
    sum += (double)q[t][h][c] * q_up[t][h][c];
    sum += (double)k[t][h / 2][c] * k_up[t][h][c];
  }
  return sum;
}

static void compare(const char* name, float* value, double gradient) {
  const float step = 1.0f / 64, at = *value;
  *value = at + step;
  const double above = loss();
  *value = at - step;
  const double slope = (above - loss()) / (2 * step);
  *value = at;
  printf("%-22s %9.5f, the loss grows by %9.5f\n", name, gradient, slope);
  if (!(fabs(slope - gradient) < 2e-3)) exit(1);
}

int main(void) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = DIM;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  check(rope_context_create(&config, &rope));
  for (int i = 0; i < TOKENS * WIDTH; ++i) (&qk[0][0])[i] = (float)(i * 37 % 101) / 50 - 1;
  for (int i = 0; i < DIM; ++i) weight[i] = 0.5f + (float)(i % 9) / 8;
  for (int i = 0; i < TOKENS * Q_HEADS * DIM; ++i) (&q_up[0][0][0])[i] = (float)(i % 97) / 48 - 1;
  for (int i = 0; i < TOKENS * Q_HEADS * DIM; ++i) (&k_up[0][0][0])[i] = (float)(i % 89) / 44 - 1;
  static float grad[TOKENS][WIDTH], parts[2][DIM]; /* work for two threads */
  rope_qk_args args = call();
  const rope_tensor x = rows(qk, Q_HEADS, WIDTH); /* what FORWARD was given */
  norm.x = &x;
  norm.weight_grad = &parts[0][0];
  norm.grad_parts = 2;
  args.operation = ROPE_OPERATION_BACKWARD;
  args.q = rows(q_up, Q_HEADS, Q_HEADS * DIM);
  args.k = rows(k_up, Q_HEADS, Q_HEADS * DIM); /* twice the heads of its output: they are added */
  args.q_out = rows(grad, Q_HEADS, WIDTH);
  args.k_out = rows(&grad[0][Q_HEADS * DIM], K_HEADS, WIDTH);
  check(rope_apply_qk(rope, &args));
  compare("q, token 2, channel 70", &qk[2][70], grad[2][70]);
  compare("k, token 3, the last", &qk[3][WIDTH - 1], grad[3][WIDTH - 1]);
  compare("weight 5", &weight[5], parts[0][5] + parts[1][5]);
  rope_context_destroy(rope);
}
