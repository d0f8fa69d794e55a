#include "cpu/staged.h"

#include <algorithm>
#include <cstring>

#include "math/element.h"

namespace rope::cpu {
namespace {

// Calls run(offset, channel, count) for runs of adjacent channels in memory, `count` of each head
// from channel `first` on, as long as they are: bytes behind the first head of the part, and which
// channel of the part that is.
template <class Run>
void ForEachChannelRun(const StagedHeads& staged, const StagedPart& part, int32_t first,
                       int32_t count, const HeadStrides& strides, rope_dtype dtype,
                       const Run& run) {
  const int64_t width = staged.width, token = part.heads * width;
  const bool heads_adjacent =
      count == width && (part.heads == 1 || strides.head == BytesOf(dtype, width));
  if (heads_adjacent && (part.tokens == 1 || strides.token == BytesOf(dtype, token))) {
    run(int64_t{0}, int64_t{0}, token * part.tokens);
    return;
  }
  for (int32_t t = 0; t < part.tokens; ++t) {
    const int64_t offset = t * strides.token, channel = t * token;
    if (heads_adjacent) {
      run(offset, channel, token);
      continue;
    }
    for (int32_t h = 0; h < part.heads; ++h) {
      run(offset + h * strides.head, channel + h * width + first, int64_t{count});
    }
  }
}

void NormPart(const StagedHeads& staged, const StagedPart& part, rope_dtype dtype, char* heads) {
  Tensor tensor = {};
  tensor.in_strides = staged.in_strides;
  tensor.heads = staged.heads;
  tensor.dtype = staged.dtype;
  NormInPlace({staged.kernels, staged.context, *staged.norm, tensor},
              staged.in + part.token * staged.in_strides.token, staged.token + part.token,
              part.tokens, part.head, part.heads, dtype, heads);
}

// Groups of channels as codes, each by its scale. Some wait until the scales of the next ones are
// known: a group is coded in less time than a scale takes, and the CPU does several at once.
class GroupCoder {
 public:
  GroupCoder(const Kernels& kernels, const GroupScales& scales, Code code)
      : kernels_(kernels), scales_(scales), code_(code) {}
  ~GroupCoder() { Flush(); }

  void Add(const float* head, char* out, char* scales_of_head) {
    for (int32_t g = 0; g < scales_.groups; ++g) {
      if (count_ == kMost) Flush();
      const int64_t first = int64_t{g} * scales_.group;
      groups_[count_++] = {head + first, reinterpret_cast<uint8_t*>(out) + first,
                           1.0f / ScaleOfGroup(head + first, scales_of_head, g)};
    }
  }

 private:
  static constexpr int kMost = 16;
  struct Group {
    const float* from;
    uint8_t* to;
    float inverse;
  };

  float ScaleOfGroup(const float* from, char* scales_of_head, int32_t g) const {
    if (!scales_.computed) return LoadScale(scales_.dtype, scales_of_head, g);
    const float largest = BitsFloat(kernels_.largest_size(from, scales_.group));
    const float scale = ScaleOf(code_, largest, scales_.least, scales_.power_of_two);
    StoreScale(scales_.dtype, scales_of_head, g, scale);
    return scale;
  }
  void Flush() {
    const auto encode = kernels_.encode[static_cast<int>(code_)];
    for (int i = 0; i < count_; ++i) {
      encode(groups_[i].from, groups_[i].to, scales_.group, groups_[i].inverse);
    }
    count_ = 0;
  }

  const Kernels& kernels_;
  const GroupScales& scales_;
  const Code code_;
  Group groups_[kMost];
  int count_ = 0;
};

// The heads of a part to their place in an output.
void StoreOnce(const StagedHeads& staged, const StagedPart& part, char* out, char* first_scales) {
  const Output& output = staged.output;
  const Kernels& kernels = staged.kernels;
  const HeadStrides& strides = staged.out_strides;
  const int size = ElementSize(output.dtype);
  const auto for_each_run = [&](const auto& run) {
    ForEachChannelRun(staged, part, staged.first, staged.stored, strides, output.dtype, run);
  };
  if (output.dtype == staged.stage.turned) {
    for_each_run([&](int64_t offset, int64_t channel, int64_t count) {
      std::memcpy(out + offset, part.turned + channel * size, static_cast<size_t>(count * size));
    });
    return;
  }
  if (output.dtype == ROPE_DTYPE_Q8_0) {
    for_each_run([&](int64_t offset, int64_t channel, int64_t count) {
      kernels.encode_q8(part.wide + channel, out + offset, count / kQ8Channels);
    });
    return;
  }
  if (!IsCode(output.dtype)) {
    for_each_run([&](int64_t offset, int64_t channel, int64_t count) {
      kernels.narrow[output.dtype - 1](part.wide + channel, out + offset, count);
    });
    return;
  }
  const GroupScales& scales = output.scales;
  const Code code = CodeOf(output.dtype);
  if (!output.HasScaleArray()) {
    for_each_run([&](int64_t offset, int64_t channel, int64_t count) {
      kernels.encode[static_cast<int>(code)](part.wide + channel,
                                             reinterpret_cast<uint8_t*>(out) + offset, count,
                                             1.0f / scales.value);
    });
    return;
  }
  GroupCoder coder(kernels, scales, code);
  for (int32_t t = 0; t < part.tokens; ++t) {
    for (int32_t h = 0; h < part.heads; ++h) {
      const int64_t channel = (int64_t{t} * part.heads + h) * staged.width + staged.first;
      coder.Add(part.wide + channel, out + HeadOffset(strides, 0, t, h),
                first_scales + HeadOffset(scales.strides, 0, t, h));
    }
  }
}

// Heads in 8 bits to f32.
void DecodePart(const StagedHeads& staged, const StagedPart& part, const char* in, float* to) {
  const CodedHeads& coded = staged.coded;
  const rope_dtype dtype = coded.of->dtype;
  const auto for_each_run = [&](const auto& run) {
    ForEachChannelRun(staged, part, 0, staged.width, staged.in_strides, dtype, run);
  };
  if (dtype == ROPE_DTYPE_Q8_0) {
    for_each_run([&](int64_t offset, int64_t channel, int64_t count) {
      staged.kernels.decode_q8(in + offset, to + channel, count / kQ8Channels);
    });
    return;
  }
  const GroupScales& scales = coded.of->scales;
  const auto decode = staged.kernels.decode[static_cast<int>(CodeOf(dtype))];
  const auto codes_at = [&](int64_t offset) {
    return reinterpret_cast<const uint8_t*>(in + offset);
  };
  if (scales.groups == 0) {
    for_each_run([&](int64_t offset, int64_t channel, int64_t count) {
      decode(codes_at(offset), to + channel, count, scales.value);
    });
    return;
  }
  for (int32_t t = 0; t < part.tokens; ++t) {
    for (int32_t h = 0; h < part.heads; ++h, to += staged.width) {
      const char* const of_head =
          coded.first_scales + HeadOffset(scales.strides, 0, part.token + t, part.head + h);
      const int64_t offset = HeadOffset(staged.in_strides, 0, t, h);
      for (int32_t c = 0; c < staged.width;) {  // groups of the head, of which this may be a part
        const int32_t group = (coded.first + c) / scales.group;
        const int32_t end = std::min(staged.width, (group + 1) * scales.group - coded.first);
        decode(codes_at(offset + c), to + c, end - c, LoadScale(scales.dtype, of_head, group));
        c = end;
      }
    }
  }
}

}  // namespace

bool KeepsCodes(const StagedHeads& staged) {
  const CodedHeads& coded = staged.coded;
  if (coded.of == nullptr) return false;
  const KeptCodes kept = KeptCodesOf(*coded.of, staged.output, staged.stored);
  return kept == KeptCodes::kAlways ||
         (kept == KeptCodes::kOverTheirScales && coded.first_scales == staged.first_scales);
}

void CopyScales(const StagedHeads& staged, int32_t tokens) {
  const GroupScales &from = staged.coded.of->scales, &to = staged.output.scales;
  if (!staged.output.HasScaleArray() || !to.computed ||
      staged.coded.first_scales == staged.first_scales)
    return;
  const auto bytes = static_cast<size_t>(to.groups * ElementSize(to.dtype));
  for (int32_t t = 0; t < tokens; ++t) {
    for (int32_t h = 0; h < staged.heads; ++h) {
      std::memcpy(staged.first_scales + HeadOffset(to.strides, 0, t, h),
                  staged.coded.first_scales + HeadOffset(from.strides, 0, t, h), bytes);
    }
  }
}

void CopyCodes(const StagedHeads& staged, int32_t tokens) {
  CopyScales(staged, tokens);
  if (staged.in == staged.out) return;
  const auto bytes = static_cast<size_t>(BytesOf(staged.output.dtype, staged.stored));
  for (int32_t t = 0; t < tokens; ++t) {
    for (int32_t h = 0; h < staged.heads; ++h) {
      std::memcpy(staged.out + HeadOffset(staged.out_strides, 0, t, h),
                  staged.in + HeadOffset(staged.in_strides, 0, t, h), bytes);
    }
  }
}

void LoadPart(const StagedHeads& staged, const StagedPart& part) {
  const char* const in = staged.in + HeadOffset(staged.in_strides, 0, part.token, part.head);
  if (staged.coded.of != nullptr) {
    DecodePart(staged, part, in, part.wide);
    return;
  }
  const Stage& stage = staged.stage;
  const int size = ElementSize(staged.dtype), loaded = ElementSize(stage.loaded);
  ForEachChannelRun(staged, part, 0, staged.width, staged.in_strides, staged.dtype,
                    [&](int64_t offset, int64_t channel, int64_t count) {
                      char* const to = part.loaded + channel * loaded;
                      if (stage.loaded == staged.dtype) {
                        std::memcpy(to, in + offset, static_cast<size_t>(count * size));
                      } else {
                        staged.kernels.widen[staged.dtype - 1](in + offset,
                                                               reinterpret_cast<float*>(to), count);
                      }
                    });
  if (staged.norm != nullptr && !staged.norm->after) {
    NormPart(staged, part, stage.loaded, part.loaded);
  }
  if (stage.loaded != stage.turned) {
    staged.kernels.widen[stage.loaded - 1](part.loaded, part.wide, part.channels(staged));
  }
}

void StorePart(const StagedHeads& staged, const StagedPart& part) {
  const Output& output = staged.output;
  const Stage& stage = staged.stage;
  const int32_t channels = part.channels(staged);
  if (staged.norm != nullptr && staged.norm->after) {
    NormPart(staged, part, stage.turned, part.turned);
  }
  if (stage.rounds) staged.kernels.round_row[staged.dtype - 1](part.wide, channels);
  if (stage.turned != ROPE_DTYPE_F32 && output.dtype != stage.turned) {
    staged.kernels.widen[stage.turned - 1](part.turned, part.wide, channels);
  }
  const int64_t repeats = output.repeats;
  char* const out = staged.out + HeadOffset(staged.out_strides, 0, part.token, part.head);
  const HeadStrides& strides = output.scales.strides;
  for (int64_t r = 0; r < repeats; ++r) {
    char* scales = staged.first_scales;
    if (scales != nullptr) {
      scales += HeadOffset(strides, 0, part.token, part.head) + r * (strides.head / repeats);
    }
    StoreOnce(staged, part, out + r * (staged.out_strides.head / repeats), scales);
  }
}

}  // namespace rope::cpu
