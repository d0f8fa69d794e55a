/* A conversation outgrows its cache, and its oldest page is cut off: the keys behind it turn to
 * their new positions, in their slots. Then another sequence quotes the same text: its keys and
 * values move to pages of that sequence, at other positions. Nothing is computed again; the program
 * compares them with keys that are rotated where they now are.
 *
 *     cc cache_move.c $(pkg-config --cflags --libs librope) -lm && ./a.out */
#include <librope/rope.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 2, DIM = 64, PAGES = 8, PAGE_SIZE = 4, TOKENS = 10, CUT = 4, KEPT = TOKENS - CUT };

static float x[TOKENS][HEADS][DIM], v[TOKENS][HEADS][DIM]; /* keys before rotation, and values */
static float k_cache[PAGES][PAGE_SIZE][HEADS][DIM], v_cache[PAGES][PAGE_SIZE][HEADS][DIM];

static void check(rope_status status) {
  if (status == ROPE_OK) return;
  fprintf(stderr, "%s\n", rope_last_error());
  exit(1);
}

static rope_tensor tensor(void* data, rope_layout layout) {
  rope_tensor t = {.data = data, .dtype = ROPE_DTYPE_F32, .layout = layout, .heads = HEADS};
  t.head_dim = DIM;
  return t;
}

/* The slots of one sequence, in the order of its tokens. */
static rope_kv_cache pages_of(const int32_t* page_table, int64_t row, const int32_t* start) {
  rope_kv_cache cache = {.struct_size = sizeof cache, .kind = ROPE_SLOTS_PAGED};
  cache.pages = PAGES, cache.page_size = PAGE_SIZE;
  cache.k = tensor(k_cache, ROPE_LAYOUT_NHD);
  cache.v = tensor(v_cache, ROPE_LAYOUT_NHD);
  cache.page_table = page_table, cache.page_table_stride = row;
  cache.starts = start;
  return cache;
}

/* How far the kept tokens in some pages are from keys rotated at `first` and on; and values. */
static double error(const rope_context* rope, const int32_t* page_table, int64_t first) {
  float want[KEPT][HEADS][DIM];
  memcpy(want, x[CUT], sizeof want);
  rope_qk_args args = {.struct_size = sizeof args, .batch = 1, .tokens = KEPT};
  args.k = tensor(want, ROPE_LAYOUT_BSHD);
  args.positions = (rope_positions){.kind = ROPE_POSITIONS_OFFSET, .offset = first};
  check(rope_apply_qk(rope, &args));
  double worst = 0;
  for (int i = 0; i < KEPT * HEADS * DIM; ++i) {
    const int t = i / (HEADS * DIM), at = t % PAGE_SIZE * HEADS * DIM + i % (HEADS * DIM);
    const int32_t page = page_table[t / PAGE_SIZE];
    const double difference = fabs((double)(&k_cache[page][0][0][0])[at] - (&want[0][0][0])[i]);
    if (!(difference <= worst)) worst = difference;
    if ((&v_cache[page][0][0][0])[at] != (&v[CUT][0][0])[i]) worst = INFINITY;
  }
  return worst;
}

int main(void) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = DIM;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope;
  check(rope_context_create(&config, &rope));
  for (int i = 0; i < TOKENS * HEADS * DIM; ++i) {
    (&x[0][0][0])[i] = (float)sin(0.7 * i);
    (&v[0][0][0])[i] = (float)cos(0.3 * i);
  }
  const int32_t zero = 0, table[] = {5, 2, 7}, other_table[] = {1, 4};
  rope_kv_cache cache = pages_of(table, 3, &zero);
  rope_fused fused = {.struct_size = sizeof fused, .cache = &cache};
  fused.v = tensor(v, ROPE_LAYOUT_BSHD);
  rope_qk_args args = {.struct_size = sizeof args, .batch = 1, .tokens = TOKENS, .fused = &fused};
  args.k = tensor(x, ROPE_LAYOUT_BSHD);
  args.positions = (rope_positions){.kind = ROPE_POSITIONS_OFFSET, .offset = 0};
  check(rope_apply_qk(rope, &args)); /* the conversation so far */

  /* Page 5 is free again; tokens CUT and on stay where they are, and are now tokens 0 and on. */
  const rope_kv_cache kept = pages_of(table + 1, 2, &zero);
  const rope_positions old = {.kind = ROPE_POSITIONS_OFFSET, .offset = CUT};
  fused = (rope_fused){.struct_size = sizeof fused, .cache = &kept, .source = &kept};
  fused.from_positions = &old;
  args = (rope_qk_args){.struct_size = sizeof args, .batch = 1, .tokens = KEPT, .fused = &fused};
  args.operation = ROPE_OPERATION_REROTATE;
  args.positions = (rope_positions){.kind = ROPE_POSITIONS_OFFSET, .offset = 0};
  check(rope_apply_qk(rope, &args));
  const double shifted = error(rope, table + 1, 0);
  /* The other sequence has these tokens from position 1000 on, in pages of its own. */
  const rope_kv_cache other = pages_of(other_table, 2, &zero);
  const rope_positions now = {.kind = ROPE_POSITIONS_OFFSET, .offset = 0};
  fused.cache = &other;
  fused.from_positions = &now;
  args.positions.offset = 1000;
  check(rope_apply_qk(rope, &args));
  const double moved = error(rope, other_table, 1000);
  printf("largest error of a key: %.1e in its slot, %.1e in another page\n", shifted, moved);
  rope_context_destroy(rope);
  return !(shifted < 2e-6 && moved < 2e-6);
}
