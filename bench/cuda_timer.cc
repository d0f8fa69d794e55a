#include "cuda_timer.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "cuda_kernels.h"

namespace bench {

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(1);
}

void Check(rope_status status) {
  if (status == ROPE_OK) return;
  std::fprintf(stderr, "%s\n", rope_last_error());
  std::exit(1);
}

int64_t Divided(int64_t full) {
  const char* const divide = std::getenv("ROPE_BENCH_DIVIDE");
  return divide != nullptr ? std::max<int64_t>(1, full / std::atoi(divide)) : full;
}

Timer::Timer(std::string words) : words_(std::move(words)) {
  cudaDeviceProp device;
  Check(cudaGetDeviceProperties(&device, 0));
  bytes_ = Divided(std::max<int64_t>(4 * int64_t{device.l2CacheSize}, int64_t{1} << 30));
  Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  for (char** buffer : {&in_, &out_}) {
    Check(cudaMalloc(reinterpret_cast<void**>(buffer), static_cast<size_t>(bytes_)));
    LaunchFill(*buffer, bytes_, stream_);
  }
  Check(cudaEventCreate(&begin_));
  Check(cudaEventCreate(&end_));
  Check(cudaDeviceSynchronize());
  std::printf("{\"device\": \"%s\", \"multiprocessors\": %d, \"l2\": %d, \"runtime\": %d}\n",
              device.name, device.multiProcessorCount, device.l2CacheSize, CUDART_VERSION);
}

// Where call n of a rotation over the buffers works.
int64_t Timer::At(int64_t bytes, int64_t n) const {
  const int64_t step = (bytes + 511) / 512 * 512;
  if (step > bytes_) {
    std::fprintf(stderr, "%lld bytes are more than a buffer has\n", static_cast<long long>(bytes));
    std::exit(1);
  }
  return n % (bytes_ / step) * step;
}

double Timer::Elapsed(const std::function<void()>& work, int64_t calls) {
  std::vector<float> rounds(7);
  for (float& ms : rounds) {
    Check(cudaEventRecord(begin_, stream_));
    work();
    Check(cudaEventRecord(end_, stream_));
    Check(cudaEventSynchronize(end_));
    Check(cudaEventElapsedTime(&ms, begin_, end_));
  }
  std::sort(rounds.begin(), rounds.end());
  return double{rounds[3]} * 1000 / static_cast<double>(calls);
}

double Timer::Time(int64_t bytes, const Call& call) {
  const int64_t calls = Divided(50);
  for (int64_t n = 0; n < Divided(20); ++n) call(At(bytes, n));
  return Elapsed(
      [&] {
        for (int64_t n = 0; n < calls; ++n) call(At(bytes, n));
      },
      calls);
}

double Timer::TimeInGraph(int64_t bytes, const Call& call) {
  const int64_t nodes = Divided(200);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  Check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  for (int64_t n = 0; n < nodes; ++n) call(At(bytes, n));
  Check(cudaStreamEndCapture(stream_, &graph));
  Check(cudaGraphInstantiate(&exec, graph, 0));
  for (int n = 0; n < 5; ++n) Check(cudaGraphLaunch(exec, stream_));
  const double us = Elapsed([&] { Check(cudaGraphLaunch(exec, stream_)); }, nodes);
  Check(cudaGraphExecDestroy(exec));
  Check(cudaGraphDestroy(graph));
  return us;
}

double Timer::TimeEmpty() {
  return TimeInGraph(1, [this](int64_t) { LaunchEmpty(stream_); });
}

}  // namespace bench
