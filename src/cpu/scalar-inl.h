// The kernels of HWY_SCALAR, which has one lane and no fused multiply-add: the scalar reference
// itself. Included by the pass of kernels.cc for this target, and no other.
#ifndef LIBROPE_SRC_CPU_SCALAR_INL_H_
#define LIBROPE_SRC_CPU_SCALAR_INL_H_

#include <algorithm>
#include <cstring>

#include "math/q8_0.h"

HWY_BEFORE_NAMESPACE();
namespace rope::cpu {
namespace HWY_NAMESPACE {

inline void StoreScaled(CosSin value, const Row& row, int i) {
  row.cos[i] = value.cos * row.cos_scale;
  row.sin[i] = value.sin * row.sin_scale;
}

template <AngleRule kRule>
void AngleRows(const FrequencySet& set, const float* positions, int count, const Row& first) {
  for (int t = 0; t < count; ++t) {
    const Row row = first.Behind(t);
    for (int i = 0; i < row.pairs; ++i) {
      StoreScaled(CosSinOfAngle(F32AngleOf<kRule>(positions[t], set, i)), row, i);
    }
  }
}

template <AngleRule kRule>
void AngleRowPerPair(const FrequencySet& set, const float* positions, const Row& row) {
  for (int i = 0; i < row.pairs; ++i) {
    StoreScaled(CosSinOfAngle(F32AngleOf<kRule>(positions[i], set, i)), row, i);
  }
}

void PhaseRows(const FrequencySet& set, const int64_t* positions, int count, const Row& first) {
  for (int t = 0; t < count; ++t) {
    const Row row = first.Behind(t);
    for (int i = 0; i < row.pairs; ++i) {
      StoreScaled(CosSinOfPosition(set.TurnsFraction(i), positions[t]), row, i);
    }
  }
}

void PhaseRowPerPair(const FrequencySet& set, const int64_t* positions, const Row& row) {
  for (int i = 0; i < row.pairs; ++i) {
    StoreScaled(CosSinOfPosition(set.TurnsFraction(i), positions[i]), row, i);
  }
}

template <rope_dtype kDtype, ChannelOrder kOrder, Arithmetic kArithmetic>
void RotateBlock(const Block& b) {
  const Tensor& tensor = *b.tensor;
  for (int32_t t = 0; t < b.tokens; ++t) {
    const float *cos = b.cos + t * b.row_stride, *sin = b.sin + t * b.row_stride;
    for (int32_t h = 0; h < tensor.heads; ++h) {
      RotateHead(kDtype, kOrder, kArithmetic, b.segments, b.segment_count,
                 b.in + HeadOffset(tensor.in_strides, 0, t, h),
                 b.out + HeadOffset(tensor.out_strides, 0, t, h), {cos, sin, cos, sin}, nullptr);
    }
  }
}

// Heads that are normed first.
template <rope_dtype kDtype, ChannelOrder kOrder>
void RotateNormed(const Block& b) {
  const Tensor& tensor = *b.tensor;
  const auto unrounded = [](float value) { return value; };
  for (int32_t t = 0; t < b.tokens; ++t) {
    const float *cos = b.cos + t * b.row_stride, *sin = b.sin + t * b.row_stride;
    for (int32_t h = 0; h < tensor.heads; ++h) {
      const char* in = b.in + HeadOffset(tensor.in_strides, 0, t, h);
      char* out = b.out + HeadOffset(tensor.out_strides, 0, t, h);
      const float root = b.roots[t * b.root_stride + h];
      const float *const weight0 = b.weight0 + h * b.weight_step, *const weight1 =
                                                                      b.weight1 + h * b.weight_step;
      for (int32_t s = 0; s < b.segment_count; ++s) {
        const Segment& segment = b.segments[s];
        Pair turned[kMaxPairs];  // first: orders that move channels would overwrite others
        for (int i = 0; i < segment.pairs; ++i) {
          const int p = segment.first_pair + i;
          const PairIndex c = ChannelsOf(ReadsInterleaved(kOrder), i, segment.pairs);
          const auto normed = [&](int channel, float weight) {
            const float x = LoadElement(kDtype, in, segment.first_channel + channel);
            return NormedChannel(x, 0, root, weight, kNoBias, unrounded);
          };
          turned[i] = Rotate({normed(c.first, weight0[p]), normed(c.second, weight1[p])},
                             {cos[p], sin[p]}, {cos[p], sin[p]});
        }
        for (int i = 0; i < segment.pairs; ++i) {
          const PairIndex c = ChannelsOf(WritesInterleaved(kOrder), i, segment.pairs);
          StoreElement(kDtype, out, segment.first_channel + c.first, turned[i].x0);
          StoreElement(kDtype, out, segment.first_channel + c.second, turned[i].x1);
        }
      }
    }
  }
}

// The channels of a head, without a copy: the stack has no room for one where heads wait in stages.
template <rope_dtype kDtype>
struct Channels {
  const char* head;
  float operator[](int c) const { return LoadElement(kDtype, head, c); }
};

template <rope_dtype kDtype, NormSum kSum>
void SumHeads(const SummedHeads& heads) {
  for (int h = 0; h < heads.count; ++h) {
    const Channels<kDtype> x = {heads.in + h * heads.step};
    const float mean = kSum == NormSum::kDistances ? heads.means[h] : 0.0f;
    heads.sums[h] =
        kSum == NormSum::kValues ? SumOf(x, heads.channels) : SumOfSquares(x, heads.channels, mean);
  }
}

template <rope_dtype kDtype>
void NormHeads(const NormedHeads& heads) {
  const auto round = [&](float value) { return heads.eager ? RoundTo(kDtype, value) : value; };
  for (int h = 0; h < heads.count; ++h) {
    const char* in = heads.in + h * heads.in_step;
    char* out = heads.out + h * heads.out_step;
    const float mean = heads.means != nullptr ? heads.means[h] : 0.0f;
    const float *const weights = heads.WeightsOf(h), *const biases = heads.BiasesOf(h);
    for (int c = 0; c < heads.channels; ++c) {
      const float bias = biases != nullptr ? biases[c] : kNoBias;
      StoreElement(
          kDtype, out, c,
          NormedChannel(LoadElement(kDtype, in, c), mean, heads.roots[h], weights[c], bias, round));
    }
  }
}

template <rope_dtype kDtype>
ChannelGradient GradientOf(const NormedGradients& heads, int h, int c) {
  const float x = LoadElement(kDtype, heads.x + h * heads.x_step, c),
              mean = heads.means != nullptr ? heads.means[h] : 0.0f,
              weighted = heads.normed[h * heads.normed_step + c] * heads.weights[c];
  return {(x - mean) * heads.roots[h], heads.eager ? RoundTo(kDtype, weighted) : weighted, 0, 0};
}

template <rope_dtype kDtype>
void GradientSums(const NormedGradients& heads) {
  for (int h = 0; h < heads.count; ++h) {
    heads.products[h] = SumInOrder(heads.channels, [&](float sum, int c) {
      const ChannelGradient g = GradientOf<kDtype>(heads, h, c);
      return Fma(g.weighted, g.scaled, sum);
    });
    if (heads.means == nullptr) continue;
    heads.weighted[h] = SumInOrder(heads.channels, [&](float sum, int c) {
      return sum + GradientOf<kDtype>(heads, h, c).weighted;
    });
  }
}

template <rope_dtype kDtype>
void PassGradients(const NormedGradients& heads) {
  for (int h = 0; h < heads.count; ++h) {
    for (int c = 0; c < heads.channels; ++c) {
      ChannelGradient g = GradientOf<kDtype>(heads, h, c);
      const float normed = heads.normed[h * heads.normed_step + c];
      if (heads.weight != nullptr) {
        const float scaled = heads.eager ? RoundTo(kDtype, g.scaled) : g.scaled;
        heads.weight[c] = Fma(normed, scaled, heads.weight[c]);
      }
      if (heads.bias != nullptr) heads.bias[c] += normed;
      if (heads.means != nullptr) g.mean_weighted = heads.weighted[h];
      g.mean_product = heads.products[h];
      StoreElement(kDtype, heads.out + h * heads.out_step, c, GradientOfChannel(g, heads.roots[h]));
    }
  }
}

template <rope_dtype kDtype>
void AddHeads(const void* heads, int64_t step, int count, int channels, float* sum) {
  for (int h = 0; h < count; ++h) {
    const char* const head = static_cast<const char*>(heads) + h * step;
    for (int c = 0; c < channels; ++c) {
      const float x = LoadElement(kDtype, head, c);
      sum[c] = h == 0 ? x : sum[c] + x;
    }
  }
}

template <rope_dtype kDtype>
void WidenWeights(const void* weights, int count, bool one_plus, float* to) {
  for (int c = 0; c < count; ++c) {
    const float w = LoadElement(kDtype, weights, c);
    to[c] = one_plus ? w + 1.0f : w;
  }
}

void InverseRoots(float* sums, int count, float channels, float eps) {
  for (int i = 0; i < count; ++i) sums[i] = InverseRoot(sums[i], channels, eps);
}

template <rope_dtype kDtype>
void RoundRow(float* values, int32_t count) {
  for (int i = 0; i < count; ++i) values[i] = RoundTo(kDtype, values[i]);
}

template <rope_dtype kDtype>
void Widen(const void* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = LoadElement(kDtype, from, i);
}

template <rope_dtype kDtype>
void Narrow(const float* from, void* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) StoreElement(kDtype, to, i, from[i]);
}

template <int kCode>
void Decode(const uint8_t* from, float* to, int64_t count, float scale) {
  for (int64_t i = 0; i < count; ++i) to[i] = FloatFromCode(Code{kCode}, from[i]) * scale;
}

template <rope_dtype kDtype, int kCode>
void Encode(const void* from, uint8_t* to, int64_t count, float inverse) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = CodeFromFloat(Code{kCode}, LoadElement(kDtype, from, i) * inverse);
  }
}

template <rope_dtype kDtype>
uint32_t LargestSize(const void* from, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, SizeForScale(LoadElement(kDtype, from, i)));
  }
  return largest;
}

template <rope_dtype kDtype, int kCode>
void EncodeGroups(const GroupedHeads& heads) {
  const GroupScales& scales = heads.scales;
  const int64_t group_bytes = BytesOf(kDtype, scales.group);
  for (int32_t t = 0; t < heads.tokens; ++t) {
    for (int32_t h = 0; h < heads.heads; ++h) {
      const char* from = heads.from + HeadOffset(heads.from_strides, 0, t, h);
      char* to = heads.to + HeadOffset(heads.to_strides, 0, t, h);
      char* const of_head = heads.first_scales + HeadOffset(scales.strides, 0, t, h);
      for (int32_t g = 0; g < scales.groups; ++g, from += group_bytes, to += scales.group) {
        if (scales.computed) {
          const float largest = BitsFloat(LargestSize<kDtype>(from, scales.group));
          StoreScale(scales.dtype, of_head, g,
                     ScaleOf(Code{kCode}, largest, scales.least, scales.power_of_two));
        }
        Encode<kDtype, kCode>(from, reinterpret_cast<uint8_t*>(to), scales.group,
                              1.0f / LoadScale(scales.dtype, of_head, g));
      }
    }
  }
}

inline void DecodeQ8(const void* from, float* to, int64_t blocks) {
  const auto* block = static_cast<const char*>(from);
  for (int64_t i = 0; i < blocks; ++i, block += kQ8Bytes, to += kQ8Channels) {
    const float scale = LoadElement(ROPE_DTYPE_F16, block, 0);
    for (int c = 0; c < kQ8Channels; ++c) {
      to[c] = static_cast<float>(static_cast<int8_t>(block[2 + c])) * scale;
    }
  }
}

template <rope_dtype kDtype>
void EncodeQ8(const void* from, void* to, int64_t blocks) {
  const auto* channels = static_cast<const char*>(from);
  auto* block = static_cast<char*>(to);
  for (int64_t i = 0; i < blocks; ++i, block += kQ8Bytes) {
    const Q8Scale scale = Q8ScaleOf(BitsFloat(LargestSize<kDtype>(channels, kQ8Channels)));
    std::memcpy(block, &scale.stored, 2);
    for (int c = 0; c < kQ8Channels; ++c) {
      const float value = LoadElement(kDtype, channels, c) * scale.inverse;
      block[2 + c] = static_cast<char>(Q8FromFloat(value));
    }
    channels += BytesOf(kDtype, kQ8Channels);
  }
}

template <int kDtype, Arithmetic kArithmetic, int... kOrders>
void FillOrders(Kernels& kernels, std::integer_sequence<int, kOrders...>) {
  if constexpr (IsFor(kArithmetic, kDtype)) {
    auto& rotations = kernels.rotations[kDtype - 1];
    ((rotations[kOrders][static_cast<int>(kArithmetic)].rotate =
          &RotateBlock<kDtype, ChannelOrder{kOrders}, kArithmetic>),
     ...);
  }
}

template <int kDtype, int... kNumbers>
void FillArithmetics(Kernels& kernels, std::integer_sequence<int, kNumbers...>) {
  constexpr auto kOrders = std::make_integer_sequence<int, kChannelOrders>();
  (FillOrders<kDtype, Arithmetic{kNumbers}>(kernels, kOrders), ...);
}

template <int... kIndices>
void FillRoundings(Kernels& kernels, std::integer_sequence<int, kIndices...>) {
  ((kernels.round_row[kIndices] = &RoundRow<kIndices + 1>), ...);
}

template <int... kIndices>
void FillStages(Kernels& kernels, std::integer_sequence<int, kIndices...>) {
  ((kernels.widen[kIndices] = &Widen<kIndices + 1>), ...);
  ((kernels.narrow[kIndices] = &Narrow<kIndices + 1>), ...);
}

template <int... kIndices>
void FillRotations(Kernels& kernels, std::integer_sequence<int, kIndices...>) {
  (FillArithmetics<kIndices + 1>(kernels, std::make_integer_sequence<int, kArithmetics>()), ...);
}

template <int kDtype>
void FillNorms(Kernels& kernels) {
  kernels.norm_sums[kDtype - 1][static_cast<int>(NormSum::kValues)] =
      &SumHeads<kDtype, NormSum::kValues>;
  kernels.norm_sums[kDtype - 1][static_cast<int>(NormSum::kSquares)] =
      &SumHeads<kDtype, NormSum::kSquares>;
  kernels.norm_sums[kDtype - 1][static_cast<int>(NormSum::kDistances)] =
      &SumHeads<kDtype, NormSum::kDistances>;
  kernels.norm_heads[kDtype - 1] = &NormHeads<kDtype>;
  kernels.widen_weights[kDtype - 1] = &WidenWeights<kDtype>;
  auto& rotations = kernels.normed_rotations[kDtype - 1][ROPE_NORM_ROUNDING_FLOAT32];
  rotations[kHalves].rotate = &RotateNormed<kDtype, kHalves>;
  rotations[kInterleaved].rotate = &RotateNormed<kDtype, kInterleaved>;
  rotations[kInterleavedToHalves].rotate = &RotateNormed<kDtype, kInterleavedToHalves>;
}

template <int... kIndices>
void FillNorms(Kernels& kernels, std::integer_sequence<int, kIndices...>) {
  (FillNorms<kIndices + 1>(kernels), ...);
  kernels.inverse_roots = &InverseRoots;
}

void FillNorms(Kernels& kernels) { FillNorms(kernels, std::make_integer_sequence<int, kDtypes>()); }

template <int... kIndices>
void FillGradients(Kernels& kernels, std::integer_sequence<int, kIndices...>) {
  ((kernels.gradient_sums[kIndices] = &GradientSums<kIndices + 1>), ...);
  ((kernels.norm_gradients[kIndices] = &PassGradients<kIndices + 1>), ...);
  ((kernels.add_heads[kIndices] = &AddHeads<kIndices + 1>), ...);
}

void FillGradients(Kernels& kernels) {
  FillGradients(kernels, std::make_integer_sequence<int, kDtypes>());
}

// Of every dtype.
void FillRoundings(Kernels& kernels) {
  FillRoundings(kernels, std::make_integer_sequence<int, kDtypes>());
}

template <int... kCode>
void FillDecoders(Kernels& kernels, std::integer_sequence<int, kCode...>) {
  ((kernels.decode[kCode] = &Decode<kCode>), ...);
}

template <rope_dtype kDtype, int... kCode>
void FillCoders(Kernels& kernels, std::integer_sequence<int, kCode...>) {
  for (int streams = 0; streams < 2; ++streams) {
    ((kernels.encode[kDtype - 1][kCode][streams] = &Encode<kDtype, kCode>), ...);
    ((kernels.encode_groups[kDtype - 1][kCode][streams] = &EncodeGroups<kDtype, kCode>), ...);
  }
  kernels.encode_q8[kDtype - 1] = &EncodeQ8<kDtype>;
}

void FillStages(Kernels& kernels) {
  constexpr auto kAllCodes = std::make_integer_sequence<int, kCodes>();
  FillStages(kernels, std::make_integer_sequence<int, kDtypes>());
  FillDecoders(kernels, kAllCodes);
  FillCoders<ROPE_DTYPE_F32>(kernels, kAllCodes);
  FillCoders<ROPE_DTYPE_F16>(kernels, kAllCodes);
  FillCoders<ROPE_DTYPE_BF16>(kernels, kAllCodes);
  kernels.decode_q8 = &DecodeQ8;
}

// Of every dtype, channel order and arithmetic. They take natural rows, which is what zero says.
void FillRotations(Kernels& kernels) {
  FillRotations(kernels, std::make_integer_sequence<int, kDtypes>());
}

}  // namespace HWY_NAMESPACE
}  // namespace rope::cpu
HWY_AFTER_NAMESPACE();

#endif  // LIBROPE_SRC_CPU_SCALAR_INL_H_
