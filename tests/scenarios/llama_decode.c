/* A llama.cpp-like engine: prefill, then decode one token at a time; K is rotated inside the KV
 * cache. */
#include "scenario.h"
enum { LAYERS = 3, HQ = 32, HK = 8, D = 128, CTX = 64, PROMPT = 7 };
static float q[PROMPT * HQ * D], cache[LAYERS][CTX][HK][D];
static void project(int layer, int n_past, int n) { /* stands for the QKV matmuls */
  (void)layer;
  for (int i = 0; i < n * HQ * D; ++i) q[i] = random_float();
  for (int t = 0; t < n; ++t)
    for (int h = 0; h < HK; ++h)
      for (int d = 0; d < D; ++d) cache[layer][n_past + t][h][d] = random_float();
}
int main(void) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = D;
  config.theta = 500000;
  config.pairing = ROPE_PAIRING_INTERLEAVED; /* a GGUF of Llama */
  rope_context* rope;
  must_succeed(rope_context_create(&config, &rope));
  int n_past = 0;
  for (int step = 0; step < 5; ++step) {
    int n = step == 0 ? PROMPT : 1;
    rope_qk_args args = {
        .struct_size = sizeof args,
        .batch = 1,
        .tokens = n,
        .q = {.data = q, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = HQ},
        .k = {.dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = HK},
        .positions = {.kind = ROPE_POSITIONS_OFFSET, .offset = n_past}};
    for (int layer = 0; layer < LAYERS; ++layer) {
      project(layer, n_past, n);
      float* before = copy_of(cache[layer][n_past][0], (size_t)n * HK * D);
      args.k.data = cache[layer][n_past];
      must_succeed(rope_apply_qk(rope, &args));
      double want[D];
      for (int t = 0; t < n; ++t)
        for (int h = 0; h < HK; ++h) {
          rotate_head(before + (t * HK + h) * D, want, D, 0, D, ADJACENT, ADJACENT,
                      angles_at(500000, D, n_past + t), 1);
          must_be_close(cache[layer][n_past + t][h], want, D, 2e-5);
        }
    }
    n_past += n;
  }
  rope_context_destroy(rope);
  puts("ok");
  return 0;
}
