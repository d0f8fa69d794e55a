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

// Whether the rotation is not all that writes: it has another pass, too, or is part of one.
bool NormsApart(const Job& job, int n);

// The norm of a tensor that has a pass of its own, of tokens [first, first + count) of a batch row:
// before the heads turn, or behind that. `last`: where the tokens of the task end in this batch
// row, up to which the memory may be asked ahead; 0: it is not.
void NormBlock(const Job& job, int n, int64_t batch, int64_t first, int count, int64_t last);

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_NORM_BLOCKS_H_
