#include "call/slot_run.h"

#include <algorithm>

namespace rope {

SlotRun RunInPage(const SlotSource& slots, const PositionSource& positions, int64_t tokens,
                  int64_t batch, int64_t index, int count) {
  const Token token = LocateToken(positions, batch, index);
  const Slot first = SlotOf(slots, token, tokens);
  if (first.page < 0 || count == 1) return {first, 1};
  int64_t most = std::min(count, slots.page_size - first.index);
  if (slots.kind != ROPE_SLOTS_MAPPED) {
    const int32_t* const runs = positions.cu_seqlens;
    const int64_t end = runs != nullptr                            ? runs[token.sequence + 1]
                        : positions.place == PositionSource::kEach ? index + 1
                                                                   : tokens;
    return {first, static_cast<int>(std::clamp<int64_t>(end - index, 1, most))};
  }
  const int64_t at = batch * tokens + index;
  most = std::min(most, slots.slots_length - at);
  const int64_t slot = first.page * slots.page_size + first.index;
  const auto follow = [&](const auto* numbers) {
    int n = 1;
    while (n < most && numbers[at + n] >= slot && numbers[at + n] - slot == n) ++n;
    return n;
  };
  return {first, slots.slots_i64 != nullptr ? follow(slots.slots_i64) : follow(slots.slots_i32)};
}

}  // namespace rope
