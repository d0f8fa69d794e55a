// Where angles come from: the checks of positions and of the caller's rows of cos and sin.
#ifndef LIBROPE_SRC_SOURCE_H_
#define LIBROPE_SRC_SOURCE_H_

#include "plan.h"

namespace rope {

// `name` is how messages call the struct, such as "args->positions.". The contents of arrays are
// read only on the CPU.
rope_status ReadPositions(const char* function, const char* name, const rope_context& context,
                          int64_t batch, int64_t tokens, const rope_positions& positions,
                          PositionSource* source);

// Positions for which the context's frequencies are right (rope_info.valid_below): every one on the
// CPU; on CUDA, whose arrays cannot be read here, those that follow from an offset.
rope_status CheckValidity(const char* function, const char* name, const rope_context& context,
                          int64_t batch, int64_t tokens, const PositionSource& source);

// Rows to read, or rows to write by rope_cos_sin_fill, which allows more formats and fewer batches.
enum class RowUse { kRead, kWrite };
rope_status ReadRows(const char* function, const char* name, const rope_context& context,
                     int64_t batch, int64_t tokens, const rope_cos_sin* rows, RowUse use,
                     RowTable* table);

}  // namespace rope

#endif  // LIBROPE_SRC_SOURCE_H_
