#include "cpu/staged.h"

#include <cstring>

#include "math/element.h"

namespace rope::cpu {
namespace {

// Calls run(offset, channel, count) for runs of adjacent channels in memory, `count` of each head
// from channel `first` on, as long as they are: bytes behind the first head of the part, and which
// channel of the part that is.
template <class Run>
void ForEachChannelRun(const StagedHeads& staged, const StagedPart& part, int32_t first,
                       int32_t count, const HeadStrides& strides, int size, const Run& run) {
  const int64_t width = staged.width, token = part.heads * width;
  const bool heads_adjacent = count == width && (part.heads == 1 || strides.head == width * size);
  if (heads_adjacent && (part.tokens == 1 || strides.token == token * size)) {
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
    ForEachChannelRun(staged, part, staged.first, staged.stored, strides, size, run);
  };
  if (output.dtype == staged.stage.turned) {
    for_each_run([&](int64_t offset, int64_t channel, int64_t count) {
      std::memcpy(out + offset, part.turned + channel * size, static_cast<size_t>(count * size));
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

}  // namespace

void LoadPart(const StagedHeads& staged, const StagedPart& part) {
  const char* const in = staged.in + HeadOffset(staged.in_strides, 0, part.token, part.head);
  const Stage& stage = staged.stage;
  const int size = ElementSize(staged.dtype), loaded = ElementSize(stage.loaded);
  ForEachChannelRun(staged, part, 0, staged.width, staged.in_strides, size,
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
