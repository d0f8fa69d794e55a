// From a plan to launches of the kernels of gradient.h.
#include "gpu/gradient.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"
#include "gpu/launch.h"
#include "gpu/parts.h"
#include "gpu/shape.h"
#include "gpu/vectors.h"
#include "math/element.h"
#include "math/operation.h"
#include "math/pairing.h"

namespace rope::gpu {
namespace {

// Shared memory of a block: floats of what was normed, and as many of its gradients; and bytes of
// rows if there are several.
constexpr uint32_t kHeadValues = 2048, kRowBytes = 4096;
constexpr uint32_t kMostHeads = 32;  // at once

// Of heads in columns: the most bytes of rows if there are several; tokens of a part whose sides
// are better apart.
constexpr uint32_t kColumnRowBytes = 8192, kFewTokens = 4;

bool HasGradient(const Norm* norm, const Output& output) {
  return (norm != nullptr && norm->gradients.x != nullptr) || output.sums != 1;
}

class GradientGroup {
 public:
  GradientGroup(const Plan& plan, int32_t multiprocessors)
      : plan_(plan),
        context_(*plan.context),
        fused_(*plan.fused),
        multiprocessors_(static_cast<uint32_t>(multiprocessors)) {}

  rope_status ForEach(GradientLaunchFn visit, void* data) {
    SetCall();
    for (launch_.dtype = 1; launch_.dtype <= kDtypes; ++launch_.dtype) {
      if (rope_status s = ForEachOfDtype(visit, data)) return s;
    }
    return ROPE_OK;
  }

 private:
  static constexpr uint32_t kFloat = sizeof(float);

  void SetCall() {
    GradientParams& p = launch_.params;
    const ChannelOrder order = ChannelOrderOf(context_.pairing, plan_.operation);
    p.arithmetic = context_.rounding.arithmetic;
    p.per_channel = plan_.has_rows && plan_.rows.format.per_channel();
    p.reads_interleaved = ReadsInterleaved(order);
    p.writes_interleaved = WritesInterleaved(order);
    p.segment_count = static_cast<int32_t>(context_.segments.size());
    std::copy(context_.segments.begin(), context_.segments.end(), p.segments);
    p.by_repeat = DivisorOf(plan_.batch_repeat);
    if (fused_.grad_parts != 0) {
      const int64_t tokens = plan_.batch * plan_.tokens, parts = fused_.grad_parts;
      p.parts = {tokens / parts, tokens % parts, DivisorOf(parts), static_cast<uint32_t>(parts)};
    }
    CosSinSource& source = p.source;
    source.backward = kOperations[plan_.operation].negates_angle;
    source.kind = KindOf(plan_);
    if (plan_.has_rows) {
      source.rows = plan_.rows;
    } else {
      source.positions = plan_.positions;
    }
  }

  GradientSide& AddSide(const char* in, char* out, const HeadStrides& in_strides,
                        const HeadStrides& out_strides, int32_t heads, const Norm* norm,
                        const Output& output) {
    GradientSide& side = launch_.params.sides[launch_.params.side_count++];
    side = {};
    side.in = in;
    side.out = out;
    side.in_strides = in_strides;
    side.out_strides = out_strides;
    side.sums = static_cast<uint32_t>(output.sums);
    side.heads = static_cast<uint32_t>(heads);
    side.by_heads = SmallDivisorOf(heads);
    if (norm == nullptr) return side;
    const NormGradients& gradients = norm->gradients;
    side.norm = StagedNormOf(*norm, side.heads, launch_.params.writes_interleaved);
    if (side.norm.terms == std::exp2(std::floor(std::log2(side.norm.terms)))) {
      side.inverse_terms = 1 / side.norm.terms;
    }
    side.x = gradients.x;
    side.x_strides = gradients.x_strides;
    side.has_parts = gradients.parts != 0;
    side.weight_grad = gradients.weight;
    side.bias_grad = gradients.bias;
    side.weights = gradients.weights;
    side.one_block = side.norm.all_heads || (side.has_parts && norm->weight_stride == 0);
    return side;
  }

  void AddTensors() {
    for (int32_t n = 0; n < plan_.tensor_count; ++n) {
      const Tensor& t = plan_.tensors[n];
      const Norm* const norm = fused_.norms[n];
      if (t.dtype != launch_.dtype || !HasGradient(norm, fused_.outputs[n])) continue;
      const bool whole = norm != nullptr || t.copies_rest;
      const int32_t width = norm != nullptr ? norm->channels
                            : whole         ? context_.head_dim
                                            : context_.rotary_dim;
      GradientSide& side = AddSide(t.in + (whole ? 0 : t.in_span), t.out + (whole ? 0 : t.out_span),
                                   t.in_strides, t.out_strides, t.heads, norm, fused_.outputs[n]);
      side.span_at = whole ? static_cast<uint32_t>(t.in_span / ElementSize(t.dtype)) : 0;
      side.span = context_.nope ? 0 : static_cast<uint32_t>(context_.rotary_dim);
      side.rest = static_cast<uint32_t>(width) - side.span;
    }
  }

  void AddCopies() {
    for (int32_t n = 0; n < fused_.copies.count; ++n) {
      const Copy& c = fused_.copies.of[n];
      if (c.dtype != launch_.dtype || !HasGradient(c.norm, c.output)) continue;
      GradientSide& side =
          AddSide(c.in, c.out, c.in_strides, c.out_strides, c.heads, c.norm, c.output);
      side.rest = static_cast<uint32_t>(c.width / ElementSize(c.dtype));
    }
  }

  // Whether columns of heads can be read and written: in whole vectors, by strides of heads of 32
  // bits.
  bool AreAddressed(const char* data, const HeadStrides& strides, uint32_t heads) const {
    const int64_t vector = int64_t{kGradientElements} * ElementSize(launch_.dtype);
    return (heads == 1 || (strides.head >= 0 && strides.head <= UINT32_MAX)) &&
           BitsOfHeads(data, strides, plan_.batch, plan_.tokens, static_cast<int32_t>(heads)) %
                   vector ==
               0;
  }

  // Whether the heads of a side can be cut into columns of gradient_columns.h.
  bool FitsColumns(const GradientSide& side) const {
    const GradientParams& p = launch_.params;
    const StagedNorm& norm = side.norm;
    const NormRule& rule = norm.rule;
    if (!norm.is_there || norm.all_heads || norm.weight_stride != 0 || side.sums != 1) return false;
    if (rule.has_mean || rule.has_bias) return false;
    if (side.has_parts && side.weight_grad == nullptr) return false;
    if (norm.channels % kRunningSums != 0 || norm.channels > kGradientRows * kRunningSums ||
        side.heads > INT32_MAX / kMostRowTokens) {
      return false;
    }
    if (!AreAddressed(side.in, side.in_strides, side.heads) ||
        !AreAddressed(side.x, side.x_strides, side.heads) ||
        !AreAddressed(side.out, side.out_strides, side.heads)) {
      return false;
    }
    if (side.span == 0) return true;
    if (context_.segments.size() != 1 || p.reads_interleaved != p.writes_interleaved) return false;
    if (side.span_at != 0 || side.span % kRunningSums != 0) return false;
    return p.reads_interleaved || context_.pairs % kRunningSums == 0;
  }

  // What does not turn is in the first launch alone, and channels outside of the span in the first
  // of a token.
  rope_status ForEachOfDtype(GradientLaunchFn visit, void* data) {
    GradientParams& p = launch_.params;
    p.side_count = 0;
    AddTensors();
    const int32_t turning = context_.nope ? 0 : p.side_count;
    AddCopies();
    const int32_t all = p.side_count;
    if (all == 0) return ROPE_OK;
    launch_.columns = std::all_of(p.sides, p.sides + all,
                                  [&](const GradientSide& side) { return FitsColumns(side); });
    p.rounds_rows = context_.rounding.rounds_rows && IsNarrow(launch_.dtype);
    const auto part = [&](bool is_first) {
      SetLaneSpans(context_, 1, &p.source);
      p.side_count = is_first && p.source.first_set == 0 ? all : turning;
      p.with_rest = is_first;
      return ForEachRange(plan_.batch, plan_.tokens, [&](const TokenRange& range) {
        p.source.tokens = range;
        p.first_token = range.first_batch * plan_.tokens + range.first_index;
        return launch_.columns ? VisitColumns(visit, data) : VisitBlocks(visit, data);
      });
    };
    return ForEachPart(context_, turning != 0 ? context_.pairs : 0, plan_.operation, 0, 0,
                       &p.source, part);
  }

  // Heads and tokens of a block, as many as there is room for.
  static void SetBlock(uint32_t tokens, uint32_t row_bytes, GradientSide* side) {
    const uint32_t room = side->norm.is_there
                              ? std::clamp(kHeadValues / side->norm.channels, 1u, kMostHeads)
                              : kMostHeads;
    side->blocks = DivideUp(side->heads, room);
    side->block_heads = DivideUp(side->heads, side->blocks);
    side->by_block_heads = SmallDivisorOf(side->block_heads);
    if (side->one_block) side->blocks = 1;
    const uint32_t rows = side->span != 0 ? std::max(1u, kRowBytes / row_bytes) : room;
    side->block_tokens = std::max(1u, std::min({room / side->block_heads, rows, tokens}));
  }

  rope_status VisitBlocks(GradientLaunchFn visit, void* data) {
    GradientParams& p = launch_.params;
    const uint32_t count = p.source.tokens.count,
                   row_bytes = p.source.pairs * sizeof(CosSin) * (p.per_channel ? 2 : 1);
    uint32_t values = 0, rows = 0, tokens = 0, sums = 0, blocks = 0;
    launch_.shape.grid_x = 0;
    for (int32_t s = 0; s < p.side_count; ++s) {
      GradientSide& side = p.sides[s];
      SetBlock(count, row_bytes, &side);
      blocks += side.blocks;
      launch_.shape.grid_x =
          std::max(launch_.shape.grid_x,
                   side.has_parts ? p.parts.count : DivideUp(count, side.block_tokens));
      tokens = std::max(tokens, side.block_tokens);
      if (side.span != 0) rows = std::max(rows, side.block_tokens * row_bytes);
      if (!side.norm.is_there) continue;
      const uint32_t heads = side.block_tokens * side.block_heads;
      values = std::max(values, heads * side.norm.channels);
      sums = std::max(sums, (heads + side.block_tokens) * kStagedSumStride * kFloat +
                                heads * static_cast<uint32_t>(sizeof(GradientMoments)));
    }
    p.x_at = values * kFloat;
    p.rows_at = 2 * p.x_at;
    p.tokens_at = p.rows_at + rows;
    p.sums_at = p.tokens_at + tokens * static_cast<uint32_t>(sizeof(GradientToken));
    launch_.shared_bytes = p.sums_at + sums;
    return ForEachGrid(blocks, &launch_, visit, data);
  }

  // A block has a part, or as many tokens as leave some blocks to each multiprocessor.
  rope_status VisitColumns(GradientLaunchFn visit, void* data) {
    GradientParams& p = launch_.params;
    GradientColumns& columns = p.columns;
    const uint32_t count = p.source.tokens.count, pairs = std::max(1u, p.source.pairs),
                   row_bytes = pairs * sizeof(CosSin) * (p.per_channel ? 2 : 1);
    columns.by_pairs = SmallDivisorOf(pairs);
    columns.row_tokens =
        std::clamp(kColumnRowBytes / row_bytes, 1u, std::min(kMostRowTokens, count));
    columns.block_tokens = std::clamp(count / (4 * multiprocessors_), 1u, columns.row_tokens);
    const bool has_parts = p.sides[0].has_parts;
    const uint32_t blocks = DivideUp(count, columns.block_tokens);
    launch_.shape.grid_x = 0;
    columns.together = true;
    for (int32_t s = 0; s < p.side_count; ++s) {
      const GradientSide& side = p.sides[s];
      columns.together &= side.has_parts == has_parts;
      launch_.shape.grid_x =
          std::max(launch_.shape.grid_x, side.has_parts ? p.parts.count : blocks);
    }
    columns.together &=
        launch_.shape.grid_x >= multiprocessors_ && count / launch_.shape.grid_x >= kFewTokens;
    constexpr uint32_t kHeadBytes = kGradientRows * kRunningSums * kFloat;
    const auto sides = static_cast<uint32_t>(p.side_count);
    p.rows_at = 2 * kGradientColumnHeads * kHeadBytes;
    p.sums_at =
        p.rows_at + DivideUp(columns.row_tokens * row_bytes, 16u) * 16;  // one row alone too
    p.tokens_at = p.sums_at + 2 * sides * kHeadBytes;
    p.x_at = p.tokens_at + DivideUp(columns.row_tokens, 4u) * 16;
    constexpr uint32_t kPlaceBytes = 3 * sizeof(int64_t);
    launch_.shared_bytes = p.x_at + sides * kMostRowTokens * kPlaceBytes;
    return ForEachGrid(columns.together ? 1 : sides, &launch_, visit, data);
  }

  const Plan& plan_;
  const rope_context& context_;
  const FusedPlan& fused_;
  const uint32_t multiprocessors_;
  GradientLaunch launch_{};
};

// Gradients of weights are added in the order of tokens, which must not be of several launches.
rope_status CheckSets(const Plan& plan) {
  const rope_context& context = *plan.context;
  const FusedPlan& fused = *plan.fused;
  const int32_t sets = plan.has_rows ? 1 : static_cast<int32_t>(context.sets.size()),
                most = SetsOfLaunch(Capacity(KindOf(plan), TermsOf(context)), context.pairs, 0);
  for (int32_t n = 0; n < plan.tensor_count; ++n) {
    const Norm* const norm = fused.norms[n];
    if (context.nope || norm == nullptr || norm->gradients.parts == 0 || sets <= most) continue;
    return Fail(
        ROPE_ERROR_UNSUPPORTED,
        "%s: %s->grad_parts (%d) on CUDA must be 0 where tokens have more than %d frequency "
        "sets of %d pairs with this angle and these positions, and the context has %d: give "
        "rows (args->cos_sin)",
        plan.function, norm == &fused.q_norm ? "args->fused->q_norm" : "args->fused->k_norm",
        norm->gradients.parts, most, context.pairs, sets);
  }
  return ROPE_OK;
}

}  // namespace

bool HasGradients(const Plan& plan) {
  const FusedPlan& fused = *plan.fused;
  return fused.adds || (kOperations[plan.operation].is_gradient() && fused.has_norms());
}

rope_status CheckGradients(const Plan& plan) {
  if (plan.batch_repeat > INT32_MAX) {
    return Fail(
        ROPE_ERROR_UNSUPPORTED,
        "%s: args->positions.batch_repeat (%lld) on CUDA must be below 2^31 where gradients "
        "pass norms or are added",
        plan.function, static_cast<long long>(plan.batch_repeat));
  }
  if (rope_status s = CheckParts(plan)) return s;
  return CheckSets(plan);
}

rope_status ForEachGradientLaunch(const Plan& plan, int32_t multiprocessors,
                                  GradientLaunchFn launch, void* data) {
  return GradientGroup(plan, multiprocessors).ForEach(launch, data);
}

Plan PlanWithoutGradients(const Plan& plan, FusedPlan* fused) {
  Plan rest = plan;
  *fused = *plan.fused;
  rest.fused = fused;
  rest.tensor_count = fused->copies.count = 0;
  fused->adds = false;
  fused->grad_parts = 0;
  for (int32_t n = 0; n < plan.tensor_count; ++n) {
    if (HasGradient(plan.fused->norms[n], plan.fused->outputs[n])) continue;
    fused->norms[rest.tensor_count] = nullptr;
    fused->outputs[rest.tensor_count] = plan.fused->outputs[n];
    rest.tensors[rest.tensor_count++] = plan.tensors[n];
  }
  for (int32_t n = rest.tensor_count; n < plan.tensor_count; ++n) fused->norms[n] = nullptr;
  for (int32_t n = 0; n < plan.fused->copies.count; ++n) {
    const Copy& copy = plan.fused->copies.of[n];
    if (!HasGradient(copy.norm, copy.output)) fused->copies.of[fused->copies.count++] = copy;
  }
  if (fused->copies.count == 0 && !fused->converts) rest.fused = nullptr;
  return rest;
}

}  // namespace rope::gpu
