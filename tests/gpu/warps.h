// The warps of a walked block as fibers: each runs until its next barrier, in an order that must
// not matter. So what one warp writes without a barrier is not there yet when another reads it, or
// is there too early: a barrier that is missing is seen.
#ifndef LIBROPE_TESTS_GPU_WARPS_H_
#define LIBROPE_TESTS_GPU_WARPS_H_

#include <gtest/gtest.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "gpu/staged_params.h"

namespace rope::gpu {

class Warps {
 public:
  // body(n) for each warp; where it waits at a barrier, Wait(n).
  void Run(const std::function<void(uint32_t)>& body) {
    constexpr size_t kStackBytes = size_t{1} << 19;
    static std::vector<char> stacks(kStagedWarps * kStackBytes);
    static std::mt19937 random(1);
    running_ = this;
    body_ = &body;
    is_done_ = {};
    std::array<uint32_t, kStagedWarps> order;
    for (uint32_t n = 0; n < kStagedWarps; ++n) {
      order[n] = n;
      getcontext(&own_[n]);
      own_[n].uc_stack.ss_sp = stacks.data() + n * kStackBytes;
      own_[n].uc_stack.ss_size = kStackBytes;
      own_[n].uc_link = nullptr;
      makecontext(&own_[n], &Enter, 0);
    }
    for (ptrdiff_t left = kStagedWarps; left != 0;) {
      std::shuffle(order.begin(), order.end(), random);
      for (const uint32_t n : order) {
        current_ = n;
        swapcontext(&caller_, &own_[n]);
      }
      left = std::count(is_done_.begin(), is_done_.end(), false);
      if (left != 0 && left != kStagedWarps) {
        ADD_FAILURE() << left << " warps wait at a barrier that the others do not reach";
        return;
      }
    }
  }

  void Wait(uint32_t n) { swapcontext(&own_[n], &caller_); }

 private:
  static void Enter() {
    Warps* const warps = running_;
    const uint32_t n = warps->current_;
    (*warps->body_)(n);
    warps->is_done_[n] = true;
    warps->Wait(n);
  }

  inline static Warps* running_;
  const std::function<void(uint32_t)>* body_;
  uint32_t current_;
  std::array<bool, kStagedWarps> is_done_;
  std::array<ucontext_t, kStagedWarps> own_;
  ucontext_t caller_;
};

}  // namespace rope::gpu

#endif  // LIBROPE_TESTS_GPU_WARPS_H_
