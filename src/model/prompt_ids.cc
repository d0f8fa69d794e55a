// Position ids of multimodal prompts: get_rope_index of Qwen2-VL and relatives (transformers,
// modeling_qwen2_vl.py). A text token has one id on all three axes; a visual token at (frame, row,
// column) of a t x h x w grid has start + (frame * interval, row, column); the next run starts above
// the largest id.
#include <algorithm>
#include <cstdint>

#include "base/aligned.h"
#include "base/status.h"

namespace rope {
namespace {

constexpr char kFunction[] = "rope_run_ids";

rope_status RunFault(int32_t run, const char* rule) {
  return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: runs[%d] %s", kFunction, run, rule);
}

// Checks one run and adds its tokens to *total.
rope_status CheckRun(const rope_run& run, int32_t index, int64_t* total) {
  if (run.text < 0) return RunFault(index, "has a negative text");
  if (run.t < 0 || run.h < 0 || run.w < 0 || run.t_interval < 0) {
    return RunFault(index, "has a negative t, h, w or t_interval");
  }
  if (run.t == 0 ? (run.h | run.w | run.t_interval) != 0 : (run.h == 0 || run.w == 0)) {
    return RunFault(index, "must have t, h and w positive, or t, h, w and t_interval 0");
  }
  int64_t visual;
  if (__builtin_mul_overflow(int64_t{run.t} * run.h, int64_t{run.w}, &visual) ||
      __builtin_add_overflow(*total, run.text, total) ||
      __builtin_add_overflow(*total, visual, total)) {
    return RunFault(index, "makes the number of tokens overflow");
  }
  return ROPE_OK;
}

// The ids that a run takes from `start` on: the start of the next run.
bool Advance(const rope_run& run, int64_t* start) {
  if (__builtin_add_overflow(*start, run.text, start)) return false;
  if (run.t == 0) return true;
  const int64_t interval = run.t_interval != 0 ? run.t_interval : 1;
  const int64_t last = std::max<int64_t>(
      {(run.t - 1) * interval, int64_t{run.h} - 1, int64_t{run.w} - 1});
  return !__builtin_add_overflow(*start, last + 1, start);
}

}  // namespace
}  // namespace rope

rope_status rope_run_ids(const rope_run* runs, int32_t count, int64_t start, int64_t* ids,
                         int64_t tokens, int64_t* next) {
  using namespace rope;  // NOLINT
  if (count < 0 || (runs == nullptr && count > 0) || next == nullptr ||
      (ids == nullptr && tokens > 0)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s", kFunction,
                count < 0         ? "count must not be negative"
                : next == nullptr ? "next (NULL) must not be NULL"
                                  : "runs and ids must not be NULL where they have elements");
  }
  if (!IsAligned(runs, alignof(rope_run)) || !IsAligned(ids, alignof(int64_t))) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s must be aligned to its element", kFunction,
                IsAligned(ids, alignof(int64_t)) ? "runs" : "ids");
  }
  int64_t total = 0, end = start;
  for (int32_t r = 0; r < count; ++r) {
    if (rope_status s = CheckRun(runs[r], r, &total)) return s;
    if (!Advance(runs[r], &end)) return RunFault(r, "makes the ids overflow");
  }
  if (total != tokens) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: tokens (%lld) must be the sum over the runs (%lld)", kFunction,
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
    const rope_run& run = runs[r];
    for (int64_t i = 0; i < run.text; ++i) write(id + i, id + i, id + i);
    const int64_t base = id + run.text;
    const int64_t interval = run.t_interval != 0 ? run.t_interval : 1;
    for (int64_t t = 0; t < run.t; ++t) {
      for (int64_t h = 0; h < run.h; ++h) {
        for (int64_t w = 0; w < run.w; ++w) write(base + t * interval, base + h, base + w);
      }
    }
    Advance(run, &id);
  }
  *next = end;
  return ROPE_OK;
}
