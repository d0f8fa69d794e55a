// Where the tokens of a prepared call go in a cache.
#ifndef LIBROPE_SRC_CPU_KEPT_SLOTS_H_
#define LIBROPE_SRC_CPU_KEPT_SLOTS_H_

#include <algorithm>
#include <cstdint>
#include <memory>

#include "call/plan.h"
#include "call/slot_run.h"
#include "math/slots.h"
#include "math/tensor.h"

namespace rope::cpu {

// Where the output of a token lies: by the strides of the output, a batch row and a token, or a
// page and a slot of it.
struct Place {
  int64_t batch, token;
};

// Whether the first slot of a page lies behind the last one of the page before.
inline bool PagesFollow(const HeadStrides& strides, int64_t page_size) {
  return strides.batch == page_size * strides.token;
}

class KeptSlots {
 public:
  // Of a plan with slots. May throw std::bad_alloc.
  explicit KeptSlots(const Plan& plan);

  // Tokens are counted through all batch rows.
  Slot SlotOf(int64_t token) const { return runs_[static_cast<size_t>(token)].first; }
  // The run that begins with a token: at most `count` tokens.
  SlotRun RunOf(const HeadStrides& strides, int64_t token, int count) const {
    SlotRun run = runs_[static_cast<size_t>(token)];
    if (!PagesFollow(strides, page_size_))
      run.count = std::min(run.count, page_size_ - run.first.index);
    run.count = std::min(run.count, count);
    return run;
  }

 private:
  std::unique_ptr<SlotRun[]> runs_;  // of each token: to the last whose slot's number follows
  int32_t page_size_;
};

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_KEPT_SLOTS_H_
