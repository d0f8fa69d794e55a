// librope on a GPU beside the limits of the machine: a copy of the same bytes (cudaMemcpyAsync and
// a kernel, whichever is faster), and for decode steps an empty kernel, too. Prints one JSON object
// per row; scripts/gpu-check turns them into a table. CUDA events around many calls after warm-up,
// median of seven rounds; the calls rotate over buffers of at least four times the L2 cache, filled
// with random numbers. Decode steps are nodes of a CUDA graph. Appends rotate q in place and store
// k and v in shuffled pages of a cache.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "librope/rope.h"

namespace {

#define CHECK(call)                                                        \
  do {                                                                     \
    const cudaError_t error_ = (call);                                     \
    if (error_ != cudaSuccess) {                                           \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error_)); \
      std::exit(1);                                                        \
    }                                                                      \
  } while (false)

void Check(rope_status status) {
  if (status == ROPE_OK) return;
  std::fprintf(stderr, "%s\n", rope_last_error());
  std::exit(1);
}

__global__ void Empty() {}

__global__ void Copy(const uint4* from, uint4* to, int64_t count) {
  const int64_t first = (int64_t{blockIdx.x} * blockDim.x * 4) + threadIdx.x;
  uint4 v[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (first + i * blockDim.x < count) v[i] = from[first + i * blockDim.x];
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (first + i * blockDim.x < count) to[first + i * blockDim.x] = v[i];
  }
}

// Small finite numbers in every dtype.
__global__ void FillRandom(uint32_t* words, int64_t count) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const auto mixed = static_cast<uint32_t>(i * 2654435761u);
    words[i] = (mixed & 0x03ff83ffu) | 0x38003800u;
  }
}

void LaunchCopy(const char* from, char* to, int64_t bytes, cudaStream_t stream) {
  const int64_t vectors = bytes / 16;
  Copy<<<static_cast<unsigned>((vectors + 1023) / 1024), 256, 0, stream>>>(
      reinterpret_cast<const uint4*>(from), reinterpret_cast<uint4*>(to), vectors);
}

struct Shape {
  const char* name;
  int64_t tokens;
  int q_heads, k_heads, head_dim;
};

struct Row {
  rope_dtype dtype;
  rope_pairing pairing;
  bool in_place;
};

const char* NameOf(rope_dtype dtype) {
  return dtype == ROPE_DTYPE_F32 ? "f32" : dtype == ROPE_DTYPE_F16 ? "f16" : "bf16";
}

class Bench {
 public:
  Bench() {
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    pool_bytes_ = std::max<int64_t>(4 * int64_t{device.l2CacheSize}, int64_t{1} << 30);
    CHECK(cudaMalloc(&in_, static_cast<size_t>(pool_bytes_)));
    CHECK(cudaMalloc(&out_, static_cast<size_t>(pool_bytes_)));
    for (char* pool : {in_, out_}) {
      FillRandom<<<1024, 256>>>(reinterpret_cast<uint32_t*>(pool), pool_bytes_ / 4);
    }
    CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CHECK(cudaEventCreate(&begin_));
    CHECK(cudaEventCreate(&end_));
    CHECK(cudaMalloc(&offset_, 8));
    CHECK(cudaMemset(offset_, 0, 8));
    CHECK(cudaMalloc(&slots_, kMostTokens * sizeof(int64_t)));
    CHECK(cudaDeviceSynchronize());
    std::printf("{\"device\": \"%s\", \"multiprocessors\": %d, \"l2\": %d, \"runtime\": %d}\n",
                device.name, device.multiProcessorCount, device.l2CacheSize, CUDART_VERSION);
  }

  void Prefill(const Shape& shape, const Row& row) {
    const rope_context* rope = ContextOf(shape.head_dim, row.pairing);
    const int64_t bytes = Bytes(shape, row.dtype);
    const double us = Time(
        bytes, [&](int64_t at) { Rotate(rope, shape, row, at); }, 50);
    const double memcpy_us = Time(
        bytes,
        [&](int64_t at) {
          CHECK(cudaMemcpyAsync(out_ + at, in_ + at, static_cast<size_t>(bytes),
                                cudaMemcpyDeviceToDevice, stream_));
        },
        50);
    const double kernel_us = Time(
        bytes, [&](int64_t at) { LaunchCopy(in_ + at, out_ + at, bytes, stream_); }, 50);
    Print("prefill", shape, row, bytes, us, std::min(memcpy_us, kernel_us), 0);
    std::fprintf(stderr, "  %s %lld %s: %.1f us, copies %.1f and %.1f us\n", shape.name,
                 static_cast<long long>(shape.tokens), NameOf(row.dtype), us, memcpy_us, kernel_us);
  }

  // Beside copies of q, k and v. `in_graph`: as Decode, else as Prefill.
  void Append(const Shape& shape, const Row& row, bool in_graph) {
    const rope_context* rope = ContextOf(shape.head_dim, row.pairing);
    MakeSlots(shape.tokens);
    const int64_t head = int64_t{shape.head_dim} * Element(row.dtype);
    const int64_t bytes = Bytes(shape, row.dtype) + shape.tokens * shape.k_heads * head;
    const int64_t cached = 2 * Pages(shape.tokens) * kPageSize * shape.k_heads * head;
    const int64_t room = std::max(bytes, cached);
    const auto append = [&](int64_t at) { Rotate(rope, shape, row, at, cached / 2); };
    const auto copy = [&](int64_t at) { LaunchCopy(in_ + at, out_ + at, bytes, stream_); };
    if (in_graph) {
      const double us = TimeGraph(room, append), copy_us = TimeGraph(room, copy);
      const double empty_us = TimeGraph(room, [&](int64_t) { Empty<<<1, 32, 0, stream_>>>(); });
      Print("append", shape, row, bytes, us, copy_us, empty_us);
    } else {
      const double us = Time(room, append, 50);
      Print("append", shape, row, bytes, us, Time(room, copy, 50), 0);
    }
  }

  // Nodes of one graph; a step is the time of a node.
  void Decode(const Shape& shape, const Row& row) {
    const rope_context* rope = ContextOf(shape.head_dim, row.pairing);
    const int64_t bytes = Bytes(shape, row.dtype);
    const double us = TimeGraph(bytes, [&](int64_t at) { Rotate(rope, shape, row, at); });
    const double copy_us =
        TimeGraph(bytes, [&](int64_t at) { LaunchCopy(in_ + at, out_ + at, bytes, stream_); });
    const double empty_us = TimeGraph(bytes, [&](int64_t) { Empty<<<1, 32, 0, stream_>>>(); });
    Print("decode", shape, row, bytes, us, copy_us, empty_us);
  }

 private:
  static constexpr int64_t kMostTokens = 32768;
  static constexpr int kPageSize = 16;

  static int64_t Element(rope_dtype dtype) { return dtype == ROPE_DTYPE_F32 ? 4 : 2; }
  static int64_t Bytes(const Shape& s, rope_dtype dtype) {
    return s.tokens * (s.q_heads + s.k_heads) * s.head_dim * Element(dtype);
  }
  static int64_t Pages(int64_t tokens) { return (tokens + kPageSize - 1) / kPageSize; }

  // Tokens follow each other in pages in a random order.
  void MakeSlots(int64_t tokens) {
    std::vector<int64_t> pages(static_cast<size_t>(Pages(tokens))), slots;
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), std::mt19937(1));
    for (int64_t i = 0; i < tokens; ++i) {
      slots.push_back(pages[static_cast<size_t>(i / kPageSize)] * kPageSize + i % kPageSize);
    }
    CHECK(cudaMemcpy(slots_, slots.data(), slots.size() * sizeof(int64_t), cudaMemcpyHostToDevice));
  }

  const rope_context* ContextOf(int head_dim, rope_pairing pairing) {
    rope_config config = ROPE_INIT(rope_config);
    config.head_dim = head_dim;
    config.theta = 500000;
    config.pairing = pairing;
    config.angle = ROPE_ANGLE_EXACT;
    config.device = ROPE_DEVICE_CUDA;
    rope_context_destroy(context_);
    context_ = nullptr;
    Check(rope_context_create(&config, &context_));
    return context_;
  }

  // `cached`: bytes of a cache for k, and of one for v, which follows k; 0: k turns as q does.
  void Rotate(const rope_context* rope, const Shape& s, const Row& row, int64_t at,
              int64_t cached = 0) {
    const int64_t q_bytes = s.tokens * s.q_heads * s.head_dim * Element(row.dtype);
    rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
    rope_fused fused = ROPE_INIT(rope_fused);
    rope_qk_args args = ROPE_INIT(rope_qk_args);
    args.batch = 1;
    args.tokens = s.tokens;
    args.stream = stream_;
    args.q.data = in_ + at;
    args.q.dtype = row.dtype;
    args.q.layout = ROPE_LAYOUT_BSHD;
    args.q.heads = s.q_heads;
    args.k = args.q;
    args.k.data = in_ + at + q_bytes;
    args.k.heads = s.k_heads;
    if (!row.in_place) {
      args.q_out = args.q;
      args.q_out.data = out_ + at;
      args.k_out = args.k;
      args.k_out.data = out_ + at + q_bytes;
    }
    if (cached != 0) {
      fused.v = args.k;
      fused.v.data = in_ + at + q_bytes + q_bytes / s.q_heads * s.k_heads;
      fused.v.head_dim = s.head_dim;
      cache.kind = ROPE_SLOTS_MAPPED;
      cache.pages = Pages(s.tokens);
      cache.page_size = kPageSize;
      cache.slots_i64 = slots_;
      cache.slots_length = s.tokens;
      cache.k = fused.v;
      cache.k.layout = ROPE_LAYOUT_NHD;
      cache.v = cache.k;
      cache.k.data = out_ + at;
      cache.v.data = out_ + at + cached;
      fused.cache = &cache;
      args.fused = &fused;
    }
    args.positions.kind = ROPE_POSITIONS_SEQ_OFFSETS;
    args.positions.offsets_i64 = offset_;
    Check(rope_apply_qk(rope, &args));
  }

  // Where call n of a rotation over the pool works.
  int64_t At(int64_t bytes, int n) const {
    const int64_t step = (bytes + 511) / 512 * 512;
    return n % std::max<int64_t>(1, pool_bytes_ / step) * step;
  }

  double Elapsed(const std::function<void()>& work, int calls) {
    std::vector<float> rounds(7);
    for (float& ms : rounds) {
      CHECK(cudaEventRecord(begin_, stream_));
      work();
      CHECK(cudaEventRecord(end_, stream_));
      CHECK(cudaEventSynchronize(end_));
      CHECK(cudaEventElapsedTime(&ms, begin_, end_));
    }
    std::sort(rounds.begin(), rounds.end());
    return double{rounds[3]} * 1000 / calls;
  }

  double Time(int64_t bytes, const std::function<void(int64_t)>& call, int calls) {
    for (int n = 0; n < 20; ++n) call(At(bytes, n));
    return Elapsed(
        [&] {
          for (int n = 0; n < calls; ++n) call(At(bytes, n));
        },
        calls);
  }

  double TimeGraph(int64_t bytes, const std::function<void(int64_t)>& call) {
    constexpr int kNodes = 200;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int n = 0; n < kNodes; ++n) call(At(bytes, n));
    CHECK(cudaStreamEndCapture(stream_, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int n = 0; n < 5; ++n) CHECK(cudaGraphLaunch(exec, stream_));
    const double us = Elapsed([&] { CHECK(cudaGraphLaunch(exec, stream_)); }, kNodes);
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    return us;
  }

  static void Print(const char* kind, const Shape& s, const Row& row, int64_t bytes, double us,
                    double copy_us, double empty_us) {
    std::printf(
        "{\"kind\": \"%s\", \"library\": \"librope\", \"shape\": \"%s\", \"tokens\": %lld, "
        "\"dtype\": \"%s\", \"pairing\": \"%s\", \"place\": \"%s\", \"bytes\": %lld, "
        "\"us\": %.3f, \"copy_us\": %.3f, \"empty_us\": %.3f}\n",
        kind, s.name, static_cast<long long>(s.tokens), NameOf(row.dtype),
        row.pairing == ROPE_PAIRING_HALVES ? "halves" : "interleaved", row.in_place ? "in" : "out",
        static_cast<long long>(2 * bytes), us, copy_us, empty_us);
    std::fflush(stdout);
  }

  int64_t pool_bytes_;
  char *in_ = nullptr, *out_ = nullptr;
  int64_t *offset_ = nullptr, *slots_ = nullptr;
  cudaStream_t stream_;
  cudaEvent_t begin_, end_;
  rope_context* context_ = nullptr;
};

}  // namespace

int main() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    std::fprintf(stderr, "cuda_bench: no device: %s\n", cudaGetErrorString(error));
    return 77;
  }
  Bench bench;
  const rope_dtype dtypes[] = {ROPE_DTYPE_BF16, ROPE_DTYPE_F16, ROPE_DTYPE_F32};
  const rope_pairing pairings[] = {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED};
  for (const int64_t tokens : {1024, 8192, 32768}) {
    for (const rope_dtype dtype : dtypes) {
      for (const rope_pairing pairing : pairings) {
        for (const bool in_place : {true, false}) {
          bench.Prefill({"32+8x128", tokens, 32, 8, 128}, {dtype, pairing, in_place});
        }
      }
    }
  }
  const Shape others[] = {{"8+1x128", 32768, 8, 1, 128},
                          {"128+1x64", 8192, 128, 1, 64},
                          {"32+32x80", 8192, 32, 32, 80},
                          {"16+8x256", 8192, 16, 8, 256}};
  for (const Shape& shape : others) {
    bench.Prefill(shape, {ROPE_DTYPE_BF16, ROPE_PAIRING_HALVES, true});
  }
  for (const int64_t tokens : {1, 32, 256, 1024, 8192, 32768}) {
    for (const rope_dtype dtype : {ROPE_DTYPE_BF16, ROPE_DTYPE_F32}) {
      bench.Append({"32+8x128", tokens, 32, 8, 128}, {dtype, ROPE_PAIRING_HALVES, true},
                   tokens <= 256);
    }
  }
  for (const int64_t tokens : {1, 8, 32, 64, 128, 256}) {
    for (const rope_dtype dtype : dtypes) {
      for (const rope_pairing pairing : pairings) {
        bench.Decode({"32+8x128", tokens, 32, 8, 128}, {dtype, pairing, true});
      }
    }
  }
  return 0;
}
