/* The cache of DeepSeek-V3 in the rows of FlashMLA, 656 bytes for each token:
 *
 *     0   512 e4m3, the latent
 *     512 4 f32, a scale for each 128 of them
 *     528 64 bf16, the key, which turns
 *
 * One call writes such rows, and another reads them back as floats. The program compares what is
 * read with what the bytes say, and that with the latents, and with keys that it turns itself.
 *
 *     cc mla_rows.c $(pkg-config --cflags --libs librope) -lm && ./a.out */
#include <librope/rope.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LATENT = 512, GROUP = 128, DIM = 64, WIDTH = LATENT + DIM, TOKENS = 3, FIRST = 1000 };
enum { PAGES = 2, PAGE_SIZE = 64, ROW = 656, SCALES = LATENT, KEY = LATENT + LATENT / GROUP * 4 };

static uint16_t projected[TOKENS][WIDTH]; /* bf16: a latent and a key for each token */
static const int64_t slots[TOKENS] = {70, 3, 71};

static void check(rope_status status) {
  if (status == ROPE_OK) return;
  fprintf(stderr, "%s\n", rope_last_error());
  exit(1);
}

static double of_bf16(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float x;
  memcpy(&x, &wide, sizeof x);
  return x;
}

static double of_e4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  const double size = exponent == 0 ? fraction / 512.0 : ldexp(8 + fraction, exponent - 10);
  return code & 0x80 ? -size : size;
}

/* One head of `channels` for each token; rows of `bytes`, pages of PAGE_SIZE of them. */
static rope_tensor part(void* data, rope_dtype dtype, int size, int channels, int bytes) {
  rope_tensor t = {.data = data, .dtype = dtype, .layout = ROPE_LAYOUT_STRIDED, .heads = 1};
  t.head_dim = channels;
  t.stride_token = bytes / size;
  t.stride_batch = (int64_t)PAGE_SIZE * t.stride_token;
  return t;
}

static rope_context* make(rope_scaling scaling) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = DIM;
  config.scaling = scaling;
  if (scaling != ROPE_SCALING_NOPE) config.theta = 10000, config.pairing = ROPE_PAIRING_INTERLEAVED;
  rope_context* rope;
  check(rope_context_create(&config, &rope));
  return rope;
}

int main(void) {
  for (int i = 0; i < TOKENS * WIDTH; ++i) {
    const float x = (float)ldexp(sin(0.7 * i), -(i % 7));
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    (&projected[0][0])[i] = (uint16_t)(bits >> 16);
  }
  uint8_t* const memory = malloc(PAGES * PAGE_SIZE * ROW); /* aligned to the scales */
  if (memory == NULL) return 1;
  rope_context *rope = make(ROPE_SCALING_DEFAULT), *nope = make(ROPE_SCALING_NOPE);

  /* Three parts of one memory; strides count elements of each. */
  rope_scale scale = ROPE_INIT(rope_scale);
  scale.computed = 1, scale.group = GROUP, scale.power_of_two = 1, scale.min_scale = 1e-4;
  scale.data = memory + SCALES, scale.dtype = ROPE_DTYPE_F32;
  scale.stride_batch = PAGE_SIZE * ROW / 4, scale.stride_token = ROW / 4;
  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  cache.kind = ROPE_SLOTS_MAPPED;
  cache.pages = PAGES, cache.page_size = PAGE_SIZE;
  cache.slots_i64 = slots, cache.slots_length = TOKENS;
  cache.k = part(memory + KEY, ROPE_DTYPE_BF16, 2, DIM, ROW);
  cache.v = part(memory, ROPE_DTYPE_F8_E4M3, 1, LATENT, ROW);
  cache.v.scale = &scale;

  rope_fused store = {.struct_size = sizeof store, .cache = &cache};
  store.v = part(projected, ROPE_DTYPE_BF16, 2, LATENT, sizeof projected[0]);
  rope_qk_args args = {.struct_size = sizeof args, .batch = 1, .tokens = TOKENS, .fused = &store};
  args.k = part(&projected[0][LATENT], ROPE_DTYPE_BF16, 2, DIM, sizeof projected[0]);
  args.positions = (rope_positions){.kind = ROPE_POSITIONS_OFFSET, .offset = FIRST};
  check(rope_apply_qk(rope, &args));

  /* Read back, in the order of the slots, by a context that does not turn. */
  float latents[TOKENS][LATENT], keys[TOKENS][DIM];
  rope_fused read = {.struct_size = sizeof read, .source = &cache};
  read.v_out = part(latents, ROPE_DTYPE_F32, 4, LATENT, sizeof latents[0]);
  rope_qk_args back = {.struct_size = sizeof back, .batch = 1, .tokens = TOKENS, .fused = &read};
  back.k_out = part(keys, ROPE_DTYPE_F32, 4, DIM, sizeof keys[0]);
  back.positions = (rope_positions){.kind = ROPE_POSITIONS_OFFSET, .offset = 0};
  check(rope_apply_qk(nope, &back));

  double of_latents = 0, of_keys = 0;
  for (int t = 0; t < TOKENS; ++t) {
    const uint8_t* const row = memory + slots[t] * ROW;
    for (int c = 0; c < LATENT; ++c) {
      float step;
      memcpy(&step, row + SCALES + c / GROUP * 4, sizeof step);
      if (latents[t][c] != of_e4m3(row[c]) * step) return 1;
      const double x = of_bf16(projected[t][c]); /* codes below 1/64 have one distance */
      of_latents = fmax(of_latents, fabs(latents[t][c] - x) / (fabs(x) + step / 64));
    }
    for (int c = 0; c < DIM; ++c) {
      uint16_t stored;
      memcpy(&stored, row + KEY + 2 * c, sizeof stored);
      if (keys[t][c] != of_bf16(stored)) return 1;
      const double angle = (FIRST + t) * pow(10000, -(c / 2) * 2.0 / DIM);
      const double x0 = of_bf16(projected[t][LATENT + c / 2 * 2]);
      const double x1 = of_bf16(projected[t][LATENT + c / 2 * 2 + 1]);
      const double want =
          c % 2 == 0 ? x0 * cos(angle) - x1 * sin(angle) : x1 * cos(angle) + x0 * sin(angle);
      of_keys = fmax(of_keys, fabs(keys[t][c] - want) / hypot(x0, x1));
    }
  }
  printf("%d rows of %d bytes: latents are off by up to %.4f of their value, keys by %.4f\n",
         TOKENS, ROW, of_latents, of_keys);
  free(memory);
  rope_context_destroy(nope);
  rope_context_destroy(rope);
  return !(of_latents <= 1.0 / 16 && of_keys <= 1.0 / 256 + 1e-4);
}
