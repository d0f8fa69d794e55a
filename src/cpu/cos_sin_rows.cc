#include "cpu/cos_sin_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/limits.h"
#include "cpu/position_rows.h"
#include "math/angle.h"
#include "math/cos_sin_table.h"
#include "math/element.h"
#include "math/ggml_angles.h"
#include "math/operation.h"
#include "math/pairing.h"
#include "math/sincos.h"
#include "math/token_position.h"

namespace rope::cpu {
namespace {

// The positions of one token on every axis. Equal ones (text) count as one.
template <class T>
struct AxisPositions {
  T values[kMaxAxes];
  bool equal;
};

template <class T, class Read>
AxisPositions<T> ReadAxes(const rope_context& context, Read read) {
  AxisPositions<T> axes;
  axes.equal = true;
  axes.values[0] = read(0);
  for (int a = 1; a < context.axes; ++a) {  // NaN equals nothing, but one axis is one position
    axes.values[a] = read(a);
    axes.equal &= axes.values[a] == axes.values[0];
  }
  return axes;
}

template <class T>
void SpreadOverPairs(const rope_context& context, const AxisPositions<T>& axes, T* positions) {
  for (int i = 0; i < context.pairs; ++i) positions[i] = axes.values[context.pair_axis[i]];
  for (int i = context.pairs; i < PaddedPairs(context.pairs); ++i) positions[i] = 0;
}

// ROPE_ANGLE_GGML.
void MakeGgmlAngles(const rope_context& context, const FrequencySet& set,
                    const PositionSource& source, const Token& token, float* angles) {
  float theta[kMaxAxes];
  for (int a = 0; a < context.axes; ++a) theta[a] = PositionAsFloat(source, token, a);
  GgmlAngles(set.ggml.numbers(), context.axes, context.pair_axis.data(), context.pairs, theta,
             angles);
}

// Adds what each axis adds to the phase of its pairs, or `sign` -1 subtracts it. EXACT.
void AddPhases(const rope_context& context, AngleRule rule, const FrequencySet& set,
               const PositionSource& source, const Token& token, int32_t head, int sign,
               int64_t* phases) {
  for (int a = 0; a < context.axes; ++a) {
    const AxisPhase phase_of(rule, source, token, a);
    const size_t first = context.sums ? context.SummedFrequency(set, head, 0).OfAxis(a).pair : 0;
    for (int i = 0; i < context.pairs; ++i) {
      if (!context.sums && context.AxisOf(i) != a) continue;
      const PairFrequency frequency = {set, first + static_cast<size_t>(i)};
      const uint64_t phase = phase_of(frequency);
      phases[i] =
          static_cast<int64_t>(static_cast<uint64_t>(phases[i]) + (sign < 0 ? 0 - phase : phase));
    }
  }
}

// The general angle of one head: sums, by axes, as vectors of pairs. They have the bits of
// CosSinOfSum().
[[gnu::noinline]] void MakeRowOfSums(const rope_context& context, const Kernels& kernels,
                                     AngleRule rule, const FrequencySet& set,
                                     const PositionSource& source, const Token& token, int32_t head,
                                     const Row& row) {
  const int pairs = context.pairs, padded = PaddedPairs(pairs);
  if (rule == AngleRule::kFloat32) {
    float angles[kMaxPairs];
    for (int a = 0; a < context.axes; ++a) {
      const float position = PositionAsFloat(source, token, a);
      const float* const inv_freq =
          set.inv_freq_f32.data() + context.SummedFrequency(set, head, 0).OfAxis(a).pair;
      if (a == 0) {
        for (int i = 0; i < pairs; ++i) angles[i] = AngleOf(position, inv_freq[i]);
      } else {
        for (int i = 0; i < pairs; ++i) angles[i] = Add(angles[i], AngleOf(position, inv_freq[i]));
      }
    }
    std::fill(angles + pairs, angles + padded, 0.0f);
    kernels.angle_row_per_pair(*context.units, angles, row);
    return;
  }
  if (rule == AngleRule::kCoordinate && !HasFinitePosition(source, token, context.axes)) {
    std::fill(row.cos, row.cos + pairs, QuietNan());
    std::fill(row.sin, row.sin + pairs, QuietNan());
    return;
  }
  int64_t phases[kMaxPairs];
  std::fill(phases, phases + padded, 0);
  AddPhases(context, rule, set, source, token, head, 1, phases);
  kernels.phase_row_per_pair(*context.units, phases, row);
}

// `order` is natural, or MakesRows() says yes.
void MakeRow(const rope_context& context, const Kernels& kernels, const PositionSource& source,
             const Token& token, int32_t head, rope_operation operation, RowOrder order, float* cos,
             float* sin) {
  const FrequencySet& set = context.SetOf(source, token.sequence);
  const Scales scales = ScalesOf(operation, set.attention_factor);
  const Row row = {cos, sin, context.pairs, scales.cos, scales.sin, order};
  const AngleRule rule = AngleRuleOf(context.angle, source.type);
  if (context.sums) {
    MakeRowOfSums(context, kernels, rule, set, source, token, head, row);
  } else if (rule == AngleRule::kFloat32 || rule == AngleRule::kDivide) {
    const bool divide = rule == AngleRule::kDivide;
    const auto axes =
        ReadAxes<float>(context, [&](int a) { return PositionAsFloat(source, token, a); });
    if (axes.equal) {
      (divide ? kernels.divided_rows : kernels.angle_rows)(set, axes.values, 1, row);
    } else {
      float positions[kMaxPairs];
      SpreadOverPairs(context, axes, positions);
      (divide ? kernels.divided_row_per_pair : kernels.angle_row_per_pair)(set, positions, row);
    }
  } else if (rule == AngleRule::kGgml) {
    float angles[kMaxPairs];
    MakeGgmlAngles(context, set, source, token, angles);
    std::fill(angles + context.pairs, angles + PaddedPairs(context.pairs), 0.0f);
    kernels.angle_row_per_pair(set, angles, row);
  } else if (rule == AngleRule::kCoordinate) {  // vision towers: few tokens, one pair at a time
    for (int i = 0; i < context.pairs; ++i) {
      const CosSin value = CosSinOfPair(rule, PairFrequency{set, static_cast<size_t>(i)}, source,
                                        token, context.AxisOf(i));
      cos[i] = value.cos * scales.cos;
      sin[i] = value.sin * scales.sin;
    }
  } else {
    const auto axes =
        ReadAxes<int64_t>(context, [&](int a) { return IntegerPosition(source, token, a); });
    if (axes.equal) {
      kernels.phase_rows(set, axes.values, 1, row);
    } else {
      int64_t positions[kMaxPairs];
      SpreadOverPairs(context, axes, positions);
      kernels.phase_row_per_pair(set, positions, row);
    }
  }
}

// REROTATE under EXACT: of the difference of both phases.
[[gnu::noinline]] void MakeRowOfPhases(const Plan& plan, const Kernels& kernels,
                                       const FrequencySet& set, const FrequencySet& from_set,
                                       const Token& token, const Token& from_token, int32_t head,
                                       const Row& row) {
  const rope_context& context = *plan.context;
  int64_t phases[kMaxPairs];
  std::fill(phases, phases + PaddedPairs(context.pairs), 0);
  bool finite = true;
  const auto add = [&](const PositionSource& source, const FrequencySet& frequencies,
                       const Token& at, int sign) {
    const AngleRule rule = AngleRuleOf(context.angle, source.type);
    finite &= rule == AngleRule::kExact || HasFinitePosition(source, at, context.axes);
    AddPhases(context, rule, frequencies, source, at, head, sign, phases);
  };
  add(plan.positions, set, token, 1);
  add(plan.fused->from, from_set, from_token, -1);
  kernels.phase_row_per_pair(*context.units, phases, row);
  if (finite) return;
  const int width = RowWidth(row.order, context.pairs);
  std::fill(row.cos, row.cos + width, QuietNan());
  std::fill(row.sin, row.sin + width, QuietNan());
}

// REROTATE of f32 angles: the rotation by a row becomes one by it and back by another. In f64,
// where the products are exact: rounded to f32 once. In each order of rows a value stands where
// that of the other row does, and a sine has the sign that it has there.
void TurnBack(const float* from_cos, const float* from_sin, double factor, int count, float* cos,
              float* sin) {
  for (int i = 0; i < count; ++i) {
    const double c = cos[i], s = sin[i], from_c = from_cos[i], from_s = from_sin[i];
    cos[i] = static_cast<float>((c * from_c + s * from_s) * factor);
    sin[i] = static_cast<float>((s * from_c - c * from_s) * factor);
  }
}

// The distance of a move inside one set of frequencies, on each axis.
PositionSource DistanceOf(const rope_context& context, const PositionSource& to, const Token& token,
                          const PositionSource& from, const Token& from_token,
                          int64_t distance[kMaxAxes]) {
  for (int a = 0; a < context.axes; ++a) {
    distance[a] = static_cast<int64_t>(static_cast<uint64_t>(IntegerPosition(to, token, a)) -
                                       static_cast<uint64_t>(IntegerPosition(from, from_token, a)));
  }
  PositionSource source{};
  source.type = PositionSource::kInt64;
  source.data = distance;
  source.stride_axis = 1;
  source.freq_sets = to.freq_sets;
  return source;
}

// REROTATE of a token. The row of the position before lies in `spare`, where one is made.
void MakeRowBetween(const Plan& plan, const Kernels& kernels, int64_t batch, int64_t index,
                    int32_t head, RowOrder order, int width, float* spare, float* cos, float* sin) {
  const rope_context& context = *plan.context;
  const PositionSource &to = plan.positions, &from = plan.fused->from;
  const Token token = LocateToken(to, batch, index), from_token = LocateToken(from, batch, index);
  const FrequencySet &set = context.SetOf(to, token.sequence),
                     &from_set = context.SetOf(from, from_token.sequence);
  const double factor = set.attention_factor / from_set.attention_factor;
  if (context.angle == ROPE_ANGLE_EXACT) {
    const bool integers = to.type != PositionSource::kFloat && from.type != PositionSource::kFloat;
    if (&set == &from_set && integers) {  // as SHIFT
      int64_t distance[kMaxAxes];
      const PositionSource by = DistanceOf(context, to, token, from, from_token, distance);
      MakeRow(context, kernels, by, {0, 0, token.sequence, 0}, head, plan.operation, order, cos,
              sin);
      return;
    }
    const auto scale = static_cast<float>(factor);
    MakeRowOfPhases(plan, kernels, set, from_set, token, from_token, head,
                    {cos, sin, context.pairs, scale, scale, order});
    return;
  }
  float *const from_cos = spare, *const from_sin = spare + width;
  MakeRow(context, kernels, to, token, head, plan.operation, order, cos, sin);
  MakeRow(context, kernels, from, from_token, head, plan.operation, order, from_cos, from_sin);
  const int used = RowValues(order, context.pairs);
  (kernels.turn_back != nullptr ? kernels.turn_back : &TurnBack)(from_cos, from_sin, factor, used,
                                                                 cos, sin);
  if (order != RowOrder::kPerChannel) return;
  for (int i = 0; i < used; i += 2) sin[i] = -sin[i + 1];  // zeros, too: x - x is +0 in both
}

// See QuietNan().
float WithQuietNan(float value) { return value == value ? value : QuietNan(); }

// Values that lie `step` apart; those that follow each other in a loop that compilers vectorise.
template <rope_dtype kDtype>
void ReadValues(const void* data, int64_t first, int step, int count, bool negative, float* out) {
  const float sign = negative ? -1.0f : 1.0f;
  const auto read = [&](int64_t at) {
    return sign * WithQuietNan(LoadElement(kDtype, data, first + at));
  };
  if (step == 1) {
    for (int i = 0; i < count; ++i) out[i] = read(i);
  } else {
    for (int i = 0; i < count; ++i) out[i] = read(int64_t{step} * i);
  }
}

using ValueReader = void (*)(const void* data, int64_t first, int step, int count, bool negative,
                             float* out);

template <int... kIndices>
ValueReader ReaderOf(rope_dtype dtype, std::integer_sequence<int, kIndices...>) {
  static constexpr ValueReader kReaders[] = {&ReadValues<kIndices + 1>...};
  return kReaders[dtype - 1];
}

// Reads one row of the caller into natural order; for the FULL formats both values of each pair.
void ReadRow(const Plan& plan, int64_t row, float* cos0, float* sin0, float* cos1, float* sin1) {
  const CosSinTable& table = plan.rows;
  const rope_context& context = *plan.context;
  const bool backward = kOperations[plan.operation].negates_angle;
  const auto read = ReaderOf(table.dtype, std::make_integer_sequence<int, kDtypes>());
  if (!table.format.per_channel()) {
    const Place c = table.format.cos, s = table.format.sin;
    const int pairs = context.pairs;
    read(table.TensorOf(c), row + c.IndexOf(0, pairs), c.step, pairs, false, cos0);
    read(table.TensorOf(s), row + s.IndexOf(0, pairs), s.step, pairs, backward, sin0);
    return;
  }
  const bool interleaved = table.format.interleaved();
  const int step = interleaved ? 2 : 1;
  if (backward) std::swap(sin0, sin1);  // as in ReadChannels()
  for (const Segment& segment : context.segments) {
    const PairIndex channels = RowChannelsOf(interleaved, segment, 0);
    const int64_t first = row + channels.first, second = row + channels.second;
    const int p = segment.first_pair, pairs = segment.pairs;
    read(table.data, first, step, pairs, false, cos0 + p);
    read(table.data, second, step, pairs, false, cos1 + p);
    read(table.sin, first, step, pairs, backward, sin0 + p);
    read(table.sin, second, step, pairs, backward, sin1 + p);
  }
}

// Natural f32 rows (PACKED and SPLIT) need no copy, but for bf16, where they could hold other NaNs
// than QuietNan().
bool IsDirect(const Plan& plan) {
  const CosSinTable& table = plan.rows;
  for (int n = 0; n < plan.tensor_count; ++n) {
    if (plan.tensors[n].dtype == ROPE_DTYPE_BF16) return false;
  }
  return table.dtype == ROPE_DTYPE_F32 && !kOperations[plan.operation].negates_angle &&
         table.format.cos.step == 1 && !table.format.cos.after_all;
}

void UseNatural(int padded, RowBuffer* buffer) {
  buffer->cos = buffer->natural;
  buffer->sin = buffer->natural + padded;
  buffer->stride = 2 * padded;
}

void UseCallersRows(const Plan& plan, RowBuffer* buffer) {
  const CosSinTable& table = plan.rows;
  const rope_context& context = *plan.context;
  const int64_t row =
      table.RowOf(buffer->batch, buffer->first) + buffer->row_head * table.stride_head;
  if (IsDirect(plan)) {
    const Place sin = table.format.sin;
    buffer->cos = static_cast<const float*>(table.data) + row;
    buffer->sin =
        static_cast<const float*>(table.TensorOf(sin)) + row + sin.IndexOf(0, context.pairs);
    buffer->stride = table.stride_token;
    return;
  }
  const int padded = PaddedPairs(context.pairs);
  const size_t bytes = static_cast<size_t>(context.pairs) * sizeof(float);
  UseNatural(padded, buffer);
  for (int i = 0; i < buffer->count; ++i) {
    float* natural = buffer->natural + i * 2 * padded;
    float* second = buffer->ordered + i * 2 * padded;
    ReadRow(plan, row + i * table.stride_token, natural, natural + padded, second, second + padded);
    if (table.format.per_channel()) {
      buffer->is_per_channel[i] = std::memcmp(natural, second, bytes) != 0 ||
                                  std::memcmp(natural + padded, second + padded, bytes) != 0;
      buffer->some_per_channel |= buffer->is_per_channel[i];
    }
  }
}

// The angles of one token in radians, as f32: under FLOAT32 those whose cos and sin are taken.
void AnglesOf(const rope_context& context, const FrequencySet& set, const PositionSource& source,
              const Token& token, int32_t head, float* angles) {
  const AngleRule rule = AngleRuleOf(context.angle, source.type);
  if (rule == AngleRule::kGgml) {
    MakeGgmlAngles(context, set, source, token, angles);
    return;
  }
  if (context.sums) {
    for (int i = 0; i < context.pairs; ++i) {
      angles[i] =
          AngleOfSum(rule, context.SummedFrequency(set, head, i), source, token, context.axes);
    }
    return;
  }
  for (int i = 0; i < context.pairs; ++i) {
    angles[i] = AngleOfPair(rule, PairFrequency{set, static_cast<size_t>(i)}, source, token,
                            context.AxisOf(i));
  }
}

// Whether rows from positions can be made in an order at once.
bool MakesRows(const Plan& plan, const Kernels& kernels, RowOrder order) {
  const rope_context& context = *plan.context;
  return !plan.has_rows && context.segments.size() == 1 && kernels.Makes(order, context.pairs) &&
         AngleRuleOf(context.angle, plan.positions.type) != AngleRule::kCoordinate;
}

// Makes the block's rows; each has `width` floats of cos, then as many of sin. `spare` has space
// for another one.
void MakeRows(const Plan& plan, const Kernels& kernels, RowOrder order, int width,
              const RowBuffer& block, float* spare, float* rows) {
  const rope_context& context = *plan.context;
  if (kOperations[plan.operation].has_from()) {
    for (int i = 0; i < block.rows; ++i) {
      float* const row = rows + i * 2 * width;
      MakeRowBetween(plan, kernels, block.batch, block.first + i, block.row_head, order, width,
                     spare, row, row + width);
    }
    return;
  }
  if (MakeRowsOfPositions<RowBuffer::kTokens>(plan, kernels, order, block.batch, block.first,
                                              block.rows, rows)) {
    return;
  }
  for (int i = 0; i < block.rows; ++i) {
    float* const row = rows + i * 2 * width;
    MakeRow(context, kernels, plan.positions,
            LocateToken(plan.positions, block.batch, block.first + i), block.row_head,
            plan.operation, order, row, row + width);
  }
}

// Orders natural rows. `dtype`: what they are rounded to before; 0: nothing.
void OrderNaturalRows(const rope_context& context, const Kernels& kernels, rope_dtype dtype,
                      RowOrder order, int width, RowBuffer* buffer) {
  const int padded = PaddedPairs(context.pairs);
  for (int i = 0; i < buffer->rows; ++i) {
    const float *cos = buffer->cos + i * buffer->stride, *sin = buffer->sin + i * buffer->stride;
    float *to_cos = buffer->ordered + i * 2 * width, *to_sin = to_cos + width;
    alignas(64) float rounded[2 * kMaxPairs];
    if (dtype != 0) {
      float* target = order == RowOrder::kNatural ? to_cos : rounded;
      std::copy(cos, cos + context.pairs, target);
      std::copy(sin, sin + context.pairs, target + padded);
      kernels.round_row[dtype - 1](target, context.pairs);
      kernels.round_row[dtype - 1](target + padded, context.pairs);
      cos = target;
      sin = target + padded;
    }
    if (order != RowOrder::kNatural) {
      kernels.order_row(order, context.segments.data(),
                        static_cast<int32_t>(context.segments.size()), to_cos, to_sin, cos, sin);
    }
  }
}

// One row of rope_cos_sin_fill, that of a token of a row of positions.
void FillRow(const FillPlan& plan, const Kernels& kernels, const CosSinTable& table, int32_t head,
             int64_t position_row, int64_t index, int64_t row) {
  const rope_context& context = *plan.context;
  const int pairs = context.pairs;
  const CosSinFormat& format = table.format;
  alignas(64) float cos[kMaxPairs], sin[kMaxPairs];
  const Token token = LocateToken(plan.positions, position_row, index);
  if (format.is_angles()) {
    const FrequencySet& set = context.SetOf(plan.positions, token.sequence);
    AnglesOf(context, set, plan.positions, token, head, cos);
    for (int i = 0; i < pairs; ++i) StoreAngle(table, row, i, pairs, cos[i]);
    return;
  }
  MakeRow(context, kernels, plan.positions, token, head, kFillOperation, RowOrder::kNatural, cos,
          sin);
  if (!format.per_channel()) {
    const RowOfPairs values = RowOfPairsAt(table, row, pairs);
    for (int i = 0; i < pairs; ++i) values.Store(i, {cos[i], sin[i]});
    return;
  }
  for (const Segment& segment : context.segments) {
    for (int i = 0; i < segment.pairs; ++i) {
      const PairIndex channels = RowChannelsOf(format.interleaved(), segment, i);
      const int p = segment.first_pair + i;
      StoreChannels(table, row + channels.first, row + channels.second, {cos[p], sin[p]});
    }
  }
}

// Whether all tokens of a batch row have one position: keys that move by one distance.
bool ShareRow(const Plan& plan) {
  const PositionSource& p = plan.positions;
  return !plan.has_rows && p.type != PositionSource::kNone && p.stride_token == 0 &&
         !p.per_sequence && p.place == PositionSource::kRows &&
         !kOperations[plan.operation].has_from();
}

// What few calls have. Apart: others do not divide.
[[gnu::noinline]] void StartRareRows(const Plan& plan, RowBuffer* buffer) {
  buffer->batch = plan.PositionRow(buffer->batch);
  if (plan.has_rows) UseCallersRows(plan, buffer);
}

}  // namespace

void RoundRows(const Kernels& kernels, rope_dtype dtype, RowOrder order, int pairs, int count,
               float* rows) {
  const int width = RowWidth(order, pairs), values = RowValues(order, pairs);
  for (int i = 0; i < 2 * count; ++i) kernels.round_row[dtype - 1](rows + i * width, values);
}

bool MakeRowOfMove(const Plan& plan, const Kernels& kernels, RowOrder order, float* row) {
  if (!MakesRows(plan, kernels, order)) return false;
  const int width = RowWidth(order, plan.context->pairs);
  alignas(64) float spare[4 * kMaxPairs];
  MakeRowBetween(plan, kernels, 0, 0, 0, order, width, spare, row, row + width);
  return true;
}

void StartRows(const Plan& plan, int64_t batch, int64_t first, int count, int32_t row_head,
               RowBuffer* buffer) {
  buffer->batch = batch;
  buffer->first = first;
  buffer->count = count;
  buffer->rows = ShareRow(plan) ? 1 : count;
  buffer->row_head = row_head;
  buffer->ordered_dtype = -1;
  buffer->some_per_channel = false;
  buffer->cos = nullptr;
  if (plan.has_rows || plan.batch_repeat != 1) StartRareRows(plan, buffer);
}

rope_dtype RoundedTo(const rope_context& context, rope_dtype dtype) {
  return context.rounding.rounds_rows && IsNarrow(dtype) ? dtype : 0;
}

OrderedRows OrderRows(const Plan& plan, const Kernels& kernels, rope_dtype dtype, RowOrder order,
                      RowBuffer* buffer) {
  const rope_context& context = *plan.context;
  dtype = RoundedTo(context, dtype);
  const int width = RowWidth(order, context.pairs);
  const OrderedRows rows = {buffer->ordered, buffer->ordered + width, buffer->StrideOf(2 * width)};
  if (buffer->ordered_dtype == dtype && buffer->ordered_order == order) return rows;
  if (MakesRows(plan, kernels, order)) {
    MakeRows(plan, kernels, order, width, *buffer, buffer->natural, buffer->ordered);
    // Its rows of the positions before are where natural rows may have been.
    if (kOperations[plan.operation].has_from()) buffer->cos = nullptr;
    if (dtype != 0) {
      RoundRows(kernels, dtype, order, context.pairs, buffer->rows, buffer->ordered);
    }
  } else {
    const int padded = PaddedPairs(context.pairs);
    if (buffer->cos == nullptr) {
      MakeRows(plan, kernels, RowOrder::kNatural, padded, *buffer, buffer->ordered,
               buffer->natural);
      buffer->ordered_dtype = -1;  // likewise
      UseNatural(padded, buffer);
    }
    if (dtype == 0 && order == RowOrder::kNatural) {
      return {buffer->cos, buffer->sin, buffer->StrideOf(buffer->stride)};
    }
    OrderNaturalRows(context, kernels, dtype, order, width, buffer);
  }
  buffer->ordered_dtype = dtype;
  buffer->ordered_order = order;
  return rows;
}

ChannelRow ChannelRowOf(const Plan& plan, const Kernels& kernels, rope_dtype dtype, int i,
                        RowBuffer* buffer) {
  const rope_context& context = *plan.context;
  const int padded = PaddedPairs(context.pairs);
  float* first = buffer->natural + i * 2 * padded;
  float* second = buffer->ordered + i * 2 * padded;
  if (RoundedTo(context, dtype) != 0) {
    float* rounded = buffer->ordered + RowBuffer::kFloats;  // free while rows are per channel
    std::copy(first, first + 2 * padded, rounded);
    std::copy(second, second + 2 * padded, rounded + 2 * padded);
    kernels.round_row[dtype - 1](rounded, 4 * padded);
    first = rounded;
    second = rounded + 2 * padded;
  }
  return {first, first + padded, second, second + padded};
}

void FillRows(const FillPlan& plan, const Kernels& kernels) {
  for (int32_t head = 0; head < plan.row_heads; ++head) {
    const CosSinTable table = plan.rows.FromHead(head);
    for (int64_t b = 0; b < plan.batch; ++b) {
      const int64_t position_row = plan.PositionRow(b);
      for (int64_t t = 0; t < plan.tokens; ++t) {
        FillRow(plan, kernels, table, head, position_row, t, table.RowOf(b, t));
      }
    }
  }
}

}  // namespace rope::cpu
