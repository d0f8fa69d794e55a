// What librope is measured beside on a GPU: kernels that do nothing, or no more than move bytes.
#ifndef LIBROPE_BENCH_CUDA_KERNELS_H_
#define LIBROPE_BENCH_CUDA_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace bench {

void LaunchEmpty(cudaStream_t stream);

// Reads so many bytes, and writes as many of them, or fewer, in vectors of 16 bytes.
void LaunchSweep(const char* from, int64_t read, char* to, int64_t written, cudaStream_t stream);

// Small finite numbers in every dtype, of 16 bits and more, and in codes of 8 bits.
void LaunchFill(char* to, int64_t bytes, cudaStream_t stream);

}  // namespace bench

#endif  // LIBROPE_BENCH_CUDA_KERNELS_H_
