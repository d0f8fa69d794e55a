#include "cpu/staged_rotation.h"

#include <hwy/base.h>
#include <hwy/cache_control.h>

#include <algorithm>

#include "base/limits.h"
#include "cpu/channel_heads.h"
#include "cpu/norm_tiles.h"
#include "cpu/staged.h"
#include "math/element.h"
#include "math/rotate.h"

namespace rope::cpu {
namespace {

// run(first, staged, tokens): heads of so many tokens, from one on, as they lie one after the
// other.
template <class Run>
void ForEachStaged(const Job& job, int n, int64_t batch, int64_t token, int count, const Run& run) {
  const rope_context& context = *job.plan.context;
  const Tensor& t = job.tensors[n];
  const Output& output = job.fused->outputs[n];
  const Norm* const norm = job.fused->norms[n];
  const Stage stage = StageOf(job.plan, n);
  const int32_t span = context.rotary_dim;
  const bool loads_rest = LoadsRest(job.plan, n),
             stores_rest = loads_rest && (t.copies_rest || t.in == t.out);
  const int32_t before = loads_rest ? context.rotary_offset : 0;
  ForEachPiece(job, EndsOf(job, n, t), batch, token, 0, count, [&](int at, const Piece& piece) {
    const int64_t first = token + at, head = int64_t{job.row_head} * t.heads;
    StagedHeads staged = {job.course.kernels,
                          context,
                          piece.in + (loads_rest ? 0 : t.in_span),
                          piece.out + (stores_rest ? 0 : t.out_span),
                          t.in_strides,
                          t.out_strides,
                          t.heads,
                          loads_rest ? context.head_dim : span,
                          stores_rest ? 0 : before,
                          stores_rest ? context.head_dim : span,
                          t.dtype,
                          stage,
                          output,
                          ScalesAt(output, piece.place, head),
                          norm,
                          TokenNumber(job, batch, first),
                          {},
                          job.streams[n]};
    if (job.fused->Decodes(n)) {
      staged.coded = CodedHeadsOf(job.fused->source_k, SourceOfToken(job.plan, batch, first), head,
                                  loads_rest ? 0 : t.in_span);  // of codes: channels
    }
    run(first, staged, piece.count);
  });
}

void FlushOutput(const Job& job, int n) {
  if (job.streams[n]) hwy::FlushStream();
}

// The span of the heads of a part, in place.
Tensor SpanOf(const rope_context& context, const StagedHeads& staged, const StagedPart& part) {
  const rope_dtype dtype = staged.stage.turned;
  const bool loads_rest = staged.width != context.rotary_dim;
  char* const heads = part.turned + (loads_rest ? BytesOf(dtype, context.rotary_offset) : 0);
  const int64_t head = BytesOf(dtype, staged.width);
  const HeadStrides strides = {0, head * part.heads, head};
  return {heads, heads, strides, strides, 0, 0, part.heads, dtype, false};
}

bool TurnsNothing(const OrderedRows& rows, int token, int values) {
  const float *const cos = rows.cos + token * rows.stride, *const sin =
                                                               rows.sin + token * rows.stride;
  for (int i = 0; i < values; ++i) {
    if (!IsNoTurn({cos[i], sin[i]})) return false;
  }
  return true;
}

}  // namespace

void ConvertInStages(const Job& job, int n, int64_t batch, int64_t first, int count) {
  ForEachStaged(job, n, batch, first, count, [](int64_t, const StagedHeads& staged, int tokens) {
    if (KeepsCodes(staged)) return CopyCodes(staged, tokens);
    Convert(staged, tokens);
  });
  FlushOutput(job, n);
}

namespace {

// Of heads that are asked for by nothing but their kernel; without a norm, whose fields take long
// to clear.
Block BlockInCache(const rope_context& context, const OrderedRows& rows) {
  Block block;
  block.cos = rows.cos;
  block.sin = rows.sin;
  block.row_stride = rows.stride;
  block.segments = context.segments.data();
  block.segment_count = static_cast<int32_t>(context.segments.size());
  block.tokens = 1;
  block.in_cache = true;
  block.prefetch_ahead = 0;
  block.prefetch_last = nullptr;
  block.prefetch_near = 0;
  block.prefetch_into_l1 = false;
  return block;
}

// What is normed and turned at once before it is stored: two tokens of eight heads of 128 in bf16.
// A token more would save half a percent, and leave the stack little of what rope.h promises.
constexpr int64_t kTurnedBytes = 4 << 10;
static_assert(kTurnedBytes >= kMaxHeadDim * int64_t{sizeof(float)});

// Whether a norm and the rotation are one pass, from where heads are read into a buffer, as nothing
// comes between them that rounds otherwise. What their kernel takes for each call then is taken for
// the tokens of several slots, which stages see one by one. Only heads that are normed singly, by
// weights that they share, may be more than the buffer holds.
bool NormsAsItTurns(const Job& job, int n) {
  const Norm* const norm = job.fused->norms[n];
  if (norm == nullptr) return false;
  const Tensor& t = job.tensors[n];
  const Stage stage = StageOf(job.plan, n);
  const bool apart = norm->span == ROPE_NORM_SPAN_HEAD && norm->weight_stride == 0;
  return stage.turned == t.dtype &&
         (apart || t.heads * BytesOf(t.dtype, norm->channels) <= kTurnedBytes) &&
         TakesOnePass(job.course.kernels, job.course.order, *job.plan.context, *norm, t.dtype);
}

// By rows in the order of the rotation without a norm, which is that of the one with it.
HWY_NOINLINE void NormAndRotateByRows(const Job& job, int n, const OrderedRows& rows, int64_t batch,
                                      int64_t first, int i, int count) {
  const rope_context& context = *job.plan.context;
  const Tensor& t = job.tensors[n];
  const Norm& norm = *job.fused->norms[n];
  const Kernels::Rotation& rotation =
      job.course.kernels.normed_rotations[t.dtype - 1][RoundingOf(norm, t.dtype)][job.course.order];
  const OnePass pass = {job.course.order, rotation.order, rotation.rotate,
                        WritesRest(context, norm, t)};
  alignas(64) char turned[kTurnedBytes];
  const int64_t head_bytes = BytesOf(t.dtype, norm.channels);
  const auto most = static_cast<int32_t>(kTurnedBytes / head_bytes);
  Tensor part = t;  // some heads
  part.out_span = t.in_span;
  const NormOf of = {job.course.kernels, context, norm, part};
  Block block = BlockInCache(context, rows);
  block.tensor = &part;
  const auto turn = [&](int begin, int end) {
    for (; begin < end; begin += block.tokens) {
      block.tokens = std::min(std::max(most / t.heads, 1), end - begin);
      block.cos = rows.cos + begin * rows.stride;
      block.sin = rows.sin + begin * rows.stride;
      const WrittenRun run = {0, block.tokens, turned};
      for (int32_t head = 0; head < t.heads; head += part.heads) {
        part.heads = std::min(most, t.heads - head);
        part.out_strides = {0, head_bytes * part.heads, head_bytes};
        block.in = t.in + HeadOffset(t.in_strides, batch, first + begin, head) + t.in_span;
        NormAndRotate(of, pass, block, {&run, 1}, TokenNumber(job, batch, first + begin));
        ForEachStaged(job, n, batch, first + begin, block.tokens,
                      [&](int64_t token, const StagedHeads& staged, int tokens) {
                        char* const heads =
                            turned + (token - first - begin) * part.out_strides.token;
                        StorePart(staged, {0, tokens, head, part.heads, heads, heads,
                                           reinterpret_cast<float*>(heads)});
                      });
      }
    }
  };
  // Tokens that are written, as many as follow each other: padding is not looked at.
  int begin = i, end = i;
  ForEachPiece(job, EndsOf(job, n, t), batch, first, i, i + count, [&](int at, const Piece& piece) {
    if (at != end) {
      turn(begin, end);
      begin = at;
    }
    end = at + piece.count;
  });
  turn(begin, end);
}

void RotateByRows(const Job& job, int n, const OrderedRows& rows, int64_t batch, int64_t first,
                  int i, int count, int64_t last) {
  if (NormsAsItTurns(job, n)) {
    return NormAndRotateByRows(job, n, rows, batch, first, i, count);
  }
  const rope_context& context = *job.plan.context;
  const Tensor& t = job.tensors[n];
  const Output& output = job.fused->outputs[n];
  const bool reads = job.course.reads[n], recodes = job.course.recodes[n];
  const Kernels::Rotation& rotation = *job.course.rotations[n];
  const auto rotate = recodes && job.streams[n] ? rotation.rotate_streaming : rotation.rotate;
  Block block = BlockInCache(context, rows);
  if (reads && n < job.fused->gathered) {
    const auto last_head = [&] {
      return t.in + HeadOffset(t.in_strides, batch, last - 1, t.heads - 1);
    };
    AskAhead(job, n, last_head, &block);
  }
  if (recodes && IsCode(output.dtype)) block.CodeBy(output.scales);
  const auto rotate_piece = [&](int64_t token, const StagedHeads& staged, int tokens) {
    ForEachPart(staged, tokens, [&](const StagedPart& part) {
      Tensor heads = SpanOf(context, staged, part);
      if (reads) {
        heads.in = staged.in + HeadOffset(staged.in_strides, 0, part.token, part.head);
        heads.in_strides = staged.in_strides;
      } else {
        LoadPart(staged, part);
      }
      if (recodes) {
        heads.out = staged.out + HeadOffset(staged.out_strides, 0, part.token, part.head);
        heads.out_strides = staged.out_strides;
        if (staged.first_scales != nullptr) {
          block.first_scale =
              staged.first_scales + HeadOffset(output.scales.strides, 0, part.token, part.head);
        }
      }
      const int64_t row = (token + part.token - first) * rows.stride;
      block.tensor = &heads;
      block.in = heads.in;
      block.out = heads.out;
      block.cos = rows.cos + row;
      block.sin = rows.sin + row;
      block.tokens = part.tokens;
      rotate(block);
      if (!recodes) StorePart(staged, part);
    });
  };
  ForEachStaged(job, n, batch, first + i, count, rotate_piece);
}

}  // namespace

void RotateTokenInStages(const Course& course, const Plan& plan, int n, const Tensor& t,
                         const Output& output, const Place& place, const OrderedRows& row) {
  const rope_context& context = *plan.context;
  Block block = BlockInCache(context, row);
  const char* const in = t.in + t.in_span;
  char* const out = t.out + t.out_span;
  if (course.codes[n]) {
    block.tensor = &t;
    block.in = in;
    block.out = out;
    if (IsCode(output.dtype)) block.CodeBy(output.scales);
    block.first_scale = ScalesAt(output, place, 0);
    course.rotations[n]->rotate(block);
    return;
  }
  const int32_t span = context.rotary_dim;
  const StagedHeads staged = {course.kernels,
                              context,
                              in,
                              out,
                              t.in_strides,
                              t.out_strides,
                              t.heads,
                              span,
                              0,
                              span,
                              t.dtype,
                              StageOf(plan, n),
                              output,
                              ScalesAt(output, place, 0),
                              nullptr,
                              0,
                              {},
                              false};
  RunStages(staged, 1, [&](const StagedPart& part) {
    Tensor heads = SpanOf(context, staged, part);
    heads.in = in + part.head * t.in_strides.head;
    heads.in_strides = t.in_strides;
    block.tensor = &heads;
    block.in = heads.in;
    block.out = heads.out;
    course.rotations[n]->rotate(block);
  });
}

void RotateInStages(const Job& job, int n, const OrderedRows& rows, int64_t batch, int64_t first,
                    int i, int count, int64_t last) {
  if (!job.fused->Decodes(n) || MovesChannels(job.course.order)) {
    RotateByRows(job, n, rows, batch, first, i, count, last);
    return FlushOutput(job, n);
  }
  // Codes of tokens that do not turn stay: coded again and again, their scales would drift.
  const int values = RowValues(job.course.rotations[n]->order, job.plan.context->pairs);
  for (const int end = i + count; i < end;) {
    const bool stays = TurnsNothing(rows, i, values);
    int alike = 1;
    while (i + alike < end && TurnsNothing(rows, i + alike, values) == stays) ++alike;
    if (stays) {
      ConvertInStages(job, n, batch, first + i, alike);
    } else {
      RotateByRows(job, n, rows, batch, first, i, alike, last);
    }
    i += alike;
  }
  FlushOutput(job, n);
}

void RotateByChannelsInStages(const Job& job, int n, const ChannelRow& row, int64_t batch,
                              int64_t token) {
  const auto rotate_piece = [&](int64_t, const StagedHeads& staged, int tokens) {
    RunStages(staged, tokens, [&](const StagedPart& part) {
      LoadPart(staged, part);
      const Tensor heads = SpanOf(*job.plan.context, staged, part);
      RotateHeads(job.course.kernels, *job.plan.context, job.course.order, job.course.arithmetic,
                  heads, heads.in, heads.out, row);
    });
  };
  ForEachStaged(job, n, batch, token, 1, rotate_piece);
  FlushOutput(job, n);
}

}  // namespace rope::cpu
