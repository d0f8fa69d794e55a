/* Rotary embedding on a GPU: device pointers, the program's own stream, nothing that waits. q and k
 * are rotated by 7 positions and, on the same stream, back again; what the program then copies from
 * the device is what it had put there. Without a GPU the library says why, and the program ends
 * well. */
#include <librope/rope.h>

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 512, Q_HEADS = 32, K_HEADS = 8, DIM = 128 };
static float q[TOKENS * Q_HEADS * DIM], k[TOKENS * K_HEADS * DIM];
static float q_back[TOKENS * Q_HEADS * DIM], k_back[TOKENS * K_HEADS * DIM];

static void check(rope_status status) {
  if (status == ROPE_OK) return;
  fprintf(stderr, "%s\n", rope_last_error());
  exit(1);
}

static void check_cuda(cudaError_t error) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s\n", cudaGetErrorString(error));
  exit(1);
}

static void* on_device(const void* host, size_t bytes, cudaStream_t stream) {
  void* device;
  check_cuda(cudaMalloc(&device, bytes));
  check_cuda(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream));
  return device;
}

static double largest_difference(const float* a, const float* b, size_t count) {
  double largest = 0;
  for (size_t i = 0; i < count; ++i) largest = fmax(largest, fabs((double)a[i] - b[i]));
  return largest;
}

int main(void) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = DIM;
  config.theta = 500000;
  config.pairing = ROPE_PAIRING_HALVES;
  config.angle = ROPE_ANGLE_EXACT;
  config.device = ROPE_DEVICE_CUDA;
  rope_context* rope;
  rope_status status = rope_context_create(&config, &rope);
  if (status == ROPE_ERROR_UNAVAILABLE) {
    printf("%s\n", rope_last_error());
    return 0;
  }
  check(status);
  printf("%s\n", rope_context_backend(rope));

  for (size_t i = 0; i < sizeof q / sizeof *q; ++i) q[i] = (float)(i % 997) / 500 - 1;
  for (size_t i = 0; i < sizeof k / sizeof *k; ++i) k[i] = (float)(i % 991) / 500 - 1;

  cudaStream_t stream;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = 1;
  args.tokens = TOKENS;
  args.stream = stream;
  args.q.data = on_device(q, sizeof q, stream);
  args.q.dtype = ROPE_DTYPE_F32;
  args.q.layout = ROPE_LAYOUT_BSHD;
  args.q.heads = Q_HEADS;
  args.k = args.q;
  args.k.data = on_device(k, sizeof k, stream);
  args.k.heads = K_HEADS;
  args.positions.kind = ROPE_POSITIONS_OFFSET;
  args.positions.offset = 7;

  /* Each call queues one kernel for q and k. `args` may change as soon as the call returns. */
  check(rope_apply_qk(rope, &args));
  args.operation = ROPE_OPERATION_INVERSE;
  check(rope_apply_qk(rope, &args));

  check_cuda(cudaMemcpyAsync(q_back, args.q.data, sizeof q, cudaMemcpyDeviceToHost, stream));
  check_cuda(cudaMemcpyAsync(k_back, args.k.data, sizeof k, cudaMemcpyDeviceToHost, stream));
  check_cuda(cudaStreamSynchronize(stream)); /* the program waits when it wants to */
  const double difference = fmax(largest_difference(q, q_back, sizeof q / sizeof *q),
                                 largest_difference(k, k_back, sizeof k / sizeof *k));
  printf("there and back: off by %.1e\n", difference);

  check_cuda(cudaFree(args.q.data));
  check_cuda(cudaFree(args.k.data));
  check_cuda(cudaStreamDestroy(stream));
  rope_context_destroy(rope);
  return difference < 1e-6 ? 0 : 1;
}
