// The kernels of HWY_SCALAR, which has one lane and no fused multiply-add: the scalar reference
// itself. Included by the pass of kernels.cc for this target, and no other.
#ifndef LIBROPE_SRC_CPU_SCALAR_INL_H_
#define LIBROPE_SRC_CPU_SCALAR_INL_H_

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

template <rope_dtype kDtype, NormSum kSum>
void SumHeads(const char* in, int64_t step, int heads, int channels, const float* means,
              float* sums) {
  float x[kMaxHeadDim];
  for (int h = 0; h < heads; ++h, in += step) {
    for (int c = 0; c < channels; ++c) x[c] = LoadElement(kDtype, in, c);
    sums[h] = kSum == NormSum::kValues
                  ? SumOf(x, channels)
                  : SumOfSquares(x, channels, kSum == NormSum::kDistances ? means[h] : 0.0f);
  }
}

void InverseRoots(float* sums, int count, float channels, float eps) {
  for (int i = 0; i < count; ++i) sums[i] = InverseRoot(sums[i], channels, eps);
}

template <rope_dtype kDtype>
void RoundRow(float* values, int32_t count) {
  for (int i = 0; i < count; ++i) values[i] = RoundTo(kDtype, values[i]);
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
void FillRotations(Kernels& kernels, std::integer_sequence<int, kIndices...>) {
  (FillArithmetics<kIndices + 1>(kernels, std::make_integer_sequence<int, kArithmetics>()), ...);
}

template <int... kIndices>
void FillNorms(Kernels& kernels, std::integer_sequence<int, kIndices...>) {
  ((kernels.norm_sums[kIndices / kNormSums][kIndices % kNormSums] =
        &SumHeads<kIndices / kNormSums + 1, NormSum{kIndices % kNormSums}>),
   ...);
}

void FillNorms(Kernels& kernels) {
  FillNorms(kernels, std::make_integer_sequence<int, kDtypes * kNormSums>());
  kernels.inverse_roots = &InverseRoots;
}

// Of every dtype.
void FillRoundings(Kernels& kernels) {
  FillRoundings(kernels, std::make_integer_sequence<int, kDtypes>());
}

// Of every dtype, channel order and arithmetic. They take natural rows, which is what zero says.
void FillRotations(Kernels& kernels) {
  FillRotations(kernels, std::make_integer_sequence<int, kDtypes>());
}

}  // namespace HWY_NAMESPACE
}  // namespace rope::cpu
HWY_AFTER_NAMESPACE();

#endif  // LIBROPE_SRC_CPU_SCALAR_INL_H_
