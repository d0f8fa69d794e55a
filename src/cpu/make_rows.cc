#include "cpu/make_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "element.h"
#include "geometry.h"
#include "limits.h"
#include "rotate.h"
#include "semantics.h"

namespace rope::cpu {
namespace {

const FrequencySet& SetOf(const rope_context& context, const PositionSource& source,
                          const Token& token) {
  return context.SetAt(source.freq_sets != nullptr ? source.freq_sets[token.sequence] : 0);
}

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

float F32Position(const PositionSource& source, const Token& token, int axis) {
  return source.type == PositionSource::kFloat
             ? FloatPosition(source, token, axis)
             : static_cast<float>(IntegerPosition(source, token, axis));
}

// ROPE_ANGLE_GGML: the angles of all pairs, one from the other, each operation in f32 as ggml's.
void GgmlRecurrence(const rope_context& context, const GgmlAngles& ggml,
                    const PositionSource& source, const Token& token, float* angles) {
  float theta[kMaxAxes];
  for (int a = 0; a < context.axes; ++a) theta[a] = F32Position(source, token, a);
  for (int i = 0; i < context.pairs; ++i) {
    float extrapolated = theta[context.axes > 1 ? context.pair_axis[i] : 0];
    if (!ggml.freq_factors.empty()) extrapolated = extrapolated / ggml.freq_factors[i];
    angles[i] = ggml.freq_scale * extrapolated;
    if (!ggml.extrapolated.empty()) {
      const float share = ggml.extrapolated[i];
      angles[i] = angles[i] * (1 - share) + extrapolated * share;
    }
    for (int a = 0; a < context.axes; ++a) theta[a] *= ggml.theta_scale;
  }
  std::fill(angles + context.pairs, angles + PaddedPairs(context.pairs), 0.0f);
}

void MakeRow(const rope_context& context, const Kernels& kernels, const PositionSource& source,
             const Token& token, rope_operation operation, float* cos, float* sin) {
  const FrequencySet& set = SetOf(context, source, token);
  const Scales scales = ScalesOf(operation, set.attention_factor);
  const Row row = {cos, sin, context.pairs, scales.cos, scales.sin};
  const bool coordinates = source.type == PositionSource::kFloat;
  if (context.angle == ROPE_ANGLE_FLOAT32) {
    const auto axes =
        ReadAxes<float>(context, [&](int a) { return F32Position(source, token, a); });
    if (axes.equal) {
      kernels.angle_row(set, axes.values[0], row);
    } else {
      float positions[kMaxPairs];
      SpreadOverPairs(context, axes, positions);
      kernels.angle_row_per_pair(set, positions, row);
    }
  } else if (context.angle == ROPE_ANGLE_GGML) {
    float angles[kMaxPairs];
    GgmlRecurrence(context, set.ggml, source, token, angles);
    kernels.angle_row_per_pair(set, angles, row);
  } else if (coordinates) {  // vision towers: few tokens, one pair at a time
    for (int i = 0; i < context.pairs; ++i) {
      const int axis = context.axes > 1 ? context.pair_axis[i] : 0;
      const uint64_t fraction = static_cast<uint64_t>(set.turns_high[i]) << 32 | set.turns_low[i];
      const CosSin value =
          CosSinOfCoordinate(set.turns_whole[i], fraction, FloatPosition(source, token, axis));
      cos[i] = value.cos * scales.cos;
      sin[i] = value.sin * scales.sin;
    }
  } else {
    const auto axes =
        ReadAxes<int64_t>(context, [&](int a) { return IntegerPosition(source, token, a); });
    if (axes.equal) {
      kernels.phase_row(set, axes.values[0], row);
    } else {
      int64_t positions[kMaxPairs];
      SpreadOverPairs(context, axes, positions);
      kernels.phase_row_per_pair(set, positions, row);
    }
  }
}

// See QuietNan().
float WithQuietNan(float value) { return value == value ? value : QuietNan(); }

// Consecutive values, in loops that compilers vectorise.
void ReadValues(rope_dtype dtype, const void* data, int64_t first, int count, bool negative,
                float* out) {
  const float sign = negative ? -1.0f : 1.0f;
  if (dtype == ROPE_F32) {
    const auto* from = static_cast<const float*>(data) + first;
    for (int i = 0; i < count; ++i) out[i] = sign * WithQuietNan(from[i]);
  } else if (dtype == ROPE_BF16) {
    const auto* from = static_cast<const uint16_t*>(data) + first;
    for (int i = 0; i < count; ++i) out[i] = sign * WithQuietNan(FloatFromBf16(from[i]));
  } else {
    const auto* from = static_cast<const uint16_t*>(data) + first;
    for (int i = 0; i < count; ++i) out[i] = sign * WithQuietNan(FloatFromF16(from[i]));
  }
}

// Reads one row of the caller into natural order; for the FULL formats both values of each pair.
void ReadRow(const Plan& plan, int64_t row, float* cos0, float* sin0, float* cos1, float* sin1) {
  const RowTable& table = plan.rows;
  const rope_context& context = *plan.context;
  const bool backward = plan.operation == ROPE_BACKWARD;
  if (table.format == ROPE_COS_SIN_PACKED || table.format == ROPE_COS_SIN_PACKED_SIN_FIRST ||
      table.format == ROPE_COS_SIN_SPLIT) {
    const Place c = CosPlace(table.format, 0, context.pairs);
    const Place s = SinPlace(table.format, 0, context.pairs);
    ReadValues(table.dtype, table.data, row + c.index, context.pairs, false, cos0);
    ReadValues(table.dtype, s.in_sin ? table.sin : table.data, row + s.index, context.pairs,
               backward, sin0);
    return;
  }
  const auto load = [&](const void* data, int64_t index) {
    return WithQuietNan(LoadElement(table.dtype, data, row + index));
  };
  if (!IsFull(table.format)) {
    for (int i = 0; i < context.pairs; ++i) {
      cos0[i] = load(table.data, CosPlace(table.format, i, context.pairs).index);
      const float sin = load(table.data, SinPlace(table.format, i, context.pairs).index);
      sin0[i] = backward ? -sin : sin;
    }
    return;
  }
  const bool interleaved = table.format == ROPE_COS_SIN_FULL_INTERLEAVED;
  for (const Segment& segment : context.segments) {
    for (int i = 0; i < segment.pairs; ++i) {
      const PairIndex index = ChannelsOf(interleaved, i, segment.pairs);
      const int p = segment.first_pair + i;
      const int first = segment.first_channel + index.first;
      const int second = segment.first_channel + index.second;
      const float s0 = load(table.sin, first), s1 = load(table.sin, second);
      cos0[p] = load(table.data, first);
      cos1[p] = load(table.data, second);
      // The gradient is the transpose: the sines change places and signs.
      sin0[p] = backward ? -s1 : s0;
      sin1[p] = backward ? -s0 : s1;
    }
  }
}

// Natural f32 rows need no copy, but for bf16, where they could hold other NaNs than QuietNan().
bool IsDirect(const Plan& plan) {
  const RowTable& table = plan.rows;
  for (int n = 0; n < plan.tensor_count; ++n) {
    if (plan.tensors[n].dtype == ROPE_BF16) return false;
  }
  return table.dtype == ROPE_F32 && plan.operation == ROPE_FORWARD &&
         (table.format == ROPE_COS_SIN_PACKED || table.format == ROPE_COS_SIN_SPLIT);
}

void UseCallersRows(const Plan& plan, int64_t batch, int64_t first, int count, RowBuffer* buffer) {
  const RowTable& table = plan.rows;
  const rope_context& context = *plan.context;
  const int64_t row = batch * table.stride_batch + first * table.stride_token;
  if (IsDirect(plan)) {
    const auto* data = static_cast<const float*>(table.data);
    buffer->cos = data + row;
    buffer->sin = table.format == ROPE_COS_SIN_SPLIT ? static_cast<const float*>(table.sin) + row
                                                     : data + row + context.pairs;
    buffer->stride = table.stride_token;
    return;
  }
  const int padded = PaddedPairs(context.pairs);
  const size_t bytes = static_cast<size_t>(context.pairs) * sizeof(float);
  for (int i = 0; i < count; ++i) {
    float* natural = buffer->natural + i * 2 * padded;
    float* second = buffer->ordered + i * 2 * padded;
    ReadRow(plan, row + i * table.stride_token, natural, natural + padded, second, second + padded);
    if (IsFull(table.format)) {
      buffer->per_channel |= std::memcmp(natural, second, bytes) != 0 ||
                             std::memcmp(natural + padded, second + padded, bytes) != 0;
    }
  }
}

// The angles of one token in radians, as f32: under FLOAT32 those whose cos and sin are taken.
void AnglesOf(const rope_context& context, const FrequencySet& set, const PositionSource& source,
              const Token& token, float* angles) {
  if (context.angle == ROPE_ANGLE_GGML) {
    GgmlRecurrence(context, set.ggml, source, token, angles);
    return;
  }
  for (int i = 0; i < context.pairs; ++i) {
    const int axis = context.axes > 1 ? context.pair_axis[i] : 0;
    if (context.angle == ROPE_ANGLE_FLOAT32) {
      angles[i] = F32Position(source, token, axis) * set.inv_freq_f32[i];
    } else {
      const double position = source.type == PositionSource::kFloat
                                  ? FloatPosition(source, token, axis)
                                  : static_cast<double>(IntegerPosition(source, token, axis));
      angles[i] = static_cast<float>(position * set.inv_freq[i]);
    }
  }
}

}  // namespace

void MakeRows(const Plan& plan, const Kernels& kernels, int64_t batch, int64_t first, int count,
              RowBuffer* buffer) {
  const int padded = PaddedPairs(plan.context->pairs);
  buffer->cos = buffer->natural;
  buffer->sin = buffer->natural + padded;
  buffer->stride = 2 * padded;
  buffer->ordered_dtype = 0;
  buffer->per_channel = false;
  if (plan.has_rows) {
    UseCallersRows(plan, batch, first, count, buffer);
    return;
  }
  for (int i = 0; i < count; ++i) {
    float* row = buffer->natural + i * 2 * padded;
    MakeRow(*plan.context, kernels, plan.positions, LocateToken(plan.positions, batch, first + i),
            plan.operation, row, row + padded);
  }
}

OrderedRows OrderRows(const Plan& plan, const Kernels& kernels, rope_dtype dtype, RowOrder order,
                      int count, RowBuffer* buffer) {
  const rope_context& context = *plan.context;
  const bool rounds = context.rounding != ROPE_ROUNDING_FLOAT32 && dtype != ROPE_F32;
  if (!rounds && order == RowOrder::kNatural) return {buffer->cos, buffer->sin, buffer->stride};
  const int padded = PaddedPairs(context.pairs);
  const int width = order == RowOrder::kPerChannel ? 2 * padded : padded;
  const OrderedRows rows = {buffer->ordered, buffer->ordered + width, 2 * width};
  if (buffer->ordered_dtype == dtype && buffer->ordered_order == order) return rows;
  for (int i = 0; i < count; ++i) {
    const float *cos = buffer->cos + i * buffer->stride, *sin = buffer->sin + i * buffer->stride;
    float *to_cos = buffer->ordered + i * rows.stride, *to_sin = to_cos + width;
    alignas(64) float rounded[2 * kMaxPairs];
    if (rounds) {
      float* target = order == RowOrder::kNatural ? to_cos : rounded;
      std::copy(cos, cos + context.pairs, target);
      std::copy(sin, sin + context.pairs, target + padded);
      kernels.round_row(dtype, target, context.pairs);
      kernels.round_row(dtype, target + padded, context.pairs);
      cos = target;
      sin = target + padded;
    }
    if (order != RowOrder::kNatural) {
      kernels.order_row(order, context.segments.data(),
                        static_cast<int32_t>(context.segments.size()), to_cos, to_sin, cos, sin);
    }
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
  if (context.rounding != ROPE_ROUNDING_FLOAT32 && dtype != ROPE_F32) {
    float* rounded = buffer->ordered + RowBuffer::kFloats;  // free while rows are per channel
    std::copy(first, first + 2 * padded, rounded);
    std::copy(second, second + 2 * padded, rounded + 2 * padded);
    kernels.round_row(dtype, rounded, 4 * padded);
    first = rounded;
    second = rounded + 2 * padded;
  }
  return {first, first + padded, second, second + padded};
}

void FillRows(const FillPlan& plan, const Kernels& kernels) {
  const rope_context& context = *plan.context;
  const RowTable& table = plan.rows;
  const int pairs = context.pairs;
  const bool angles = IsAngles(table.format);
  alignas(64) float cos[kMaxPairs], sin[kMaxPairs];
  void* const tensors[2] = {table.data, table.sin};
  for (int64_t b = 0; b < plan.batch; ++b) {
    for (int64_t t = 0; t < plan.tokens; ++t) {
      const Token token = LocateToken(plan.positions, b, t);
      const int64_t row = b * table.stride_batch + t * table.stride_token;
      const auto store = [&](void* data, int64_t index, float value) {
        StoreElement(table.dtype, data, row + index, value);
      };
      if (angles) {
        const FrequencySet& set = SetOf(context, plan.positions, token);
        AnglesOf(context, set, plan.positions, token, cos);
        for (int i = 0; i < pairs; ++i) {
          store(table.data, i, cos[i]);
          if (table.format == ROPE_COS_SIN_ANGLES_FULL) store(table.data, pairs + i, cos[i]);
        }
        continue;
      }
      MakeRow(context, kernels, plan.positions, token, ROPE_FORWARD, cos, sin);
      if (!IsFull(table.format)) {
        for (int i = 0; i < pairs; ++i) {
          const Place c = CosPlace(table.format, i, pairs), s = SinPlace(table.format, i, pairs);
          store(tensors[c.in_sin], c.index, cos[i]);
          store(tensors[s.in_sin], s.index, sin[i]);
        }
        continue;
      }
      for (const Segment& segment : context.segments) {
        for (int i = 0; i < segment.pairs; ++i) {
          const PairIndex index =
              ChannelsOf(table.format == ROPE_COS_SIN_FULL_INTERLEAVED, i, segment.pairs);
          for (const int channel : {index.first, index.second}) {
            store(table.data, segment.first_channel + channel, cos[segment.first_pair + i]);
            store(table.sin, segment.first_channel + channel, sin[segment.first_pair + i]);
          }
        }
      }
    }
  }
}

}  // namespace rope::cpu
