#include "cpu/kept_slots.h"

#include <cstddef>
#include <new>

#include "math/token_position.h"

namespace rope::cpu {
namespace {

template <class PageOf>
void FindRuns(const Plan& plan, int64_t batch, int64_t first, int64_t count, PageOf page_of,
              SlotRun* runs) {
  const SlotSource& slots = plan.fused->slots;
  for (int64_t i = 0; i < count; ++i) {
    const Token token = LocateToken(plan.positions, batch, first + i);
    runs[i] = {SlotOf(slots, token, plan.tokens, page_of), 1};
  }
  const auto number = [&](const Slot& slot) { return slot.page * slots.page_size + slot.index; };
  for (int64_t i = count - 2; i >= 0; --i) {
    const SlotRun& next = runs[i + 1];
    if (runs[i].first.page < 0 || next.first.page < 0) continue;
    if (number(next.first) != number(runs[i].first) + 1) continue;
    runs[i].count += std::min(next.count, INT32_MAX - 1);
  }
}

void FindRuns(const Plan& plan, int64_t batch, int64_t first, int64_t count, SlotRun* runs) {
  WithPageOf(plan.fused->slots.page_size,
             [&](auto page_of) { FindRuns(plan, batch, first, count, page_of, runs); });
}

}  // namespace

KeptSlots::KeptSlots(const Plan& plan) : first_(0), page_size_(plan.fused->slots.page_size) {
  const int64_t all = plan.batch * plan.tokens;
  if (all > PTRDIFF_MAX / static_cast<int64_t>(sizeof(SlotRun))) throw std::bad_alloc();
  owned_.reset(new (std::nothrow) SlotRun[static_cast<size_t>(all)]);
  if (owned_ == nullptr) throw std::bad_alloc();  // sanitizers end the program where new throws
  for (int64_t batch = 0; batch < plan.batch; ++batch) {
    FindRuns(plan, batch, 0, plan.tokens, owned_.get() + batch * plan.tokens);
  }
  runs_ = owned_.get();
}

KeptSlots::KeptSlots(const Plan& plan, int64_t batch, int64_t first, int count, SlotRun* runs)
    : runs_(runs), first_(batch * plan.tokens + first), page_size_(plan.fused->slots.page_size) {
  FindRuns(plan, batch, first, count, runs);
}

}  // namespace rope::cpu
