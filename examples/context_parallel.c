/* Context parallelism: two documents, packed into one row, are shared by four processes as
 * TransformerEngine and Megatron-LM share them: each document in 2 * 4 chunks, of which rank r has
 * r and 7 - r. Every rank rotates its own tokens and says only who it is; no position ids are made
 * or sent. Gathered, the result has the bits that one process computes. */
#define _DEFAULT_SOURCE
#include <librope/rope.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 4, LENGTH = 64, TOKENS = LENGTH / RANKS, HEADS = 8, DIM = 128, ROW = HEADS * DIM };

/* Document 0 has 24 tokens, of which 21 are padded to a multiple of 2 * RANKS, document 1 has 40.
 */
static const int32_t cu_seqlens[] = {0, 24, 64};

static void check(rope_status status) {
  if (status == ROPE_OK) return;
  fprintf(stderr, "%s\n", rope_last_error());
  exit(1);
}

/* Those of the whole row; the shard says which of its tokens are here. NULL: all. */
static rope_positions positions_of(const rope_shard* shard) {
  rope_positions positions = {0};
  positions.kind = ROPE_POSITIONS_OFFSET;
  positions.cu_seqlens = cu_seqlens;
  positions.sequences = 2;
  positions.shard = shard;
  return positions;
}

static void rotate(const rope_context* rope, float* q, int64_t tokens, const rope_shard* shard) {
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = 1;
  args.tokens = tokens;
  args.q.data = q;
  args.q.dtype = ROPE_DTYPE_F32;
  args.q.layout = ROPE_LAYOUT_BSHD;
  args.q.heads = HEADS;
  args.positions = positions_of(shard);
  check(rope_apply_qk(rope, &args));
}

/* What rank `rank` does: takes its tokens out of the row, rotates them, and puts them back. */
static void work(const rope_context* rope, int rank, const float* all, float* gathered) {
  rope_shard shard = {0};
  shard.scheme = ROPE_SHARD_ZIGZAG;
  shard.rank = rank;
  shard.world = RANKS;
  shard.per_document = 1;
  static float q[TOKENS * ROW];
  int64_t ids[TOKENS], numbers[TOKENS];
  const rope_positions positions = positions_of(&shard);
  check(rope_shard_ids(1, TOKENS, &positions, ids, numbers)); /* for who loads and gathers tokens */
  for (int t = 0; t < TOKENS; ++t) memcpy(q + t * ROW, all + numbers[t] * ROW, ROW * sizeof *q);
  rotate(rope, q, TOKENS, &shard);
  for (int t = 0; t < TOKENS; ++t)
    memcpy(gathered + numbers[t] * ROW, q + t * ROW, ROW * sizeof *q);
  char line[16 * TOKENS];
  int end = snprintf(line, sizeof line, "rank %d:", rank);
  for (int t = 0; t < TOKENS; ++t) end += snprintf(line + end, 8, " %d", (int)ids[t]);
  puts(line);
  fflush(stdout);
}

int main(void) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = DIM;
  config.theta = 500000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope;
  check(rope_context_create(&config, &rope)); /* a child may use its parent's */

  static float all[LENGTH * ROW], whole[LENGTH * ROW];
  for (int i = 0; i < LENGTH * ROW; ++i) whole[i] = all[i] = (float)(i % 1000) / 500 - 1;
  rotate(rope, whole, LENGTH, NULL);

  float* gathered =
      mmap(NULL, sizeof whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (gathered == MAP_FAILED) return 1;
  for (int rank = 0; rank < RANKS; ++rank) {
    const pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) {
      work(rope, rank, all, gathered);
      _exit(0);
    }
  }
  int status, failed = 0;
  while (wait(&status) > 0) failed |= status;
  if (failed || memcmp(gathered, whole, sizeof whole) != 0) {
    puts("the ranks' tokens differ from those of one process");
    return 1;
  }
  printf("%d processes: the bits of one\n", RANKS);
  rope_context_destroy(rope);
  return 0;
}
