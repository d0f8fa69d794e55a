/* One forward pass of an engine: the same call for every layer. It is checked once and its cosines
 * and sines are made once; each layer then only rotates. The program compares that with a call per
 * layer, bit for bit. */
#include <librope/rope.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 32, TOKENS = 3, Q_HEADS = 8, K_HEADS = 2, DIM = 128 };

static uint16_t q[LAYERS][TOKENS][Q_HEADS][DIM], k[LAYERS][TOKENS][K_HEADS][DIM]; /* bf16 */
static uint16_t q_each[LAYERS][TOKENS][Q_HEADS][DIM], k_each[LAYERS][TOKENS][K_HEADS][DIM];

static void check(rope_status status) {
  if (status == ROPE_OK) return;
  fprintf(stderr, "%s\n", rope_last_error());
  exit(1);
}

int main(void) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = DIM;
  config.theta = 500000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope;
  check(rope_context_create(&config, &rope));
  for (size_t i = 0; i < sizeof q / 2; ++i) (&q[0][0][0][0])[i] = (uint16_t)(0x3c00 + i % 0x300);
  for (size_t i = 0; i < sizeof k / 2; ++i) (&k[0][0][0][0])[i] = (uint16_t)(0x3c00 + i % 0x2ff);
  memcpy(q_each, q, sizeof q);
  memcpy(k_each, k, sizeof k);

  /* Once per forward pass: everything but where the tensors lie. */
  const int32_t positions[TOKENS] = {7, 4096, 131071}; /* three sequences decode one token each */
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = 1;
  args.tokens = TOKENS;
  args.q.dtype = ROPE_DTYPE_BF16;
  args.q.layout = ROPE_LAYOUT_BSHD;
  args.q.heads = Q_HEADS;
  args.k = args.q;
  args.k.heads = K_HEADS;
  args.positions.kind = ROPE_POSITIONS_IDS_T;
  args.positions.ids_i32 = positions;
  rope_prepared* call;
  check(rope_prepared_create(rope, &args, &call));

  /* Each layer: its tensors. */
  for (int layer = 0; layer < LAYERS; ++layer) {
    rope_qk_data data = ROPE_INIT(rope_qk_data);
    data.q = q[layer];
    data.k = k[layer];
    check(rope_prepared_apply(call, &data));
  }
  rope_prepared_destroy(call);

  /* The same with a call per layer. */
  for (int layer = 0; layer < LAYERS; ++layer) {
    args.q.data = q_each[layer];
    args.k.data = k_each[layer];
    check(rope_apply_qk(rope, &args));
  }
  const int same = memcmp(q, q_each, sizeof q) == 0 && memcmp(k, k_each, sizeof k) == 0;
  printf("%d layers, prepared once: %s\n", LAYERS, same ? "the same bits" : "other bits");
  rope_context_destroy(rope);
  return !same;
}
