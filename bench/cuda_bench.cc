// librope on a GPU beside the limits of the machine: a copy of the same bytes (cudaMemcpyAsync and
// a kernel, whichever is faster), and for decode steps an empty kernel, too. Prints one JSON object
// per row; scripts/gpu-check turns them into a table. Appends rotate q in place and store k and v
// in shuffled pages of a cache.
//
//   cuda_bench [WORDS]   rows whose kind, tokens, dtype, pairing and place begin with these words, as in
//                        "decode 1 bf16": all without
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "cuda_rows.h"
#include "cuda_timer.h"
#include "librope/rope.h"

namespace bench {
namespace {

struct Kind {
  rope_dtype dtype;
  rope_pairing pairing;
  bool in_place;
};

const char* NameOf(rope_dtype dtype) {
  return dtype == ROPE_DTYPE_F32 ? "f32" : dtype == ROPE_DTYPE_F16 ? "f16" : "bf16";
}
int64_t SizeOf(rope_dtype dtype) { return dtype == ROPE_DTYPE_F32 ? 4 : 2; }

class Rotations {
 public:
  explicit Rotations(Timer* timer) : timer_(timer) {}

  // q and k. In a graph: a decode step.
  void Rotate(const Shape& shape, const Kind& kind, bool in_graph) {
    Make(in_graph ? "decode" : "prefill", shape, kind, in_graph, 0);
  }
  // And v: k and v go to a cache.
  void Append(const Shape& shape, const Kind& kind, bool in_graph) {
    Make("append", shape, kind, in_graph,
         Pages(shape.tokens) * kPageSize * shape.k_heads * shape.head_dim * SizeOf(kind.dtype));
  }

 private:
  // `cached`: bytes of a cache for k, and of one for v, which follows k; 0: k turns as q does.
  void Make(const char* name, const Shape& s, const Kind& kind, bool in_graph, int64_t cached) {
    const Context rope = CreateOnDevice(s.head_dim, kind.pairing);
    const int64_t head = s.tokens * s.head_dim * SizeOf(kind.dtype);
    const int64_t bytes = head * (s.q_heads + s.k_heads * (cached != 0 ? 2 : 1));
    if (cached != 0) {
      const std::vector<int64_t> slots = ShuffledSlots(s.tokens);
      Check(
          cudaMemcpy(slots_, slots.data(), slots.size() * sizeof(int64_t), cudaMemcpyHostToDevice));
    }
    const auto call = [&](int64_t at) { Call(rope.get(), s, kind, at, cached); };
    Measure(timer_, {name,
                     s,
                     NameOf(kind.dtype),
                     kind.pairing == ROPE_PAIRING_HALVES ? "halves" : "interleaved",
                     kind.in_place ? "in" : "out",
                     bytes,
                     bytes,
                     std::max(bytes, 2 * cached),
                     in_graph,
                     call,
                     {}});
  }

  void Call(const rope_context* rope, const Shape& s, const Kind& kind, int64_t at,
            int64_t cached) {
    const int64_t head = s.tokens * s.head_dim * SizeOf(kind.dtype);
    rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
    rope_fused fused = ROPE_INIT(rope_fused);
    rope_qk_args args = ROPE_INIT(rope_qk_args);
    args.batch = 1;
    args.tokens = s.tokens;
    args.stream = timer_->stream();
    args.q.data = timer_->in() + at;
    args.q.dtype = kind.dtype;
    args.q.layout = ROPE_LAYOUT_BSHD;
    args.q.heads = s.q_heads;
    args.k = args.q;
    args.k.data = timer_->in() + at + head * s.q_heads;
    args.k.heads = s.k_heads;
    if (!kind.in_place) {
      args.q_out = args.q;
      args.q_out.data = timer_->out() + at;
      args.k_out = args.k;
      args.k_out.data = timer_->out() + at + head * s.q_heads;
    }
    if (cached != 0) {
      fused.v = args.k;
      fused.v.data = timer_->in() + at + head * (s.q_heads + s.k_heads);
      fused.v.head_dim = s.head_dim;
      cache.kind = ROPE_SLOTS_MAPPED;
      cache.pages = Pages(s.tokens);
      cache.page_size = kPageSize;
      cache.slots_i64 = slots_;
      cache.slots_length = s.tokens;
      cache.k = fused.v;
      cache.k.layout = ROPE_LAYOUT_NHD;
      cache.v = cache.k;
      cache.k.data = timer_->out() + at;
      cache.v.data = timer_->out() + at + cached;
      fused.cache = &cache;
      args.fused = &fused;
    }
    args.positions.kind = ROPE_POSITIONS_SEQ_OFFSETS;
    args.positions.offsets_i64 = offset_;
    Check(rope_apply_qk(rope, &args));
  }

  Timer* const timer_;
  int64_t* const offset_ = ToDevice({0});
  int64_t* const slots_ = ToDevice(std::vector<int64_t>(kMostTokens));
};

void MeasureAll(const char* words) {
  Timer timer(words);
  Rotations rotations(&timer);
  const rope_dtype dtypes[] = {ROPE_DTYPE_BF16, ROPE_DTYPE_F16, ROPE_DTYPE_F32};
  const rope_pairing pairings[] = {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED};
  for (const int64_t tokens : {1024, 8192, 32768}) {
    for (const rope_dtype dtype : dtypes) {
      for (const rope_pairing pairing : pairings) {
        for (const bool in_place : {true, false}) {
          rotations.Rotate({"32+8x128", Divided(tokens), 32, 8, 128}, {dtype, pairing, in_place},
                           false);
        }
      }
    }
  }
  const Shape others[] = {{"8+1x128", Divided(32768), 8, 1, 128},
                          {"128+1x64", Divided(8192), 128, 1, 64},
                          {"32+32x80", Divided(8192), 32, 32, 80},
                          {"16+8x256", Divided(8192), 16, 8, 256}};
  for (const Shape& shape : others) {
    rotations.Rotate(shape, {ROPE_DTYPE_BF16, ROPE_PAIRING_HALVES, true}, false);
  }
  for (const int64_t tokens : {1, 32, 256, 1024, 8192, 32768}) {
    for (const rope_dtype dtype : {ROPE_DTYPE_BF16, ROPE_DTYPE_F32}) {
      rotations.Append({"32+8x128", Divided(tokens), 32, 8, 128},
                       {dtype, ROPE_PAIRING_HALVES, true}, tokens <= 256);
    }
  }
  for (const int64_t tokens : {1, 8, 32, 64, 128, 256}) {
    for (const rope_dtype dtype : dtypes) {
      for (const rope_pairing pairing : pairings) {
        rotations.Rotate({"32+8x128", Divided(tokens), 32, 8, 128}, {dtype, pairing, true}, true);
      }
    }
  }
  MeasureFused(&timer);
}

}  // namespace
}  // namespace bench

int main(int count_of_words, char** words) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    std::fprintf(stderr, "cuda_bench: no device: %s\n", cudaGetErrorString(error));
    return 77;
  }
  bench::MeasureAll(count_of_words > 1 ? words[1] : "");
  return 0;
}
