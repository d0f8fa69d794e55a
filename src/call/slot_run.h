// Tokens in slots that follow each other: what the slots of a call are cut into.
#ifndef LIBROPE_SRC_CALL_SLOT_RUN_H_
#define LIBROPE_SRC_CALL_SLOT_RUN_H_

#include <cstdint>

#include "math/slots.h"
#include "math/token_position.h"

namespace rope {

// n / page_size of a power of two, as page sizes mostly are.
struct QuotientByPower {
  int exponent;
  int64_t operator()(int64_t n) const { return n >> exponent; }
};

// apply(page_of), where page_of(n) is n / page_size without a division, if it can be.
template <class Apply>
auto WithPageOf(int32_t page_size, const Apply& apply) {
  if ((page_size & (page_size - 1)) != 0) return apply(QuotientBy{page_size});
  return apply(QuotientByPower{__builtin_ctz(static_cast<uint32_t>(page_size))});
}

// That of a call on one token.
inline Slot SlotOfOnlyToken(const SlotSource& slots) {
  return WithPageOf(slots.page_size,
                    [&](auto page_of) { return SlotOf(slots, Token{}, 1, page_of); });
}

// Tokens whose slots follow each other, beginning with `first`; of a page below 0 they have none.
struct SlotRun {
  Slot first;
  int count;
};

// The run that begins with a token of a batch row of `tokens`, as far as it lies in one page: at
// most `count` tokens.
SlotRun RunInPage(const SlotSource& slots, const PositionSource& positions, int64_t tokens,
                  int64_t batch, int64_t index, int count);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_SLOT_RUN_H_
