// A row of the table of scripts/gpu-check: a call of librope, beside a kernel that moves the same
// bytes, and beside calls of librope that do the same one after the other.
#ifndef LIBROPE_BENCH_CUDA_ROWS_H_
#define LIBROPE_BENCH_CUDA_ROWS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cuda_timer.h"
#include "handles.h"
#include "librope/rope.h"

namespace bench {

Context CreateOnDevice(int head_dim, rope_pairing pairing,
                       rope_scaling scaling = ROPE_SCALING_DEFAULT);

struct Shape {
  const char* name;
  int64_t tokens;
  int q_heads, k_heads, head_dim;
};

inline constexpr int64_t kMostTokens = 32768;
inline constexpr int kPageSize = 16;
inline int64_t Pages(int64_t tokens) { return (tokens + kPageSize - 1) / kPageSize; }

// An array on the device, until the program ends.
int64_t* ToDevice(const std::vector<int64_t>& values);

// Slots of tokens that follow each other in pages in a random order.
std::vector<int64_t> ShuffledSlots(int64_t tokens);

struct Row {
  const char* kind;
  Shape shape;
  std::string dtype, pairing, place;
  int64_t read, written;       // bytes
  int64_t room;                // bytes of a buffer, from where the call begins
  bool in_graph;               // its kernels are nodes of a graph
  Timer::Call call, separate;  // separate: empty if there are no such calls
};
void Measure(Timer* timer, const Row& row);

// cuda_fused.cc: norms, caches in 8 bits, moves and gradients.
void MeasureFused(Timer* timer);

}  // namespace bench

#endif  // LIBROPE_BENCH_CUDA_ROWS_H_
