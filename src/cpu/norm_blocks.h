// The norms of the tensors of a job, for blocks of its tokens.
#ifndef LIBROPE_SRC_CPU_NORM_BLOCKS_H_
#define LIBROPE_SRC_CPU_NORM_BLOCKS_H_

#include <cstdint>

#include "cpu/job.h"
#include "cpu/norm_tiles.h"

namespace rope::cpu {

// Of a tensor whose norm and rotation are one pass.
NormOf NormOfTensor(const Job& job, int n);
OnePass OnePassOf(const Job& job, int n);

// apply(i, in, out) for tokens [first + i, first + end) of a batch row, as they lie one after the
// other where they are read: all, whatever slots they go to, or where they come from slots, piece
// by piece. What norms them looks at the weights once, and at many heads together.
template <class Apply>
void ForEachRead(const Job& job, const Ends& ends, int64_t batch, int64_t first, int i, int end,
                 const Apply& apply) {
  constexpr int kMost = 16;
  const bool from_slots = ends.source != nullptr || ends.IsReadInSlots();
  WrittenRun runs[kMost];
  int count = 0, begin = 0;
  const char* in = nullptr;
  ForEachPiece(job, ends, batch, first, i, end, [&](int at, const Piece& piece) {
    if (count == 0) {
      begin = at;
      in = piece.in;
    }
    runs[count++] = {at - begin, piece.count, piece.out};
    if (!from_slots && count < kMost) return;
    apply(begin, in, WrittenRuns{runs, count});
    count = 0;
  });
  if (count != 0) apply(begin, in, WrittenRuns{runs, count});
}

// Whether the rotation is not all that writes: it has another pass, too, or is part of one.
bool NormsApart(const Job& job, int n);

// The norm of a tensor that has a pass of its own, of tokens [first, first + count) of a batch row:
// before the heads turn, or behind that. `last`: where the tokens of the task end in this batch
// row, up to which the memory may be asked ahead; 0: it is not.
void NormBlock(const Job& job, int n, int64_t batch, int64_t first, int count, int64_t last);

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_NORM_BLOCKS_H_
