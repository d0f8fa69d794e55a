// Tensors of a call that go through the stages of staged.h.
#ifndef LIBROPE_SRC_CPU_STAGED_ROTATION_H_
#define LIBROPE_SRC_CPU_STAGED_ROTATION_H_

#include <cstdint>

#include "cpu/cos_sin_rows.h"
#include "cpu/job.h"
#include "cpu/scalar.h"

namespace rope::cpu {

// Tokens [first, first + count) of a batch row, which do not turn.
void ConvertInStages(const Job& job, int n, int64_t batch, int64_t first, int count);

// Tokens [first + i, first + i + count) of one batch row, whose first rows are those of token
// `first`. `last`: where the tokens of the task end in this batch row.
void RotateInStages(const Job& job, int n, const OrderedRows& rows, int64_t batch, int64_t first,
                    int i, int count, int64_t last);

// A token whose row has other values for one channel of a pair than for the other.
void RotateByChannelsInStages(const Job& job, int n, const ChannelRow& row, int64_t batch,
                              int64_t token);

// The heads of the only token of a call, of tensor n of `plan`, which their kernel reads where they
// are, to a place of their output.
void RotateTokenInStages(const Course& course, const Plan& plan, int n, const Tensor& tensor,
                         const Output& output, const Place& place, const OrderedRows& row);

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_STAGED_ROTATION_H_
