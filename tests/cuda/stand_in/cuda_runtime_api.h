// What the programs of tests/cuda, and bench/cuda_bench.cc, use of CUDA's runtime, for builds
// without CUDA: a device in the host's memory, whose streams do their work when somebody waits for
// it. Thus the tests, and scripts/gpu-check with them, have run before they meet a GPU.
#ifndef LIBROPE_TESTS_CUDA_STAND_IN_CUDA_RUNTIME_API_H_
#define LIBROPE_TESTS_CUDA_STAND_IN_CUDA_RUNTIME_API_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <vector>

enum cudaError_t { cudaSuccess, cudaErrorInvalidValue, cudaErrorMemoryAllocation };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };
#define CUDART_VERSION 0
inline constexpr unsigned cudaStreamNonBlocking = 1;

namespace stand_in {
using Work = std::vector<std::function<void()>>;
struct Stream {
  Work queued;
  Work* captured = nullptr;  // where work goes instead
};
// Queues work in a stream, or the default stream (null).
void Queue(void* stream, std::function<void()> work);
}  // namespace stand_in
using cudaStream_t = stand_in::Stream*;
using cudaGraph_t = stand_in::Work*;
using cudaGraphExec_t = stand_in::Work*;
using cudaGraphNode_t = void*;
using cudaHostFn_t = void (*)(void*);
using cudaEvent_t = std::chrono::steady_clock::time_point*;
struct cudaDeviceProp {
  char name[256];
  int multiProcessorCount, l2CacheSize;
};

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* all_bytes);
cudaError_t cudaMalloc(void** data, size_t bytes);
cudaError_t cudaFree(void* data);
cudaError_t cudaMemset(void* data, int value, size_t bytes);
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data);
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

#endif  // LIBROPE_TESTS_CUDA_STAND_IN_CUDA_RUNTIME_API_H_
