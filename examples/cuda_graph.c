/* A decode step inside a CUDA graph: captured once, replayed for every token. Lengths of the
 * sequences lie in device memory, so each replay reads the current ones. Without a GPU the library
 * says why, and the program ends well. */
#include <librope/rope.h>

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SEQUENCES = 4, HEADS = 8, DIM = 64, STEPS = 3 };
static float k[SEQUENCES * HEADS * DIM];

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

int main(void) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = DIM;
  config.theta = 10000;
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

  void *keys, *lengths;
  cudaStream_t stream;
  check_cuda(cudaMalloc(&keys, sizeof k));
  check_cuda(cudaMalloc(&lengths, SEQUENCES * sizeof(int32_t)));
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = SEQUENCES;
  args.tokens = 1;
  args.stream = stream;
  args.k.data = keys;
  args.k.dtype = ROPE_DTYPE_F32;
  args.k.layout = ROPE_LAYOUT_BSHD;
  args.k.heads = HEADS;
  args.positions.kind = ROPE_POSITIONS_SEQ_OFFSETS; /* OFFSET would be captured with its value */
  args.positions.offsets_i32 = lengths;

  cudaGraph_t graph;
  cudaGraphExec_t replay;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  check(rope_apply_qk(rope, &args));
  check_cuda(cudaStreamEndCapture(stream, &graph));
  check_cuda(cudaGraphInstantiate(&replay, graph, 0));
  rope_context_destroy(rope); /* the graph holds the frequencies: it needs no context */

  double largest = 0;
  for (int step = 0; step < STEPS; ++step) {
    const int32_t now[SEQUENCES] = {step, 100 + step, 5000 + step, 131072 + step};
    for (size_t i = 0; i < sizeof k / sizeof *k; ++i) k[i] = i % DIM < DIM / 2 ? 1.0f : 0.0f;
    check_cuda(cudaMemcpyAsync(keys, k, sizeof k, cudaMemcpyHostToDevice, stream));
    check_cuda(cudaMemcpyAsync(lengths, now, sizeof now, cudaMemcpyHostToDevice, stream));
    check_cuda(cudaGraphLaunch(replay, stream));
    check_cuda(cudaMemcpyAsync(k, keys, sizeof k, cudaMemcpyDeviceToHost, stream));
    check_cuda(cudaStreamSynchronize(stream));
    /* The first pair turns by one radian per position: (1, 0) became its cosine and sine. */
    for (int s = 0; s < SEQUENCES; ++s) {
      const float* head = k + s * HEADS * DIM;
      largest = fmax(largest, fabs(head[0] - cos(now[s])));
      largest = fmax(largest, fabs(head[DIM / 2] - sin(now[s])));
    }
  }
  printf("%d replays: cos and sin off by %.1e\n", STEPS, largest);

  check_cuda(cudaGraphExecDestroy(replay));
  check_cuda(cudaGraphDestroy(graph));
  check_cuda(cudaStreamDestroy(stream));
  check_cuda(cudaFree(keys));
  check_cuda(cudaFree(lengths));
  return largest < 1e-6 ? 0 : 1;
}
