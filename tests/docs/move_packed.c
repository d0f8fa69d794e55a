/* Packed sequences in pages of a bf16 cache that move, each from a position of its own to another,
 * for guides/moving-a-cache.md. The model's context rounds EAGER, as those of a config.json mostly
 * do; the moves have one that does not. */
#include <math.h>
#include <string.h>

#include "check.h"

enum { HEADS = 2, HEAD_DIM = 64, PAGES = 6, PAGE_SIZE = 4, TOKENS = 10, ROW = HEADS * HEAD_DIM };

static uint16_t keys[TOKENS][ROW]; /* before any rotation */
static uint16_t memory[PAGES][PAGE_SIZE][ROW];
static const int32_t cu_seqlens[] = {0, 3, 8, TOKENS}; /* three sequences */
static const int32_t page_table[][2] = {{4, -1}, {0, 5}, {2, -1}}, starts[] = {0, 0, 0};

static float widened(uint16_t bf16) {
  const uint32_t bits = (uint32_t)bf16 << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static rope_tensor tensor(void* data, rope_layout layout) {
  rope_tensor t = {.data = data, .dtype = ROPE_DTYPE_BF16, .layout = layout, .heads = HEADS};
  return t;
}

/* Packed sequences, each from an offset of its own on. */
static rope_positions packed_from(const int32_t* offsets) {
  rope_positions p = {.kind = ROPE_POSITIONS_SEQ_OFFSETS, .offsets_i32 = offsets};
  p.cu_seqlens = cu_seqlens, p.sequences = 3;
  return p;
}

static rope_context* make(const rope_config* config) {
  rope_context* rope;
  check(rope_context_create(config, &rope));
  return rope;
}

int main(void) {
  for (int i = 0; i < TOKENS * ROW; ++i) (&keys[0][0])[i] = (uint16_t)(0x3f00 + i * 37 % 256);
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = HEAD_DIM;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  config.rounding = ROPE_ROUNDING_EAGER;
  rope_context* rope = make(&config);
  config.rounding = ROPE_ROUNDING_FLOAT32; /* of the same model, for moves alone */
  rope_context* moves = make(&config);

  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  cache.kind = ROPE_SLOTS_PAGED;
  cache.pages = PAGES, cache.page_size = PAGE_SIZE;
  cache.k = tensor(memory, ROPE_LAYOUT_NHD);
  cache.k.head_dim = HEAD_DIM;
  cache.page_table = &page_table[0][0], cache.page_table_stride = 2;
  cache.starts = starts;
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.cache = &cache;
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = 1;
  args.tokens = TOKENS;
  args.fused = &fused;
  args.k = tensor(keys, ROPE_LAYOUT_BSHD);
  const int32_t before[] = {4, 100, 17}, after[] = {0, 8, 3000};
  args.positions = packed_from(before);
  check(rope_apply_qk(rope, &args)); /* the cache as it was filled */

  args.k = (rope_tensor){0};
  /* Sequence s leaves before[s] and stands at after[s] now; its keys stay in their slots. */
  const rope_positions from = packed_from(before);
  args.operation = ROPE_OPERATION_REROTATE;
  args.positions = packed_from(after);
  fused.from_positions = &from;
  fused.source = fused.cache = &cache;
  check(rope_apply_qk(moves, &args));
  /* Against keys that were rotated there at once. */
  rope_qk_args direct = ROPE_INIT(rope_qk_args);
  direct.batch = 1;
  direct.tokens = TOKENS;
  direct.k = tensor(keys, ROPE_LAYOUT_BSHD);
  direct.positions = packed_from(after);
  check(rope_apply_qk(rope, &direct));
  double worst = 0;
  for (int s = 0; s < 3; ++s) {
    for (int t = cu_seqlens[s]; t < cu_seqlens[s + 1]; ++t) {
      const int n = t - cu_seqlens[s];
      const uint16_t* const moved = memory[page_table[s][n / PAGE_SIZE]][n % PAGE_SIZE];
      for (int i = 0; i < ROW; ++i) {
        worst = fmax(worst, fabs((double)widened(moved[i]) - (double)widened(keys[t][i])));
      }
    }
  }
  rope_context_destroy(rope);
  rope_context_destroy(moves);
  expect(worst < 0.03, "moved keys are those of their new positions"); /* channels are below 3 */
  return 0;
}
