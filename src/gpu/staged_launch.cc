// From a plan to launches of the kernels of staged.h.
#include <algorithm>
#include <iterator>

#include "gpu/launch.h"
#include "gpu/parts.h"
#include "gpu/repeat.h"
#include "gpu/shape.h"
#include "gpu/staged.h"
#include "gpu/vectors.h"
#include "math/element.h"
#include "math/operation.h"
#include "math/pairing.h"

namespace rope::gpu {
namespace {

// Shared memory of a block: floats of heads, and bytes of rows if there are several.
constexpr uint32_t kHeadValues = 4096, kRowBytes = 8192;
constexpr uint32_t kMostHeads = 32, kLeastHeads = kStagedWarps;  // at once

// A side, and which launches have it.
struct Task {
  StagedSide side;
  rope_dtype dtype;
  bool is_wide;
  bool is_late;  // in place, when others have read it
};

class StagedGroup {
 public:
  StagedGroup(const Plan& plan, int32_t row_head, int32_t multiprocessors)
      : plan_(plan),
        context_(*plan.context),
        fused_(*plan.fused),
        row_head_(row_head),
        multiprocessors_(multiprocessors),
        order_(ChannelOrderOf(context_.pairing, plan.operation)) {}

  rope_status ForEach(StagedLaunchFn visit, void* data) {
    AddTensors();
    if (row_head_ == 0) AddCopies();
    SetCall();
    for (const bool late : {false, true}) {
      for (rope_dtype dtype = 1; dtype <= kDtypes; ++dtype) {
        for (const bool wide : {true, false}) {
          const bool holds = wide && AreHeld(late, dtype);
          for (const int held : {0, 2, 4, 8}) {
            if ((held != 0) != holds) continue;
            const StagedVariant kernels = {dtype, wide, holds, held};
            if (rope_status s = ForEachOf(late, kernels, visit, data)) return s;
          }
        }
      }
    }
    return ROPE_OK;
  }

 private:
  void AddTensors() {
    for (int32_t n = 0; n < plan_.tensor_count; ++n) {
      const Tensor& t = plan_.tensors[n];
      const bool from_slots = n >= fused_.gathered, to_slots = n == fused_.cached;
      const bool in_place = t.in == t.out && !from_slots && !to_slots;
      const int32_t span = context_.rotary_dim;
      const Norm* const norm = fused_.norms[n];
      if (context_.nope && in_place && norm == nullptr) continue;
      const Output& output = fused_.outputs[n];
      // What is read besides the span, and what of it is written.
      const bool reads_rest = norm != nullptr ? norm->channels != span : t.copies_rest && !in_place,
                 rest = reads_rest && (t.copies_rest || in_place);
      const int32_t first = reads_rest ? 0 : t.in_span;
      Task task = TaskOf(t.in + first, t.out + (t.out_span - t.in_span + first), t.in_strides,
                         t.out_strides, t.heads, t.dtype, from_slots, to_slots);
      StagedSide& side = task.side;
      const bool decodes = fused_.Decodes(n);
      const rope_dtype read = decodes ? fused_.source_k.dtype : t.dtype;
      const auto width = static_cast<uint32_t>(reads_rest ? context_.head_dim : span);
      side.span_at = static_cast<uint32_t>(ChannelsOf(read, t.in_span - first));
      side.turns = !context_.nope;
      if (rest) {
        side.copy_end = width;
      } else if (context_.nope) {
        side.copy_begin = side.span_at;
        side.copy_end = side.span_at + static_cast<uint32_t>(span);
      }
      task.is_late = n > 0 && plan_.tensors[n - 1].in == t.in && t.in == t.out;
      SetNorm(norm, &side);
      if (decodes || !output.IsLike(t.dtype)) {
        side.out = t.out + (rest ? 0 : t.out_span);
        side.output.first = rest ? 0 : side.span_at;
        side.output.channels = rest ? width : static_cast<uint32_t>(span);
        SetOutput(output, t.dtype, context_.rounding.rounds_rows, int64_t{row_head_} * t.heads,
                  &side);
      }
      if (decodes) {
        SetInput(fused_.source_k, 1, static_cast<uint32_t>(reads_rest ? 0 : t.in_span),
                 int64_t{row_head_} * t.heads, output, &side);
      }
      Finish(width, task);
    }
  }

  void AddCopies() {
    for (int32_t n = 0; n < fused_.copies.count; ++n) {
      const Copy& c = fused_.copies.of[n];
      const bool decodes = IsInEightBits(c.dtype);
      Task task = TaskOf(c.in, c.out, c.in_strides, c.out_strides, c.heads,
                         decodes ? ROPE_DTYPE_F32 : c.dtype, c.FromSlots(), c.ToSlots());
      // Bytes, which share the launch of a tensor where they can.
      const bool is_like = !decodes && c.output.IsLike(c.dtype);
      const bool any_dtype = c.norm == nullptr && is_like &&
                             ((c.width | InBits(task.side) | OutBits(task.side)) & 15) == 0;
      if (any_dtype && plan_.tensor_count > 0) task.dtype = plan_.tensors[0].dtype;
      const auto width = static_cast<uint32_t>(ChannelsOf(decodes ? c.dtype : task.dtype, c.width));
      task.side.copy_end = width;
      task.is_late = n > 0 && (c.norm != nullptr || decodes) && c.in == c.out;
      SetNorm(c.norm, &task.side);
      if (!is_like) {
        task.side.output.channels = width;
        SetOutput(c.output, task.dtype, false, 0, &task.side);
      }
      if (decodes) SetInput(fused_.source_v, 2, 0, 0, c.output, &task.side);
      Finish(width, task);
    }
  }

  Task TaskOf(const char* in, char* out, const HeadStrides& in_strides,
              const HeadStrides& out_strides, int32_t heads, rope_dtype dtype, bool from_slots,
              bool to_slots) {
    Task task{};
    task.side.in = in;
    task.side.out = out;
    task.side.in_strides = in_strides;
    task.side.out_strides = out_strides;
    task.side.heads = static_cast<uint32_t>(heads);
    task.dtype = dtype;
    task.side.from_slots = from_slots;
    task.side.to_slots = to_slots;
    return task;
  }

  void SetNorm(const Norm* from, StagedSide* side) const {
    if (from == nullptr) return;
    side->norm = StagedNormOf(*from, side->heads,
                              from->after ? WritesInterleaved(order_) : ReadsInterleaved(order_));
  }

  // `rounds`: the context does more than results; `head`: the first that the launch has of a tensor
  // whose heads have rows of their own.
  void SetOutput(const Output& from, rope_dtype dtype, bool rounds, int64_t head,
                 StagedSide* side) const {
    StagedOutput& to = side->output;
    to.is_there = true;
    to.dtype = static_cast<uint8_t>(from.dtype);
    to.repeats = static_cast<uint32_t>(from.repeats);
    to.repeat_step = side->out_strides.head / from.repeats;
    to.by_group = to.by_groups = SmallDivisorOf(1);
    to.rounds = rounds && IsNarrow(dtype);
    int32_t group = kQ8Channels;
    if (IsCode(from.dtype)) {
      const GroupScales& scales = from.scales;
      to.rounds |= scales.round_first && IsNarrow(dtype);
      if (scales.groups == 0) {
        to.inverse = 1.0f / scales.value;
        return;
      }
      group = scales.group;
      to.scales = scales.data + head * scales.strides.head;
      to.scale_strides = scales.strides;
      to.scale_repeat_step = scales.strides.head / from.repeats;
      to.scale_dtype = static_cast<uint8_t>(scales.dtype);
      to.computed = scales.computed;
      to.power_of_two = scales.power_of_two;
      to.least = scales.least;
    } else if (from.dtype == ROPE_DTYPE_Q8_0) {
      to.computed = true;
    } else {
      return;
    }
    to.groups = to.channels / static_cast<uint32_t>(group);
    to.by_group = SmallDivisorOf(group);
    to.by_groups = SmallDivisorOf(to.groups);
  }

  // `first`: which channel of a head is the first that is read.
  void SetInput(const SourceHeads& from, int number, uint32_t first, int64_t head,
                const Output& output, StagedSide* side) {
    side->input = static_cast<uint8_t>(number);
    StagedInput& to = launch_.params.inputs[number - 1];
    to = {};
    to.dtype = from.dtype;
    StagedOutput& written = side->output;
    const KeptCodes kept = KeptCodesOf(from, output);
    written.keeps = kept != KeptCodes::kNever;
    written.by_place = kept == KeptCodes::kOverTheirScales;
    if (!IsCode(from.dtype)) {
      to.by_group = SmallDivisorOf(kQ8Channels);
      return;
    }
    const GroupScales& scales = from.scales;
    to.by_group = SmallDivisorOf(scales.group);
    side->input_first = first;
    to.scale = scales.value;
    if (scales.groups != 0) {
      to.scales = scales.data + head * scales.strides.head;
      to.scale_strides = scales.strides;
      to.scale_dtype = scales.dtype;
    }
  }

  void Finish(uint32_t width, Task task) {
    StagedSide& side = task.side;
    const int64_t size = ElementSize(task.dtype);
    task.is_wide = BitsOf(task, width) * size % 16 == 0 && ReadsWide(side) && WritesWide(side, 4);
    const uint32_t elements = task.is_wide ? static_cast<uint32_t>(16 / size) : 1;
    side.vectors = width / elements;
    side.by_vectors = SmallDivisorOf(side.vectors);
    tasks_[task_count_++] = task;
  }

  // What must be a multiple of a vector, in channels.
  int64_t BitsOf(const Task& task, uint32_t width) const {
    const StagedSide& side = task.side;
    int64_t bits = width | side.span_at | side.copy_begin | side.copy_end;
    if (!side.turns) return bits;
    for (const Segment& segment : context_.segments) {
      bits |= segment.first_channel | segment.pairs;
    }
    return bits;
  }

  // And in bytes; some strides are not used.
  int64_t InBits(const StagedSide& side) const {
    return BitsOfSide(side, side.in, side.in_strides, side.from_slots, fused_.source);
  }
  int64_t OutBits(const StagedSide& side) const {
    return BitsOfSide(side, side.out, side.out_strides, side.to_slots, fused_.slots);
  }
  int64_t BitsOfSide(const StagedSide& side, const void* data, const HeadStrides& strides,
                     bool slots, const SlotSource& source) const {
    return BitsOfHeads(data, strides, slots ? source.pages : plan_.batch,
                       slots ? source.page_size : plan_.tokens, static_cast<int32_t>(side.heads));
  }

  // Whether vectors may be read: of what is in 8 bits, four channels at once.
  bool ReadsWide(const StagedSide& side) const {
    if (side.input == 0) return (InBits(side) & 15) == 0;
    const SourceHeads& from = side.input == 1 ? fused_.source_k : fused_.source_v;
    if (!IsCode(from.dtype)) return (InBits(side) & 1) == 0;
    return ((from.scales.group | side.input_first | static_cast<uint64_t>(InBits(side))) & 3) == 0;
  }

  // Whether vectors may be written: where an output differs from its input, `channels` at once.
  bool WritesWide(const StagedSide& side, uint32_t channels) const {
    const StagedOutput& output = side.output;
    if (!output.is_there) return (OutBits(side) & 15) == 0;
    const bool is_q8 = output.dtype == ROPE_DTYPE_Q8_0;
    const int64_t bits = OutBits(side) | (output.repeats > 1 ? output.repeat_step : 0),
                  vector = std::min<int64_t>(16, channels * ElementSize(output.dtype));
    const bool whole_groups = output.groups == 0 || output.channels / output.groups % channels == 0;
    return whole_groups && (bits & (is_q8 ? 1 : vector - 1)) == 0;
  }

  // Whether threads may hold a task's heads, as far as their number of vectors does not tell: see
  // held.h.
  bool FitsHeld(const Task& task) const {
    const StagedSide& side = task.side;
    const StagedNorm& norm = side.norm;
    const StagedOutput& output = side.output;
    const auto elements = static_cast<uint32_t>(16 / ElementSize(task.dtype));
    const uint32_t width = side.vectors * elements;
    if (side.input != 0 || !WritesWide(side, elements)) return false;
    if (norm.is_there &&
        (norm.after || norm.all_heads || norm.weight_stride != 0 || norm.channels != width)) {
      return false;
    }
    if (output.is_there && (output.groups > 1 || output.repeats > 1 || output.first != 0 ||
                            output.channels != width || output.dtype == ROPE_DTYPE_Q8_0)) {
      return false;
    }
    const bool writes_all = side.copy_begin == 0 && side.copy_end == width;
    if (!side.turns) return writes_all;
    const auto pairs = static_cast<uint32_t>(context_.pairs);
    const StagedParams& p = launch_.params;
    if (p.arithmetic == Arithmetic::kNative) return false;
    if (side.span_at != 0 || (2 * pairs != width && !writes_all)) return false;
    if (p.before.given || p.per_channel || context_.segments.size() != 1) return false;
    if (context_.pairs > Capacity(p.source.kind, TermsOf(context_))) return false;
    if (ReadsInterleaved(order_) != WritesInterleaved(order_)) return false;
    if (ReadsInterleaved(order_)) return 2 * pairs % kRunningSums == 0;
    const uint32_t apart = pairs / kRunningSums;
    return pairs % kRunningSums == 0 && (apart & (apart - 1)) == 0;
  }

  // How many vectors of its head a thread holds; 0: heads pass through shared memory.
  int HeldVectors(const Task& task) const {
    const uint32_t lanes = HeldLanes(task.dtype), own = task.side.vectors / lanes;
    const bool is_known = own * lanes == task.side.vectors && (own == 2 || own == 4 || own == 8);
    return is_known && FitsHeld(task) ? static_cast<int>(own) : 0;
  }

  // Whether these heads are held; all, or none, because one launch more costs more.
  bool AreHeld(bool late, rope_dtype dtype) const {
    return std::all_of(tasks_, tasks_ + task_count_, [&](const Task& task) {
      return task.is_late != late || task.dtype != dtype || !task.is_wide || HeldVectors(task) != 0;
    });
  }

  // What all launches share.
  void SetCall() {
    StagedParams& p = launch_.params;
    p.row_tokens = plan_.tokens * plan_.batch_repeat;
    p.arithmetic = context_.rounding.arithmetic;
    p.per_channel = plan_.has_rows && plan_.rows.format.per_channel();
    p.reads_interleaved = ReadsInterleaved(order_);
    p.writes_interleaved = WritesInterleaved(order_);
    p.segment_count = static_cast<int32_t>(context_.segments.size());
    std::copy(context_.segments.begin(), context_.segments.end(), p.segments);
    p.read = UseOf(fused_.source);
    p.written = UseOf(fused_.slots);
    CosSinSource& source = p.source;
    source.backward = kOperations[plan_.operation].negates_angle;
    source.kind = KindOf(plan_);
    if (plan_.has_rows) {
      source.rows = plan_.rows;
    } else {
      source.positions = plan_.positions;
    }
    PositionsBefore& before = p.before;
    before.given = kOperations[plan_.operation].has_from();
    if (!before.given) return;
    before.positions = fused_.from;
    before.rule = AngleRuleOf(context_.angle, fused_.from.type);
    before.rule_after = AngleRuleOf(context_.angle, plan_.positions.type);
    before.whole_turns =
        before.rule == AngleRule::kCoordinate || before.rule_after == AngleRule::kCoordinate;
    if (before.whole_turns) source.kind = CosSinKind::kCoordinate;
  }

  static SlotUse UseOf(const SlotSource& slots) {
    SlotUse use{};
    use.slots = slots;
    if (slots.kind != 0) use.page_size = DivisorOf(slots.page_size);
    return use;
  }

  // The launches of tasks alike.
  rope_status ForEachOf(bool late, const StagedVariant& kernels, StagedLaunchFn visit, void* data) {
    StagedParams& p = launch_.params;
    const rope_dtype dtype = kernels.dtype;
    const bool wide = kernels.wide;
    p.side_count = 0;
    bool turns = false, uses_slots = false, norms = false, converts = kernels.converts;
    uint32_t values = 0, copy_ends[kMaxSides];
    bool unlike[kMaxSides];
    for (int32_t n = 0; n < task_count_; ++n) {
      const Task& task = tasks_[n];
      if (task.is_late != late || task.dtype != dtype || task.is_wide != wide) continue;
      if (kernels.held != 0 && HeldVectors(task) != kernels.held) continue;
      copy_ends[p.side_count] = task.side.copy_end;
      unlike[p.side_count] = task.side.output.is_there;
      StagedSide& side = p.sides[p.side_count++] = task.side;
      turns |= side.turns;
      norms |= side.norm.is_there;
      converts |= side.output.is_there;
      uses_slots |= side.from_slots || side.to_slots;
      const auto width = side.vectors * (wide ? 16 / static_cast<uint32_t>(ElementSize(dtype)) : 1);
      if (side.is_staged()) values = std::max(values, DivideUp(width, 4u) * 4);
    }
    if (p.side_count == 0) return ROPE_OK;
    launch_.variant = {dtype, wide, converts, kernels.held};
    p.head_values = values;
    norms_ = norms;
    p.rounds_rows = context_.rounding.rounds_rows && IsNarrow(dtype);
    const bool counts = uses_slots && row_head_ == 0 && !has_counted_;
    has_counted_ |= counts;
    const auto part = [&](bool is_first) {
      SetLaneSpans(context_, 1, &p.source);
      for (int32_t s = 0; s < p.side_count; ++s) {
        StagedSide& side = p.sides[s];
        side.copy_end = is_first ? copy_ends[s] : 0;
        side.output.is_there = unlike[s] && (is_first || side.turns);
      }
      p.read.dropped = counts && is_first ? fused_.source_dropped : nullptr;
      p.written.dropped = counts && is_first ? fused_.dropped : nullptr;
      return ForEachRange(plan_.batch, plan_.tokens, [&](const TokenRange& range) {
        p.source.tokens = range;
        return launch_.variant.held != 0 ? VisitUnits(visit, data) : VisitBlocks(visit, data);
      });
    };
    const int32_t pairs = turns ? context_.pairs : 0;
    // Sets before, of which a launch has one.
    const auto sets = static_cast<int32_t>(context_.sets.size());
    const bool by_set = p.before.given && sets > 1 && turns;
    for (int32_t set = 0; set < (by_set ? sets : 1); ++set) {
      const auto move = [&](bool is_first) {
        SetBefore(set, by_set);
        return part(is_first);
      };
      if (rope_status s = ForEachPart(context_, pairs, plan_.operation, row_head_, by_set ? 1 : 0,
                                      &p.source, move)) {
        return s;
      }
    }
    return ROPE_OK;
  }

  void SetBefore(int32_t set, bool by_set) {
    StagedParams& p = launch_.params;
    if (!p.before.given || p.source.pairs == 0) return;
    const FrequencySet& from = context_.sets[static_cast<size_t>(set)];
    p.before.set = set;
    p.before.at = by_set ? p.source.set_count : 0;
    if (by_set) SetFrequencies(context_, from, row_head_, p.before.at, &p.source);
    for (int32_t n = 0; n < p.source.set_count; ++n) {
      const FrequencySet& to = context_.sets[static_cast<size_t>(p.source.first_set + n)];
      p.before.factors[n] = to.attention_factor / from.attention_factor;
    }
  }

  // How many heads of a token a block has, and a token blocks.
  struct Cut {
    uint32_t blocks = 0, most = 0;  // of all sides, and heads of one
  };
  // `heads` at once; `room`: of those that are normed together.
  Cut CutSides(uint32_t heads, uint32_t room) {
    Cut cut;
    StagedParams& p = launch_.params;
    for (int32_t s = 0; s < p.side_count; ++s) {
      StagedSide& side = p.sides[s];
      const bool together = side.norm.all_heads;
      side.blocks = DivideUp(side.heads, together ? room : heads);
      side.block_heads = DivideUp(side.heads, side.blocks);
      if (together) side.blocks = 1;
      side.by_block_heads = SmallDivisorOf(side.block_heads);
      cut.blocks += side.blocks;
      cut.most = std::max(cut.most, side.block_heads);
    }
    return cut;
  }

  // Whether there is no multiprocessor without a block.
  bool KeepsBusy(const Cut& cut) const {
    return int64_t{cut.blocks} * launch_.shape.grid_x >= int64_t{multiprocessors_};
  }

  // Few heads at once where there would be multiprocessors without a block.
  rope_status VisitBlocks(StagedLaunchFn visit, void* data) {
    StagedParams& p = launch_.params;
    const uint32_t row_bytes = RowBytes();
    uint32_t room = kMostHeads;
    if (p.head_values != 0) room = std::clamp(kHeadValues / p.head_values, 1u, room);
    Cut cut;
    for (uint32_t heads = room;; heads /= 2) {
      cut = CutSides(heads, room);
      p.block_tokens = std::max(1u, std::min({heads / cut.most, p.source.tokens.count,
                                              kRowBytes / std::max(1u, row_bytes)}));
      launch_.shape.grid_x = DivideUp(p.source.tokens.count, p.block_tokens);
      if (heads <= kLeastHeads || KeepsBusy(cut)) break;
    }
    SetShared(p.head_values * static_cast<uint32_t>(sizeof(float)), cut.most);
    return ForEachGrid(cut.blocks, &launch_, visit, data);
  }

  // Of heads that are held: units of warps, which several tokens of a block share if there are
  // blocks for all multiprocessors.
  rope_status VisitUnits(StagedLaunchFn visit, void* data) {
    StagedParams& p = launch_.params;
    constexpr uint32_t kMostTokens = 8, kMostRows = 16u << 10, kBlocks = 4;
    const auto enough = kBlocks * static_cast<uint32_t>(multiprocessors_);
    p.block_tokens = 1;
    while (p.block_tokens < kMostTokens && 2 * p.block_tokens * RowBytes() <= kMostRows &&
           p.source.tokens.count / (2 * p.block_tokens) >= enough) {
      p.block_tokens *= 2;
    }
    const uint32_t heads_of_warp = kStagedLanes / HeldLanes(launch_.variant.dtype);
    uint32_t units = 0;
    for (int32_t s = 0; s < p.side_count; ++s) {
      StagedSide& side = p.sides[s];
      side.block_heads = side.heads;
      side.by_block_heads = SmallDivisorOf(side.heads);
      side.blocks = DivideUp(p.block_tokens * side.heads, heads_of_warp);
      units += side.blocks;
    }
    launch_.shape.grid_x = DivideUp(p.source.tokens.count, p.block_tokens);
    // A block has all units of its tokens, or a few where there would be multiprocessors without a
    // block.
    const bool few = launch_.shape.grid_x < static_cast<uint32_t>(multiprocessors_);
    p.block_units = few ? std::min(units, kStagedWarps) : units;
    SetUnitShared();
    return ForEachGrid(DivideUp(units, p.block_units), &launch_, visit, data);
  }

  void SetUnitShared() {
    StagedParams& p = launch_.params;
    constexpr auto kFloat = static_cast<uint32_t>(sizeof(float));
    const auto width = static_cast<uint32_t>(launch_.variant.held * kRunningSums);
    SetRowWarps();
    p.rows_at = 0;
    p.tokens_at = p.block_tokens * RowBytes();
    p.norms_at =
        DivideUp(p.tokens_at + p.block_tokens * static_cast<uint32_t>(sizeof(StagedToken)), 16u) *
        16;
    const uint32_t heads = kStagedThreads / HeldLanes(launch_.variant.dtype);
    p.weights_at = p.norms_at + heads * kHeldSumStride * kFloat;
    const auto sides = static_cast<uint32_t>(p.side_count);
    launch_.shared_bytes = p.weights_at + (norms_ ? sides * 2 * width * kFloat : 0);
  }

  // Which warps make the rows of a token.
  void SetRowWarps() {
    StagedParams& p = launch_.params;
    p.row_shift = 0;
    while (p.block_tokens << (p.row_shift + 1) <= kStagedWarps) ++p.row_shift;
  }

  // Shared memory, and which warps make rows. `most`: heads of a token that a block has at once,
  // with so many bytes each.
  void SetShared(uint32_t head_bytes, uint32_t most) {
    StagedParams& p = launch_.params;
    SetRowWarps();
    p.rows_at = p.block_tokens * most * head_bytes;
    p.tokens_at = p.rows_at + p.block_tokens * RowBytes();
    p.norms_at = p.tokens_at + p.block_tokens * static_cast<uint32_t>(sizeof(StagedToken));
    uint32_t end = p.norms_at, groups = 0;
    if (norms_) {
      const uint32_t sums = (most + 1) * kStagedSumStride * static_cast<uint32_t>(sizeof(float));
      end += p.block_tokens * (sums + most * static_cast<uint32_t>(sizeof(StagedMoments)));
    }
    p.scales_at = end;
    for (int32_t s = 0; s < p.side_count; ++s) groups = std::max(groups, p.sides[s].output.groups);
    launch_.shared_bytes =
        end + p.block_tokens * most * groups * static_cast<uint32_t>(sizeof(uint32_t));
  }

  uint32_t RowBytes() const {
    const StagedParams& p = launch_.params;
    return p.source.pairs * static_cast<uint32_t>(sizeof(CosSin)) * (p.per_channel ? 2 : 1);
  }

  const Plan& plan_;
  const rope_context& context_;
  const FusedPlan& fused_;
  const int32_t row_head_, multiprocessors_;
  const ChannelOrder order_;
  Task tasks_[kMaxSides];
  int32_t task_count_ = 0;
  bool has_counted_ = false;  // tokens whose slot is missing
  bool norms_ = false;        // whether the launch has some
  StagedLaunch launch_{};
};

}  // namespace

bool IsStaged(const Plan& plan) {
  return plan.fused->source.kind != 0 || kOperations[plan.operation].has_from() ||
         plan.fused->has_norms() || plan.fused->converts || plan.tensor_count == 0;
}

rope_status ForEachStagedLaunch(const Plan& plan, int32_t multiprocessors, StagedLaunchFn launch,
                                void* data) {
  return ForEachRepeat(plan, [&](const Plan& rows) {
    return ForEachRowHead(rows, [&](const Plan& part, int32_t row_head) {
      return StagedGroup(part, row_head, multiprocessors).ForEach(launch, data);
    });
  });
}

}  // namespace rope::gpu
