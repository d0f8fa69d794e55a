// Positions of batch rows, or of two packed sequences, of any kind, with all that they point to.
#ifndef LIBROPE_TESTS_SUPPORT_ROW_POSITIONS_H_
#define LIBROPE_TESTS_SUPPORT_ROW_POSITIONS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "librope/rope.h"
#include "support/random.h"

namespace rope::testing {

struct RowPositions {
  rope_positions p{};
  const int64_t rows;
  std::vector<int64_t> ids, offsets;
  std::vector<int32_t> cu_seqlens, sets;

  // Of `count` batch rows; packed: of one that is two sequences. has_sets: one of two for each.
  RowPositions(Random* r, rope_position_kind kind, int64_t count, int32_t tokens, bool packed,
               bool has_sets)
      : rows(packed ? 1 : count), cu_seqlens{0, 2, tokens} {
    const int64_t sequences = std::max<int64_t>(rows, 2);
    p.kind = kind;
    for (int64_t i = 0; i < 3 * sequences * 2 * tokens; ++i) ids.push_back(r->Pick(0, 100000));
    for (int64_t i = 0; i < sequences; ++i) offsets.push_back(r->Pick(0, 1000));
    for (int64_t i = 0; i < sequences; ++i) sets.push_back(static_cast<int32_t>(i % 2));
    if (kind == ROPE_POSITIONS_OFFSET) p.offset = 77;
    if (kind == ROPE_POSITIONS_SEQ_OFFSETS) p.offsets_i64 = offsets.data();
    if (kind >= ROPE_POSITIONS_IDS_T) p.ids_i64 = ids.data();
    if (kind == ROPE_POSITIONS_IDS_STRIDED) {
      p.stride_axis = 1, p.stride_batch = 7, p.stride_token = 2;
    }
    if (packed) p.cu_seqlens = cu_seqlens.data(), p.sequences = 2;
    if (has_sets) p.freq_sets = sets.data();
  }
  RowPositions(const RowPositions&) = delete;
};

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_ROW_POSITIONS_H_
