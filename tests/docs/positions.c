/* Where positions come from, for guides/engine.md. Each description is checked against positions
 * that are written out, one per token: the same bits. */
#include <string.h>

#include "check.h"

enum { BATCH = 3, TOKENS = 4, HEADS = 2, HEAD_DIM = 64 };

static float before[BATCH][TOKENS][HEADS][HEAD_DIM], q[BATCH][TOKENS][HEADS][HEAD_DIM];

static rope_qk_args step(void) {
  memcpy(q, before, sizeof q);
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = BATCH;
  args.tokens = TOKENS;
  args.q =
      (rope_tensor){.data = q, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = HEADS};
  return args;
}

static void expect_at(const rope_context* rope, int64_t positions[BATCH][TOKENS],
                      const char* what) {
  static float want[BATCH][TOKENS][HEADS][HEAD_DIM];
  memcpy(want, before, sizeof want);
  check(rope_apply_thd(rope, ROPE_DTYPE_F32, BATCH * TOKENS, positions[0], want, HEADS, NULL, 0));
  expect(memcmp(want, before, sizeof want) != 0, "it rotates");
  expect(memcmp(want, q, sizeof want) == 0, what);
}

int main(void) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = HEAD_DIM;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope;
  check(rope_context_create(&config, &rope));
  fill(before[0][0][0], sizeof before / sizeof(float));

  /* One sequence, or several of equal length: token t is at past + t. */
  const int64_t past = 1000;
  rope_qk_args args = step();
  args.positions.kind = ROPE_POSITIONS_OFFSET;
  args.positions.offset = past;
  check(rope_apply_qk(rope, &args));
  int64_t same[BATCH][TOKENS];
  for (int b = 0; b < BATCH; ++b)
    for (int t = 0; t < TOKENS; ++t) same[b][t] = past + t;
  expect_at(rope, same, "OFFSET");

  /* Each sequence continues where its own cache ends. */
  const int32_t cache_lengths[BATCH] = {17, 0, 131072};
  args = step();
  args.positions.kind = ROPE_POSITIONS_SEQ_OFFSETS;
  args.positions.offsets_i32 = cache_lengths;
  check(rope_apply_qk(rope, &args));
  int64_t own[BATCH][TOKENS];
  for (int b = 0; b < BATCH; ++b)
    for (int t = 0; t < TOKENS; ++t) own[b][t] = cache_lengths[b] + t;
  expect_at(rope, own, "SEQ_OFFSETS");

  /* position_ids [batch, tokens]: prompts that are padded on the left. */
  int64_t position_ids[BATCH][TOKENS] = {{0, 1, 2, 3}, {0, 0, 0, 1}, {0, 0, 1, 2}};
  args = step();
  args.positions.kind = ROPE_POSITIONS_IDS_BT;
  args.positions.ids_i64 = position_ids[0];
  check(rope_apply_qk(rope, &args));
  expect_at(rope, position_ids, "IDS_BT");

  /* Drafted tokens of a tree: two that stand at one depth have one position. */
  const int32_t depth[TOKENS] = {1000, 1001, 1001, 1002};
  args = step();
  args.positions.kind = ROPE_POSITIONS_IDS_T;
  args.positions.ids_i32 = depth;
  check(rope_apply_qk(rope, &args));
  int64_t tree[BATCH][TOKENS];
  for (int b = 0; b < BATCH; ++b)
    for (int t = 0; t < TOKENS; ++t) tree[b][t] = depth[t];
  expect_at(rope, tree, "IDS_T");

  rope_context_destroy(rope);
  puts("every kind of positions: the same bits");
  return 0;
}
