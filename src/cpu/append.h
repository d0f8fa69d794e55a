// Tokens go to slots of a cache, and come from some, in runs whose slots follow each other, and v
// is copied beside them.
#ifndef LIBROPE_SRC_CPU_APPEND_H_
#define LIBROPE_SRC_CPU_APPEND_H_

#include <cstdint>

#include "call/plan.h"
#include "call/slot_run.h"
#include "cpu/kept_slots.h"
#include "cpu/kernels.h"
#include "math/slots.h"
#include "math/tensor.h"

namespace rope::cpu {

// The slot of a token of a plan with slots. `kept`, here and below, may be null.
inline Slot SlotOfToken(const Plan& plan, const KeptSlots* kept, int64_t batch, int64_t token) {
  if (kept != nullptr) return kept->SlotOf(batch * plan.tokens + token);
  return SlotOf(plan.fused->slots, LocateToken(plan.positions, batch, token), plan.tokens);
}

// The slot in which a token is read.
inline Slot SourceOfToken(const Plan& plan, int64_t batch, int64_t token) {
  return SlotOf(plan.fused->source, LocateToken(plan.positions, batch, token), plan.tokens);
}

// Tokens whose slots lie `strides.token` apart: they may be in several pages, if these follow each
// other in memory.
SlotRun LongRunOf(const Plan& plan, const SlotSource& slots, const HeadStrides& strides,
                  int64_t batch, int64_t token, int count);

// The run that begins with a token of a batch row: at most `count` tokens of this row.
inline SlotRun RunOf(const Plan& plan, const KeptSlots* kept, const HeadStrides& strides,
                     int64_t batch, int64_t token, int count) {
  if (count == 1) return {SlotOfToken(plan, kept, batch, token), 1};  // decoding
  if (kept != nullptr) return kept->RunOf(strides, batch * plan.tokens + token, count);
  return LongRunOf(plan, plan.fused->slots, strides, batch, token, count);
}

// The strides by which slots follow each other in memory: with scales of its own for each slot, not
// from one page to the next, as theirs need not.
inline HeadStrides RunStrides(HeadStrides strides, bool has_scale_array) {
  if (has_scale_array) strides.batch = -1;
  return strides;
}

// Tokens that lie one after the other where they are read and where they are written; null:
// nowhere.
struct Piece {
  const char* in;
  char* out;
  int count;
  Place place;  // of `out`
};

// What is read or written in slots of a cache, or else in the order of tokens.
struct Ends {
  const char* in;
  char* out;
  const HeadStrides &in_strides, &out_strides;
  const Output& output;
  const SourceHeads* source;  // null: not from slots
  bool to_slots;

  // Where they are written: heads that have been normed on their way, and turn there.
  bool IsReadInSlots() const { return to_slots && source == nullptr && in == out; }
};

// The first piece of tokens [token, token + count) of a batch row.
inline Piece PieceOf(const Plan& plan, const KeptSlots* kept, const Ends& ends, int64_t batch,
                     int64_t token, int count) {
  Piece piece = {ends.in, ends.out, count, {batch, token}};
  if (ends.source != nullptr) {
    const SlotRun slots = LongRunOf(plan, plan.fused->source,
                                    RunStrides(ends.in_strides, ends.source->HasScaleArray()),
                                    batch, token, piece.count);
    piece.count = slots.count;
    piece.in = slots.first.page < 0
                   ? nullptr
                   : ends.in + TokenOffset(ends.in_strides, slots.first.page, slots.first.index);
  } else if (!ends.IsReadInSlots()) {
    piece.in += TokenOffset(ends.in_strides, batch, token);
  }
  if (ends.to_slots) {
    const SlotRun slots =
        RunOf(plan, kept, RunStrides(ends.out_strides, ends.output.HasScaleArray()), batch, token,
              piece.count);
    piece.count = slots.count;
    piece.place = {slots.first.page, slots.first.index};
    piece.out = slots.first.page < 0
                    ? nullptr
                    : ends.out + TokenOffset(ends.out_strides, slots.first.page, slots.first.index);
  } else {
    piece.out += TokenOffset(ends.out_strides, batch, token);
  }
  if (ends.IsReadInSlots()) piece.in = piece.out;
  return piece;
}

// Whether the codes of so many channels are whole, aligned lines wherever they go: `places` has the
// bits of all addresses and strides.
bool CodesFillLines(const Output& output, int64_t places, int64_t channels);

// Whether a copy can be written with non-temporal stores: whole, aligned lines. Codes that get
// other scales on their way are not copied: GroupsFillLines() of append.cc decides about these.
bool CopyCanStream(const Copy& copy);

// What the only token of a call has besides q and k, as it is: to outputs, or to its slot.
void CopyBeside(const FusedPlan& fused, const Slot& slot);
// The same where some of it is normed.
void NormBeside(const Plan& plan, const Kernels& kernels, const FusedPlan& fused, const Slot& slot);
// The same where outputs may have another dtype, too.
void ConvertBeside(const Plan& plan, const Kernels& kernels, const FusedPlan& fused,
                   const Slot& slot);

// Tokens [first, first + count) of a batch row. `grad_part`: of the gradients of weights, with
// BACKWARD.
void CopyTokens(const Plan& plan, const KeptSlots* kept, const Kernels& kernels, const Copy& copy,
                bool streams, int64_t batch, int64_t first, int count, int64_t grad_part);

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_APPEND_H_
