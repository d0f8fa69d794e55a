#include "gpu/launch.h"

#include <algorithm>
#include <iterator>
#include <type_traits>
#include <utility>

#include "gpu/parts.h"
#include "gpu/plain.h"
#include "gpu/repeat.h"
#include "gpu/vectors.h"
#include "math/element.h"
#include "math/operation.h"
#include "math/pairing.h"
#include "math/sincos.h"

namespace rope::gpu {
namespace {

// What a call with `fused` adds to a group of tensors, which takes of it what it can.
struct Beside {
  int32_t cached;  // which of the tensors goes to slots; -1: none
  Copies copies;
  uint32_t* dropped;  // null: not to be counted
};

// The launches for tensors of one dtype, of which there may be none beside a copy.
template <class P>
class Group {
 public:
  Group(const Plan& plan, int32_t row_head, const Tensor* tensors, int32_t count, Beside* beside,
        int32_t multiprocessors)
      : plan_(plan),
        context_(*plan.context),
        row_head_(row_head),
        tensors_(tensors),
        count_(count),
        beside_(beside),
        multiprocessors_(multiprocessors),
        order_(ChannelOrderOf(context_.pairing, plan.operation)) {}

  rope_status ForEach(LaunchFnOf<P> visit, void* data) {
    const rope_dtype dtype = SetVariant();
    P& p = launch_.params;
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
    const int32_t pairs = context_.nope || count_ == 0 ? 0 : context_.pairs;
    const auto part = [&](bool is_first_part) {
      SetLanes();
      SetSides(is_first_part);
      return ForEachRange(plan_.batch, plan_.tokens, [&](const TokenRange& range) {
        source.tokens = range;
        return VisitHeadGroups(visit, data);
      });
    };
    return ForEachPart(context_, pairs, plan_.operation, row_head_, 0, &source, part);
  }

 private:
  static constexpr bool kFused = std::is_same_v<P, FusedParams>;

  int32_t cached() const { return kFused ? beside_->cached : -1; }

  rope_dtype SetVariant() {
    if (count_ > 0) {
      const rope_dtype dtype = tensors_[0].dtype;
      launch_.variant = {dtype, ChooseForm(plan_, tensors_, count_, cached(), order_),
                         context_.rounding.arithmetic};
    } else {
      launch_.variant = VariantOf(plan_, beside_->copies.of[0]);
    }
    element_bytes_ = ElementSize(launch_.variant.dtype);
    pairs_per_lane_ = PairsPerLane(launch_.variant.form, element_bytes_);
    return launch_.variant.dtype;
  }

  // Which bytes a lane has, in every tensor.
  void SetLanes() {
    CommonParams& p = launch_.params;
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
  }

  void SetSides(bool is_first_part) {
    P& p = launch_.params;
    p.copy_lanes = 0;
    if constexpr (kFused) {
      Side sides[3];
      for (int32_t n = 0; n < count_; ++n) sides[n] = AddSide(tensors_[n], is_first_part);
      SetFusedSides(sides, is_first_part);
    } else {
      for (int32_t n = 0; n < 2; ++n) {
        p.sides[n] = n < count_ ? AddSide(tensors_[n], is_first_part) : Side{};
      }
    }
  }

  Side AddSide(const Tensor& t, bool is_first_part) {
    CommonParams& p = launch_.params;
    const Side side = SideOf(t, is_first_part);
    p.copy_lanes = std::max(p.copy_lanes, DivideUp(side.copy_vectors, 2u));
    return side;
  }

  // The copies that fit beside the tensors, or the first one, if there are none.
  void TakeCopies() {
    const int32_t given = beside_->copies.count;
    const int64_t vector = int64_t{pairs_per_lane_} * element_bytes_;
    CommonParams& p = launch_.params;
    if (count_ == 0) {
      p.copy_lanes =
          static_cast<uint32_t>(DivideUp(beside_->copies.of[0].width / vector, int64_t{2}));
    }
    beside_->copies.count = 0;
    for (int32_t n = 0; n < given; ++n) {
      Copy copy = beside_->copies.of[n];
      const bool fits = (count_ > 0 || n == 0) &&
                        FitInto(plan_, vector, 2 * int64_t{p.lanes + p.copy_lanes}, &copy);
      Copies& whose = fits ? copies_ : beside_->copies;
      whose.of[whose.count++] = copy;
    }
  }

  // Copies are made with the first part, as the channels outside the span are.
  void SetFusedSides(const Side* sides, bool is_first_part) {
    FusedParams& p = launch_.params;
    if (!has_taken_) TakeCopies();
    p.side_count = 0;
    for (const bool to_slots : {false, true}) {
      for (int32_t n = 0; n < count_; ++n) {
        const bool moves = !context_.nope || tensors_[n].in != tensors_[n].out;
        if ((n == cached()) != to_slots || !moves) continue;
        p.sides[p.side_count++] = {sides[n], true, to_slots};
      }
      for (int32_t n = 0; n < copies_.count && is_first_part; ++n) {
        if (copies_.of[n].ToSlots() != to_slots) continue;
        p.sides[p.side_count++] = {SideOf(copies_.of[n]), false, to_slots};
      }
      if (!to_slots) p.first_slot_side = p.side_count;
    }
    if (HasSlots()) SetSlots(is_first_part);
    has_taken_ = true;
  }

  void SetSlots(bool is_first_part) {
    FusedParams& p = launch_.params;
    if (!has_taken_) std::swap(dropped_, beside_->dropped);
    p.slots = plan_.fused->slots;
    p.page_size = DivisorOf(p.slots.page_size);
    p.row_tokens = plan_.tokens;
    p.dropped = is_first_part ? dropped_ : nullptr;
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

  Side SideOf(const Copy& copy) const {
    Side side{};
    side.in = copy.in;
    side.out = copy.out;
    side.in_strides = copy.in_strides;
    side.out_strides = copy.out_strides;
    side.heads = static_cast<uint32_t>(copy.heads);
    side.copy_vectors = side.copy_gap_at =
        static_cast<uint32_t>(copy.width / (pairs_per_lane_ * element_bytes_));
    return side;
  }

  bool HasSlots() const {
    if constexpr (kFused) return launch_.params.first_slot_side != launch_.params.side_count;
    return false;
  }

  int32_t SideCount() const {
    if constexpr (kFused) return launch_.params.side_count;
    return 2;
  }

  // A grid has at most 65535 rows of blocks.
  rope_status VisitHeadGroups(LaunchFnOf<P> visit, void* data) {
    P& p = launch_.params;
    uint32_t row_bytes = p.source.pairs * sizeof(CosSin) * (p.per_channel ? 2 : 1);
    if (HasSlots()) row_bytes += sizeof(SlotPlaces);
    Work work{p.lanes + p.copy_lanes, {}, p.source.tokens.count, row_bytes, multiprocessors_};
    if (work.lanes == 0) return ROPE_OK;  // nothing moves
    for (int32_t n = 0; n < SideCount(); ++n) work.heads[n] = p.sides[n].heads;
    const Shape shape = ShapeOf(work);
    for (int32_t n = 0; n < SideCount(); ++n) {
      p.sides[n].head_groups = DivideUp(p.sides[n].heads, shape.heads_per_thread);
    }
    if constexpr (kFused) {
      p.first_slot_group = HasSlots() ? 0 : UINT32_MAX;
      for (int32_t n = 0; n < p.first_slot_side && HasSlots(); ++n) {
        p.first_slot_group += p.sides[n].head_groups;
      }
    }
    launch_.shape = shape;
    launch_.shared_bytes = shape.z * row_bytes;
    launch_.plain = HasPlain(launch_.variant) && IsPlain(p);
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
  int32_t count_;
  Beside* beside_;  // null: a call without `fused`
  int32_t multiprocessors_;
  ChannelOrder order_;
  int32_t element_bytes_ = 0, pairs_per_lane_ = 0;
  // Of a call with `fused`: what was taken from beside_.
  bool has_taken_ = false;
  Copies copies_{};
  uint32_t* dropped_ = nullptr;
  LaunchOf<P> launch_{};
};

rope_status ForEachGroup(const Plan& plan, int32_t row_head, int32_t multiprocessors,
                         LaunchFn launch, void* data) {
  const bool together = plan.tensor_count == 2 && plan.tensors[0].dtype == plan.tensors[1].dtype;
  const int32_t size = together ? 2 : 1;
  for (int32_t n = 0; n < plan.tensor_count; n += size) {
    Group<Params> group(plan, row_head, &plan.tensors[n], size, nullptr, multiprocessors);
    if (rope_status s = group.ForEach(launch, data)) return s;
  }
  return ROPE_OK;
}

rope_status ForEachFusedGroup(const Plan& plan, int32_t row_head, int32_t multiprocessors,
                              FusedLaunchFn launch, void* data) {
  const FusedPlan& fused = *plan.fused;
  const auto visit = [&](const Tensor* tensors, int32_t count, Beside* beside) {
    Group<FusedParams> group(plan, row_head, tensors, count, beside, multiprocessors);
    return group.ForEach(launch, data);
  };
  const Beside nothing = {-1, {}, nullptr};
  int32_t first = 0, count = plan.tensor_count;
  // In place, k turns when all have read it.
  const Tensor* const last = &plan.tensors[count - 1];
  const bool turns_after = fused.cached >= 0 && fused.cached == count - 2 && last->in == last->out;
  if (turns_after) --count;
  if (count > 1 && plan.tensors[0].dtype != plan.tensors[1].dtype) {
    Beside q = nothing;
    if (rope_status s = visit(&plan.tensors[first++], 1, &q)) return s;
  }
  Beside rest = nothing;
  rest.cached = fused.cached - first;
  if (row_head == 0) {
    rest.copies = fused.copies;
    rest.dropped = fused.dropped;
  }
  if (rope_status s = visit(&plan.tensors[first], count - first, &rest)) return s;
  rest.cached = -1;
  while (rest.copies.count > 0) {
    if (rope_status s = visit(nullptr, 0, &rest)) return s;
  }
  if (!turns_after) return ROPE_OK;
  Beside k = nothing;
  return visit(last, 1, &k);
}

rope_status FillPart(const FillPlan& plan, FillLaunchFn launch, void* data) {
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
    if (rope_status s =
            ForEachPart(context, context.pairs, kFillOperation, head, 0, &source, part)) {
      return s;
    }
  }
  return ROPE_OK;
}

}  // namespace

rope_status ForEachLaunch(const Plan& plan, int32_t multiprocessors, LaunchFn launch, void* data) {
  return ForEachRepeat(plan, [&](const Plan& rows) {
    return ForEachRowHead(rows, [&](const Plan& part, int32_t row_head) {
      return ForEachGroup(part, row_head, multiprocessors, launch, data);
    });
  });
}

rope_status ForEachFusedLaunch(const Plan& plan, int32_t multiprocessors, FusedLaunchFn launch,
                               void* data) {
  return ForEachRepeat(plan, [&](const Plan& rows) {
    return ForEachRowHead(rows, [&](const Plan& part, int32_t row_head) {
      return ForEachFusedGroup(part, row_head, multiprocessors, launch, data);
    });
  });
}

rope_status ForEachLaunchOfCall(const Plan& plan, int32_t multiprocessors, const LaunchFns& fns,
                                void* data) {
  if (plan.fused == nullptr) {
    return plan.tensor_count == 0 ? ROPE_OK : ForEachLaunch(plan, multiprocessors, fns.plain, data);
  }
  if (HasGradients(plan)) {
    if (rope_status s = CheckGradients(plan)) return s;
    if (rope_status s = ForEachGradientLaunch(plan, multiprocessors, fns.gradient, data)) return s;
    FusedPlan fused;
    return ForEachLaunchOfCall(PlanWithoutGradients(plan, &fused), multiprocessors, fns, data);
  }
  return IsStaged(plan) ? ForEachStagedLaunch(plan, multiprocessors, fns.staged, data)
                        : ForEachFusedLaunch(plan, multiprocessors, fns.fused, data);
}

rope_status ForEachFillLaunch(const FillPlan& plan, FillLaunchFn launch, void* data) {
  return ForEachRepeat(plan, [&](const FillPlan& part) { return FillPart(part, launch, data); });
}

}  // namespace rope::gpu
