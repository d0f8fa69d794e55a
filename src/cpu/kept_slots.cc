#include "cpu/kept_slots.h"

#include <cstddef>
#include <new>

#include "math/token_position.h"

namespace rope::cpu {

KeptSlots::KeptSlots(const Plan& plan) : page_size_(plan.fused->slots.page_size) {
  const int64_t all = plan.batch * plan.tokens;
  if (all > PTRDIFF_MAX / static_cast<int64_t>(sizeof(SlotRun))) throw std::bad_alloc();
  runs_.reset(new (std::nothrow) SlotRun[static_cast<size_t>(all)]);
  if (runs_ == nullptr) throw std::bad_alloc();  // sanitizers end the program where new throws
  const auto number = [&](const Slot& slot) { return slot.page * page_size_ + slot.index; };
  for (int64_t i = all - 1; i >= 0; --i) {
    SlotRun& run = runs_[static_cast<size_t>(i)];
    const Token token = LocateToken(plan.positions, i / plan.tokens, i % plan.tokens);
    run = {rope::SlotOf(plan.fused->slots, token, plan.tokens), 1};
    if (i == all - 1 || run.first.page < 0) continue;
    const SlotRun& next = runs_[static_cast<size_t>(i + 1)];
    if (next.first.page < 0 || number(next.first) != number(run.first) + 1) continue;
    run.count += std::min(next.count, INT32_MAX - 1);
  }
}

}  // namespace rope::cpu
