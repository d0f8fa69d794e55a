// Rows of cos and sin in the caller's memory, one pair at a time: where a row has the values of a
// pair, and how they are read and written. Host and device.
#ifndef LIBROPE_SRC_MATH_COS_SIN_TABLE_H_
#define LIBROPE_SRC_MATH_COS_SIN_TABLE_H_

#include <cstdint>

#include "librope/rope.h"
#include "math/cos_sin_format.h"
#include "math/element.h"
#include "math/host_device.h"
#include "math/pairing.h"
#include "math/sincos.h"

namespace rope {

// The caller's rows, to read or to write. Strides in elements.
struct CosSinTable {
  CosSinFormat format;
  rope_dtype dtype;
  int64_t stride_batch, stride_token, stride_head;
  void* data;
  void* sin;  // of formats with two tensors

  ROPE_HD void* TensorOf(Place place) const { return place.tensor != 0 ? sin : data; }
  // The rows of a head alone, as those of one that all share.
  CosSinTable FromHead(int64_t head) const {
    CosSinTable rows = *this;
    const int64_t bytes = head * stride_head * ElementSize(dtype);
    rows.data = static_cast<char*>(data) + bytes;
    if (sin != nullptr) rows.sin = static_cast<char*>(sin) + bytes;
    return rows;
  }
  // The first element of a token's row, of its first head, in each tensor.
  ROPE_HD int64_t RowOf(int64_t batch, int64_t token) const {
    return batch * stride_batch + token * stride_token;
  }
};

// --- Formats with values for pairs ---------------------------------------------------------------

// One row: the values of pair i are `step` * i elements behind the first ones.
struct RowOfPairs {
  rope_dtype dtype;
  int32_t step;
  void *cos_tensor, *sin_tensor;
  int64_t cos, sin;

  ROPE_HD CosSin Read(int32_t pair, bool backward) const {
    const float c = LoadElement(dtype, cos_tensor, cos + step * pair);
    const float s = LoadElement(dtype, sin_tensor, sin + step * pair);
    return {c, backward ? -s : s};
  }
  ROPE_HD void Store(int32_t pair, CosSin value) const {
    StoreElement(dtype, cos_tensor, cos + step * pair, value.cos);
    StoreElement(dtype, sin_tensor, sin + step * pair, value.sin);
  }
};

// The row that begins at element `row`, of `pairs`.
ROPE_HD RowOfPairs RowOfPairsAt(const CosSinTable& table, int64_t row, int32_t pairs) {
  const Place c = table.format.cos, s = table.format.sin;
  return {table.dtype,
          c.step,
          table.TensorOf(c),
          table.TensorOf(s),
          row + c.IndexOf(0, pairs),
          row + s.IndexOf(0, pairs)};
}

// Formats that hold angles.
ROPE_HD void StoreAngle(const CosSinTable& table, int64_t row, int32_t pair, int32_t pairs,
                        float angle) {
  const CosSinFormat& format = table.format;
  StoreElement(table.dtype, table.data, row + format.cos.IndexOf(pair, pairs), angle);
  if (format.values_per_pair == 2) {
    StoreElement(table.dtype, table.data, row + format.sin.IndexOf(pair, pairs), angle);
  }
}

// cos and sin for both members of a pair.
struct PairRow {
  CosSin first, second;
};

// The channels of pair `i` of a segment, in a row.
ROPE_HD PairIndex RowChannelsOf(bool interleaved, const Segment& segment, int i) {
  const PairIndex channels = ChannelsOf(interleaved, i, segment.pairs);
  return {segment.first_channel + channels.first, segment.first_channel + channels.second};
}

// From the elements of a pair's two channels. The gradient is the transpose: the sines change
// places and signs.
ROPE_HD PairRow ReadChannels(const CosSinTable& table, int64_t first, int64_t second,
                             bool backward) {
  const float c0 = LoadElement(table.dtype, table.data, first);
  const float s0 = LoadElement(table.dtype, table.sin, first);
  const float c1 = LoadElement(table.dtype, table.data, second);
  const float s1 = LoadElement(table.dtype, table.sin, second);
  return {{c0, backward ? -s1 : s0}, {c1, backward ? -s0 : s1}};
}

ROPE_HD void StoreChannels(const CosSinTable& table, int64_t first, int64_t second, CosSin value) {
  for (const int64_t channel : {first, second}) {
    StoreElement(table.dtype, table.data, channel, value.cos);
    StoreElement(table.dtype, table.sin, channel, value.sin);
  }
}

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_COS_SIN_TABLE_H_
