// Outputs that differ from their input: heads that wait in shared memory are written in another
// dtype or in 8 bits, each as often as its output repeats it. Scales that are computed take a pass
// through shared memory for the largest size of each group, which no order of threads changes, and
// one thread for each scale. Codes that are read and mean the same in the output stay. The
// arithmetic is that of math/code.h and math/q8_0.h.
#ifndef LIBROPE_SRC_GPU_STAGED_OUTPUT_H_
#define LIBROPE_SRC_GPU_STAGED_OUTPUT_H_

#include <cstdint>

#include "gpu/kernel.h"
#include "gpu/staged_norm.h"
#include "gpu/staged_params.h"
#include "math/code.h"
#include "math/element.h"
#include "math/q8_0.h"
#include "math/tensor.h"

namespace rope::gpu {

// The scale of a group.
template <class Memory>
ROPE_HD float ReadScale(rope_dtype dtype, const char* scales, uint32_t group) {
  if (dtype != ROPE_DTYPE_E8M0) {
    return BitsFloat(Memory::template Load<4>(scales + group * 4u).words[0]);
  }
  return FloatFromE8m0(static_cast<uint8_t>(Memory::template Load<1>(scales + group).words[0]));
}

// kCount channels of a head as numbers of a dtype, from `channel` on.
template <int kCount, class Memory>
ROPE_HD void StoreNumbers(rope_dtype dtype, const float* own, char* out, uint32_t channel) {
  if (dtype == ROPE_DTYPE_F32) {
    constexpr int kFloats = kCount < 4 ? kCount : 4;
    ROPE_UNROLL
    for (int g = 0; g < kCount; g += kFloats) {
      Vector<4 * kFloats> data;
      ROPE_UNROLL
      for (int j = 0; j < kFloats; ++j) data.words[j] = FloatBits(own[g + j]);
      Memory::template Store<4 * kFloats>(out + (channel + static_cast<uint32_t>(g)) * 4u, data);
    }
    return;
  }
  Vector<2 * kCount> data;
  ROPE_UNROLL
  for (int j = 0; j < kCount; j += 2) {  // one alone as well: in pairs they are faster
    const float next = j + 1 < kCount ? own[j + 1] : 0.0f;
    data.words[j / 2] = dtype == ROPE_DTYPE_F16 ? PackTwo<ROPE_DTYPE_F16>(own[j], next)
                                                : PackTwo<ROPE_DTYPE_BF16>(own[j], next);
  }
  Memory::template Store<2 * kCount>(out + channel * 2u, data);
}

// The outputs of a StagedKernel's heads, kCount channels at a time: of kRatio such to each vector
// that is read.
template <rope_dtype kType, int kCount, int kRatio, bool kDecodes, class Memory, class Heads>
struct OutputOfHeads {
  const StagedOutput& output;
  const Heads& heads;
  // Of each group of each head: the bits of its largest size, then those of its inverse scale.
  uint32_t* groups;

  // All that is done, in steps.
  template <class Block>
  ROPE_HD void Run(const Block& block) const {
    if constexpr (kDecodes) {
      if (output.keeps) block.Each([&](const Thread& i) { KeepCodes(i); });
    }
    if (output.groups != 0 && output.computed) {
      block.Each([&](const Thread& i) { ClearSizes(i); });
      block.Each([&](const Thread& i) { AddSizes(i); });
    }
    ROPE_LOOP
    for (uint32_t r = 0; r < output.repeats; ++r) {
      if (output.groups != 0 && (r == 0 || !output.computed)) {
        block.Each([&](const Thread& i) { FindScales(i, r); });
      }
      block.Each([&](const Thread& i) { Store(i, r); });
    }
  }

  ROPE_HD float Rounded(float value) const { return output.rounds ? RoundTo(kType, value) : value; }

  ROPE_HD void ClearSizes(const Thread& i) const {
    for (uint32_t n = NumberInBlock(i); n < heads.count() * output.groups; n += kStagedThreads) {
      groups[n] = 0;
    }
  }

  // By one thread for each group: of scales that are computed, the first time, of others each time
  // that a head is written.
  ROPE_HD void FindScales(const Thread& i, uint32_t r) const {
    for (uint32_t n = NumberInBlock(i); n < heads.count() * output.groups; n += kStagedThreads) {
      const uint32_t at = output.by_groups(n), group = n - at * output.groups;
      if (!IsCoded(at)) continue;
      float inverse;
      if (is_q8()) {
        const Q8Scale scale = Q8ScaleOf(BitsFloat(groups[n]));
        char* const out = heads.side.out + OffsetOf(heads.side.out_strides, at) + group * kQ8Bytes;
        StoreEachTime<2>(out, output.repeat_step, scale.stored);
        inverse = scale.inverse;
      } else {
        inverse = Divide(1.0f, ScaleOfGroup(at, group, r, BitsFloat(groups[n])));
      }
      groups[n] = FloatBits(inverse);
    }
  }

  // The channels of a head from `channel` on, the r-th time that it is written.
  ROPE_HD void StoreChannels(const float* values, uint32_t at, uint32_t r, uint32_t channel) const {
    float own[kCount];
    ROPE_UNROLL
    for (int j = 0; j < kCount; ++j) own[j] = Rounded(values[j]);
    char* const out =
        heads.side.out + (OffsetOf(heads.side.out_strides, at) + r * output.repeat_step);
    if (output.dtype <= kDtypes) {
      StoreNumbers<kCount, Memory>(output.dtype, own, out, channel - output.first);
    } else {
      StoreCodes(own, at, out, channel - output.first);
    }
  }

 private:
  ROPE_HD bool is_q8() const { return output.dtype == ROPE_DTYPE_Q8_0; }

  // Where a head, or its scales, are written for the first time.
  ROPE_HD int64_t OffsetOf(const HeadStrides& strides, uint32_t at) const {
    return heads.OutOffset(strides, heads.tokens[heads.TokenOf(at)], heads.NumberOfHead(at));
  }

  // Where the scales of a head stand that is read in 8 bits, if there are any in memory.
  ROPE_HD const char* ScalesRead(uint32_t at) const {
    const StagedInput& input = heads.p.inputs[heads.side.input - 1];
    const auto& t = heads.tokens[heads.TokenOf(at)];
    return input.scales +
           HeadOffset(input.scale_strides, t.read_page, t.read_slot, heads.NumberOfHead(at));
  }
  ROPE_HD bool KeepsCodesOf(uint32_t at) const {
    if constexpr (kDecodes) {
      if (!output.keeps || heads.tokens[heads.TokenOf(at)].turns != 0) return false;
      return !output.by_place ||
             ScalesRead(at) == output.scales + OffsetOf(output.scale_strides, at);
    }
    return false;
  }
  // Whether anything of a head is made anew.
  ROPE_HD bool IsCoded(uint32_t at) const { return heads.IsThere(at) && !KeepsCodesOf(at); }

  // Computed scales go with the codes that they belong to. A warp for each head.
  ROPE_HD void KeepCodes(const Thread& i) const {
    const StagedSide& side = heads.side;
    for (uint32_t at = i.y; at < heads.count(); at += kStagedWarps) {
      if (!heads.IsThere(at) || !KeepsCodesOf(at)) continue;
      const auto& t = heads.tokens[heads.TokenOf(at)];
      const char* const in =
          side.in + HeadOffset(side.in_strides, t.read_page, t.read_slot, heads.NumberOfHead(at));
      char* const out = side.out + OffsetOf(side.out_strides, at);
      if (is_q8()) {
        Copy<2>(i, in, out, output.channels / kQ8Channels * kQ8Bytes);
        continue;
      }
      Copy<kCount>(i, in, out, output.channels);
      if (output.groups == 0 || !output.computed) continue;
      char* const scales = output.scales + OffsetOf(output.scale_strides, at);
      if (output.scale_dtype == ROPE_DTYPE_E8M0) {
        Copy<1>(i, ScalesRead(at), scales, output.groups);
      } else {
        Copy<4>(i, ScalesRead(at), scales, output.groups * 4);
      }
    }
  }
  template <int kBytes>
  ROPE_HD static void Copy(const Thread& i, const char* from, char* to, uint32_t bytes) {
    if (from == to) return;
    for (uint32_t b = i.x * kBytes; b < bytes; b += kStagedLanes * kBytes) {
      Memory::template Store<kBytes>(to + b, Memory::template Load<kBytes>(from + b));
    }
  }

  // A warp for each head.
  ROPE_HD void AddSizes(const Thread& i) const {
    for (uint32_t head = i.y; head < heads.count(); head += kStagedWarps) {
      if (!IsCoded(head)) continue;
      const float* const values = heads.ValuesOf(head);
      uint32_t* const sizes = groups + head * output.groups;
      uint32_t group = 0, largest = 0;
      for (uint32_t c = i.x; c < output.channels; c += kStagedLanes) {
        const uint32_t own = output.by_group(c);
        if (own != group) {
          Memory::Max(sizes + group, largest);
          group = own;
          largest = 0;
        }
        const uint32_t place = heads.PlaceOf(output.first + c, heads.p.writes_interleaved).at;
        const uint32_t size = SizeForScale(Rounded(values[place]));
        largest = size > largest ? size : largest;
      }
      Memory::Max(sizes + group, largest);
    }
  }

  ROPE_HD float ScaleOfGroup(uint32_t at, uint32_t group, uint32_t r, float largest) const {
    const bool e8m0 = output.scale_dtype == ROPE_DTYPE_E8M0;
    char* const scale =
        output.scales + (OffsetOf(output.scale_strides, at) + group * (e8m0 ? 1u : 4u));
    if (!output.computed) {
      return ReadScale<Memory>(output.scale_dtype, scale + r * output.scale_repeat_step, 0);
    }
    const float value = ScaleOf(CodeOf(output.dtype), largest, output.least, output.power_of_two);
    if (e8m0) {
      StoreEachTime<1>(scale, output.scale_repeat_step, E8m0FromPowerOfTwo(value));
    } else {
      StoreEachTime<4>(scale, output.scale_repeat_step, FloatBits(value));
    }
    return value;
  }

  template <int kBytes>
  ROPE_HD void StoreEachTime(char* to, int64_t step, uint32_t bits) const {
    ROPE_LOOP
    for (uint32_t r = 0; r < output.repeats; ++r, to += step) {
      Memory::template Store<kBytes>(to, Vector<kBytes>{{bits}});
    }
  }

  ROPE_HD void Store(const Thread& i, uint32_t r) const {
    const StagedSide& side = heads.side;
    const uint32_t parts = side.vectors * kRatio;  // of a head
    ROPE_LOOP
    for (uint32_t n = NumberInBlock(i); n < heads.count() * parts; n += kStagedThreads) {
      const uint32_t at = side.by_vectors(n / kRatio), channel = (n - at * parts) * kCount;
      if (!IsCoded(at)) continue;
      const auto place = heads.PlaceOf(channel, heads.p.writes_interleaved);
      const bool stays = !place.is_in_span && channel >= side.copy_begin && channel < side.copy_end;
      if (!place.turns && !stays) continue;
      float own[kCount];
      heads.template Get<kCount>(heads.ValuesOf(at), place, own);
      StoreChannels(own, at, r, channel);
    }
  }

  ROPE_HD void StoreCodes(const float* own, uint32_t at, char* out, uint32_t channel) const {
    const uint32_t group = output.groups != 0 ? output.by_group(channel) : 0;
    const float inverse =
        output.groups != 0 ? BitsFloat(groups[at * output.groups + group]) : output.inverse;
    Vector<kCount> codes = {};
    ROPE_UNROLL
    for (int j = 0; j < kCount; ++j) {
      const float value = Multiply(own[j], inverse);
      const uint32_t code = is_q8() ? static_cast<uint8_t>(Q8FromFloat(value))
                                    : CodeFromFloat(CodeOf(output.dtype), value);
      codes.words[j / 4] |= code << (8 * (j % 4));
    }
    char* to = out + channel;
    if (is_q8()) {  // behind the scales of its blocks, and so at even addresses alone
      to += (group + 1) * (kQ8Bytes - kQ8Channels);
      if constexpr (kCount >= 4) {
        ROPE_UNROLL
        for (int j = 0; j < kCount; j += 2) {
          const uint32_t two = codes.words[j / 4] >> (8 * (j % 4)) & 0xffffu;
          Memory::template Store<2>(to + j, Vector<2>{{two}});
        }
        return;
      }
    }
    Memory::template Store<kCount>(to, codes);
  }
};

}  // namespace rope::gpu

#endif  // LIBROPE_SRC_GPU_STAGED_OUTPUT_H_
