// Position ids of multimodal prompts: get_rope_index of Qwen2-VL and relatives (transformers,
// modeling_qwen2_vl.py). A text token has one id on all three axes; a visual token at (frame, row,
// column) of a t x h x w grid has start + (frame * interval, row, column); the next part starts
// above the largest id.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/aligned.h"
#include "base/decimal.h"
#include "base/status.h"
#include "librope/model.h"

namespace rope {
namespace {

// The arguments of both functions. No t_intervals: none is a fraction.
struct Prompt {
  const char* function;
  const rope_prompt_part* parts;
  const double* t_intervals;
  int32_t count;

  double Fraction(int32_t part) const { return t_intervals != nullptr ? t_intervals[part] : 0; }

  rope_status Fault(int32_t part, const char* rule) const {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: parts[%d] %s", function, part, rule);
  }
};

rope_status CheckFraction(const Prompt& prompt, int32_t index) {
  constexpr double kMost = 1 << 30;  // ids between two frames
  const double fraction = prompt.Fraction(index);
  if (!(fraction >= 0 && fraction <= kMost)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: t_intervals[%d] (%s) must be from 0 to 2^30",
                prompt.function, index, Decimal(fraction).text);
  }
  const rope_prompt_part& part = prompt.parts[index];
  if (fraction != 0 && (part.t == 0 || part.t_interval != 0)) {
    return prompt.Fault(index, part.t == 0 ? "must have a grid beside its t_intervals"
                                           : "must have t_interval 0 beside its t_intervals");
  }
  return ROPE_OK;
}

// Checks one part and adds its tokens to *total.
rope_status CheckPart(const Prompt& prompt, int32_t index, int64_t* total) {
  const rope_prompt_part& part = prompt.parts[index];
  if (part.text < 0) return prompt.Fault(index, "has a negative text");
  if (part.t < 0 || part.h < 0 || part.w < 0 || part.t_interval < 0) {
    return prompt.Fault(index, "has a negative t, h, w or t_interval");
  }
  if (part.t == 0 ? (part.h | part.w | part.t_interval) != 0 : (part.h == 0 || part.w == 0)) {
    return prompt.Fault(index, "must have t, h and w positive, or t, h, w and t_interval 0");
  }
  if (rope_status s = CheckFraction(prompt, index)) return s;
  int64_t visual;
  if (__builtin_mul_overflow(int64_t{part.t} * part.h, int64_t{part.w}, &visual) ||
      __builtin_add_overflow(*total, part.text, total) ||
      __builtin_add_overflow(*total, visual, total)) {
    return prompt.Fault(index, "makes the number of tokens overflow");
  }
  return ROPE_OK;
}

// The ids between the start of a grid and one of its frames.
int64_t FrameOffset(const Prompt& prompt, int32_t index, int64_t frame) {
  const double fraction = prompt.Fraction(index);
  if (fraction != 0) {
    return static_cast<int64_t>(static_cast<float>(frame) * static_cast<float>(fraction));
  }
  return frame * std::max(prompt.parts[index].t_interval, 1);
}

// The ids that a part takes from `start` on: the start of the next part.
bool Advance(const Prompt& prompt, int32_t index, int64_t* start) {
  const rope_prompt_part& part = prompt.parts[index];
  if (__builtin_add_overflow(*start, part.text, start)) return false;
  if (part.t == 0) return true;
  const int64_t last = std::max<int64_t>(
      {FrameOffset(prompt, index, part.t - 1), int64_t{part.h} - 1, int64_t{part.w} - 1});
  return !__builtin_add_overflow(*start, last + 1, start);
}

rope_status MakeIds(const Prompt& prompt, int64_t start, int64_t* ids, int64_t tokens,
                    int64_t* next) {
  const rope_prompt_part* parts = prompt.parts;
  const int32_t count = prompt.count;
  if (count < 0 || (parts == nullptr && count > 0) || next == nullptr ||
      (ids == nullptr && tokens > 0)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s", prompt.function,
                count < 0         ? "count must not be negative"
                : next == nullptr ? "next (NULL) must not be NULL"
                                  : "parts and ids must not be NULL where they have elements");
  }
  if (!IsAligned(parts, alignof(rope_prompt_part)) || !IsAligned(ids, alignof(int64_t))) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s must be aligned to its element",
                prompt.function, IsAligned(ids, alignof(int64_t)) ? "parts" : "ids");
  }
  int64_t total = 0, end = start;
  for (int32_t r = 0; r < count; ++r) {
    if (rope_status s = CheckPart(prompt, r, &total)) return s;
    if (!Advance(prompt, r, &end)) return prompt.Fault(r, "makes the ids overflow");
  }
  if (total != tokens) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: tokens (%lld) must be the sum over the parts (%lld)", prompt.function,
                static_cast<long long>(tokens), static_cast<long long>(total));
  }
  int64_t token = 0, id = start;
  const auto write = [&](int64_t t, int64_t h, int64_t w) {
    ids[token] = t;
    ids[tokens + token] = h;
    ids[2 * tokens + token] = w;
    ++token;
  };
  for (int32_t r = 0; r < count; ++r) {
    const rope_prompt_part& part = parts[r];
    for (int64_t i = 0; i < part.text; ++i) write(id + i, id + i, id + i);
    const int64_t base = id + part.text;
    for (int64_t t = 0; t < part.t; ++t) {
      const int64_t of_frame = base + FrameOffset(prompt, r, t);
      for (int64_t h = 0; h < part.h; ++h) {
        for (int64_t w = 0; w < part.w; ++w) write(of_frame, base + h, base + w);
      }
    }
    Advance(prompt, r, &id);
  }
  *next = end;
  return ROPE_OK;
}

}  // namespace
}  // namespace rope

rope_status rope_prompt_ids(const rope_prompt_part* parts, int32_t count, int64_t start,
                            int64_t* ids, int64_t tokens, int64_t* next) {
  return rope::MakeIds({"rope_prompt_ids", parts, nullptr, count}, start, ids, tokens, next);
}

rope_status rope_prompt_ids_timed(const rope_prompt_part* parts, const double* t_intervals,
                                  int32_t count, int64_t start, int64_t* ids, int64_t tokens,
                                  int64_t* next) {
  constexpr const char* kFunction = "rope_prompt_ids_timed";
  const bool missing = t_intervals == nullptr && count > 0;
  if (missing || !rope::IsAligned(t_intervals, alignof(double))) {
    return rope::Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: t_intervals must %s", kFunction,
                      missing ? "not be NULL where there are parts" : "be aligned to its element");
  }
  return rope::MakeIds({kFunction, parts, t_intervals, count}, start, ids, tokens, next);
}
