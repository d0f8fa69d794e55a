// The checks of the caller's rows of cos and sin.
#ifndef LIBROPE_SRC_CALL_CHECK_ROWS_H_
#define LIBROPE_SRC_CALL_CHECK_ROWS_H_

#include "call/call.h"
#include "math/cos_sin_table.h"

namespace rope {

// Rows to read, or rows to write by rope_cos_sin_fill, which allows more formats and fewer batches.
// Writes how many rows a token has, too.
enum class RowUse { kRead, kWrite };
rope_status CheckRows(const Call& call, const char* name, const rope_cos_sin* rows, RowUse use,
                      CosSinTable* table, int32_t* row_heads);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_CHECK_ROWS_H_
