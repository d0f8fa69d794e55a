// What calls are cut into before there are launches: heads with rows of their own, ranges of
// tokens, frequencies, as many as the parameters of a kernel hold, and blocks, as many as a grid
// has.
#ifndef LIBROPE_SRC_GPU_PARTS_H_
#define LIBROPE_SRC_GPU_PARTS_H_

#include <algorithm>
#include <cstdint>

#include "call/plan.h"
#include "gpu/params.h"
#include "gpu/staged_params.h"

namespace rope::gpu {

inline constexpr uint32_t kMaxGridY = 65535;

// Calls visit(range) for tokens of all batch rows in ranges that TokenRange can count.
template <class Visit>
rope_status ForEachRange(int64_t batch, int64_t tokens, Visit visit) {
  constexpr int64_t kMaxTokens = INT32_MAX;  // of a launch: blocks of a grid, and TokenRange
  if (tokens > kMaxTokens) {
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t t = 0; t < tokens; t += kMaxTokens) {
        const auto count = static_cast<uint32_t>(std::min(kMaxTokens, tokens - t));
        if (rope_status s = visit(TokenRange{b, t, count, 0, {}})) return s;
      }
    }
    return ROPE_OK;
  }
  TokenRange range{};
  range.batch_tokens = static_cast<uint32_t>(tokens);
  const int64_t batches = kMaxTokens / tokens;
  for (int64_t b = 0; b < batch; b += batches) {
    const int64_t own = std::min(batches, batch - b);
    range.first_batch = b;
    range.count = static_cast<uint32_t>(own * tokens);
    range.by_row = own == 1 ? SmallDivisor{} : SmallDivisorOf(tokens);
    if (rope_status s = visit(range)) return s;
  }
  return ROPE_OK;
}

CosSinKind KindOf(const rope_context& context, const PositionSource& positions);
CosSinKind KindOf(const Plan& plan);

// Pairs whose frequencies fit into a launch. Rows need none, and a block has no more threads.
int32_t Capacity(CosSinKind kind, int32_t terms);

// Frequencies of a pair.
inline int32_t TermsOf(const rope_context& context) { return context.sums ? context.axes : 1; }

// Those of one set, for the launch's pairs, in place `at` of its sets. `head`: of those with
// frequencies of their own.
void SetFrequencies(const rope_context& context, const FrequencySet& set, int32_t head, int32_t at,
                    CosSinSource* source);

// The pairs [first_pair, first_pair + pairs) as spans of lanes. Byte offsets of tensors are left to
// the caller.
void SetLaneSpans(const rope_context& context, uint32_t pairs_per_lane, CosSinSource* source);

// An order that moves channels overwrites, in place, what a later part would read. Of all tensors,
// before the first launch: a call that is refused has written nothing.
rope_status CheckParts(const Plan& plan);

// The heads that share one row of each token, and this row.
Plan PlanOfRow(const Plan& plan, int32_t row_head);

// Calls visit(plan, row_head) for the heads that share rows of cos and sin.
template <class Visit>
rope_status ForEachRowHead(const Plan& plan, Visit visit) {
  if (rope_status s = CheckParts(plan)) return s;
  if (plan.row_heads == 1 || plan.context->nope) return visit(plan, 0);
  for (int32_t head = 0; head < plan.row_heads; ++head) {
    if (rope_status s = visit(PlanOfRow(plan, head), head)) return s;
  }
  return ROPE_OK;
}

// Pairs of a launch, in whole lanes, that hold as many sets besides.
constexpr int32_t PartBeside(int32_t capacity, int32_t sets) {
  return capacity / (1 + sets) / 8 * 8;
}

// Sets of so many pairs whose frequencies fit into a launch, beside those that the caller has.
inline int32_t SetsOfLaunch(int32_t capacity, int32_t pairs, int32_t sets_beside) {
  return std::min(kMaxSets - sets_beside, std::max(1, capacity / std::max(1, pairs) - sets_beside));
}

// Calls visit(is_first) for every part of the frequencies that fits into a launch beside
// `set_beside` sets that the caller has: all pairs of some sets, or some pairs of one set, of which
// one part is the first.
template <class Visit>
rope_status ForEachPart(const rope_context& context, int32_t pairs, rope_operation operation,
                        int32_t head, int32_t sets_beside, CosSinSource* source, Visit visit) {
  source->terms = TermsOf(context);
  source->sums = context.sums;
  const int32_t capacity = Capacity(source->kind, source->terms);
  const int32_t part = sets_beside == 0 ? capacity : PartBeside(capacity, sets_beside);
  const bool rows = source->kind == CosSinKind::kRows;
  source->all_pairs = pairs;
  source->axes = context.axes;
  source->all_sets = rows || pairs == 0 ? 1 : static_cast<int32_t>(context.sets.size());
  const int32_t sets = std::min(source->all_sets, SetsOfLaunch(capacity, pairs, sets_beside));
  for (int32_t set = 0; set < source->all_sets; set += sets) {
    source->first_set = set;
    source->set_count = std::min(sets, source->all_sets - set);
    int32_t pair = 0;
    do {
      source->first_pair = pair;
      source->pairs = static_cast<uint32_t>(std::min(part, pairs - pair));
      for (int32_t n = 0; n < source->set_count && !rows; ++n) {
        const FrequencySet& from = context.sets[static_cast<size_t>(set + n)];
        source->scales[n] = ScalesOf(operation, from.attention_factor);
        SetFrequencies(context, from, head, n, source);
      }
      if (rope_status s = visit(pair == 0)) return s;
      pair += part;
    } while (pair < pairs);
  }
  return ROPE_OK;
}

// Visits a launch of kernels in steps, whose tokens have so many blocks: in as many grids as these
// take.
template <class L>
rope_status ForEachGrid(uint32_t blocks, L* launch, rope_status (*visit)(const L&, void*),
                        void* data) {
  launch->shape.x = kStagedLanes;
  launch->shape.y = kStagedWarps;
  launch->shape.z = 1;
  uint32_t& first = launch->params.first_block;
  for (first = 0; first < blocks; first += kMaxGridY) {
    launch->shape.grid_y = std::min(kMaxGridY, blocks - first);
    if (rope_status s = visit(*launch, data)) return s;
  }
  return ROPE_OK;
}

}  // namespace rope::gpu

#endif  // LIBROPE_SRC_GPU_PARTS_H_
