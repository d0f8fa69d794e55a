#include "gpu/parts.h"

#include "base/dtype_text.h"
#include "base/status.h"
#include "math/angle.h"
#include "math/operation.h"
#include "math/pairing.h"

namespace rope::gpu {

CosSinKind KindOf(const rope_context& context, const PositionSource& positions) {
  switch (AngleRuleOf(context.angle, positions.type)) {
    case AngleRule::kDivide: return CosSinKind::kDivide;
    case AngleRule::kExact: return CosSinKind::kExact;
    case AngleRule::kCoordinate: return CosSinKind::kCoordinate;
    default: return CosSinKind::kFloat32;  // the backend does not offer kGgml
  }
}

CosSinKind KindOf(const Plan& plan) {
  return plan.has_rows ? CosSinKind::kRows : KindOf(*plan.context, plan.positions);
}

int32_t Capacity(CosSinKind kind, int32_t terms) {
  int32_t frequencies = 0;
  switch (kind) {
    case CosSinKind::kFloat32:
    case CosSinKind::kDivide: frequencies = kMaxFrequencies; break;
    case CosSinKind::kCoordinate: frequencies = kFrequencyBytes / sizeof(Turns); break;
    case CosSinKind::kRows: return kMaxThreads;
    default: frequencies = kFrequencyBytes / sizeof(uint64_t); break;
  }
  constexpr int32_t kLanePairs = 8;  // most of a lane: launches have whole lanes
  static_assert(kFrequencyBytes / sizeof(Turns) / kMaxAxes >= kLanePairs);
  return frequencies / terms / kLanePairs * kLanePairs;
}

void SetFrequencies(const rope_context& context, const FrequencySet& set, int32_t head, int32_t at,
                    CosSinSource* source) {
  for (int32_t a = 0; a < source->terms; ++a) {
    for (uint32_t i = 0; i < source->pairs; ++i) {
      const auto own = source->first_pair + static_cast<int32_t>(i);
      const PairFrequency from = context.SummedFrequency(set, head, own).OfAxis(a);
      const size_t to = static_cast<size_t>(at * source->terms + a) * source->pairs + i;
      switch (source->kind) {
        case CosSinKind::kFloat32: source->frequencies.inv_freq[to] = from.inv_freq_f32(); break;
        case CosSinKind::kDivide: source->frequencies.timescale[to] = from.timescale(); break;
        case CosSinKind::kExact: source->frequencies.turns[to] = from.turns_fraction(); break;
        case CosSinKind::kCoordinate: source->frequencies.whole_turns[to] = from.turns(); break;
        default: source->frequencies.radians[to] = from.inv_freq(); break;
      }
    }
  }
  for (uint32_t i = 0; i < source->pairs && !context.pair_axis.empty(); ++i) {
    source->axis[i] = context.pair_axis[static_cast<size_t>(source->first_pair) + i];
  }
}

void SetLaneSpans(const rope_context& context, uint32_t pairs_per_lane, CosSinSource* source) {
  const bool rows_interleaved = source->rows.format.interleaved();
  const int32_t begin = source->first_pair;
  const int32_t end = begin + static_cast<int32_t>(source->pairs);
  source->row_step = rows_interleaved ? 2 : 1;
  source->lane_span_count = 0;
  for (const Segment& segment : context.segments) {
    const int32_t from = std::max(begin, segment.first_pair);
    const int32_t to = std::min(end, segment.first_pair + segment.pairs);
    if (from >= to) continue;
    LaneSpan& span = source->lane_spans[source->lane_span_count++];
    const PairIndex channels = RowChannelsOf(rows_interleaved, segment, from - segment.first_pair);
    span.first_pair = from - begin;
    span.first_lane = static_cast<uint32_t>(span.first_pair) / pairs_per_lane;
    span.row_first = channels.first;
    span.row_delta = channels.second - channels.first;
  }
}

namespace {

// As StagedGroup cuts calls: with REROTATE, frequencies of whole turns serve both positions if
// those of one need them, and a set from which tokens come stands beside the others.
int32_t PairsOfLaunch(const Plan& plan) {
  const rope_context& context = *plan.context;
  const bool moves = kOperations[plan.operation].has_from();
  CosSinKind kind = KindOf(plan);
  if (moves && KindOf(context, plan.fused->from) == CosSinKind::kCoordinate) {
    kind = CosSinKind::kCoordinate;
  }
  const int32_t capacity = Capacity(kind, TermsOf(context));
  return moves && context.sets.size() > 1 ? PartBeside(capacity, 1) : capacity;
}

const char* NameOfOutput(const Output& output) {
  switch (output.scales_at) {
    case kQOutScales: return kNamesOfArgs.q_out;
    case kCacheKScales: return kNamesOfArgs.beside[kCacheK];
    default: return kNamesOfArgs.k_out;
  }
}

// A scale that is computed needs the whole head at once.
rope_status CheckScales(const Plan& plan, int32_t n, int32_t capacity) {
  const FusedPlan& fused = *plan.fused;
  const Output& output = fused.outputs[n];
  const bool is_q8 = output.dtype == ROPE_DTYPE_Q8_0;
  if (!is_q8 && !(output.HasScaleArray() && output.scales.computed)) return ROPE_OK;
  return Fail(ROPE_ERROR_UNSUPPORTED,
              is_q8 ? "%s: %s.dtype (ROPE_DTYPE_Q8_0), whose scales are computed, on CUDA needs at "
                      "most %d pairs with this angle and these positions, and the context has %d: "
                      "give rows (args->cos_sin)"
                    : "%s: %s.scale->computed (1) on CUDA needs at most %d pairs with this angle "
                      "and these positions, and the context has %d: give scales, or rows "
                      "(args->cos_sin)",
              plan.function, NameOfOutput(output), capacity, plan.context->pairs);
}

}  // namespace

rope_status CheckParts(const Plan& plan) {
  const rope_context& context = *plan.context;
  const int32_t capacity = PairsOfLaunch(plan);
  if (context.nope || context.pairs <= capacity) return ROPE_OK;
  const bool moves = MovesChannels(ChannelOrderOf(context.pairing, plan.operation));
  for (int32_t n = 0; n < plan.tensor_count; ++n) {
    if (plan.fused != nullptr && plan.fused->Decodes(n)) {
      return Fail(
          ROPE_ERROR_UNSUPPORTED,
          "%s: args->fused->source->k.dtype (%s), of 8 bits, on CUDA needs at most %d pairs "
          "with this angle and these positions, and the context has %d",
          plan.function, DtypeText(plan.fused->source_k.dtype).text, capacity, context.pairs);
    }
    if (plan.fused != nullptr && plan.fused->converts) {
      if (rope_status s = CheckScales(plan, n, capacity)) return s;
    }
    const bool in_place = plan.tensors[n].in == plan.tensors[n].out;
    const Norm* const norm = plan.fused != nullptr ? plan.fused->norms[n] : nullptr;
    const bool is_gradient = kOperations[plan.operation].is_gradient();
    if (norm != nullptr && (in_place || norm->after || is_gradient)) {
      const bool needs_output = !norm->after && !is_gradient;
      return Fail(ROPE_ERROR_UNSUPPORTED,
                  "%s: %s: a norm %s on CUDA needs at most %d pairs with this angle and these "
                  "positions, and the context has %d: give rows (args->cos_sin)%s",
                  plan.function,
                  norm == &plan.fused->q_norm ? "args->fused->q_norm" : "args->fused->k_norm",
                  norm->after   ? "with ROPE_NORM_ORDER_AFTER"
                  : is_gradient ? "with BACKWARD"
                                : "in place",
                  capacity, context.pairs, needs_output ? " or an output" : "");
    }
    if (!in_place || !moves) continue;
    return Fail(ROPE_ERROR_UNSUPPORTED,
                "%s: args->q_out or args->k_out: a pairing that moves channels, in place on CUDA, "
                "needs at most %d pairs with this angle and these positions, and the context has "
                "%d: give an output",
                plan.function, capacity, context.pairs);
  }
  return ROPE_OK;
}

Plan PlanOfRow(const Plan& plan, int32_t row_head) {
  Plan part = plan;
  if (plan.has_rows) part.rows = plan.rows.FromHead(row_head);
  for (int32_t n = 0; n < plan.tensor_count; ++n) {
    Tensor& t = part.tensors[n];
    t.heads /= plan.row_heads;
    const int64_t first = int64_t{row_head} * t.heads;
    t.in += first * t.in_strides.head;
    t.out += first * t.out_strides.head;
  }
  return part;
}

}  // namespace rope::gpu
