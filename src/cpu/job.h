// What the tasks of a call share, and how its tokens follow each other.
#ifndef LIBROPE_SRC_CPU_JOB_H_
#define LIBROPE_SRC_CPU_JOB_H_

#include <cstdint>

#include <hwy/base.h>

#include "call/plan.h"
#include "cpu/append.h"
#include "cpu/block.h"
#include "cpu/caches.h"
#include "cpu/course.h"
#include "cpu/kept_rows.h"
#include "cpu/kept_slots.h"
#include "cpu/norm_tiles.h"
#include "math/element.h"
#include "math/tensor.h"

namespace rope::cpu {

// Everything about a call that its tasks share.
struct Job {
  const Course& course;
  const Plan& plan;
  const Tensor* tensors;
  const FusedPlan* fused;       // plan.fused with its addresses; null: none
  const Norms* norms;           // null: none
  const KeptRows* kept;         // of a prepared call
  const KeptSlots* kept_slots;  // of a prepared call, or of a block
  bool in_cache;                // no more than the last cache holds, inputs and outputs
  bool streams[3];              // non-temporal stores, for each tensor
  bool copy_streams[3];         // the same, for each of the copies
  int32_t row_head;   // which of a token's rows (Plan::row_heads) turns the heads of the tensors
  int64_t grad_part;  // of the gradients of weights, to which the tokens belong
};

inline NormPass NormPassOf(const Job& job, int n) {
  return job.norms != nullptr ? job.norms->passes[n] : NormPass::kNone;
}

// Counted through all batch rows.
inline int64_t TokenNumber(const Job& job, int64_t batch, int64_t token) {
  return batch * job.plan.tokens + token;
}

inline int64_t KeptRow(const Job& job, int64_t batch, int64_t token) {
  return KeptRows::RowOf(job.plan, job.row_head, batch, token);
}

// Of tensor n, which is `t`. Of a call with a FusedPlan, as is what follows.
inline Ends EndsOf(const Job& job, int n, const Tensor& t) {
  const FusedPlan& fused = *job.fused;
  return {t.in,
          t.out,
          t.in_strides,
          t.out_strides,
          fused.outputs[n],
          n >= fused.gathered ? &fused.source_k : nullptr,
          n == fused.cached};
}

// apply(i, piece) for tokens [first + i, first + end) of a batch row, as they lie one after the
// other: all, or where they come from slots or go to some, piece by piece.
template <class Apply>
void ForEachPiece(const Job& job, const Ends& ends, int64_t batch, int64_t first, int i, int end,
                  const Apply& apply) {
  while (i < end) {
    const Piece piece = PieceOf(job.plan, job.kept_slots, ends, batch, first + i, end - i);
    if (piece.in != nullptr && piece.out != nullptr) apply(i, piece);
    i += piece.count;
  }
}

// Whether and by how far a block asks the memory for what tensor n reads. `last_head()` is the last
// head of the task, as far as it goes on like this.
template <class LastHead>
HWY_INLINE void AskAhead(const Job& job, int n, LastHead last_head, Block* block) {
  const Tensor& t = job.tensors[n];
  block->prefetch_ahead = 0;
  block->prefetch_last = nullptr;
  block->prefetch_near = 0;
  block->prefetch_into_l1 = false;
  if (!job.course.prefetch) return;
  const Caches& caches = *job.plan.context->caches;
  const bool normed = NormPassOf(job, n) == NormPass::kWithRotation;
  // f32 that becomes less brings the memory as little work as 16 bits do.
  const bool shrinks = job.fused != nullptr && job.fused->outputs[n].dtype != t.dtype;
  const Ask ask = normed                         ? NormTilesOf(caches, t.dtype).ask
                  : IsNarrow(t.dtype) || shrinks ? caches.narrow
                                                 : caches.f32;
  // Along heads that lie apart the next head's tokens are next; else what follows in memory.
  const bool apart = HeadsLieApart(t);
  if (!apart && ask == Ask::kNot) return;
  block->prefetch_into_l1 = ask == Ask::kIntoL1;
  block->prefetch_ahead = apart                     ? t.in_strides.head
                          : block->prefetch_into_l1 ? caches.l1_ahead
                                                    : caches.l2_ahead;
  if (ask == Ask::kIntoBoth && !apart) block->prefetch_near = caches.l1_ahead;
  block->prefetch_last = last_head() + t.in_span;
}

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_JOB_H_
