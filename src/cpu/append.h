// Tokens go to slots of a cache, in runs whose slots follow each other, and v is copied beside
// them.
#ifndef LIBROPE_SRC_CPU_APPEND_H_
#define LIBROPE_SRC_CPU_APPEND_H_

#include <cstdint>

#include "call/plan.h"
#include "cpu/kept_slots.h"
#include "cpu/kernels.h"
#include "math/slots.h"

namespace rope::cpu {

// The slot of a token of a plan with slots. `kept`, here and below: of a prepared call, else null.
inline Slot SlotOfToken(const Plan& plan, const KeptSlots* kept, int64_t batch, int64_t token) {
  if (kept != nullptr) return kept->SlotOf(batch * plan.tokens + token);
  return SlotOf(plan.fused->slots, LocateToken(plan.positions, batch, token), plan.tokens);
}

SlotRun LongRunOf(const Plan& plan, const HeadStrides& strides, int64_t batch, int64_t token,
                  int count);

// The run that begins with a token of a batch row: at most `count` tokens of this row.
inline SlotRun RunOf(const Plan& plan, const KeptSlots* kept, const HeadStrides& strides,
                     int64_t batch, int64_t token, int count) {
  if (count == 1) return {SlotOfToken(plan, kept, batch, token), 1};  // decoding
  if (kept != nullptr) return kept->RunOf(strides, batch * plan.tokens + token, count);
  return LongRunOf(plan, strides, batch, token, count);
}

// Whether a copy can be written with non-temporal stores: whole, aligned lines.
bool CopyCanStream(const Copy& copy);

// Tokens [first, first + count) of a batch row.
void CopyTokens(const Plan& plan, const KeptSlots* kept, const Kernels& kernels, const Copy& copy,
                bool streams, int64_t batch, int64_t first, int count);

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_APPEND_H_
