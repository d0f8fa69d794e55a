// Where tokens go in a cache, looked up once: of a block, for k and v, or of a prepared call, for
// all of its applications.
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
  int64_t page;
  return !__builtin_mul_overflow(page_size, strides.token, &page) && strides.batch == page;
}

class KeptSlots {
 public:
  // Of all tokens of a plan with slots. May throw std::bad_alloc.
  explicit KeptSlots(const Plan& plan);
  // Of tokens [first, first + count) of a batch row, in memory for as many.
  KeptSlots(const Plan& plan, int64_t batch, int64_t first, int count, SlotRun* runs);

  // Tokens are counted through all batch rows.
  Slot SlotOf(int64_t token) const { return RunOf(token).first; }
  // The run that begins with a token: at most `count` tokens of its batch row.
  SlotRun RunOf(const HeadStrides& strides, int64_t token, int count) const {
    SlotRun run = RunOf(token);
    if (!PagesFollow(strides, page_size_))
      run.count = std::min(run.count, page_size_ - run.first.index);
    run.count = std::min(run.count, count);
    return run;
  }

 private:
  const SlotRun& RunOf(int64_t token) const { return runs_[token - first_]; }

  std::unique_ptr<SlotRun[]> owned_;
  const SlotRun* runs_;  // of each token: to the last whose slot's number follows
  int64_t first_;
  int32_t page_size_;
};

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_KEPT_SLOTS_H_
