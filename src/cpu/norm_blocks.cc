#include "cpu/norm_blocks.h"

namespace rope::cpu {
NormOf NormOfTensor(const Job& job, int n) {
  return {job.course.kernels, *job.plan.context, *job.fused->norms[n], job.tensors[n]};
}

OnePass OnePassOf(const Job& job, int n) {
  const Tensor& t = job.tensors[n];
  const Kernels::Rotation& rotation = job.course.kernels.normed_rotations[t.dtype - 1][RoundingOf(
      *job.fused->norms[n], t.dtype)][job.course.order];
  return {job.course.order, rotation.order,
          job.streams[n] ? rotation.rotate_streaming : rotation.rotate,
          WritesRest(*job.plan.context, *job.fused->norms[n], job.norms->given[n])};
}

bool NormsApart(const Job& job, int n) {
  const NormPass pass = NormPassOf(job, n);
  return pass != NormPass::kNone && pass != NormPass::kWithRotation;
}

void NormBlock(const Job& job, int n, int64_t batch, int64_t first, int count, int64_t last) {
  const bool after = NormPassOf(job, n) == NormPass::kAfter;
  const Norm& norm = *job.fused->norms[n];
  Tensor t = job.norms->given[n];
  const ChannelPart part = NormedPart(*job.plan.context, norm, t);
  if (after) {
    t.in = t.out;
    t.in_strides = t.out_strides;
  }
  t.heads = job.tensors[n].heads;  // of one row
  const int64_t heads_before = int64_t{job.row_head} * t.heads;
  t.in += heads_before * t.in_strides.head;
  t.out += heads_before * t.out_strides.head;
  NormOf of = {job.course.kernels, *job.plan.context, norm, t};
  // Only where it saves time: heads that are normed singly take a tenth longer if they ask.
  const bool asks = t.dtype == ROPE_DTYPE_F32 && norm.span == ROPE_NORM_SPAN_ALL_HEADS;
  if (asks && job.course.prefetch && last != 0) {
    of.prefetch_last = t.in + HeadOffset(t.in_strides, batch, last - 1, t.heads - 1);
  }
  ForEachRead(job, EndsOf(job, n, t), batch, first, 0, count,
              [&](int i, const char* in, const WrittenRuns& out) {
                NormTokens(of, part, in, out, TokenNumber(job, batch, first + i));
              });
}

}  // namespace rope::cpu
