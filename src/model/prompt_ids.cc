// Position ids of multimodal prompts: get_rope_index of Qwen2-VL and relatives (transformers,
// modeling_qwen2_vl.py). A text token has one id on all three axes; a visual token at (frame, row,
// column) of a t x h x w grid has start + (frame * interval, row, column); the next part starts
// above the largest id.
#include <algorithm>
#include <cstdint>

#include "base/aligned.h"
#include "base/status.h"
#include "librope/model.h"

namespace rope {
namespace {

constexpr char kFunction[] = "rope_prompt_ids";

rope_status PartFault(int32_t part, const char* rule) {
  return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: parts[%d] %s", kFunction, part, rule);
}

// Checks one part and adds its tokens to *total.
rope_status CheckPart(const rope_prompt_part& part, int32_t index, int64_t* total) {
  if (part.text < 0) return PartFault(index, "has a negative text");
  if (part.t < 0 || part.h < 0 || part.w < 0 || part.t_interval < 0) {
    return PartFault(index, "has a negative t, h, w or t_interval");
  }
  if (part.t == 0 ? (part.h | part.w | part.t_interval) != 0 : (part.h == 0 || part.w == 0)) {
    return PartFault(index, "must have t, h and w positive, or t, h, w and t_interval 0");
  }
  int64_t visual;
  if (__builtin_mul_overflow(int64_t{part.t} * part.h, int64_t{part.w}, &visual) ||
      __builtin_add_overflow(*total, part.text, total) ||
      __builtin_add_overflow(*total, visual, total)) {
    return PartFault(index, "makes the number of tokens overflow");
  }
  return ROPE_OK;
}

// The ids that a part takes from `start` on: the start of the next part.
bool Advance(const rope_prompt_part& part, int64_t* start) {
  if (__builtin_add_overflow(*start, part.text, start)) return false;
  if (part.t == 0) return true;
  const int64_t interval = part.t_interval != 0 ? part.t_interval : 1;
  const int64_t last =
      std::max<int64_t>({(part.t - 1) * interval, int64_t{part.h} - 1, int64_t{part.w} - 1});
  return !__builtin_add_overflow(*start, last + 1, start);
}

}  // namespace
}  // namespace rope

rope_status rope_prompt_ids(const rope_prompt_part* parts, int32_t count, int64_t start,
                            int64_t* ids, int64_t tokens, int64_t* next) {
  using namespace rope;  // NOLINT
  if (count < 0 || (parts == nullptr && count > 0) || next == nullptr ||
      (ids == nullptr && tokens > 0)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s", kFunction,
                count < 0         ? "count must not be negative"
                : next == nullptr ? "next (NULL) must not be NULL"
                                  : "parts and ids must not be NULL where they have elements");
  }
  if (!IsAligned(parts, alignof(rope_prompt_part)) || !IsAligned(ids, alignof(int64_t))) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s must be aligned to its element", kFunction,
                IsAligned(ids, alignof(int64_t)) ? "parts" : "ids");
  }
  int64_t total = 0, end = start;
  for (int32_t r = 0; r < count; ++r) {
    if (rope_status s = CheckPart(parts[r], r, &total)) return s;
    if (!Advance(parts[r], &end)) return PartFault(r, "makes the ids overflow");
  }
  if (total != tokens) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: tokens (%lld) must be the sum over the parts (%lld)", kFunction,
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
    const int64_t interval = part.t_interval != 0 ? part.t_interval : 1;
    for (int64_t t = 0; t < part.t; ++t) {
      for (int64_t h = 0; h < part.h; ++h) {
        for (int64_t w = 0; w < part.w; ++w) write(base + t * interval, base + h, base + w);
      }
    }
    Advance(part, &id);
  }
  *next = end;
  return ROPE_OK;
}
