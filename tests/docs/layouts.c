/* Ways in which q and k lie in memory, for guides/engine.md. Each is the same rotation: whatever
 * the layout, the bits are those of the plainest call. */
#include <string.h>

#include "check.h"

enum { BATCH = 2, TOKENS = 5, Q_HEADS = 6, KV_HEADS = 2, HEAD_DIM = 64, MAX_LENGTH = 16, PAST = 3 };

static float plain[BATCH][TOKENS][Q_HEADS][HEAD_DIM], rotated[BATCH][TOKENS][Q_HEADS][HEAD_DIM];

static void rotate_plain(const rope_context* rope) {
  memcpy(rotated, plain, sizeof plain);
  int64_t positions[TOKENS];
  for (int t = 0; t < TOKENS; ++t) positions[t] = PAST + t;
  for (int b = 0; b < BATCH; ++b) {
    check(rope_apply_thd(rope, ROPE_DTYPE_F32, TOKENS, positions, rotated[b], Q_HEADS, NULL, 0));
  }
  expect(memcmp(rotated, plain, sizeof plain) != 0, "it rotates");
}

static rope_qk_args step(void) {
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = BATCH;
  args.tokens = TOKENS;
  args.positions.kind = ROPE_POSITIONS_OFFSET;
  args.positions.offset = PAST;
  return args;
}

/* [batch, heads, tokens, head_dim], as inside the attention of transformers. */
static void heads_first(const rope_context* rope) {
  static float q[BATCH][Q_HEADS][TOKENS][HEAD_DIM];
  for (int b = 0; b < BATCH; ++b)
    for (int t = 0; t < TOKENS; ++t)
      for (int h = 0; h < Q_HEADS; ++h) memcpy(q[b][h][t], plain[b][t][h], sizeof q[b][h][t]);
  rope_qk_args args = step();
  args.q = (rope_tensor){
      .data = q, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BHSD, .heads = Q_HEADS};
  check(rope_apply_qk(rope, &args));
  for (int b = 0; b < BATCH; ++b)
    for (int t = 0; t < TOKENS; ++t)
      for (int h = 0; h < Q_HEADS; ++h)
        expect(!memcmp(q[b][h][t], rotated[b][t][h], sizeof q[b][h][t]), "BHSD: the same bits");
}

/* Out of place into a cache: keys come contiguous from the projection, [batch, tokens, heads,
 * head_dim], and go rotated into cache[batch, heads, max_length, head_dim], from token PAST on. */
static void into_the_cache(const rope_context* rope) {
  static float k[BATCH][TOKENS][KV_HEADS][HEAD_DIM];
  static float cache[BATCH][KV_HEADS][MAX_LENGTH][HEAD_DIM];
  for (int b = 0; b < BATCH; ++b)
    for (int t = 0; t < TOKENS; ++t) memcpy(k[b][t], plain[b][t], sizeof k[b][t]);
  rope_qk_args args = step();
  /* Read from the projection, written to the cache. */
  args.k = (rope_tensor){
      .data = k, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = KV_HEADS};
  args.k_out = (rope_tensor){.data = cache[0][0][PAST],
                             .dtype = ROPE_DTYPE_F32,
                             .layout = ROPE_LAYOUT_STRIDED,
                             .heads = KV_HEADS,
                             .stride_batch = KV_HEADS * MAX_LENGTH * HEAD_DIM,
                             .stride_token = HEAD_DIM,
                             .stride_head = MAX_LENGTH * HEAD_DIM};
  check(rope_apply_qk(rope, &args));
  for (int b = 0; b < BATCH; ++b)
    for (int t = 0; t < TOKENS; ++t)
      for (int h = 0; h < KV_HEADS; ++h)
        expect(!memcmp(cache[b][h][PAST + t], rotated[b][t][h], sizeof rotated[b][t][h]),
               "the cache: the same bits");
}

/* Megatron's projection, [tokens, batch, groups, q + 2, head_dim]: a group is a batch row. */
static void grouped(const rope_context* rope) {
  enum { GROUPS = KV_HEADS, Q = Q_HEADS / GROUPS, GROUP_WIDTH = (Q + 2) * HEAD_DIM };
  static float qkv[TOKENS][BATCH][GROUPS][Q + 2][HEAD_DIM];
  for (int t = 0; t < TOKENS; ++t)
    for (int b = 0; b < BATCH; ++b)
      for (int g = 0; g < GROUPS; ++g)
        for (int h = 0; h < Q + 1; ++h)
          memcpy(qkv[t][b][g][h], plain[b][t][h < Q ? g * Q + h : g], sizeof qkv[t][b][g][h]);
  rope_qk_args args = step();
  /* Each group is a batch row; GROUPS of them, one after the other, have the same positions. */
  args.batch = BATCH * GROUPS;
  args.positions.batch_repeat = GROUPS;
  args.q = (rope_tensor){.data = qkv,
                         .dtype = ROPE_DTYPE_F32,
                         .layout = ROPE_LAYOUT_STRIDED,
                         .heads = Q,
                         .stride_batch = GROUP_WIDTH,
                         .stride_token = BATCH * GROUPS * GROUP_WIDTH,
                         .stride_head = HEAD_DIM};
  args.k = args.q;
  args.k.data = qkv[0][0][0][Q];
  args.k.heads = 1;
  check(rope_apply_qk(rope, &args));
  for (int t = 0; t < TOKENS; ++t)
    for (int b = 0; b < BATCH; ++b)
      for (int g = 0; g < GROUPS; ++g)
        for (int h = 0; h < Q + 1; ++h)
          expect(!memcmp(qkv[t][b][g][h], rotated[b][t][h < Q ? g * Q + h : g],
                         sizeof qkv[t][b][g][h]),
                 "grouped QKV: the same bits");
}

/* Multi-head latent attention (DeepSeek): of each head of q the last 64 of 192 channels rotate, and
 * all heads share one rotated key of 64 channels, which follows the latent vector in its row. */
enum { NOPE_DIM = 128, ROPE_DIM = 64, LATENT_DIM = 512 };

static void latent(void) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = NOPE_DIM + ROPE_DIM;
  config.rotary_dim = ROPE_DIM;
  config.rotary_offset = NOPE_DIM; /* the rotated channels are the last of a head */
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope;
  check(rope_context_create(&config, &rope));

  static float query[BATCH][TOKENS][Q_HEADS][NOPE_DIM + ROPE_DIM];
  static float latent_row[BATCH][TOKENS]
                         [LATENT_DIM + ROPE_DIM]; /* [latent | k_pe], as it is cached */
  for (int b = 0; b < BATCH; ++b) {
    for (int t = 0; t < TOKENS; ++t) {
      memcpy(latent_row[b][t] + LATENT_DIM, plain[b][t][0], ROPE_DIM * sizeof(float));
      for (int h = 0; h < Q_HEADS; ++h)
        memcpy(query[b][t][h] + NOPE_DIM, plain[b][t][h], ROPE_DIM * sizeof(float));
    }
  }
  rope_qk_args args = step();
  /* Whole heads of q, of which the last channels rotate, and the one key. */
  args.q = (rope_tensor){
      .data = query, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = Q_HEADS};
  args.k = (rope_tensor){.data = latent_row[0][0] + LATENT_DIM,
                         .dtype = ROPE_DTYPE_F32,
                         .layout = ROPE_LAYOUT_STRIDED,
                         .heads = 1,
                         .head_dim = ROPE_DIM, /* the rotated span alone, not a whole head */
                         .stride_batch = TOKENS * (LATENT_DIM + ROPE_DIM),
                         .stride_token = LATENT_DIM + ROPE_DIM};
  check(rope_apply_qk(rope, &args));
  for (int b = 0; b < BATCH; ++b) {
    for (int t = 0; t < TOKENS; ++t) {
      expect(!memcmp(latent_row[b][t] + LATENT_DIM, rotated[b][t][0], ROPE_DIM * sizeof(float)),
             "k_pe");
      for (int h = 0; h < Q_HEADS; ++h) {
        expect(!memcmp(query[b][t][h] + NOPE_DIM, rotated[b][t][h], ROPE_DIM * sizeof(float)),
               "q_pe");
        for (int c = 0; c < NOPE_DIM; ++c) expect(query[b][t][h][c] == 0, "other channels stay");
      }
    }
  }
  rope_context_destroy(rope);
}

int main(void) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = HEAD_DIM;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope;
  check(rope_context_create(&config, &rope));
  fill(plain[0][0][0], sizeof plain / sizeof(float));
  rotate_plain(rope);
  heads_first(rope);
  into_the_cache(rope);
  grouped(rope);
  latent();
  rope_context_destroy(rope);
  puts("every layout: the same bits");
  return 0;
}
