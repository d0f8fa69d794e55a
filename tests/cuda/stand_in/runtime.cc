// CUDA's runtime and librope's CUDA backend without a GPU: launches are walked, as by the tests of
// tests/gpu, in the order of their streams. Kernels see the memory that cudaMalloc gave, and no
// other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/status.h"
#include "call/plan.h"
#include "cuda/traits.h"
#include "cuda_runtime_api.h"
#include "gpu/call_walk.h"
#include "gpu/launch.h"

namespace {

std::mutex mutex;    // of all that follows
std::mutex running;  // of the work that somebody waits for: taken first
using Lock = std::lock_guard<std::mutex>;
std::map<char*, size_t> memory;
stand_in::Stream default_stream;
std::vector<stand_in::Stream*> streams = {&default_stream};
thread_local cudaError_t last_error;

// Does the work of a stream, or of all (null).
cudaError_t Finish(const stand_in::Stream* only) {
  const Lock alone(running);
  stand_in::Work work;
  {
    const Lock lock(mutex);
    for (stand_in::Stream* stream : streams) {
      if (only != nullptr && stream != only) continue;
      work.insert(work.end(), stream->queued.begin(), stream->queued.end());
      stream->queued.clear();
    }
  }
  for (const auto& run : work) run();
  return cudaSuccess;
}

cudaError_t Fail(cudaError_t error) { return last_error = error; }

}  // namespace

void stand_in::Queue(void* stream, std::function<void()> work) {
  const Lock lock(mutex);
  auto* const s = stream != nullptr ? static_cast<Stream*>(stream) : &default_stream;
  (s->captured != nullptr ? *s->captured : s->queued).push_back(std::move(work));
}

cudaError_t cudaGetDeviceCount(int* count) {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  *count = visible != nullptr && *visible == '\0' ? 0 : 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {"walked on the host", 4, 1 << 20};
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : Fail(cudaErrorInvalidValue);
}
const char* cudaGetErrorString(cudaError_t) { return "an error of the stand-in"; }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* all_bytes) {
  *free_bytes = *all_bytes = size_t{1} << 28;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  const Lock lock(mutex);
  *data = std::aligned_alloc(256, (bytes / 256 + 1) * 256);
  if (*data == nullptr) return Fail(cudaErrorMemoryAllocation);
  memory[static_cast<char*>(*data)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  cudaDeviceSynchronize();
  const Lock lock(mutex);
  memory.erase(static_cast<char*>(data));
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  if (data == nullptr) return Fail(cudaErrorInvalidValue);
  Finish(&default_stream);
  std::memset(data, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  stand_in::Queue(stream, [=] { std::memset(data, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  Finish(&default_stream);
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  stand_in::Queue(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() { return Finish(nullptr); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const Lock lock(mutex);
  *stream = new stand_in::Stream;
  streams.push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Finish(stream);
  const Lock lock(mutex);
  streams.erase(std::find(streams.begin(), streams.end(), stream));
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return Finish(stream != nullptr ? stream : &default_stream);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  stand_in::Queue(stream, [=] { function(data); });
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new std::chrono::steady_clock::time_point;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  stand_in::Queue(stream, [=] { *event = std::chrono::steady_clock::now(); });
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaDeviceSynchronize(); }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  *ms = std::chrono::duration<float, std::milli>(*end - *begin).count();
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  stream->captured = new stand_in::Work;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = std::exchange(stream->captured, nullptr);
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  *count = graph->size();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new stand_in::Work(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const auto& work : *exec) stand_in::Queue(stream, work);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

namespace rope {
namespace {

using namespace gpu;  // its kernels, walked

// With the device's memory as the kernels' arena.
template <class Walk>
void OnMemory(const Walk& walk) {
  Arena own;
  std::deque<std::vector<uint8_t>> writes;
  {
    const Lock lock(mutex);
    for (const auto& [data, size] : memory) {
      own.ranges.push_back({data, data + size, &writes.emplace_back(size)});
    }
  }
  arena = &own;
  walk();
  arena = nullptr;
  EXPECT_FALSE(own.failed) << "outside of memory, or written twice";
}

// A launch function of any kind of kernel; `data` is the stream.
template <class L, rope_status (*kWalk)(const L&, void*)>
rope_status Queued(const L& l, void* stream) {
  stand_in::Queue(stream, [l] {
    OnMemory([&] {
      WalkedStaged walked;
      EXPECT_EQ(kWalk(l, &walked), ROPE_OK);
    });
  });
  return ROPE_OK;
}

// Which kernels of StagedVariantAt and of gradients, by dtype and columns, the program has walked, behind what
// others have written: into the file of LIBROPE_WALKED, where that is set.
struct Told {
  ~Told() {
    const char* const path = std::getenv("LIBROPE_WALKED");
    if (path == nullptr) return;
    std::ofstream file(path, std::ios::app);
    for (const int kernel : walked_staged) file << "staged " << kernel << "\n";
    for (const auto& [dtype, columns] : walked_gradients) {
      file << "gradients " << dtype << (columns ? " columns" : "") << "\n";
    }
  }
} told;

rope_status Attach(const char* function, rope_context* context) {
  int count = 0;
  cudaGetDeviceCount(&count);
  if (context->device_index >= count) {
    return Fail(ROPE_ERROR_UNAVAILABLE, "%s: config->device (CUDA): no usable device", function);
  }
  std::snprintf(context->backend_name, sizeof(context->backend_name), "cuda:0 sm_0, walked");
  return ROPE_OK;
}

rope_status Apply(const Plan& plan) {
  constexpr LaunchFns kQueued = {&Queued<LaunchOf<Params>, &WalkBeside<Params>>,
                                 &Queued<LaunchOf<FusedParams>, &WalkBeside<FusedParams>>,
                                 &Queued<StagedLaunch, &WalkStaged>,
                                 &Queued<GradientLaunch, &WalkGradient>};
  constexpr int32_t kMultiprocessors = 4;
  return ForEachLaunchOfCall(plan, kMultiprocessors, kQueued, plan.stream);
}

rope_status WalkFill(const FillLaunch& l, void* stream) {
  stand_in::Queue(stream, [l] {
    for (uint32_t n = 0; n < l.source.tokens.count; ++n) {
      for (uint32_t pair = 0; pair < l.source.pairs; ++pair) {
        l.with_angles ? Fill<true>(l.source, n, pair) : Fill<false>(l.source, n, pair);
      }
    }
  });
  return ROPE_OK;
}
rope_status FillPlanned(const FillPlan& plan) {
  return ForEachFillLaunch(plan, &WalkFill, plan.stream);
}

}  // namespace

extern constexpr Backend kCudaBackend = cuda::MakeBackend(&Attach, &Apply, &FillPlanned);
static_assert(IsComplete(kCudaBackend));

}  // namespace rope
