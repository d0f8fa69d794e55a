// ROPE_HD marks functions that both the host compiler and nvcc compile. ROPE_UNROLL stands before a
// loop that nvcc must unroll: arrays indexed in it are then registers.
#ifndef LIBROPE_SRC_MATH_HOST_DEVICE_H_
#define LIBROPE_SRC_MATH_HOST_DEVICE_H_

#if defined(__CUDACC__)
#define ROPE_HD __host__ __device__ __forceinline__
#else
#define ROPE_HD inline
#endif

#if defined(__CUDA_ARCH__)
#define ROPE_UNROLL _Pragma("unroll")
#else
#define ROPE_UNROLL
#endif

#endif  // LIBROPE_SRC_MATH_HOST_DEVICE_H_
