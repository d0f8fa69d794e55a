/* A step of continuous batching: the keys of a prompt and of a decoded token turn into the pages of
 * a cache, and their values are copied there, in one call. The program compares that with a
 * rotation followed by copies, bit for bit. */
#include <librope/rope.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { Q_HEADS = 8, HEADS = 2, DIM = 128, TOKENS = 6, SEQUENCES = 2, PAGES = 8, PAGE_SIZE = 4 };

static uint16_t q[TOKENS][Q_HEADS][DIM]; /* bf16 */
static uint16_t k[TOKENS][HEADS][DIM], v[TOKENS][HEADS][DIM];
static uint16_t k_cache[PAGES][PAGE_SIZE][HEADS][DIM], v_cache[PAGES][PAGE_SIZE][HEADS][DIM];

static void check(rope_status status) {
  if (status == ROPE_OK) return;
  fprintf(stderr, "%s\n", rope_last_error());
  exit(1);
}

static rope_tensor tensor(void* data, rope_layout layout, int32_t heads) {
  rope_tensor t = {.data = data, .dtype = ROPE_DTYPE_BF16, .layout = layout, .heads = heads};
  t.head_dim = DIM;
  return t;
}

int main(void) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = DIM;
  config.theta = 500000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope;
  check(rope_context_create(&config, &rope));
  for (int i = 0; i < TOKENS * HEADS * DIM; ++i) {
    (&k[0][0][0])[i] = (uint16_t)(0x3c00 + i % 0x2ff);
    (&v[0][0][0])[i] = (uint16_t)(0x3d00 + i % 0x1ff);
  }
  static uint16_t k_apart[TOKENS][HEADS][DIM];
  memcpy(k_apart, k, sizeof k);

  /* Five tokens of a prompt that is new, and one behind ten that are in the cache. */
  const int32_t ends[SEQUENCES + 1] = {0, 5, 6}, lengths[SEQUENCES] = {0, 10};
  /* The pages of each sequence, in order; -1: none yet. */
  const int32_t page_table[SEQUENCES][3] = {{6, 1, -1}, {0, 3, 4}};

  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = 1;
  args.tokens = TOKENS;
  args.q = tensor(q, ROPE_LAYOUT_BSHD, Q_HEADS); /* turns in place */
  args.k = tensor(k, ROPE_LAYOUT_BSHD, HEADS);   /* is only read */
  args.positions.kind = ROPE_POSITIONS_SEQ_OFFSETS;
  args.positions.offsets_i32 = lengths;
  args.positions.cu_seqlens = ends;
  args.positions.sequences = SEQUENCES;

  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  cache.kind = ROPE_SLOTS_PAGED;
  cache.pages = PAGES;
  cache.page_size = PAGE_SIZE;
  cache.k = tensor(k_cache, ROPE_LAYOUT_NHD, HEADS);
  cache.v = tensor(v_cache, ROPE_LAYOUT_NHD, HEADS);
  cache.page_table = &page_table[0][0];
  cache.page_table_stride = 3;
  cache.starts = lengths;

  rope_fused fused = ROPE_INIT(rope_fused);
  fused.cache = &cache;
  fused.v = tensor(v, ROPE_LAYOUT_BSHD, HEADS);
  args.fused = &fused;
  check(rope_apply_qk(rope, &args));

  /* The same by a rotation and copies. */
  args.fused = NULL;
  args.q = (rope_tensor){0};
  args.k.data = k_apart;
  check(rope_apply_qk(rope, &args));
  int failures = 0;
  for (int s = 0; s < SEQUENCES; ++s) {
    for (int i = ends[s]; i < ends[s + 1]; ++i) {
      const int n = lengths[s] + i - ends[s], page = page_table[s][n / PAGE_SIZE];
      failures += memcmp(k_cache[page][n % PAGE_SIZE], k_apart[i], sizeof k[i]) != 0;
      failures += memcmp(v_cache[page][n % PAGE_SIZE], v[i], sizeof v[i]) != 0;
    }
  }
  printf("%d tokens are in their slots, with %d mistakes\n", TOKENS, failures);
  rope_context_destroy(rope);
  return failures != 0;
}
