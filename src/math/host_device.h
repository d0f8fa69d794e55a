// ROPE_HD marks functions that both the host compiler and nvcc compile; ROPE_HD_APART those of them
// that few calls need, which stay out of the others' code on the host. ROPE_UNROLL stands before a
// loop that nvcc must unroll: arrays indexed in it are then registers; ROPE_LOOP before one that
// must stay a loop.
#ifndef LIBROPE_SRC_MATH_HOST_DEVICE_H_
#define LIBROPE_SRC_MATH_HOST_DEVICE_H_

#if defined(__CUDACC__)
#define ROPE_HD __host__ __device__ __forceinline__
#define ROPE_HD_APART ROPE_HD
#define ROPE_HD_INLINED ROPE_HD
#else
#define ROPE_HD inline
#define ROPE_HD_INLINED __attribute__((always_inline)) inline
#define ROPE_HD_APART __attribute__((noinline, cold)) inline
#endif

#if defined(__CUDA_ARCH__)
#define ROPE_UNROLL _Pragma("unroll")
#define ROPE_LOOP _Pragma("unroll 1")
#else
#define ROPE_UNROLL
#define ROPE_LOOP
#endif

#endif  // LIBROPE_SRC_MATH_HOST_DEVICE_H_
