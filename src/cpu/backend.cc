// The CPU backend: cuts a call into tasks of tokens, makes the rows of a block of tokens once, and
// lets the kernels turn all heads of q and k by them.
#include <hwy/cache_control.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/status.h"
#include "call/plan.h"
#include "context/backend.h"
#include "cpu/cos_sin_rows.h"
#include "cpu/kept_rows.h"
#include "cpu/kernels.h"
#include "cpu/scalar.h"
#include "cpu/streaming.h"
#include "math/element.h"
#include "math/pairing.h"
#include "math/rounding.h"
#include "math/tensor.h"

namespace rope {
namespace cpu {
namespace {

constexpr int64_t kTaskBytes = 64 << 10;      // a task worth handing to another thread
constexpr int64_t kInlineBytes = 128 << 10;   // calls up to this run on the caller's thread
constexpr int64_t kPrefetchAhead = 12 << 10;  // the best of 1 to 16 KiB (bench/README.md)
constexpr int64_t kCachedBytes = 512 << 10;   // calls up to this find their data in the L2 cache

// Everything about a call that its tasks share.
struct Job {
  const Plan& plan;
  const Kernels& kernels;
  const KeptRows* kept;  // of a prepared call
  ChannelOrder order;
  Arithmetic arithmetic;
  bool prefetch;  // more data than the inner caches hold
  bool in_cache;  // no more than the last cache holds
  // Of each tensor.
  const Kernels::Rotation* rotations[2];
  bool streams[2];  // non-temporal stores
};

int SpanBytes(const rope_context& context, const Tensor& tensor) {
  return context.rotary_dim * ElementSize(tensor.dtype);
}

// Non-temporal stores spare reading the output's lines before they are overwritten. They pay when
// the output is larger than the cache, and need whole, aligned lines.
bool Streams(const Plan& plan, const Tensor& t) {
  const rope_context& context = *plan.context;
  const int64_t span = SpanBytes(context, t);
  if (t.in == t.out) return false;
  if (plan.batch * plan.tokens * t.heads * span < context.streaming_bytes) return false;
  int64_t misaligned = reinterpret_cast<intptr_t>(t.out) | t.out_strides.batch |
                       t.out_strides.token | t.out_strides.head | t.out_span;
  for (const Segment& segment : context.segments) {
    misaligned |= static_cast<int64_t>(segment.pairs) * ElementSize(t.dtype);
    misaligned |= static_cast<int64_t>(segment.first_channel) * ElementSize(t.dtype);
  }
  return misaligned % 64 == 0;
}

// Channels outside the span, out of place.
void CopyRest(const rope_context& context, const Tensor& t, int64_t batch, int64_t first,
              int64_t count) {
  const size_t before = static_cast<size_t>(t.in_span);
  const size_t behind_at = before + static_cast<size_t>(SpanBytes(context, t));
  const size_t whole = static_cast<size_t>(context.head_dim * ElementSize(t.dtype));
  for (int64_t i = first; i < first + count; ++i) {
    for (int32_t h = 0; h < t.heads; ++h) {
      const char* in = t.in + HeadOffset(t.in_strides, batch, i, h);
      char* out = t.out + HeadOffset(t.out_strides, batch, i, h);
      std::memcpy(out, in, before);
      std::memcpy(out + behind_at, in + behind_at, whole - behind_at);
    }
  }
}

// NOPE, out of place.
void CopyHeads(const rope_context& context, const Tensor& t, int64_t batch, int64_t first,
               int64_t count) {
  const auto span = static_cast<size_t>(SpanBytes(context, t));
  for (int64_t i = first; i < first + count; ++i) {
    for (int32_t h = 0; h < t.heads; ++h) {
      std::memcpy(t.out + HeadOffset(t.out_strides, batch, i, h) + t.out_span,
                  t.in + HeadOffset(t.in_strides, batch, i, h) + t.in_span, span);
    }
  }
  if (t.copies_rest) CopyRest(context, t, batch, first, count);
}

// Token i of a block, whose row has other values for one channel of a pair than for the other.
void RotateByChannels(const Job& job, int n, int64_t batch, int64_t first, int i,
                      RowBuffer* buffer) {
  const rope_context& context = *job.plan.context;
  const Tensor& t = job.plan.tensors[n];
  const ChannelRow row = job.kept != nullptr
                             ? job.kept->ChannelRowOf(n, batch * job.plan.tokens + first + i)
                             : ChannelRowOf(job.plan, job.kernels, t.dtype, i, buffer);
  for (int32_t h = 0; h < t.heads; ++h) {
    RotateHeadScalar(t.dtype, job.order, job.arithmetic, context.segments.data(),
                     static_cast<int32_t>(context.segments.size()),
                     t.in + t.in_span + HeadOffset(t.in_strides, batch, first + i, h),
                     t.out + t.out_span + HeadOffset(t.out_strides, batch, first + i, h), row);
  }
}

// Tokens [first + i, first + i + count) of one batch row, whose first rows are those of token
// `first`. `last`: where the tokens of the task end in this batch row.
void RotateInOrder(const Job& job, int n, const OrderedRows& rows, int64_t batch, int64_t first,
                   int i, int count, int64_t last) {
  const rope_context& context = *job.plan.context;
  const Tensor& t = job.plan.tensors[n];
  Block block;
  block.tensor = &t;
  block.in = t.in + t.in_span + TokenOffset(t.in_strides, batch, first + i);
  block.out = t.out + t.out_span + TokenOffset(t.out_strides, batch, first + i);
  block.cos = rows.cos + i * rows.stride;
  block.sin = rows.sin + i * rows.stride;
  block.row_stride = rows.stride;
  block.segments = context.segments.data();
  block.segment_count = static_cast<int32_t>(context.segments.size());
  block.tokens = count;
  block.prefetch_ahead = 0;
  block.prefetch_last = nullptr;
  block.in_cache = job.in_cache;
  if (job.prefetch) {
    // Along heads that lie apart the next head's tokens are next; else what follows in memory.
    block.prefetch_ahead = HeadsLieApart(t) ? t.in_strides.head : kPrefetchAhead;
    block.prefetch_last = t.in + t.in_span + HeadOffset(t.in_strides, batch, last - 1, t.heads - 1);
  }
  if (job.streams[n]) {
    job.rotations[n]->rotate_streaming(block);
    hwy::FlushStream();
  } else {
    job.rotations[n]->rotate(block);
  }
}

// Tokens [first, first + count) of one batch row: never more than RowBuffer holds. `last`: as
// above.
void RotateBlockOfTokens(const Job& job, int64_t batch, int64_t first, int count, int64_t last) {
  const Plan& plan = job.plan;
  const rope_context& context = *plan.context;
  if (context.nope) {
    for (int n = 0; n < plan.tensor_count; ++n) {
      if (plan.tensors[n].in != plan.tensors[n].out) {
        CopyHeads(context, plan.tensors[n], batch, first, count);
      }
    }
    return;
  }
  RowBuffer buffer;
  const bool* by_channels = nullptr;  // which tokens have a row for each channel; null: none
  if (job.kept != nullptr) {
    by_channels = job.kept->IsPerChannel(batch * plan.tokens + first);
  } else {
    StartRows(plan, batch, first, count, &buffer);
    if (buffer.some_per_channel) by_channels = buffer.is_per_channel;
  }
  if (by_channels != nullptr) {  // first: ordering the others' rows takes the memory of theirs
    for (int n = 0; n < plan.tensor_count; ++n) {
      for (int i = 0; i < count; ++i) {
        if (by_channels[i]) RotateByChannels(job, n, batch, first, i, &buffer);
      }
    }
  }
  for (int n = 0; n < plan.tensor_count; ++n) {
    const Tensor& t = plan.tensors[n];
    if (t.copies_rest) CopyRest(context, t, batch, first, count);
    const OrderedRows rows = job.kept != nullptr ? job.kept->From(n, batch * plan.tokens + first)
                                                 : OrderRows(plan, job.kernels, t.dtype,
                                                             job.rotations[n]->order, &buffer);
    if (by_channels == nullptr) {
      RotateInOrder(job, n, rows, batch, first, 0, count, last);
      continue;
    }
    for (int i = 0; i < count; ++i) {
      if (!by_channels[i]) RotateInOrder(job, n, rows, batch, first, i, 1, last);
    }
  }
}

// Tokens [first, last) of all batch rows, counted through.
void RotateTokens(const Job& job, int64_t first, int64_t last) {
  const Plan& plan = job.plan;
  const int rows = RowBuffer::Capacity(*plan.context);
  int64_t batch = 0, token = first;
  if (first >= plan.tokens) {
    batch = first / plan.tokens;
    token = first % plan.tokens;
  }
  while (first < last) {
    const int64_t end = std::min(plan.tokens, token + (last - first));  // of this batch row
    while (token < end) {
      const int count = static_cast<int>(std::min<int64_t>(rows, end - token));
      RotateBlockOfTokens(job, batch, token, count, end);
      token += count;
      first += count;
    }
    token = 0;
    ++batch;
  }
}

struct Tasks {
  const Job* job;
  int64_t tokens_per_task, tokens;
  std::atomic<uint64_t> ran{0};
};

void RunTask(void* opaque, uint32_t index) {
  auto& tasks = *static_cast<Tasks*>(opaque);
  const int64_t first = index * tasks.tokens_per_task;
  RotateTokens(*tasks.job, first, std::min(tasks.tokens, first + tasks.tokens_per_task));
  tasks.ran.fetch_add(1, std::memory_order_relaxed);
}

const Kernels& KernelsOf(const rope_context& context) {
  return *static_cast<const Kernels*>(context.backend_data);
}

rope_status Apply(const Plan& plan) {
  const rope_context& context = *plan.context;
  Job job{plan,
          KernelsOf(context),
          static_cast<const KeptRows*>(plan.prepared_rows),
          ChannelOrderOf(context.pairing, plan.operation),
          context.rounding.arithmetic,
          false,
          false,
          {},
          {}};
  const int64_t tokens = plan.batch * plan.tokens;
  int64_t token_bytes = 0;
  for (int n = 0; n < plan.tensor_count; ++n) {
    const Tensor& t = plan.tensors[n];
    token_bytes += static_cast<int64_t>(t.heads) * SpanBytes(context, t);
    job.rotations[n] = &job.kernels.RotationOf(t.dtype, job.order, job.arithmetic);
    job.streams[n] = job.rotations[n]->rotate_streaming != nullptr && Streams(plan, t);
  }
  int64_t bytes;
  if (__builtin_mul_overflow(tokens, token_bytes, &bytes))
    bytes = INT64_MAX;  // q and k fit, singly
  job.prefetch = bytes > kCachedBytes;
  job.in_cache = bytes <= context.streaming_bytes;
  if (plan.runner == nullptr || bytes <= kInlineBytes) {
    RotateTokens(job, 0, tokens);
    return ROPE_OK;
  }
  // At least kTaskBytes each, and few enough for a 32-bit count.
  int64_t per_task = std::max<int64_t>(1, (kTaskBytes + token_bytes - 1) / token_bytes);
  per_task = std::max(per_task, tokens / UINT32_MAX + 1);
  const auto count = static_cast<uint32_t>((tokens + per_task - 1) / per_task);
  Tasks tasks{&job, per_task, tokens};
  const int32_t result = plan.runner->parallel_for(plan.runner->pool, &RunTask, &tasks, count);
  const uint64_t ran = tasks.ran.load(std::memory_order_relaxed);
  if (result == 0 && ran == count) return ROPE_OK;
  return Fail(
      ROPE_ERROR_RUNNER,
      "%s: the runner's parallel_for returned %d after running %llu of %u tasks: it must run "
      "each once, and the outputs are unspecified",
      plan.function, result, static_cast<unsigned long long>(ran), count);
}

rope_status Attach(const char* function, rope_context* context) {
  const Kernels* kernels;
  if (rope_status s = ChooseKernels(function, &kernels)) return s;
  context->backend_data = kernels;
  context->streaming_bytes = StreamingThreshold();
  std::snprintf(context->backend_name, sizeof(context->backend_name), "cpu %s", kernels->target);
  return ROPE_OK;
}

rope_status Fill(const FillPlan& plan) {
  FillRows(plan, KernelsOf(*plan.context));
  return ROPE_OK;
}

std::unique_ptr<PreparedRows> Prepare(const Plan& plan) {
  if (plan.context->nope) return nullptr;
  return std::make_unique<KeptRows>(plan, KernelsOf(*plan.context));
}

}  // namespace
}  // namespace cpu

extern constexpr Backend kCpuBackend = [] {
  Backend backend;
  backend.name = "CPU";
  backend.host_memory = true;
  backend.has_runner = true;
  backend.has_ggml = true;
  backend.attach = &cpu::Attach;
  backend.apply = &cpu::Apply;
  backend.fill = &cpu::Fill;
  backend.prepare = &cpu::Prepare;
  return backend;
}();
static_assert(IsComplete(kCpuBackend));

}  // namespace rope
