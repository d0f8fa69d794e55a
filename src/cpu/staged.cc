#include "cpu/staged.h"

#include <algorithm>
#include <cstring>

#include "math/element.h"

namespace rope::cpu {
namespace {

// Heads of tokens that follow each other, as they lie somewhere.
struct Heads {
  const char* data;  // the first channel of the first head of the first token
  rope_dtype dtype;
  HeadStrides strides;  // bytes

  bool HeadsFollow(int32_t heads, int32_t channels) const {
    return heads == 1 || strides.head == BytesOf(dtype, channels);
  }
  bool TokensFollow(int32_t tokens, int64_t channels) const {
    return tokens == 1 || strides.token == BytesOf(dtype, channels);
  }
};

// Heads of a part in its buffer, all channels of which are there.
Heads InBuffer(const char* data, rope_dtype dtype, int32_t heads, int32_t width) {
  return {data, dtype, {0, BytesOf(dtype, int64_t{heads} * width), BytesOf(dtype, width)}};
}

// Calls run(from, to, count) for runs of channels that follow each other in both, as long as they
// are: bytes behind the first ones.
template <class Run>
void ForEachRun(const Heads& from, const Heads& to, int32_t tokens, int32_t heads, int32_t channels,
                const Run& run) {
  const int64_t of_token = int64_t{heads} * channels;
  const bool heads_follow = from.HeadsFollow(heads, channels) && to.HeadsFollow(heads, channels);
  if (heads_follow && from.TokensFollow(tokens, of_token) && to.TokensFollow(tokens, of_token)) {
    run(int64_t{0}, int64_t{0}, of_token * tokens);
    return;
  }
  for (int32_t t = 0; t < tokens; ++t) {
    const int64_t from_token = t * from.strides.token, to_token = t * to.strides.token;
    if (heads_follow) {
      run(from_token, to_token, of_token);
      continue;
    }
    for (int32_t h = 0; h < heads; ++h) {
      run(from_token + h * from.strides.head, to_token + h * to.strides.head, int64_t{channels});
    }
  }
}

void NormPart(const StagedHeads& staged, const StagedPart& part, bool from_memory, rope_dtype dtype,
              char* heads) {
  Tensor tensor = {};
  tensor.in_strides = staged.in_strides;
  tensor.heads = staged.heads;
  tensor.dtype = staged.dtype;
  NormInBuffer({staged.kernels, staged.context, *staged.norm, tensor},
               staged.in + part.token * staged.in_strides.token, staged.token + part.token,
               part.tokens, part.head, part.heads, from_memory, dtype, heads);
}

// What is stored of `heads` heads of tokens, to its place in an output.
void StoreOnce(const StagedHeads& staged, const Heads& from, int32_t tokens, int32_t heads,
               char* out, char* first_scales) {
  const Output& output = staged.output;
  const Kernels& kernels = staged.kernels;
  const Heads to = {out, output.dtype, staged.out_strides};
  const auto for_each_run = [&](const auto& run) {
    ForEachRun(from, to, tokens, heads, staged.stored,
               [&](int64_t from_bytes, int64_t to_bytes, int64_t count) {
                 run(from.data + from_bytes, out + to_bytes, count);
               });
  };
  if (output.dtype == from.dtype) {
    for_each_run([&](const char* x, char* y, int64_t count) {
      std::memcpy(y, x, static_cast<size_t>(BytesOf(from.dtype, count)));
    });
    return;
  }
  if (output.dtype == ROPE_DTYPE_Q8_0) {
    for_each_run([&](const char* x, char* y, int64_t count) {
      kernels.encode_q8[from.dtype - 1](x, y, count / kQ8Channels);
    });
    return;
  }
  if (!IsCode(output.dtype)) {  // from f32
    for_each_run([&](const char* x, char* y, int64_t count) {
      kernels.narrow[output.dtype - 1](reinterpret_cast<const float*>(x), y, count);
    });
    return;
  }
  const GroupScales& scales = output.scales;
  const Code code = CodeOf(output.dtype);
  if (!output.HasScaleArray()) {
    const auto encode = kernels.encode[from.dtype - 1][static_cast<int>(code)][staged.streams];
    for_each_run([&](const char* x, char* y, int64_t count) {
      encode(x, reinterpret_cast<uint8_t*>(y), count, 1.0f / scales.value);
    });
    return;
  }
  kernels.encode_groups[from.dtype - 1][static_cast<int>(code)][staged.streams](
      {from.data, out, first_scales, from.strides, staged.out_strides, tokens, heads, scales});
}

// The same, as often as heads are repeated, of those behind `head` heads of `token` tokens.
void Store(const StagedHeads& staged, const Heads& from, int32_t token, int32_t tokens,
           int32_t head, int32_t heads) {
  const int64_t repeats = staged.output.repeats;
  char* const out = staged.out + HeadOffset(staged.out_strides, 0, token, head);
  const HeadStrides& strides = staged.output.scales.strides;
  for (int64_t r = 0; r < repeats; ++r) {
    char* scales = staged.first_scales;
    if (scales != nullptr) {
      scales += HeadOffset(strides, 0, token, head) + r * (strides.head / repeats);
    }
    StoreOnce(staged, from, tokens, heads, out + r * (staged.out_strides.head / repeats), scales);
  }
}

// Heads in 8 bits to f32.
void DecodePart(const StagedHeads& staged, const StagedPart& part, const char* in, float* to) {
  const CodedHeads& coded = staged.coded;
  const rope_dtype dtype = coded.of->dtype;
  const Heads buffer =
      InBuffer(reinterpret_cast<char*>(to), ROPE_DTYPE_F32, part.heads, staged.width);
  const auto for_each_run = [&](const auto& run) {
    ForEachRun({in, dtype, staged.in_strides}, buffer, part.tokens, part.heads, staged.width, run);
  };
  const auto floats_at = [&](int64_t offset) {
    return reinterpret_cast<float*>(reinterpret_cast<char*>(to) + offset);
  };
  if (dtype == ROPE_DTYPE_Q8_0) {
    for_each_run([&](int64_t from_bytes, int64_t to_bytes, int64_t count) {
      staged.kernels.decode_q8(in + from_bytes, floats_at(to_bytes), count / kQ8Channels);
    });
    return;
  }
  const GroupScales& scales = coded.of->scales;
  const auto decode = staged.kernels.decode[static_cast<int>(CodeOf(dtype))];
  const auto codes_at = [&](int64_t offset) {
    return reinterpret_cast<const uint8_t*>(in + offset);
  };
  if (scales.groups == 0) {
    for_each_run([&](int64_t from_bytes, int64_t to_bytes, int64_t count) {
      decode(codes_at(from_bytes), floats_at(to_bytes), count, scales.value);
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
  const KeptCodes kept = KeptCodesOf(*coded.of, staged.output);
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
  const bool norms = staged.norm != nullptr && !staged.norm->after;
  const bool as_it_is = stage.loaded == staged.dtype;
  if (!norms || !as_it_is) {
    const Heads to = InBuffer(part.loaded, stage.loaded, part.heads, staged.width);
    ForEachRun({in, staged.dtype, staged.in_strides}, to, part.tokens, part.heads, staged.width,
               [&](int64_t from_bytes, int64_t to_bytes, int64_t count) {
                 char* const out = part.loaded + to_bytes;
                 if (as_it_is) {
                   std::memcpy(out, in + from_bytes,
                               static_cast<size_t>(BytesOf(staged.dtype, count)));
                 } else {
                   staged.kernels.widen[staged.dtype - 1](in + from_bytes,
                                                          reinterpret_cast<float*>(out), count);
                 }
               });
  }
  if (norms) NormPart(staged, part, as_it_is, stage.loaded, part.loaded);
  if (stage.loaded != stage.turned) {
    staged.kernels.widen[stage.loaded - 1](part.loaded, part.wide, part.channels(staged));
  }
}

void StorePart(const StagedHeads& staged, const StagedPart& part) {
  const Output& output = staged.output;
  const Stage& stage = staged.stage;
  const int32_t channels = part.channels(staged);
  if (staged.norm != nullptr && staged.norm->after) {
    NormPart(staged, part, false, stage.turned, part.turned);
  }
  if (stage.rounds) staged.kernels.round_row[staged.dtype - 1](part.wide, channels);
  const bool as_turned = stage.StoresAsTurned(output.dtype);
  if (stage.turned != ROPE_DTYPE_F32 && !as_turned) {
    staged.kernels.widen[stage.turned - 1](part.turned, part.wide, channels);
  }
  Heads heads = InBuffer(as_turned ? part.turned : reinterpret_cast<char*>(part.wide),
                         as_turned ? stage.turned : ROPE_DTYPE_F32, part.heads, staged.width);
  heads.data += BytesOf(heads.dtype, staged.first);
  Store(staged, heads, part.token, part.tokens, part.head, part.heads);
}

void Convert(const StagedHeads& staged, int32_t tokens) {
  if (staged.norm != nullptr || staged.coded.of != nullptr || !IsInEightBits(staged.output.dtype)) {
    return RunStages(staged, tokens, [&](const StagedPart& part) { LoadPart(staged, part); });
  }
  // All channels that are read are stored: only a norm has others.
  Store(staged, {staged.in, staged.dtype, staged.in_strides}, 0, tokens, 0, staged.heads);
}

}  // namespace rope::cpu
