#include "gpu/plain.h"

#include <cmath>

namespace rope::gpu {
namespace {

// Whether offsets through so many batch rows, tokens and heads fit into 32 bits, with room for the
// channels of a head.
bool IsShort(const HeadStrides& strides, const TokenRange& tokens, uint32_t heads) {
  const uint32_t rows = tokens.by_row(tokens.count - 1);
  const uint32_t columns = rows == 0 ? tokens.count : tokens.batch_tokens;
  const double most = std::fabs(static_cast<double>(strides.batch)) * rows +
                      std::fabs(static_cast<double>(strides.token)) * columns +
                      std::fabs(static_cast<double>(strides.head)) * heads;
  return most < 0x7fff0000;
}

// The positions: integers of one axis and of batch rows; a place in an array has 32 bits, too.
bool HasPlainPositions(const PositionSource& positions, const TokenRange& tokens) {
  const HeadStrides words = {2 * positions.stride_batch, 2 * positions.stride_token, 0};
  const bool ids = positions.type != PositionSource::kNone && !positions.per_sequence;
  return positions.type != PositionSource::kFloat && positions.place == PositionSource::kRows &&
         (!ids || IsShort(words, tokens, 0)) && tokens.count < 0x3fffffff;
}

bool HasPlainRows(const CommonParams& p) {
  const CosSinSource& s = p.source;
  const bool has_rule = s.kind == CosSinKind::kExact || s.kind == CosSinKind::kFloat32 ||
                        s.kind == CosSinKind::kDivide;
  return has_rule && s.axes == 1 && !s.sums && s.all_sets == 1 && s.lane_span_count == 1 &&
         !p.per_channel && p.copy_lanes == 0 && s.tokens.first_batch == 0 &&
         s.tokens.first_index == 0 && HasPlainPositions(s.positions, s.tokens);
}

}  // namespace

bool IsPlain(const Params& p) {
  for (const Side& side : p.sides) {
    if (!IsShort(side.in_strides, p.source.tokens, side.heads) ||
        !IsShort(side.out_strides, p.source.tokens, side.heads)) {
      return false;
    }
  }
  return HasPlainRows(p);
}

bool IsPlain(const FusedParams& p) {
  for (int32_t n = 0; n < p.side_count; ++n) {
    const FusedSide& side = p.sides[n];
    const HeadStrides of_heads = {0, 0, side.out_strides.head};
    if (!IsShort(side.in_strides, p.source.tokens, side.heads) ||
        !IsShort(side.to_slots ? of_heads : side.out_strides, p.source.tokens, side.heads)) {
      return false;
    }
  }
  const bool whole_rows = p.first_slot_side == p.side_count ||
                          p.row_tokens == static_cast<int64_t>(p.source.tokens.batch_tokens);
  return HasPlainRows(p) && whole_rows;
}

}  // namespace rope::gpu
