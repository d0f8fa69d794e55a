// ROPE_HD marks functions that both the host compiler and nvcc compile.
#ifndef LIBROPE_SRC_HOST_DEVICE_H_
#define LIBROPE_SRC_HOST_DEVICE_H_

#if defined(__CUDACC__)
#define ROPE_HD __host__ __device__ __forceinline__
#else
#define ROPE_HD inline
#endif

#endif  // LIBROPE_SRC_HOST_DEVICE_H_
