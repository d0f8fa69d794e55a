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

void AngleRow(const FrequencySet& set, float position, const Row& row) {
  for (int i = 0; i < row.pairs; ++i) {
    StoreScaled(CosSinOfAngle(AngleOf(position, set.inv_freq_f32[i])), row, i);
  }
}

void AngleRowPerPair(const FrequencySet& set, const float* positions, const Row& row) {
  for (int i = 0; i < row.pairs; ++i) {
    StoreScaled(CosSinOfAngle(AngleOf(positions[i], set.inv_freq_f32[i])), row, i);
  }
}

void PhaseRow(const FrequencySet& set, int64_t position, const Row& row) {
  for (int i = 0; i < row.pairs; ++i) {
    StoreScaled(CosSinOfPosition(set.TurnsOf(i).fraction, position), row, i);
  }
}

void PhaseRowPerPair(const FrequencySet& set, const int64_t* positions, const Row& row) {
  for (int i = 0; i < row.pairs; ++i) {
    StoreScaled(CosSinOfPosition(set.TurnsOf(i).fraction, positions[i]), row, i);
  }
}

template <rope_dtype kDtype, ChannelOrder kOrder, bool kEager>
void RotateBlock(const Block& b) {
  for (int32_t t = 0; t < b.tokens; ++t) {
    const float *cos = b.cos + t * b.row_stride, *sin = b.sin + t * b.row_stride;
    for (int32_t h = 0; h < b.heads; ++h) {
      RotateHeadScalar(kDtype, kOrder, kEager, b.segments, b.segment_count,
                       b.in + HeadOffset(b.in_strides, 0, t, h),
                       b.out + HeadOffset(b.out_strides, 0, t, h), {cos, sin, cos, sin});
    }
  }
}

template <rope_dtype kDtype, ChannelOrder kOrder>
void FillOrder(Kernels::Rotation (&rotations)[kChannelOrders][2]) {
  rotations[kOrder][0] = {RowOrder::kNatural, &RotateBlock<kDtype, kOrder, false>, nullptr};
  rotations[kOrder][1] = {RowOrder::kNatural, &RotateBlock<kDtype, kOrder, true>, nullptr};
}

template <rope_dtype kDtype>
void FillRotationsOf(Kernels::Rotation (&rotations)[kChannelOrders][2]) {
  FillOrder<kDtype, kHalves>(rotations);
  FillOrder<kDtype, kInterleaved>(rotations);
  FillOrder<kDtype, kInterleavedToHalves>(rotations);
  FillOrder<kDtype, kHalvesToInterleaved>(rotations);
}

void RoundRow(rope_dtype dtype, float* values, int32_t count) {
  for (int i = 0; i < count; ++i) values[i] = RoundTo(dtype, values[i]);
}

void FillRotations(Kernels& kernels) {
  FillRotationsOf<ROPE_DTYPE_F32>(kernels.rotations[ROPE_DTYPE_F32 - 1]);
  FillRotationsOf<ROPE_DTYPE_F16>(kernels.rotations[ROPE_DTYPE_F16 - 1]);
  FillRotationsOf<ROPE_DTYPE_BF16>(kernels.rotations[ROPE_DTYPE_BF16 - 1]);
}

}  // namespace HWY_NAMESPACE
}  // namespace rope::cpu
HWY_AFTER_NAMESPACE();

#endif  // LIBROPE_SRC_CPU_SCALAR_INL_H_
