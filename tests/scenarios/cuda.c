/* The decode call on a GPU: device pointers, the engine's stream, positions on the device (so that
 * a CUDA graph can replay it). Compiled everywhere; where there is no device it reports why. */
#include "scenario.h"
#ifdef WITH_CUDA
#include <cuda_runtime_api.h>
#else
typedef void* cudaStream_t;
#endif
enum { B = 8, HQ = 32, HK = 8, D = 128 };
struct step {
  void *q, *k;
  const int32_t* seq_lens;
  cudaStream_t stream;
};
static rope_status rotate(const rope_context* rope, const struct step* s) {
  rope_qk_args args = {
      .struct_size = sizeof args,
      .batch = B,
      .tokens = 1,
      .stream = s->stream,
      .q = {.data = s->q, .dtype = ROPE_DTYPE_BF16, .layout = ROPE_LAYOUT_BSHD, .heads = HQ},
      .k = {.data = s->k, .dtype = ROPE_DTYPE_BF16, .layout = ROPE_LAYOUT_BSHD, .heads = HK},
      .positions = {.kind = ROPE_POSITIONS_SEQ_OFFSETS, .offsets_i32 = s->seq_lens}};
  return rope_apply_qk(rope, &args);
}
int main(void) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = D;
  config.theta = 500000;
  config.pairing = ROPE_PAIRING_HALVES;
  config.device = ROPE_DEVICE_CUDA;
  config.device_index = 0;
  rope_context* rope;
  rope_status status = rope_context_create(&config, &rope);
  if (status == ROPE_ERROR_UNAVAILABLE) {
    printf("   %s\n", rope_last_error());
    return 0;
  }
  must_succeed(status);
  struct step s = {0}; /* no device memory here: the call is refused by name, as on the CPU */
  must_fail(ROPE_ERROR_INVALID_ARGUMENT, rotate(rope, &s));
  rope_context_destroy(rope);
  return 0;
}
