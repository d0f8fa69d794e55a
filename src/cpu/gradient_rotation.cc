#include "cpu/gradient_rotation.h"

#include "call/plan.h"
#include "math/element.h"
#include "math/norm.h"
#include "math/tensor.h"

namespace rope::cpu {

const Kernels::Rotation* ReadingOf(const Job& job, int n) {
  const Tensor& t = job.tensors[n];
  const Norm* const norm = job.fused->norms[n];
  const rope_context& context = *job.plan.context;
  const bool all_turn = norm != nullptr ? norm->channels == context.rotary_dim : !t.copies_rest;
  if (!all_turn) return nullptr;
  return ReadingOf(job.course.kernels, t.dtype, job.course.order, job.course.arithmetic,
                   job.fused->outputs[n].sums);
}

void PassTokens(const Job& job, int n, const Block* rows, const ChannelRow* row, int64_t batch,
                int64_t token, int count) {
  const Course& course = job.course;
  const rope_context& context = *job.plan.context;
  const FusedPlan& fused = *job.fused;
  const Tensor& t = job.tensors[n];
  const Norm* const norm = fused.norms[n];
  const int size = ElementSize(t.dtype);
  GradientOf of = {course.kernels, context,
                   norm,           t.in_strides,
                   t.out_strides,  fused.outputs[n].sums,
                   t.heads,        context.rotary_dim,
                   t.dtype};
  TurnBack turn = {course.order, course.arithmetic, 0, rows, row, nullptr};
  const char* in = t.in + TokenOffset(t.in_strides, batch, token);
  char* out = t.out + TokenOffset(t.out_strides, batch, token);
  const char* x = nullptr;
  if (norm != nullptr || t.copies_rest) {
    of.channels = norm != nullptr ? norm->channels : context.head_dim;
    turn.span = t.in_span / size;
  } else {
    in += t.in_span;
    out += t.out_span;
  }
  if (norm != nullptr) {
    x = norm->gradients.x + TokenOffset(norm->gradients.x_strides, batch, token);
  }
  if (rows != nullptr) turn.reading = ReadingOf(job, n);
  PassGradients(of, turn, in, x, out, job.grad_part, count);
}

int64_t FirstOfPart(const Job& job, int64_t part) {
  const int64_t tokens = job.course.tokens, parts = job.fused->grad_parts;
  return tokens / parts * part + tokens % parts * part / parts;
}

void ClearParts(const Job& job, int64_t first, int64_t last) {
  const auto clear = [=](const Norm* norm) {
    if (norm != nullptr) ClearParts(norm->gradients, first, last);
  };
  for (int n = 0; n < job.plan.tensor_count; ++n) clear(job.fused->norms[n]);
  for (int n = 0; n < job.fused->copies.count; ++n) clear(job.fused->copies.of[n].norm);
}

}  // namespace rope::cpu
