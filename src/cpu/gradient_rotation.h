// Tensors of a call with BACKWARD whose gradients pass norms or are added, as gradients.h does it.
#ifndef LIBROPE_SRC_CPU_GRADIENT_ROTATION_H_
#define LIBROPE_SRC_CPU_GRADIENT_ROTATION_H_

#include <cstdint>

#include "cpu/block.h"
#include "cpu/gradients.h"
#include "cpu/job.h"
#include "cpu/kernels.h"

namespace rope::cpu {

// What turns tensor n as it reads it; null: nothing does.
const Kernels::Rotation* ReadingOf(const Job& job, int n);

// Tokens [token, token + count) of a batch row of tensor n. They turn by `rows`, by one row for
// each channel, or, with neither, not at all.
void PassTokens(const Job& job, int n, const Block* rows, const ChannelRow* row, int64_t batch,
                int64_t token, int count);

// The first token of a part of the gradients of weights. Parts are of equal length, as far as they
// can be.
int64_t FirstOfPart(const Job& job, int64_t part);

// Parts [first, last) of the gradients of all norms of the call begin with zeros.
void ClearParts(const Job& job, int64_t first, int64_t last);

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_GRADIENT_ROTATION_H_
