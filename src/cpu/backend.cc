// The CPU backend: cuts a call into tasks of tokens, makes the rows of a block of tokens once, and
// lets the kernels turn all heads of q and k by them.
#include <hwy/cache_control.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include "base/status.h"
#include "call/plan.h"
#include "context/backend.h"
#include "cpu/append.h"
#include "cpu/caches.h"
#include "cpu/channel_heads.h"
#include "cpu/course.h"
#include "cpu/cos_sin_rows.h"
#include "cpu/gradient_rotation.h"
#include "cpu/job.h"
#include "cpu/kept_rows.h"
#include "cpu/kept_slots.h"
#include "cpu/kernels.h"
#include "cpu/norm_blocks.h"
#include "cpu/norm_tiles.h"
#include "cpu/one_token.h"
#include "cpu/stage.h"
#include "cpu/staged.h"
#include "cpu/staged_rotation.h"
#include "cpu/streaming.h"
#include "math/element.h"
#include "math/pairing.h"
#include "math/tensor.h"

namespace rope {
namespace cpu {
namespace {

// Calls up to this run on the caller's thread: in less time than it takes to wake another.
constexpr int64_t kInlineBytes = 2 << 20;
// A task is a part of the call that is worth handing to another thread, and large enough that what
// the memory is not asked for ahead, at its beginning, does not count.
constexpr int64_t kTasks = 64, kLeastTaskBytes = 256 << 10, kMostTaskBytes = 1 << 20;

// What rotates is compiled twice, as calls without a FusedPlan must not pay for one.

template <bool kFused>
bool IsStaged(const Job& job, int n) {
  return kFused && cpu::IsStaged(*job.fused, n, job.tensors[n].dtype);
}

// Where a token's first head goes; null: nowhere.
template <bool kFused>
char* OutOf(const Job& job, int n, int64_t batch, int64_t token) {
  const Tensor& t = job.tensors[n];
  if (!kFused || n != job.fused->cached) return t.out + TokenOffset(t.out_strides, batch, token);
  const Slot slot = SlotOfToken(job.plan, job.kept_slots, batch, token);
  return slot.page < 0 ? nullptr : t.out + TokenOffset(t.out_strides, slot.page, slot.index);
}

// Where it comes from, likewise.
template <bool kFused>
const char* InOf(const Job& job, int n, int64_t batch, int64_t token) {
  const Tensor& t = job.tensors[n];
  if (kFused && n >= job.fused->gathered) {
    const Slot slot = SourceOfToken(job.plan, batch, token);
    return slot.page < 0 ? nullptr : t.in + TokenOffset(t.in_strides, slot.page, slot.index);
  }
  if (kFused && EndsOf(job, n, t).IsReadInSlots()) return OutOf<kFused>(job, n, batch, token);
  return t.in + TokenOffset(t.in_strides, batch, token);
}

// Whether it does neither.
template <bool kFused>
bool IsNowhere(const char* in, const char* out) {
  return kFused && (in == nullptr || out == nullptr);
}

// Channels outside the span, out of place.
template <bool kFused>
void CopyRest(const Job& job, int n, int64_t batch, int64_t first, int64_t count) {
  const rope_context& context = *job.plan.context;
  const Tensor& t = job.tensors[n];
  const size_t before = static_cast<size_t>(t.in_span);
  const size_t behind_at = before + static_cast<size_t>(SpanBytes(context, t));
  const size_t whole = static_cast<size_t>(context.head_dim * ElementSize(t.dtype));
  for (int64_t i = first; i < first + count; ++i) {
    const char* const token_in = InOf<kFused>(job, n, batch, i);
    char* const token_out = OutOf<kFused>(job, n, batch, i);
    if (IsNowhere<kFused>(token_in, token_out) || token_in == token_out) continue;
    for (int32_t h = 0; h < t.heads; ++h) {
      const char* in = token_in + h * t.in_strides.head;
      char* out = token_out + h * t.out_strides.head;
      std::memcpy(out, in, before);
      std::memcpy(out + behind_at, in + behind_at, whole - behind_at);
    }
  }
}

// NOPE, out of place.
template <bool kFused>
void CopyHeads(const Job& job, int n, int64_t batch, int64_t first, int64_t count) {
  const Tensor& t = job.tensors[n];
  const auto span = static_cast<size_t>(SpanBytes(*job.plan.context, t));
  for (int64_t i = first; i < first + count; ++i) {
    const char* const in = InOf<kFused>(job, n, batch, i);
    char* const out = OutOf<kFused>(job, n, batch, i);
    if (IsNowhere<kFused>(in, out) || in == out) continue;
    for (int32_t h = 0; h < t.heads; ++h) {
      std::memcpy(out + h * t.out_strides.head + t.out_span, in + h * t.in_strides.head + t.in_span,
                  span);
    }
  }
  if (t.copies_rest) CopyRest<kFused>(job, n, batch, first, count);
}

// Token i of a block, whose row has other values for one channel of a pair than for the other.
template <bool kFused>
void RotateByChannels(const Job& job, int n, int64_t batch, int64_t first, int i,
                      RowBuffer* buffer) {
  const Tensor& t = job.tensors[n];
  const char* const in = InOf<kFused>(job, n, batch, first + i);
  char* const out = OutOf<kFused>(job, n, batch, first + i);
  if (IsNowhere<kFused>(in, out)) return;
  const ChannelRow row = job.kept != nullptr
                             ? job.kept->ChannelRowOf(n, KeptRow(job, batch, first + i))
                             : ChannelRowOf(job.plan, job.course.kernels, t.dtype, i, buffer);
  if (IsStaged<kFused>(job, n)) return RotateByChannelsInStages(job, n, row, batch, first + i);
  const Course& course = job.course;
  const NormPass norm = NormPassOf(job, n);
  if (norm == NormPass::kGradient) {
    PassTokens(job, n, nullptr, &row, batch, first + i, 1);
    return;
  }
  if (norm == NormPass::kWithRotation) {
    NormAndRotateByChannels(NormOfTensor(job, n), OnePassOf(job, n), row, in, out,
                            TokenNumber(job, batch, first + i));
    return;
  }
  if (norm == NormPass::kBefore) NormBlock(job, n, batch, first + i, 1, 0);
  RotateHeads(course.kernels, *job.plan.context, course.order, course.arithmetic, t, in + t.in_span,
              out + t.out_span, row);
}

// `count` tokens from `in` to `out` and on, by the rows from i on. `last_head()` is the last one of
// the task, as far as it goes on like this.
template <class LastHead>
HWY_INLINE Block BlockOf(const Job& job, int n, const OrderedRows& rows, int i, int count,
                         const char* in, char* out, LastHead last_head) {
  const rope_context& context = *job.plan.context;
  const Tensor& t = job.tensors[n];
  Block block;
  block.tensor = &t;
  block.in = in + t.in_span;
  block.out = out + t.out_span;
  block.cos = rows.cos + i * rows.stride;
  block.sin = rows.sin + i * rows.stride;
  block.row_stride = rows.stride;
  block.segments = context.segments.data();
  block.segment_count = static_cast<int32_t>(context.segments.size());
  block.tokens = count;
  block.in_cache = job.in_cache;
  AskAhead(job, n, last_head, &block);
  return block;
}

void RotateBlock(const Job& job, int n, const Block& block) {
  if (job.streams[n]) {
    job.course.rotations[n]->rotate_streaming(block);
  } else {
    job.course.rotations[n]->rotate(block);
  }
}

// In calls that do more than rotate: tokens [first + i, first + i + count) of one batch row, whose
// first rows are those of token `first`. `last`: where the tokens of the task end in this batch
// row.
HWY_NOINLINE void RotateFused(const Job& job, int n, const OrderedRows& rows, int64_t batch,
                              int64_t first, int i, int count, int64_t last) {
  const Tensor& t = job.tensors[n];
  const NormPass norm = NormPassOf(job, n);
  if (norm == NormPass::kBefore) NormBlock(job, n, batch, first + i, count, last);
  const Ends ends = EndsOf(job, n, t);
  const bool from_slots = ends.source != nullptr || ends.IsReadInSlots();
  const char* const in = from_slots ? t.in : t.in + TokenOffset(t.in_strides, batch, first + i);
  // A decoding step has a piece for each token: what they share is described once.
  Block block = BlockOf(job, n, rows, i, count, in, t.out, [&] {
    return from_slots ? t.in : t.in + HeadOffset(t.in_strides, batch, last - 1, t.heads - 1);
  });
  const Output& output = job.fused->outputs[n];
  if (job.course.codes[n] && IsCode(output.dtype)) block.CodeBy(output.scales);
  if (norm == NormPass::kGradient) {
    block.out = t.out + TokenOffset(t.out_strides, batch, first + i) + t.out_span;
    PassTokens(job, n, &block, nullptr, batch, first + i, count);
    return;
  }
  const auto place = [&](int at, const char* from, int tokens) {
    block.in = from + t.in_span;
    block.cos = rows.cos + at * rows.stride;
    block.sin = rows.sin + at * rows.stride;
    block.tokens = tokens;
    if (!from_slots) return;
    AskAhead(
        job, n, [&] { return from + HeadOffset(t.in_strides, 0, tokens - 1, t.heads - 1); },
        &block);
  };
  if (norm == NormPass::kWithRotation) {
    ForEachRead(job, ends, batch, first, i, i + count,
                [&](int at, const char* from, const WrittenRuns& out) {
                  place(at, from, out.Tokens());
                  NormAndRotate(NormOfTensor(job, n), OnePassOf(job, n), block, out,
                                TokenNumber(job, batch, first + at));
                });
  } else {
    ForEachPiece(job, ends, batch, first, i, i + count, [&](int at, const Piece& piece) {
      place(at, piece.in, piece.count);
      block.out = piece.out + t.out_span;
      if (job.course.codes[n]) {
        block.first_scale = ScalesAt(output, piece.place, int64_t{job.row_head} * t.heads);
      }
      if (norm == NormPass::kBefore) block.prefetch_last = nullptr;  // just written
      RotateBlock(job, n, block);
    });
  }
  if (job.streams[n]) hwy::FlushStream();
}

template <bool kFused>
void RotateInOrder(const Job& job, int n, const OrderedRows& rows, int64_t batch, int64_t first,
                   int i, int count, int64_t last) {
  if (IsStaged<kFused>(job, n) && !job.course.codes[n]) {
    return RotateInStages(job, n, rows, batch, first, i, count, last);
  }
  if constexpr (kFused) return RotateFused(job, n, rows, batch, first, i, count, last);
  const Tensor& t = job.tensors[n];
  const Block block =
      BlockOf(job, n, rows, i, count, t.in + TokenOffset(t.in_strides, batch, first + i),
              t.out + TokenOffset(t.out_strides, batch, first + i),
              [&] { return t.in + HeadOffset(t.in_strides, batch, last - 1, t.heads - 1); });
  RotateBlock(job, n, block);
  if (job.streams[n]) hwy::FlushStream();
}

// How the rows of a tensor lie.
template <bool kFused>
RowOrder RowOrderOf(const Job& job, int n) {
  const Course& course = job.course;
  if (!kFused || NormPassOf(job, n) != NormPass::kGradient) return course.rotations[n]->order;
  if (const Kernels::Rotation* const reading = ReadingOf(job, n)) return reading->order;
  const rope_dtype dtype = TurnsIn(job.tensors[n].dtype, course.arithmetic);
  return course.kernels.RowOrderOf(dtype, course.order, course.arithmetic);
}

// Tokens [first, first + count) of one batch row: never more than RowBuffer holds. `last`: as
// above.
template <bool kFused>
void RotateBlockOfTokens(const Job& job, int64_t batch, int64_t first, int count, int64_t last) {
  const Plan& plan = job.plan;
  const rope_context& context = *plan.context;
  if (context.nope) {
    for (int n = 0; n < plan.tensor_count; ++n) {
      if (IsStaged<kFused>(job, n)) {
        ConvertInStages(job, n, batch, first, count);
        continue;
      }
      if (kFused && NormPassOf(job, n) == NormPass::kGradient) {
        PassTokens(job, n, nullptr, nullptr, batch, first, count);
        continue;
      }
      if (kFused && NormPassOf(job, n) == NormPass::kBefore) {
        NormBlock(job, n, batch, first, count, 0);
        continue;
      }
      if (job.tensors[n].in != job.tensors[n].out || (kFused && n == job.fused->cached)) {
        CopyHeads<kFused>(job, n, batch, first, count);
      }
    }
    return;
  }
  RowBuffer buffer;
  const bool* by_channels = nullptr;  // which tokens have a row for each channel; null: none
  if (job.kept != nullptr) {
    by_channels = job.kept->IsPerChannel(KeptRow(job, batch, first));
  } else {
    StartRows(plan, batch, first, count, job.row_head, &buffer);
    if (buffer.some_per_channel) by_channels = buffer.is_per_channel;
  }
  if (by_channels != nullptr) {  // first: ordering the others' rows takes the memory of theirs
    for (int n = 0; n < plan.tensor_count; ++n) {
      for (int i = 0; i < count; ++i) {
        if (by_channels[i]) RotateByChannels<kFused>(job, n, batch, first, i, &buffer);
      }
    }
  }
  // Every other block ends with q, with which the next one begins: the hardware's prefetcher starts
  // anew where the tensor changes. But the order of k to two places stays, as one may be in place.
  const bool k_first = first != 0 && plan.tensor_count == 2 &&
                       !(kFused && (job.fused->cached == 0 || job.fused->gathered == 0)) &&
                       (first / job.course.block_tokens & 1) != 0;
  for (int turn = 0; turn < plan.tensor_count; ++turn) {
    const int n = k_first ? 1 - turn : turn;
    const Tensor& t = job.tensors[n];
    const bool copied =
        kFused && (NormPassOf(job, n) == NormPass::kWithRotation ||
                   NormPassOf(job, n) == NormPass::kGradient || IsStaged<kFused>(job, n));
    if (t.copies_rest && !copied) CopyRest<kFused>(job, n, batch, first, count);
    const OrderedRows rows = job.kept != nullptr ? job.kept->From(n, KeptRow(job, batch, first))
                                                 : OrderRows(plan, job.course.kernels, t.dtype,
                                                             RowOrderOf<kFused>(job, n), &buffer);
    if (by_channels == nullptr) {
      RotateInOrder<kFused>(job, n, rows, batch, first, 0, count, last);
      continue;
    }
    for (int i = 0; i < count; ++i) {
      if (!by_channels[i]) RotateInOrder<kFused>(job, n, rows, batch, first, i, 1, last);
    }
  }
}

// The same, of tokens with several rows: the heads of each row after those of another.
template <bool kFused>
void RotateBlockByRows(const Job& job, int64_t batch, int64_t first, int count, int64_t last) {
  const Plan& plan = job.plan;
  Tensor parts[3];
  Job part = job;
  part.tensors = parts;
  for (int32_t head = 0; head < plan.row_heads; ++head) {
    part.row_head = head;
    for (int n = 0; n < plan.tensor_count; ++n) {
      Tensor& t = parts[n];
      t = job.tensors[n];
      t.heads /= plan.row_heads;
      const int64_t first_head = int64_t{head} * t.heads;
      t.in += first_head * t.in_strides.head;
      t.out += first_head * t.out_strides.head;
    }
    RotateBlockOfTokens<kFused>(part, batch, first, count, last);
  }
}

// What is left when the tokens have turned.
HWY_NOINLINE void FinishBlock(const Job& job, int64_t batch, int64_t first, int count) {
  for (int n = 0; job.norms != nullptr && n < job.plan.tensor_count; ++n) {
    if (NormPassOf(job, n) == NormPass::kAfter) NormBlock(job, n, batch, first, count, 0);
  }
  for (int n = 0; n < job.fused->copies.count; ++n) {
    CopyTokens(job.plan, job.kept_slots, job.course.kernels, job.fused->copies.of[n],
               job.copy_streams[n], batch, first, count, job.grad_part);
  }
}

// A block of tokens, as above, and what is beside them.
template <bool kFused>
HWY_INLINE void RotateWholeBlock(const Job& job, int64_t batch, int64_t first, int count,
                                 int64_t last) {
  if (job.plan.row_heads == 1) {
    RotateBlockOfTokens<kFused>(job, batch, first, count, last);
  } else {
    RotateBlockByRows<kFused>(job, batch, first, count, last);
  }
  if constexpr (kFused) FinishBlock(job, batch, first, count);
}

// Whether the slot of each token of a block is looked up before, and not of the first one of many
// that follow, for k and v alike. No more than the stack has room for.
constexpr int kMostLookedUp = 32;
bool LooksUpSlots(const Job& job, int count) {
  const SlotSource& slots = job.fused->slots;
  if (job.kept_slots != nullptr || slots.kind == 0 || count > kMostLookedUp) return false;
  return slots.IsMapped() || count == 1 || job.plan.positions.place != PositionSource::kRows;
}

HWY_NOINLINE void RotateFusedBlock(const Job& job, int64_t batch, int64_t first, int count,
                                   int64_t last) {
  if (!LooksUpSlots(job, count)) return RotateWholeBlock<true>(job, batch, first, count, last);
  SlotRun runs[kMostLookedUp];
  const KeptSlots slots(job.plan, batch, first, count, runs);
  Job of_block = job;
  of_block.kept_slots = &slots;
  RotateWholeBlock<true>(of_block, batch, first, count, last);
}

// Tokens [first, last) of all batch rows, counted through. Inlined: of a call on one token it is
// part of what does not turn heads.
template <bool kFused>
HWY_INLINE void RotateTokens(const Job& job, int64_t first, int64_t last) {
  const Plan& plan = job.plan;
  int64_t batch = 0, token = first;
  if (first >= plan.tokens) {
    batch = first / plan.tokens;
    token = first % plan.tokens;
  }
  // Some rows of the caller may be those of channels, whose tokens turn before the others of their
  // block: gradients of weights are added in the order of tokens.
  const bool singly = kFused && plan.has_rows && plan.fused->grad_parts != 0;
  const int most = singly ? 1 : job.course.block_tokens;
  while (first < last) {
    const int64_t end = std::min(plan.tokens, token + (last - first));  // of this batch row
    while (token < end) {
      const int count = static_cast<int>(std::min<int64_t>(most, end - token));
      if constexpr (kFused) {
        RotateFusedBlock(job, batch, token, count, end);
      } else {
        RotateWholeBlock<false>(job, batch, token, count, end);
      }
      token += count;
      first += count;
    }
    token = 0;
    ++batch;
  }
}

// Parts [first, last) of the gradients of weights.
HWY_NOINLINE void RotateParts(const Job& job, int64_t first, int64_t last) {
  ClearParts(job, first, last);
  Job job_of_part = job;
  for (int64_t part = first; part < last; ++part) {
    job_of_part.grad_part = part;
    RotateTokens<true>(job_of_part, FirstOfPart(job, part), FirstOfPart(job, part + 1));
  }
}

// Units are tokens, or parts of gradients.
template <bool kFused>
HWY_INLINE void RotateUnits(const Job& job, int64_t first, int64_t last) {
  if (kFused && job.fused->grad_parts != 0) return RotateParts(job, first, last);
  RotateTokens<kFused>(job, first, last);
}

struct Tasks {
  const Job* job;
  int64_t units_per_task, units;
  std::atomic<uint64_t> ran{0};
};

template <bool kFused>
void RunTask(void* opaque, uint32_t index) {
  auto& tasks = *static_cast<Tasks*>(opaque);
  const int64_t first = std::min(index * tasks.units_per_task, tasks.units);
  RotateUnits<kFused>(*tasks.job, first,
                      first + std::min(tasks.units - first, tasks.units_per_task));
  tasks.ran.fetch_add(1, std::memory_order_relaxed);
}

// Whether what tensor n becomes goes past the caches, in calls that these do not hold.
template <bool kFused>
bool Streams(const Job& job, int n) {
  const bool streams = job.course.rotations[n]->rotate_streaming != nullptr;
  if (IsStaged<kFused>(job, n)) {
    return (streams || !job.course.codes[n]) && CanStreamCodes(job.plan, job.tensors[n], n);
  }
  return streams && CanStream<kFused>(job.plan, job.tensors[n], n) &&
         !(kFused && NormsApart(job, n));
}

template <bool kFused>
rope_status Run(const Course& course, const Plan& plan, const Tensor* tensors,
                const FusedPlan* fused, const Norms* norms, const KeptRows* kept,
                const KeptSlots* kept_slots) {
  const int64_t tokens = course.tokens, token_bytes = course.token_bytes;
  Job job{course, plan, tensors, fused, norms, kept, kept_slots, false, {}, {}, 0, 0};
  job.in_cache = IsInCache<kFused>(course, plan, tensors, fused);
  if (!job.in_cache) {  // else who reads the outputs finds them there
    for (int n = 0; n < plan.tensor_count; ++n) {
      job.streams[n] = Streams<kFused>(job, n);
    }
    for (int n = 0; kFused && n < fused->copies.count; ++n) {
      job.copy_streams[n] =
          course.kernels.copy_streaming != nullptr && CopyCanStream(fused->copies.of[n]);
    }
  }
  int64_t units = tokens;
  if (kFused && plan.fused->grad_parts != 0) units = plan.fused->grad_parts;
  if (plan.runner == nullptr || course.bytes <= kInlineBytes) {
    RotateUnits<kFused>(job, 0, units);
    return ROPE_OK;
  }
  const int64_t task_bytes = std::clamp(course.bytes / kTasks, kLeastTaskBytes, kMostTaskBytes);
  int64_t per_task = std::max<int64_t>(1, (task_bytes + token_bytes - 1) / token_bytes);
  if (units != tokens)
    per_task = std::max<int64_t>(1, per_task / std::max<int64_t>(1, tokens / units));
  // Few enough for a 32-bit count.
  per_task = std::max(per_task, units / UINT32_MAX + 1);
  const auto count = static_cast<uint32_t>((units - 1) / per_task + 1);
  Tasks tasks{&job, per_task, units};
  const int32_t result =
      plan.runner->parallel_for(plan.runner->pool, &RunTask<kFused>, &tasks, count);
  const uint64_t ran = tasks.ran.load(std::memory_order_relaxed);
  if (result == 0 && ran == count) return ROPE_OK;
  return Fail(
      ROPE_ERROR_RUNNER,
      "%s: the runner's parallel_for returned %d after running %llu of %u tasks: it must run "
      "each once, and the outputs are unspecified",
      plan.function, result, static_cast<unsigned long long>(ran), count);
}

HWY_NOINLINE rope_status ApplyFused(const Course& course, const Plan& plan, const Tensor* tensors,
                                    const FusedPlan& fused, const KeptRows* rows,
                                    const KeptSlots* slots) {
  const Norms norms(plan, course.kernels, course.order, tensors, fused);
  return Run<true>(course, plan, norms.tensors, &fused, norms.some ? &norms : nullptr, rows, slots);
}

rope_status Apply(const Plan& plan) {
  if (ApplyToOneToken(plan)) return ROPE_OK;
  const Course course(plan);
  const FusedPlan* const fused = plan.fused;
  const bool to_outputs =
      fused == nullptr || (course.tokens == 1 && fused->only_moves() && !fused->has_slots());
  if (!to_outputs) return ApplyFused(course, plan, plan.tensors, *fused, nullptr, nullptr);
  const rope_status status =
      Run<false>(course, plan, plan.tensors, nullptr, nullptr, nullptr, nullptr);
  if (status == ROPE_OK && fused != nullptr) CopyBeside(*fused, {});
  return status;
}

class PreparedOnCpu final : public PreparedCall {
 public:
  explicit PreparedOnCpu(const Plan& plan) : course_(plan) {
    if (!plan.context->nope) kept_.emplace(plan, course_);
    if (plan.fused != nullptr && plan.fused->slots.kind != 0) slots_.emplace(plan);
    is_one_token_ = kept_ && IsOneToken(course_, *kept_, plan, &normed_);
  }
  rope_status Apply(const Plan& plan, const Tensor* tensors,
                    const FusedPlan* fused) const override {
    const KeptRows* const rows = kept_ ? &*kept_ : nullptr;
    const KeptSlots* const slots = slots_ ? &*slots_ : nullptr;
    if (is_one_token_) {
      ApplyToOneToken(course_, *rows, slots, normed_, plan, tensors, fused);
      return ROPE_OK;
    }
    if (fused == nullptr) {
      return Run<false>(course_, plan, tensors, nullptr, nullptr, rows, nullptr);
    }
    return ApplyFused(course_, plan, tensors, *fused, rows, slots);
  }

 private:
  const Course course_;
  std::optional<KeptRows> kept_;
  std::optional<KeptSlots> slots_;
  std::optional<NormedTurns> normed_;  // of one token
  bool is_one_token_;
};

rope_status Attach(const char* function, rope_context* context) {
  const Kernels* kernels;
  if (rope_status s = ChooseKernels(function, &kernels)) return s;
  context->backend_data = kernels;
  static const Caches caches = FindCaches();
  context->caches = &caches;
  std::snprintf(context->backend_name, sizeof(context->backend_name), "cpu %s", kernels->target);
  return ROPE_OK;
}

rope_status Fill(const FillPlan& plan) {
  FillRows(plan, KernelsOf(*plan.context));
  return ROPE_OK;
}

std::unique_ptr<PreparedCall> Prepare(const Plan& plan) {
  return std::make_unique<PreparedOnCpu>(plan);
}

}  // namespace
}  // namespace cpu

extern constexpr Backend kCpuBackend = [] {
  Backend backend;
  backend.name = "CPU";
  backend.host_memory = true;
  backend.has_runner = true;
  backend.has_ggml = true;
  backend.has_moves = true;
  backend.has_gradients = true;
  backend.attach = &cpu::Attach;
  backend.apply = &cpu::Apply;
  backend.fill = &cpu::Fill;
  backend.prepare = &cpu::Prepare;
  return backend;
}();
static_assert(IsComplete(kCpuBackend));

}  // namespace rope
