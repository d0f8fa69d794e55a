#include "cuda_rows.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>

#include "cuda_kernels.h"

namespace bench {

Context CreateOnDevice(int head_dim, rope_pairing pairing, rope_scaling scaling) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = head_dim;
  config.theta = 500000;
  config.pairing = pairing;
  config.scaling = scaling;
  config.angle = ROPE_ANGLE_EXACT;
  config.device = ROPE_DEVICE_CUDA;
  rope_context* context = nullptr;
  Check(rope_context_create(&config, &context));
  return Context(context);
}

int64_t* ToDevice(const std::vector<int64_t>& values) {
  int64_t* data = nullptr;
  const size_t bytes = values.size() * sizeof(int64_t);
  Check(cudaMalloc(reinterpret_cast<void**>(&data), bytes));
  Check(cudaMemcpy(data, values.data(), bytes, cudaMemcpyHostToDevice));
  return data;
}

std::vector<int64_t> ShuffledSlots(int64_t tokens) {
  std::vector<int64_t> pages(static_cast<size_t>(Pages(tokens))), slots;
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(1));
  for (int64_t i = 0; i < tokens; ++i) {
    slots.push_back(pages[static_cast<size_t>(i / kPageSize)] * kPageSize + i % kPageSize);
  }
  return slots;
}

// A large call is compared with the faster one of two copies, if it writes as much as it reads.
void Measure(Timer* timer, const Row& row) {
  if (!timer->Wants(std::string(row.kind) + " " + std::to_string(row.shape.tokens) + " " + row.dtype +
                    " " + row.pairing + " " + row.place)) {
    return;
  }
  const auto time = [&](const Timer::Call& call) {
    return row.in_graph ? timer->TimeInGraph(row.room, call) : timer->Time(row.room, call);
  };
  const double us = time(row.call);
  double copy_us = time([&](int64_t at) {
    LaunchSweep(timer->in() + at, row.read, timer->out() + at, row.written, timer->stream());
  });
  if (!row.in_graph && row.read == row.written) {
    copy_us = std::min(
        copy_us, time([&](int64_t at) {
          Check(cudaMemcpyAsync(timer->out() + at, timer->in() + at, static_cast<size_t>(row.read),
                                cudaMemcpyDeviceToDevice, timer->stream()));
        }));
  }
  const double separate_us = row.separate ? time(row.separate) : 0;
  std::printf(
      "{\"kind\": \"%s\", \"library\": \"librope\", \"shape\": \"%s\", \"tokens\": %lld, "
      "\"dtype\": \"%s\", \"pairing\": \"%s\", \"place\": \"%s\", \"bytes\": %lld, \"us\": %.3f, "
      "\"copy_us\": %.3f, \"empty_us\": %.3f, \"separate_us\": %.3f}\n",
      row.kind, row.shape.name, static_cast<long long>(row.shape.tokens), row.dtype.c_str(),
      row.pairing.c_str(), row.place.c_str(), static_cast<long long>(row.read + row.written), us,
      copy_us, row.in_graph ? timer->TimeEmpty() : 0, separate_us);
  std::fflush(stdout);
}

}  // namespace bench
