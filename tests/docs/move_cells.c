/* Keys that move inside a cache, for guides/moving-a-cache.md: a passage is cut out, a document is
 * reused elsewhere, positions are divided; each is compared with keys that were rotated at their
 * new positions. Then the wear of 16-bit keys that are moved again and again. */
#include <math.h>
#include <string.h>

#include "check.h"

enum { CELLS = 512, HEADS = 2, HEAD_DIM = 128, ROW = HEADS * HEAD_DIM };

static float keys[CELLS][ROW];  /* before any rotation */
static float cache[CELLS][ROW]; /* rotated */

static rope_context* make(rope_rounding rounding) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = HEAD_DIM;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  config.angle = ROPE_ANGLE_EXACT; /* SHIFT needs it */
  config.rounding = rounding;
  rope_context* rope;
  check(rope_context_create(&config, &rope));
  return rope;
}

static rope_qk_args keys_at(void* data, rope_dtype dtype, int64_t tokens) {
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = 1;
  args.tokens = tokens;
  args.k = (rope_tensor){.data = data, .dtype = dtype, .layout = ROPE_LAYOUT_BSHD, .heads = HEADS};
  return args;
}

static void rotate_all(const rope_context* rope, int64_t first) {
  memcpy(cache, keys, sizeof cache);
  rope_qk_args args = keys_at(cache, ROPE_DTYPE_F32, CELLS);
  args.positions.kind = ROPE_POSITIONS_OFFSET;
  args.positions.offset = first;
  check(rope_apply_qk(rope, &args));
}

/* The largest difference between cell c and the key of token token[c], rotated at position[c]. */
static double error_at(const rope_context* rope, int count, const int* token,
                       const int64_t* position) {
  double worst = 0;
  for (int c = 0; c < count; ++c) {
    float direct[ROW];
    memcpy(direct, keys[token[c]], sizeof direct);
    check(rope_apply_thd(rope, ROPE_DTYPE_F32, 1, &position[c], NULL, 0, direct, HEADS));
    for (int i = 0; i < ROW; ++i) worst = fmax(worst, fabs((double)cache[c][i] - direct[i]));
  }
  return worst;
}

/* The tokens from `begin` to `end` - 1 leave the conversation; those after them move down. */
static double cut_passage(const rope_context* rope, int begin, int end) {
  rotate_all(rope, 0);
  const int moved = CELLS - end;
  memmove(cache[begin], cache[end], (size_t)moved * sizeof cache[0]);

  const int64_t distance = begin - end; /* one for all: the same id, however far one steps */
  rope_qk_args args = keys_at(cache[begin], ROPE_DTYPE_F32, moved);
  args.operation = ROPE_OPERATION_SHIFT;
  args.positions.kind = ROPE_POSITIONS_IDS_STRIDED; /* strides 0 */
  args.positions.ids_i64 = &distance;
  check(rope_apply_qk(rope, &args));

  int token[CELLS];
  int64_t position[CELLS];
  for (int c = 0; c < begin + moved; ++c)
    token[c] = c < begin ? c : c - begin + end, position[c] = c;
  return error_at(rope, begin + moved, token, position);
}

/* A document that was cached from position 0 follows a prompt of `prompt` tokens. */
static double reuse_document(const rope_context* rope, int64_t prompt) {
  rotate_all(rope, 0);
  rope_qk_args args = keys_at(cache, ROPE_DTYPE_F32, CELLS);
  args.operation = ROPE_OPERATION_SHIFT;
  args.positions.kind = ROPE_POSITIONS_IDS_STRIDED;
  args.positions.ids_i64 = &prompt;
  check(rope_apply_qk(rope, &args));
  int token[CELLS];
  int64_t position[CELLS];
  for (int c = 0; c < CELLS; ++c) token[c] = c, position[c] = prompt + c;
  return error_at(rope, CELLS, token, position);
}

/* Positions are divided by `by` (self-extension): every cell has a distance of its own. */
static double divide_positions(const rope_context* rope, int64_t by) {
  rotate_all(rope, 0);
  int64_t distance[CELLS];
  for (int64_t c = 0; c < CELLS; ++c) distance[c] = c / by - c;
  rope_qk_args args = keys_at(cache, ROPE_DTYPE_F32, CELLS);
  args.operation = ROPE_OPERATION_SHIFT;
  args.positions.kind = ROPE_POSITIONS_IDS_T;
  args.positions.ids_i64 = distance;
  check(rope_apply_qk(rope, &args));
  int token[CELLS];
  int64_t position[CELLS];
  for (int c = 0; c < CELLS; ++c) token[c] = c, position[c] = c / by;
  return error_at(rope, CELLS, token, position);
}

/* Two sequences in one batch, each by a distance of its own. */
static double shift_sequences(const rope_context* rope) {
  rotate_all(rope, 0);
  static const int64_t distances[2] = {-50, 7};
  rope_qk_args args = keys_at(cache, ROPE_DTYPE_F32, CELLS / 2);
  args.batch = 2;
  args.operation = ROPE_OPERATION_SHIFT;
  args.positions.kind = ROPE_POSITIONS_IDS_STRIDED;
  args.positions.ids_i64 = distances;
  args.positions.stride_batch = 1; /* and 0 from token to token */
  check(rope_apply_qk(rope, &args));
  int token[CELLS];
  int64_t position[CELLS];
  for (int c = 0; c < CELLS; ++c) token[c] = c, position[c] = c + distances[c / (CELLS / 2)];
  return error_at(rope, CELLS, token, position);
}

static float from_bf16(uint16_t x) {
  const uint32_t bits = (uint32_t)x << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
static uint16_t to_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* The largest error of a pair, relative to the pair, after bf16 keys were moved `times` times. */
static double wear(rope_rounding rounding, int times) {
  rope_context* const rope = make(rounding);
  static uint16_t cells[CELLS][ROW];
  static float want[CELLS][ROW];
  for (int c = 0; c < CELLS; ++c) {
    for (int i = 0; i < ROW; ++i)
      cells[c][i] = to_bf16(keys[c][i]), want[c][i] = from_bf16(cells[c][i]);
  }
  const int64_t distance = -37, total = distance * times;
  rope_qk_args args = keys_at(cells, ROPE_DTYPE_BF16, CELLS);
  args.operation = ROPE_OPERATION_SHIFT;
  args.positions.kind = ROPE_POSITIONS_IDS_STRIDED;
  args.positions.ids_i64 = &distance;
  for (int i = 0; i < times; ++i) check(rope_apply_qk(rope, &args));
  args.k.data = want;
  args.k.dtype = ROPE_DTYPE_F32;
  args.positions.ids_i64 = &total; /* at once, in f32 */
  rope_context* const once = make(ROPE_ROUNDING_FLOAT32);
  check(rope_apply_qk(once, &args));
  double worst = 0;
  for (int c = 0; c < CELLS; ++c) {
    for (int h = 0; h < HEADS; ++h) {
      for (int i = h * HEAD_DIM; i < h * HEAD_DIM + HEAD_DIM / 2; ++i) {
        const int j = i + HEAD_DIM / 2;
        const double size = hypot(want[c][i], want[c][j]);
        const double off =
            hypot(from_bf16(cells[c][i]) - want[c][i], from_bf16(cells[c][j]) - want[c][j]);
        worst = fmax(worst, off / size);
      }
    }
  }
  rope_context_destroy(once);
  rope_context_destroy(rope);
  return worst;
}

int main(void) {
  fill(keys[0], sizeof keys / sizeof(float));
  rope_context* const rope = make(ROPE_ROUNDING_FLOAT32);
  const double cut = cut_passage(rope, 100, 340), reused = reuse_document(rope, 100000);
  const double divided = divide_positions(rope, 4), sequences = shift_sequences(rope);
  rope_context_destroy(rope);
  expect(cut < 1e-6 && reused < 1e-6 && divided < 1e-6 && sequences < 1e-6,
         "a moved key is the key at its new position");
  printf("f32, largest error of a channel: cut %.1e, reused %.1e, divided %.1e\n\n", cut, reused,
         divided);

  printf("bf16, largest error of a pair\nmoves   FLOAT32     EAGER\n");
  static const int moves[] = {1, 10, 50, 200};
  for (int i = 0; i < 4; ++i) {
    const double plain = wear(ROPE_ROUNDING_FLOAT32, moves[i]),
                 eager = wear(ROPE_ROUNDING_EAGER, moves[i]);
    printf("%5d   %6.1f %%  %6.1f %%\n", moves[i], 100 * plain, 100 * eager);
    expect(plain < eager, "EAGER wears keys out sooner");
  }
  return 0;
}
