#include "gpu/launch.h"

#include <algorithm>
#include <iterator>

#include "base/status.h"
#include "math/angle.h"
#include "math/element.h"
#include "math/operation.h"
#include "math/pairing.h"
#include "math/sincos.h"

namespace rope::gpu {
namespace {

constexpr int64_t kMaxTokens = INT32_MAX;  // of a launch: blocks of a grid, and TokenRange
constexpr uint32_t kMaxGridY = 65535;
constexpr uint32_t kRowBytesPerBlock = 16384;  // shared memory that several tokens may take
constexpr uint32_t kMaxSizeZ = 64;

template <class T>
T DivideUp(T a, T b) {
  return (a + b - 1) / b;
}

// Tokens of one block: enough for 128 threads, in whole warps where 320 threads allow it.
uint32_t TokensPerBlock(uint32_t threads_per_token, const Work& work) {
  const int64_t limit = std::min<int64_t>(
      {kMaxSizeZ, work.tokens, std::max(1u, kRowBytesPerBlock / std::max(1u, work.row_bytes))});
  uint32_t best = 1, best_idle = UINT32_MAX;  // idle lanes, in 1/1000 of the threads
  for (uint32_t z = 1; z <= limit && z * threads_per_token <= 320; ++z) {
    const uint32_t threads = z * threads_per_token;
    const uint32_t idle = (DivideUp(threads, 32u) * 32 - threads) * 1000 / threads;
    if (threads < 128) {
      best = z;
    } else if (idle < best_idle) {
      best = z;
      best_idle = idle;
    }
  }
  return best;
}

}  // namespace

Shape ShapeOf(const Work& work) {
  Shape shape{};
  const bool few = work.tokens < 4 * int64_t{work.multiprocessors};
  shape.heads_per_thread = few ? 1 : 2;
  const auto per_thread = static_cast<int64_t>(shape.heads_per_thread);
  const int64_t groups =
      DivideUp<int64_t>(work.heads[0], per_thread) + DivideUp<int64_t>(work.heads[1], per_thread);
  const int64_t most_groups = kMaxThreads / work.lanes;
  int64_t y;
  if (few) {
    y = std::max<int64_t>(DivideUp(64u, work.lanes),
                          groups * work.tokens / (8 * int64_t{work.multiprocessors}));
    y = std::min({y, most_groups, groups});
  } else {
    y = DivideUp(groups, DivideUp(groups, most_groups));
  }
  shape.x = work.lanes;
  shape.y = static_cast<uint32_t>(y);
  shape.z = few ? 1 : TokensPerBlock(shape.x * shape.y, work);
  shape.grid_x = static_cast<uint32_t>(DivideUp<int64_t>(work.tokens, shape.z));
  shape.grid_y = static_cast<uint32_t>(DivideUp(groups, y));
  return shape;
}

namespace {

// Tokens of all batch rows in ranges that TokenRange can count.
template <class Visit>
rope_status ForEachRange(int64_t batch, int64_t tokens, Visit visit) {
  if (tokens > kMaxTokens) {
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t t = 0; t < tokens; t += kMaxTokens) {
        const auto count = static_cast<uint32_t>(std::min(kMaxTokens, tokens - t));
        if (rope_status s = visit(TokenRange{b, t, count, 0, 0, 0})) return s;
      }
    }
    return ROPE_OK;
  }
  TokenRange range{};
  range.batch_tokens = static_cast<uint32_t>(tokens);
  // 2^(bits - 1) < tokens <= 2^bits; the multiplier, 2^(31 + bits) / tokens rounded up, is below
  // 2^32, and too large by less than 2^bits / 2^(31 + bits) of one: exact below 2^31.
  uint32_t bits = 0;
  while (int64_t{1} << bits < tokens) ++bits;
  const uint64_t d = range.batch_tokens;
  const auto multiplier = static_cast<uint32_t>(((uint64_t{1} << (31 + bits)) + d - 1) / d);
  const int64_t batches = kMaxTokens / tokens;
  for (int64_t b = 0; b < batch; b += batches) {
    const int64_t own = std::min(batches, batch - b);
    range.first_batch = b;
    range.count = static_cast<uint32_t>(own * tokens);
    range.multiplier = own == 1 ? 0 : multiplier;
    range.shift = own == 1 ? 0 : 31 + bits;
    if (rope_status s = visit(range)) return s;
  }
  return ROPE_OK;
}

CosSinKind KindOf(const rope_context& context, const PositionSource& positions) {
  switch (AngleRuleOf(context.angle, positions.type)) {
    case AngleRule::kDivide: return CosSinKind::kDivide;
    case AngleRule::kExact: return CosSinKind::kExact;
    case AngleRule::kCoordinate: return CosSinKind::kCoordinate;
    default: return CosSinKind::kFloat32;  // the backend does not offer kGgml
  }
}

// Frequencies of a pair.
int32_t TermsOf(const rope_context& context) { return context.sums ? context.axes : 1; }

// Pairs whose frequencies fit into a launch. Rows need none, and a block has no more threads.
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

void SetFrequencies(const rope_context& context, rope_operation operation, int32_t head,
                    CosSinSource* source) {
  for (int32_t n = 0; n < source->set_count; ++n) {
    const FrequencySet& set = context.sets[static_cast<size_t>(source->first_set + n)];
    source->scales[n] = ScalesOf(operation, set.attention_factor);
    for (int32_t a = 0; a < source->terms; ++a) {
      for (uint32_t i = 0; i < source->pairs; ++i) {
        const auto own = source->first_pair + static_cast<int32_t>(i);
        const PairFrequency from = context.SummedFrequency(set, head, own).OfAxis(a);
        const size_t to = static_cast<size_t>(n * source->terms + a) * source->pairs + i;
        switch (source->kind) {
          case CosSinKind::kFloat32: source->frequencies.inv_freq[to] = from.inv_freq_f32(); break;
          case CosSinKind::kDivide: source->frequencies.timescale[to] = from.timescale(); break;
          case CosSinKind::kExact: source->frequencies.turns[to] = from.turns_fraction(); break;
          case CosSinKind::kCoordinate: source->frequencies.whole_turns[to] = from.turns(); break;
          default: source->frequencies.radians[to] = from.inv_freq(); break;
        }
      }
    }
  }
  for (uint32_t i = 0; i < source->pairs && !context.pair_axis.empty(); ++i) {
    source->axis[i] = context.pair_axis[static_cast<size_t>(source->first_pair) + i];
  }
}

// The pairs [first_pair, first_pair + pairs) as spans of lanes. Byte offsets of tensors are left to
// the caller.
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

// Calls visit(is_first) for every part of the frequencies that fits into a launch: all pairs of
// some sets, or some pairs of one set, of which one part is the first. `head`: of those with
// frequencies of their own.
template <class Visit>
rope_status ForEachPart(const rope_context& context, int32_t pairs, rope_operation operation,
                        int32_t head, CosSinSource* source, Visit visit) {
  source->terms = TermsOf(context);
  source->sums = context.sums;
  const int32_t capacity = Capacity(source->kind, source->terms);
  const bool rows = source->kind == CosSinKind::kRows;
  source->all_pairs = pairs;
  source->axes = context.axes;
  source->all_sets = rows || pairs == 0 ? 1 : static_cast<int32_t>(context.sets.size());
  const int32_t sets =
      std::min({source->all_sets, kMaxSets, std::max(1, capacity / std::max(1, pairs))});
  for (int32_t set = 0; set < source->all_sets; set += sets) {
    source->first_set = set;
    source->set_count = std::min(sets, source->all_sets - set);
    int32_t pair = 0;
    do {
      source->first_pair = pair;
      source->pairs = static_cast<uint32_t>(std::min(capacity, pairs - pair));
      if (!rows) SetFrequencies(context, operation, head, source);
      if (rope_status s = visit(pair == 0)) return s;
      pair += capacity;
    } while (pair < pairs);
  }
  return ROPE_OK;
}

int32_t PairsPerLane(Form form, int32_t element_bytes) {
  if (form == kSingle) return 1;
  return form == kHalves2 || form == kAdjacent2 ? 2 : 16 / element_bytes;
}

// Whether every vector of `pairs` elements, rotated or copied, is aligned to its size.
bool AreVectorsAligned(const Plan& plan, const Tensor& t, int32_t pairs) {
  const rope_context& context = *plan.context;
  const int64_t size = ElementSize(t.dtype);
  int64_t offsets =
      reinterpret_cast<intptr_t>(t.in + t.in_span) | reinterpret_cast<intptr_t>(t.out + t.out_span);
  if (plan.batch > 1) offsets |= t.in_strides.batch | t.out_strides.batch;
  if (plan.tokens > 1) offsets |= t.in_strides.token | t.out_strides.token;
  if (t.heads > 1) offsets |= t.in_strides.head | t.out_strides.head;
  if (t.copies_rest) offsets |= t.in_span | context.head_dim * size;
  if (context.nope) {
    offsets |= context.rotary_dim * size;
  } else {
    for (const Segment& segment : context.segments) {
      offsets |= (segment.first_channel | segment.pairs) * size;
    }
  }
  return offsets % (pairs * size) == 0;
}

Form ChooseForm(const Plan& plan, const Tensor* tensors, int32_t count, ChannelOrder order) {
  static constexpr Form kWide[] = {kHalves16, kAdjacent16, kToHalves16, kToInterleaved16};
  static constexpr Form kNarrow[] = {kHalves2, kAdjacent2, kSingle, kSingle};
  static_assert(std::size(kWide) == kChannelOrders && std::size(kNarrow) == kChannelOrders);
  for (const Form form : {kWide[order], kNarrow[order]}) {
    const int32_t pairs = PairsPerLane(form, ElementSize(tensors[0].dtype));
    bool aligned = true;
    for (int32_t n = 0; n < count; ++n)
      aligned = aligned && AreVectorsAligned(plan, tensors[n], pairs);
    if (aligned) return form;
  }
  return kSingle;
}

CosSinKind KindOf(const Plan& plan) {
  return plan.has_rows ? CosSinKind::kRows : KindOf(*plan.context, plan.positions);
}

// An order that moves channels overwrites, in place, what a later part would read. Of both tensors,
// before the first launch: a call that is refused has written nothing.
rope_status CheckParts(const Plan& plan) {
  const rope_context& context = *plan.context;
  const int32_t capacity = Capacity(KindOf(plan), TermsOf(context));
  if (context.nope || context.pairs <= capacity ||
      !MovesChannels(ChannelOrderOf(context.pairing, plan.operation))) {
    return ROPE_OK;
  }
  for (int32_t n = 0; n < plan.tensor_count; ++n) {
    if (plan.tensors[n].in != plan.tensors[n].out) continue;
    return Fail(ROPE_ERROR_UNSUPPORTED,
                "%s: args->q_out or args->k_out: a pairing that moves channels, in place on CUDA, "
                "needs at most %d pairs with this angle and these positions, and the context has "
                "%d: give an output",
                plan.function, capacity, context.pairs);
  }
  return ROPE_OK;
}

// The launches for tensors of one dtype.
class Group {
 public:
  Group(const Plan& plan, int32_t row_head, const Tensor* tensors, int32_t count,
        int32_t multiprocessors)
      : plan_(plan),
        context_(*plan.context),
        row_head_(row_head),
        tensors_(tensors),
        count_(count),
        multiprocessors_(multiprocessors),
        order_(ChannelOrderOf(context_.pairing, plan.operation)) {}

  rope_status ForEach(LaunchFn visit, void* data) {
    const rope_dtype dtype = tensors_[0].dtype;
    element_bytes_ = ElementSize(dtype);
    launch_.variant = {dtype, ChooseForm(plan_, tensors_, count_, order_),
                       context_.rounding.arithmetic};
    pairs_per_lane_ = PairsPerLane(launch_.variant.form, element_bytes_);
    Params& p = launch_.params;
    CosSinSource& source = p.source;
    source.kind = KindOf(plan_);
    if (plan_.has_rows) {
      source.rows = plan_.rows;
    } else {
      source.positions = plan_.positions;
    }
    source.backward = kOperations[plan_.operation].negates_angle;
    p.rounds_rows = context_.rounding.rounds_rows && IsNarrow(dtype);
    p.per_channel = plan_.has_rows && plan_.rows.format.per_channel();
    const int32_t pairs = context_.nope ? 0 : context_.pairs;
    const auto part = [&](bool is_first_part) {
      SetLanes(is_first_part);
      return ForEachRange(plan_.batch, plan_.tokens, [&](const TokenRange& range) {
        source.tokens = range;
        return VisitHeadGroups(visit, data);
      });
    };
    return ForEachPart(context_, pairs, plan_.operation, row_head_, &source, part);
  }

 private:
  // Which bytes a lane has, in q and in k.
  void SetLanes(bool is_first_part) {
    Params& p = launch_.params;
    CosSinSource& source = p.source;
    const auto per_lane = static_cast<uint32_t>(pairs_per_lane_);
    SetLaneSpans(context_, per_lane, &source);
    p.lanes = source.pairs / per_lane;
    p.in_step = StepOf(ReadsInterleaved(order_));
    p.out_step = StepOf(WritesInterleaved(order_));
    for (int32_t n = 0; n < source.lane_span_count; ++n) {
      LaneSpan& span = source.lane_spans[n];
      const int32_t pair = source.first_pair + span.first_pair;
      const Segment& segment = SegmentOf(pair);
      SetOffsets(ReadsInterleaved(order_), segment, pair, &span.in_first, &span.in_delta);
      SetOffsets(WritesInterleaved(order_), segment, pair, &span.out_first, &span.out_delta);
    }
    p.copy_lanes = 0;
    for (int32_t n = 0; n < 2; ++n) {
      p.sides[n] = n < count_ ? SideOf(tensors_[n], is_first_part) : Side{};
      p.copy_lanes = std::max(p.copy_lanes, DivideUp(p.sides[n].copy_vectors, 2u));
    }
  }

  bool IsAdjacent() const {
    return launch_.variant.form == kAdjacent16 || launch_.variant.form == kAdjacent2;
  }

  // From a lane's first vector to that of the next lane.
  int32_t StepOf(bool interleaved) const {
    const int32_t vector = pairs_per_lane_ * element_bytes_;
    return interleaved && !IsAdjacent() ? 2 * vector : vector;
  }

  void SetOffsets(bool interleaved, const Segment& segment, int32_t pair, int32_t* first,
                  int32_t* delta) const {
    const PairIndex channels = ChannelsOf(interleaved, pair - segment.first_pair, segment.pairs);
    *first = (segment.first_channel + channels.first) * element_bytes_;
    if (!interleaved) {
      *delta = segment.pairs * element_bytes_;
    } else if (IsAdjacent()) {  // half the channels of this part
      *delta = static_cast<int32_t>(launch_.params.source.pairs) * element_bytes_;
    } else {
      *delta = pairs_per_lane_ * element_bytes_;
    }
  }

  const Segment& SegmentOf(int32_t pair) const {
    size_t n = 0;
    while (pair >= context_.segments[n].first_pair + context_.segments[n].pairs) ++n;
    return context_.segments[n];
  }

  Side SideOf(const Tensor& t, bool copies) const {
    Side side{};
    side.in = t.in + t.in_span;
    side.out = t.out + t.out_span;
    side.in_strides = t.in_strides;
    side.out_strides = t.out_strides;
    side.heads = static_cast<uint32_t>(t.heads);
    if (!copies || t.in == t.out) return side;
    const int32_t vector = pairs_per_lane_ * element_bytes_;
    const int32_t span = context_.rotary_dim * element_bytes_;
    if (t.copies_rest) {
      side.copy_in = -t.in_span;
      side.copy_out = -t.out_span;
      side.copy_vectors = static_cast<uint32_t>(context_.head_dim * element_bytes_ / vector);
    } else if (context_.nope) {
      side.copy_vectors = static_cast<uint32_t>(span / vector);
    }
    side.copy_gap_at = side.copy_vectors;
    if (t.copies_rest && !context_.nope) {
      side.copy_gap = span;
      side.copy_gap_at = static_cast<uint32_t>(t.in_span / vector);
      side.copy_vectors -= static_cast<uint32_t>(span / vector);
    }
    return side;
  }

  // A grid has at most 65535 rows of blocks.
  rope_status VisitHeadGroups(LaunchFn visit, void* data) {
    Params& p = launch_.params;
    const uint32_t row_bytes = p.source.pairs * sizeof(CosSin) * (p.per_channel ? 2 : 1);
    Work work{p.lanes + p.copy_lanes, {0, 0}, p.source.tokens.count, row_bytes, multiprocessors_};
    if (work.lanes == 0) return ROPE_OK;  // nothing moves
    for (int32_t n = 0; n < count_; ++n) work.heads[n] = tensors_[n].heads;
    const Shape shape = ShapeOf(work);
    for (Side& side : p.sides) side.head_groups = DivideUp(side.heads, shape.heads_per_thread);
    launch_.shape = shape;
    launch_.shared_bytes = shape.z * row_bytes;
    launch_.few_tokens = shape.heads_per_thread == 1;
    for (uint32_t block = 0; block < shape.grid_y; block += kMaxGridY) {
      p.first_head_group = block * shape.y;
      launch_.shape.grid_y = std::min(kMaxGridY, shape.grid_y - block);
      if (rope_status s = visit(launch_, data)) return s;
    }
    return ROPE_OK;
  }

  const Plan& plan_;
  const rope_context& context_;
  int32_t row_head_;
  const Tensor* tensors_;
  int32_t count_, multiprocessors_;
  ChannelOrder order_;
  int32_t element_bytes_ = 0, pairs_per_lane_ = 0;
  Launch launch_{};
};

}  // namespace

namespace {

// The heads that share one row of each token, and this row.
Plan PlanOfRow(const Plan& plan, int32_t row_head) {
  Plan part = plan;
  part.rows = part.rows.FromHead(row_head);
  for (int32_t n = 0; n < plan.tensor_count; ++n) {
    Tensor& t = part.tensors[n];
    t.heads /= plan.row_heads;
    const int64_t first = int64_t{row_head} * t.heads;
    t.in += first * t.in_strides.head;
    t.out += first * t.out_strides.head;
  }
  return part;
}

rope_status ForEachGroup(const Plan& plan, int32_t row_head, int32_t multiprocessors,
                         LaunchFn launch, void* data) {
  const bool together = plan.tensor_count == 2 && plan.tensors[0].dtype == plan.tensors[1].dtype;
  const int32_t size = together ? 2 : 1;
  for (int32_t n = 0; n < plan.tensor_count; n += size) {
    Group group(plan, row_head, &plan.tensors[n], size, multiprocessors);
    if (rope_status s = group.ForEach(launch, data)) return s;
  }
  return ROPE_OK;
}

}  // namespace

rope_status ForEachLaunch(const Plan& plan, int32_t multiprocessors, LaunchFn launch, void* data) {
  if (rope_status s = CheckParts(plan)) return s;
  if (plan.row_heads == 1 || plan.context->nope) {
    return ForEachGroup(plan, 0, multiprocessors, launch, data);
  }
  for (int32_t head = 0; head < plan.row_heads; ++head) {
    const Plan part = PlanOfRow(plan, head);
    if (rope_status s = ForEachGroup(part, head, multiprocessors, launch, data)) return s;
  }
  return ROPE_OK;
}

rope_status ForEachFillLaunch(const FillPlan& plan, FillLaunchFn launch, void* data) {
  const rope_context& context = *plan.context;
  FillLaunch fill{};
  CosSinSource& source = fill.source;
  source.positions = plan.positions;
  source.kind = KindOf(context, plan.positions);
  fill.with_angles = plan.rows.format.is_angles();
  const bool f32 = source.kind == CosSinKind::kFloat32 || source.kind == CosSinKind::kDivide;
  if (fill.with_angles && !f32) source.kind = CosSinKind::kRadians;
  for (int32_t head = 0; head < plan.row_heads; ++head) {
    source.rows = plan.rows.FromHead(head);
    const auto part = [&](bool) {
      SetLaneSpans(context, 1, &source);
      return ForEachRange(plan.batch, plan.tokens, [&](const TokenRange& range) {
        source.tokens = range;
        fill.grid_x = DivideUp(range.count, kFillTokens);
        return launch(fill, data);
      });
    };
    if (rope_status s = ForEachPart(context, context.pairs, kFillOperation, head, &source, part)) {
      return s;
    }
  }
  return ROPE_OK;
}

}  // namespace rope::gpu
