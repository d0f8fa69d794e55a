// Times of calls on a GPU: CUDA events around many calls after warm-up, median of seven rounds; the
// calls rotate over buffers of at least four times the L2 cache, filled with random numbers. Short
// calls are nodes of a CUDA graph.
#ifndef LIBROPE_BENCH_CUDA_TIMER_H_
#define LIBROPE_BENCH_CUDA_TIMER_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>

#include "librope/rope.h"

namespace bench {

// Both end the program where something fails.
void Check(cudaError_t error);
void Check(rope_status status);

// `full` divided by ROPE_BENCH_DIVIDE, where that is set: rehearsals have less of everything.
int64_t Divided(int64_t full);

class Timer {
 public:
  // Queues the work of one call, on what lies so many bytes from the start of both buffers.
  using Call = std::function<void(int64_t at)>;

  // words: of the rows that are wanted.
  explicit Timer(std::string words);
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  bool Wants(const std::string& row) const { return row.compare(0, words_.size(), words_) == 0; }
  char* in() const { return in_; }
  char* out() const { return out_; }
  cudaStream_t stream() const { return stream_; }

  // Microseconds of a call that uses so many bytes of a buffer.
  double Time(int64_t bytes, const Call& call);
  double TimeInGraph(int64_t bytes, const Call& call);
  double TimeEmpty();

 private:
  int64_t At(int64_t bytes, int64_t n) const;
  double Elapsed(const std::function<void()>& work, int64_t calls);

  const std::string words_;
  int64_t bytes_;
  char *in_ = nullptr, *out_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace bench

#endif  // LIBROPE_BENCH_CUDA_TIMER_H_
