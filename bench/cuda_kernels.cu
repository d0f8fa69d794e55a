// The kernels of cuda_kernels.h. What they do to memory is all that counts.
#include "cuda_kernels.h"

namespace bench {
namespace {

constexpr int kThreads = 256, kVectors = 4;  // of a block, of a thread

__global__ void Empty() {}

// What is read and not written has no such value: the compiler does not know.
constexpr unsigned kNever = 0xffffffff;

__global__ void Sweep(const uint4* from, int64_t read, uint4* to, int64_t written) {
  const int64_t first = int64_t{blockIdx.x} * kThreads * kVectors + threadIdx.x;
  uint4 v[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (first + i * kThreads < read) v[i] = from[first + i * kThreads];
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t at = first + i * kThreads;
    if (at < written || (at < read && v[i].x == kNever)) to[at] = v[i];
  }
}

__global__ void Fill(uint32_t* words, int64_t count) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const auto mixed = static_cast<uint32_t>(i * 2654435761u);
    words[i] = (mixed & 0x03ff83ffu) | 0x38003800u;
  }
}

}  // namespace

void LaunchEmpty(cudaStream_t stream) { Empty<<<1, 32, 0, stream>>>(); }

void LaunchSweep(const char* from, int64_t read, char* to, int64_t written, cudaStream_t stream) {
  constexpr int64_t kOfBlock = kThreads * kVectors;
  const int64_t vectors = read / 16;
  Sweep<<<static_cast<unsigned>((vectors + kOfBlock - 1) / kOfBlock), kThreads, 0, stream>>>(
      reinterpret_cast<const uint4*>(from), vectors, reinterpret_cast<uint4*>(to), written / 16);
}

void LaunchFill(char* to, int64_t bytes, cudaStream_t stream) {
  Fill<<<1024, kThreads, 0, stream>>>(reinterpret_cast<uint32_t*>(to), bytes / 4);
}

}  // namespace bench
