/* Keys of bf16 go to two caches of 8 bits: codes in e4m3 with a scale for each head, and blocks of
 * ggml's Q8_0. Then they move by 100 positions, in their slots, and are read back as floats, which
 * the program compares with keys that were rotated where they now are.
 *
 *     cc cache_8bit.c $(pkg-config --cflags --libs librope) -lm && ./a.out */
#include <librope/rope.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 6, HEADS = 2, DIM = 64, PAGES = 3, PAGE_SIZE = 4, MOVE = 100 };

typedef struct block { /* of Q8_0: 32 channels */
  uint16_t d;          /* f16 */
  int8_t codes[32];
} block;

static uint16_t k[TOKENS][HEADS][DIM]; /* bf16, before rotation */
static uint8_t codes[PAGES][PAGE_SIZE][HEADS][DIM];
static float scales[PAGES][PAGE_SIZE][HEADS];
static block blocks[PAGES][PAGE_SIZE][HEADS][DIM / 32];
static const int64_t slots[TOKENS] = {4, 5, 6, 7, 0, 1}; /* page 1, then page 0 */

static void check(rope_status status) {
  if (status == ROPE_OK) return;
  fprintf(stderr, "%s\n", rope_last_error());
  exit(1);
}

static rope_context* make(rope_scaling scaling) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = DIM;
  config.scaling = scaling;
  if (scaling != ROPE_SCALING_NOPE) config.theta = 10000, config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope;
  check(rope_context_create(&config, &rope));
  return rope;
}

static rope_qk_args at_positions(int64_t first) {
  rope_qk_args args = {.struct_size = sizeof args, .batch = 1, .tokens = TOKENS};
  args.positions = (rope_positions){.kind = ROPE_POSITIONS_OFFSET, .offset = first};
  return args;
}

/* Stores the keys in the cache, moves them there, and returns how far they then are from keys that
 * were rotated at their new positions, in parts of the largest channel. */
static double run(const rope_context* rope, const rope_context* nope, const rope_kv_cache* cache) {
  rope_fused store = {.struct_size = sizeof store, .cache = cache};
  rope_qk_args args = at_positions(0);
  args.k = (rope_tensor){.data = k, .dtype = ROPE_DTYPE_BF16, .heads = HEADS};
  args.k.layout = ROPE_LAYOUT_BSHD;
  args.fused = &store;
  check(rope_apply_qk(rope, &args)); /* k is only read */

  const rope_positions old = args.positions;
  rope_fused move = {.struct_size = sizeof move, .source = cache, .cache = cache};
  move.from_positions = &old;
  rope_qk_args moved = at_positions(MOVE);
  moved.operation = ROPE_OPERATION_REROTATE;
  moved.fused = &move;
  check(rope_apply_qk(rope, &moved));

  float got[TOKENS][HEADS][DIM], want[TOKENS][HEADS][DIM];
  rope_fused read = {.struct_size = sizeof read, .source = cache};
  rope_qk_args back = at_positions(0); /* which a context without rotation does not look at */
  back.k_out = (rope_tensor){.data = got, .dtype = ROPE_DTYPE_F32, .heads = HEADS};
  back.k_out.layout = ROPE_LAYOUT_BSHD;
  back.fused = &read;
  check(rope_apply_qk(nope, &back));

  args.positions.offset = MOVE;
  args.k_out = back.k_out;
  args.k_out.data = want;
  args.fused = NULL;
  check(rope_apply_qk(rope, &args));
  double worst = 0, largest = 0;
  for (int i = 0; i < TOKENS * HEADS * DIM; ++i) {
    largest = fmax(largest, fabs((&want[0][0][0])[i]));
    const double off = fabs((double)(&got[0][0][0])[i] - (&want[0][0][0])[i]);
    if (!(off <= worst)) worst = off;
  }
  return worst / largest;
}

int main(void) {
  for (int i = 0; i < TOKENS * HEADS * DIM; ++i) {
    const float x = (float)sin(0.7 * i);
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    (&k[0][0][0])[i] = (uint16_t)(bits >> 16);
  }
  rope_context *rope = make(ROPE_SCALING_DEFAULT), *nope = make(ROPE_SCALING_NOPE);

  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  cache.kind = ROPE_SLOTS_MAPPED;
  cache.pages = PAGES, cache.page_size = PAGE_SIZE;
  cache.slots_i64 = slots, cache.slots_length = TOKENS;
  cache.k.layout = ROPE_LAYOUT_NHD, cache.k.heads = HEADS;

  /* Blocks hold their scales. Strides, of other layouts, count channels, and not bytes. */
  cache.k.data = blocks;
  cache.k.dtype = ROPE_DTYPE_Q8_0;
  const double of_blocks = run(rope, nope, &cache);

  /* A scale for each slot and head, computed from what is stored there. */
  rope_scale scale = ROPE_INIT(rope_scale);
  scale.computed = 1;
  scale.data = scales, scale.dtype = ROPE_DTYPE_F32;
  scale.stride_batch = PAGE_SIZE * HEADS, scale.stride_token = HEADS, scale.stride_head = 1;
  cache.k.data = codes;
  cache.k.dtype = ROPE_DTYPE_F8_E4M3;
  cache.k.scale = &scale;
  const double of_codes = run(rope, nope, &cache);

  printf("largest error of a channel: %.4f in Q8_0, %.4f in e4m3\n", of_blocks, of_codes);
  rope_context_destroy(nope);
  rope_context_destroy(rope);
  return !(of_blocks < 0.01 && of_codes < 0.1); /* each is coded twice */
}
