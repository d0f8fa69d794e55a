// The CUDA backend: the kernels of kernel.h as __global__ functions, and their launches. Apply
// allocates nothing, waits for nothing and asks the runtime only for the current device, so that it
// may run under stream capture. The CUDA runtime is linked statically and kept to this library: its
// record of the last error is not the caller's.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdio>
#include <type_traits>
#include <utility>

#include "base/status.h"
#include "call/plan.h"
#include "context/backend.h"
#include "cuda/traits.h"
#include "gpu/gradient.h"
#include "gpu/gradient_columns.h"
#include "gpu/held.h"
#include "gpu/kernel.h"
#include "gpu/launch.h"
#include "gpu/plain.h"
#include "gpu/staged.h"

namespace rope {
namespace cuda {
using namespace gpu;  // its kernels, on a device
namespace {

// Tensors in global memory, rows in shared memory. Whole vectors, so that no access is split.
struct DeviceMemory {
  template <int kBytes>
  static __device__ __forceinline__ Vector<kBytes> Load(const char* from) {
    Vector<kBytes> v;
    if constexpr (kBytes == 16) {
      const uint4 w = *reinterpret_cast<const uint4*>(from);
      v.words[0] = w.x, v.words[1] = w.y, v.words[2] = w.z, v.words[3] = w.w;
    } else if constexpr (kBytes == 8) {
      const uint2 w = *reinterpret_cast<const uint2*>(from);
      v.words[0] = w.x, v.words[1] = w.y;
    } else if constexpr (kBytes == 4) {
      v.words[0] = *reinterpret_cast<const uint32_t*>(from);
    } else if constexpr (kBytes == 2) {
      v.words[0] = *reinterpret_cast<const uint16_t*>(from);
    } else {
      static_assert(kBytes == 1);
      v.words[0] = *reinterpret_cast<const uint8_t*>(from);
    }
    return v;
  }

  template <int kBytes>
  static __device__ __forceinline__ void Store(char* to, const Vector<kBytes>& v) {
    if constexpr (kBytes == 16) {
      *reinterpret_cast<uint4*>(to) = make_uint4(v.words[0], v.words[1], v.words[2], v.words[3]);
    } else if constexpr (kBytes == 8) {
      *reinterpret_cast<uint2*>(to) = make_uint2(v.words[0], v.words[1]);
    } else if constexpr (kBytes == 4) {
      *reinterpret_cast<uint32_t*>(to) = v.words[0];
    } else if constexpr (kBytes == 2) {
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(v.words[0]);
    } else {
      static_assert(kBytes == 1);
      *reinterpret_cast<uint8_t*>(to) = static_cast<uint8_t>(v.words[0]);
    }
  }

  template <bool kAgain>
  static __device__ __forceinline__ TwoRows LoadRows(const CosSin* from) {
    float4 v;
    if constexpr (kAgain) {
      asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                   : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(from))));
    } else {
      v = *reinterpret_cast<const float4*>(from);
    }
    return {{{v.x, v.y}, {v.z, v.w}}};
  }

  static __device__ __forceinline__ void StoreRow(CosSin* to, CosSin value) {
    *reinterpret_cast<float2*>(to) = make_float2(value.cos, value.sin);
  }

  static __device__ __forceinline__ void Increment(uint32_t* at) { atomicAdd(at, 1u); }
  static __device__ __forceinline__ void Max(uint32_t* at, uint32_t value) { atomicMax(at, value); }
};

// Programmatic dependent launch: on sm_90 and later a kernel may start while the one before it
// drains. Nothing is read or written before the wait, and the next kernel is let in only after it,
// so a chain of kernels stays ordered. The condition is always true: it ties the wait to the
// address, so that addresses are computed before it.
__device__ __forceinline__ void WaitForPrevious(const void* address) {
#if __CUDA_ARCH__ >= 900
  asm volatile("{ .reg .pred q; setp.ne.s64 q, %0, -1; @q griddepcontrol.wait; }" ::"l"(address)
               : "memory");
#endif
}

// The same, tied to two addresses and a number: pointers and halves have no sign.
__device__ __forceinline__ void WaitForPrevious(const void* a, const void* b, uint64_t number) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .pred q; .reg .b64 t, u; shr.u64 u, %2, 1; or.b64 t, %0, %1; or.b64 t, t, u; "
      "setp.ge.s64 q, t, 0; @q griddepcontrol.wait; }" ::"l"(a),
      "l"(b), "l"(number)
      : "memory");
#endif
}

__device__ __forceinline__ void LetNextStart() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ Thread OwnThread() {
  return {blockIdx.x,  blockIdx.y, threadIdx.x, threadIdx.y,
          threadIdx.z, blockDim.x, blockDim.y,  blockDim.z};
}

__device__ __forceinline__ CosSin* SharedRows() {
  extern __shared__ float4 shared[];
  return reinterpret_cast<CosSin*>(shared);
}

template <int kIndex>
__global__ void __launch_bounds__(kMaxThreads, 2) Apply(const __grid_constant__ Params p) {
  constexpr Variant kVariant = VariantAt(kIndex);
  using Body = Kernel<kVariant.dtype, kVariant.form, kVariant.arithmetic, DeviceMemory>;
  CosSin* const rows = SharedRows();
  const Thread i = OwnThread();
  typename Body::Held held;
  Body::Locate(p, i, &held);
  WaitForPrevious(held.in);
  Body::Load(p, i, &held);
  LetNextStart();
  Body::MakeRow(p, i, held.run, rows);
  __syncthreads();
  Body::Rotate(p, i, held, rows);
}

// Of most calls: the next kernel is let in as early as the order of a chain allows.
template <int kIndex>
__global__ void __launch_bounds__(kMaxThreads, 2) ApplyPlain(const __grid_constant__ Params p) {
  constexpr Variant kVariant = VariantAt(kIndex);
  using Body = PlainKernel<kVariant.dtype, kVariant.form, kVariant.arithmetic, DeviceMemory>;
  CosSin* const rows = SharedRows();
  const Thread i = OwnThread();
  typename Body::Held held;
  Body::Locate(p, i, &held);
  WaitForPrevious(held.in, held.row.given.from, held.row.frequency);
  LetNextStart();
  Body::Ask(&held);
  Body::MakeRow(p, i, held, rows);
  __syncthreads();
  Body::Rotate(p, i, held, rows);
}

// Of calls with `fused`. With 64 registers, for two blocks, ptxas spills for sm_120, whose
// multiprocessors need few warps for their share of the memory's speed.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200
constexpr int kFusedBlocks = 1;
#else
constexpr int kFusedBlocks = 2;
#endif

template <int kIndex>
__global__ void __launch_bounds__(kMaxThreads, kFusedBlocks)
    ApplyFused(const __grid_constant__ FusedParams p) {
  constexpr Variant kVariant = VariantAt(kIndex);
  using Body = FusedKernel<kVariant.dtype, kVariant.form, kVariant.arithmetic, DeviceMemory>;
  CosSin* const rows = SharedRows();
  const Thread i = OwnThread();
  typename Body::Held held;
  Body::Locate(p, i, &held);
  WaitForPrevious(held.in);
  Body::Load(p, i, &held);
  LetNextStart();
  SlotPlaces* const places = Body::PlacesOf(p, i, rows);
  Body::FindSlot(p, i, held.run, places);
  Body::MakeRow(p, i, held.run, rows);
  __syncthreads();
  Body::Store(p, i, held, rows, places);
}

template <int kIndex>
__global__ void __launch_bounds__(kMaxThreads, kFusedBlocks)
    ApplyPlainFused(const __grid_constant__ FusedParams p) {
  constexpr Variant kVariant = VariantAt(kIndex);
  using Body = PlainFusedKernel<kVariant.dtype, kVariant.form, kVariant.arithmetic, DeviceMemory>;
  CosSin* const rows = SharedRows();
  const Thread i = OwnThread();
  typename Body::Held held;
  Body::Locate(p, i, &held);
  WaitForPrevious(held.in, held.row.given.from, held.row.frequency);
  LetNextStart();
  Body::Ask(&held);
  Body::AskPage(p, i, &held);
  Body::MakeRow(p, i, held, rows);
  __syncthreads();
  Body::Rotate(p, i, held, rows);
}

// All threads of a warp, step by step.
struct DeviceWarp {
  Thread thread;
  __device__ __forceinline__ uint32_t y() const { return thread.y; }
  template <class Step>
  __device__ __forceinline__ void Each(const Step& step) const {
    step(thread);
    __syncwarp();
  }
};

// And of a block.
struct DeviceBlock {
  Thread thread;
  __device__ __forceinline__ uint32_t x() const { return thread.block_x; }
  __device__ __forceinline__ uint32_t y() const { return thread.block_y; }
  template <class Step>
  __device__ __forceinline__ void Each(const Step& step) const {
    step(thread);
    __syncthreads();
  }
  __device__ __forceinline__ void WaitForPrevious() const {
    cuda::WaitForPrevious(nullptr);
    LetNextStart();
  }
  template <class Do>
  __device__ __forceinline__ void EachWarp(const Do& all) const {
    all(DeviceWarp{thread});
  }
  template <class Step>
  __device__ __forceinline__ void EachAlone(const Step& step) const {
    step(thread);
  }
  template <class T>
  struct State {
    T own;
    __device__ __forceinline__ T& operator[](const Thread&) { return own; }
  };

  // Adds to kCount values of each thread those of the one `apart` lanes from it, up or down.
  template <int kCount, class ValuesOf>
  __device__ __forceinline__ void AddAcross(uint32_t apart, const ValuesOf& values_of) const {
    float* const own = values_of(thread);
    ROPE_UNROLL
    for (int j = 0; j < kCount; ++j) {
      own[j] = Add(own[j], __shfl_xor_sync(0xffffffffu, own[j], static_cast<int>(apart)));
    }
  }
};

// Blocks on a multiprocessor, by the registers that a kernel takes without a spill.
constexpr int StagedBlocks(const StagedVariant& v) {
  if (v.held == 8 || (v.held == 4 && v.dtype == ROPE_DTYPE_F16)) return 2;
  return v.held != 0 && v.dtype != ROPE_DTYPE_F32 ? 3 : 4;
}

template <int kIndex>
__global__ void __launch_bounds__(kStagedThreads, StagedBlocks(StagedVariantAt(kIndex)))
    ApplyStaged(const __grid_constant__ StagedParams p) {
  constexpr StagedVariant kVariant = StagedVariantAt(kIndex);
  extern __shared__ float4 shared[];
  const DeviceBlock block = {
      {blockIdx.x, blockIdx.y, threadIdx.x, threadIdx.y, 0, kStagedLanes, kStagedWarps, 1}};
  using Body = std::conditional_t<
      kVariant.held != 0, HeldKernel<kVariant.dtype, kVariant.held, DeviceMemory>,
      StagedKernel<kVariant.dtype, kVariant.wide, kVariant.converts, DeviceMemory>>;
  Body::Run(p, block, reinterpret_cast<char*>(shared));
}

template <rope_dtype kType>
__global__ void __launch_bounds__(kStagedThreads, 4)
    ApplyGradients(const __grid_constant__ GradientParams p) {
  extern __shared__ float4 shared[];
  const DeviceBlock block = {
      {blockIdx.x, blockIdx.y, threadIdx.x, threadIdx.y, 0, kStagedLanes, kStagedWarps, 1}};
  GradientKernel<kType, DeviceMemory>::Run(p, block, reinterpret_cast<char*>(shared));
}

// Heads in columns are in registers, which let two blocks run: a multiprocessor has few parts.
template <rope_dtype kType>
__global__ void __launch_bounds__(kStagedThreads, 2)
    ApplyGradientColumns(const __grid_constant__ GradientParams p) {
  extern __shared__ float4 shared[];
  const DeviceBlock block = {
      {blockIdx.x, blockIdx.y, threadIdx.x, threadIdx.y, 0, kStagedLanes, kStagedWarps, 1}};
  GradientColumnKernel<kType, DeviceMemory>::Run(p, block, reinterpret_cast<char*>(shared));
}

// Four blocks on a multiprocessor: left to itself, ptxas takes 32 registers for sm_100, and spills.
template <bool kWithAngles>
__global__ void __launch_bounds__(kFillPairs* kFillTokens, 4)
    FillRows(const __grid_constant__ CosSinSource source) {
  const uint32_t n = blockIdx.x * kFillTokens + threadIdx.y;
  if (n >= source.tokens.count) return;
  for (uint32_t pair = threadIdx.x; pair < source.pairs; pair += kFillPairs) {
    Fill<kWithAngles>(source, n, pair);
  }
}

template <size_t... kIndices>
const void* StagedKernelAt(int index, std::index_sequence<kIndices...>) {
  static const void* const kKernels[] = {reinterpret_cast<const void*>(&ApplyStaged<kIndices>)...};
  return kKernels[index];
}

// Null: none of plain.h.
template <size_t kIndex>
const void* PlainKernelAt(bool fused) {
  if constexpr (HasPlain(VariantAt(kIndex))) {
    return fused ? reinterpret_cast<const void*>(&ApplyPlainFused<kIndex>)
                 : reinterpret_cast<const void*>(&ApplyPlain<kIndex>);
  } else {
    return nullptr;
  }
}

template <size_t... kIndices>
const void* KernelAt(int index, bool fused, bool plain, std::index_sequence<kIndices...>) {
  static const void* const kKernels[][2] = {
      {reinterpret_cast<const void*>(&Apply<kIndices>), PlainKernelAt<kIndices>(false)}...};
  static const void* const kFused[][2] = {
      {reinterpret_cast<const void*>(&ApplyFused<kIndices>), PlainKernelAt<kIndices>(true)}...};
  return (fused ? kFused : kKernels)[index][plain ? 1 : 0];
}

// By columns, and dtype - 1.
const void* const kGradientKernels[2][kDtypes] = {
    {reinterpret_cast<const void*>(&ApplyGradients<ROPE_DTYPE_F32>),
     reinterpret_cast<const void*>(&ApplyGradients<ROPE_DTYPE_F16>),
     reinterpret_cast<const void*>(&ApplyGradients<ROPE_DTYPE_BF16>)},
    {reinterpret_cast<const void*>(&ApplyGradientColumns<ROPE_DTYPE_F32>),
     reinterpret_cast<const void*>(&ApplyGradientColumns<ROPE_DTYPE_F16>),
     reinterpret_cast<const void*>(&ApplyGradientColumns<ROPE_DTYPE_BF16>)}};

// Facts of every device, found when a context is made: multiprocessors, and in bit 31 whether a
// kernel may start early. Written with the same value by every thread.
constexpr int kMaxDevices = 128;
constexpr uint32_t kStartsEarly = 0x80000000u;
std::atomic<uint32_t> device_facts[kMaxDevices];

rope_status Report(const char* function, cudaError_t error) {
  (void)cudaGetLastError();
  const bool absent = error == cudaErrorNoKernelImageForDevice || error == cudaErrorNoDevice ||
                      error == cudaErrorInsufficientDriver;
  const char* hint = "";
  if (error == cudaErrorInvalidResourceHandle) {
    hint = ": is the stream one of the current device?";
  } else if (error != cudaErrorInvalidValue && !absent) {
    hint = " (it may come from work queued earlier)";
  }
  return Fail(absent ? ROPE_ERROR_UNAVAILABLE : ROPE_ERROR_DEVICE, "%s: CUDA error %d (%s)%s",
              function, static_cast<int>(error), cudaGetErrorString(error), hint);
}

// What the launches of one call share.
struct Queue {
  const char* function;
  void* stream;
  bool starts_early;
};

rope_status Start(const Queue& queue, const void* kernel, dim3 grid, dim3 block,
                  uint32_t shared_bytes, bool early, const void* params) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(queue.stream);
  config.attrs = &attribute;
  config.numAttrs = early && queue.starts_early ? 1 : 0;
  void* arguments[] = {const_cast<void*>(params)};
  const cudaError_t error = cudaLaunchKernelExC(&config, kernel, arguments);
  return error == cudaSuccess ? ROPE_OK : Report(queue.function, error);
}

// A launch goes to the thread's current device, which is never changed here.
rope_status CheckDevice(const char* function, const rope_context& context) {
  int current = -1;
  const cudaError_t error = cudaGetDevice(&current);
  if (error != cudaSuccess) return Report(function, error);
  if (current == context.device_index) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: the calling thread's current CUDA device (%d) must be the context's (%d)",
              function, current, context.device_index);
}

// A LaunchFn; `data` is a Queue.
template <class P>
rope_status Launched(const LaunchOf<P>& l, void* data) {
  constexpr bool kFused = std::is_same_v<P, FusedParams>;
  const Shape& s = l.shape;
  return Start(*static_cast<const Queue*>(data),
               KernelAt(IndexOf(l.variant), kFused, l.plain, std::make_index_sequence<kVariants>()),
               dim3(s.grid_x, s.grid_y), dim3(s.x, s.y, s.z), l.shared_bytes, l.few_tokens,
               &l.params);
}

rope_status StagedLaunched(const StagedLaunch& l, void* data) {
  return Start(*static_cast<const Queue*>(data),
               StagedKernelAt(StagedIndexOf(l.variant), std::make_index_sequence<kStagedKernels>()),
               dim3(l.shape.grid_x, l.shape.grid_y), dim3(l.shape.x, l.shape.y), l.shared_bytes,
               l.variant.held != 0, &l.params);
}

rope_status GradientLaunched(const GradientLaunch& l, void* data) {
  return Start(*static_cast<const Queue*>(data), kGradientKernels[l.columns ? 1 : 0][l.dtype - 1],
               dim3(l.shape.grid_x, l.shape.grid_y), dim3(l.shape.x, l.shape.y), l.shared_bytes,
               false, &l.params);
}

rope_status ApplyPlan(const Plan& plan) {
  const rope_context& context = *plan.context;
  if (rope_status s = CheckDevice(plan.function, context)) return s;
  const uint32_t facts = static_cast<const std::atomic<uint32_t>*>(context.backend_data)
                             ->load(std::memory_order_relaxed);
  Queue queue{plan.function, plan.stream, (facts & kStartsEarly) != 0};
  const auto multiprocessors = static_cast<int32_t>(facts & ~kStartsEarly);
  constexpr LaunchFns kLaunched = {&Launched<Params>, &Launched<FusedParams>, &StagedLaunched,
                                   &GradientLaunched};
  return ForEachLaunchOfCall(plan, multiprocessors, kLaunched, &queue);
}

rope_status FillPlanned(const FillPlan& plan) {
  if (rope_status s = CheckDevice(plan.function, *plan.context)) return s;
  Queue queue{plan.function, plan.stream, false};
  const auto launch = [](const FillLaunch& l, void* data) {
    void (*const kernel)(CosSinSource) = l.with_angles ? &FillRows<true> : &FillRows<false>;
    return Start(*static_cast<const Queue*>(data), reinterpret_cast<const void*>(kernel),
                 dim3(l.grid_x), dim3(kFillPairs, kFillTokens), 0, false, &l.source);
  };
  return ForEachFillLaunch(plan, launch, &queue);
}

// Does not touch the thread's current device, and creates nothing on any.
rope_status Attach(const char* function, rope_context* context) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    return Fail(ROPE_ERROR_UNAVAILABLE,
                "%s: config->device (CUDA): no usable device: %s%s (the library was built with "
                "CUDA %d.%d)",
                function, cudaGetErrorString(error),
                error == cudaErrorInsufficientDriver ? ", or there is no NVIDIA driver" : "",
                CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  }
  const int index = context->device_index;
  if (index < 0 || index >= count || index >= kMaxDevices) {
    return Fail(ROPE_ERROR_UNAVAILABLE,
                "%s: config->device_index (%d) must be below the number of CUDA devices (%d)",
                function, index, count);
  }
  int multiprocessors = 0, major = 0, minor = 0;
  for (const auto& [attribute, value] :
       {std::pair(cudaDevAttrMultiProcessorCount, &multiprocessors),
        std::pair(cudaDevAttrComputeCapabilityMajor, &major),
        std::pair(cudaDevAttrComputeCapabilityMinor, &minor)}) {
    const cudaError_t asked = cudaDeviceGetAttribute(value, attribute, index);
    if (asked != cudaSuccess) return Report(function, asked);
  }
  if (major * 10 + minor < 75) {
    return Fail(ROPE_ERROR_UNAVAILABLE,
                "%s: config->device_index (%d): compute capability %d.%d is below 7.5, the first "
                "that this library has kernels for",
                function, index, major, minor);
  }
  const uint32_t early = major >= 9 ? kStartsEarly : 0;
  device_facts[index].store(static_cast<uint32_t>(multiprocessors) | early,
                            std::memory_order_relaxed);
  context->backend_data = &device_facts[index];
  std::snprintf(context->backend_name, sizeof(context->backend_name), "cuda:%d sm_%d", index,
                major * 10 + minor);
  return ROPE_OK;
}

}  // namespace
}  // namespace cuda

extern constexpr Backend kCudaBackend =
    cuda::MakeBackend(&cuda::Attach, &cuda::ApplyPlan, &cuda::FillPlanned);
static_assert(IsComplete(kCudaBackend));

}  // namespace rope
