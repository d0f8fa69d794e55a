// Which tensors of a call go through the stages of staged.h, and in which dtypes.
#ifndef LIBROPE_SRC_CPU_STAGE_H_
#define LIBROPE_SRC_CPU_STAGE_H_

#include "call/plan.h"
#include "context/context.h"
#include "cpu/kernels.h"
#include "math/code.h"
#include "math/element.h"
#include "math/norm.h"
#include "math/pairing.h"

namespace rope::cpu {

// The dtypes of heads on their way: f32, unless something is rounded to the input's dtype.
struct Stage {
  rope_dtype loaded;  // in which a norm before the rotation finds them
  rope_dtype turned;  // in which they are rotated, normed behind that, and wait for their output
  bool rounds;        // of f32 they are at last rounded to the input's dtype

  // Whether such an output is made from heads as they have turned, not from f32.
  bool StoresAsTurned(rope_dtype output) const { return output == turned || IsInEightBits(output); }
  // Whether heads of 16 bits never are in f32 on their way to it.
  bool StaysNarrow(rope_dtype output) const {
    return loaded == turned && IsNarrow(turned) && StoresAsTurned(output);
  }
};

// `rounds`: the context rounds more than results.
inline Stage StageOf(rope_dtype dtype, const Output& output, const Norm* norm, bool rounds) {
  const bool first = rounds || (IsCode(output.dtype) && output.scales.round_first);
  const rope_dtype turned = first || output.dtype == dtype ? dtype : ROPE_DTYPE_F32;
  if (norm == nullptr || !IsNarrow(dtype)) return {turned, turned, false};
  if (norm->rounding == ROPE_NORM_ROUNDING_FLOAT32) {
    return {ROPE_DTYPE_F32, ROPE_DTYPE_F32, turned == dtype && output.dtype != dtype};
  }
  return {dtype, norm->after ? dtype : turned, false};
}

// Of tensor n of a plan with a FusedPlan.
inline Stage StageOf(const Plan& plan, int n) {
  return StageOf(plan.tensors[n].dtype, plan.fused->outputs[n], plan.fused->norms[n],
                 plan.context->rounding.rounds_rows);
}
inline bool IsStaged(const FusedPlan& fused, int n, rope_dtype dtype) {
  const Norm* const norm = fused.norms[n];
  return !fused.outputs[n].IsLike(dtype) || fused.Decodes(n) || (norm != nullptr && norm->in_f32);
}
// The dtype of the kernel that rotates tensor n of a plan.
inline rope_dtype TurnedIn(const Plan& plan, int n) {
  const rope_dtype dtype = plan.tensors[n].dtype;
  const bool staged = plan.fused != nullptr && IsStaged(*plan.fused, n, dtype);
  return staged ? StageOf(plan, n).turned : dtype;
}

// Whether channels outside the span of tensor n, which is staged, are read, too: for a norm of more
// than the span, or to be stored.
inline bool LoadsRest(const Plan& plan, int n) {
  const Norm* const norm = plan.fused->norms[n];
  return norm != nullptr ? norm->channels != plan.context->rotary_dim : plan.tensors[n].copies_rest;
}

// Whether nothing comes between what tensor n is in memory and its rotation.
inline bool TurnsAsItIs(const Plan& plan, int n) {
  const FusedPlan* const fused = plan.fused;
  return fused != nullptr && IsStaged(*fused, n, plan.tensors[n].dtype) && !fused->Decodes(n) &&
         !LoadsRest(plan, n) && (fused->norms[n] == nullptr || fused->norms[n]->after);
}

// What turns the heads of tensor n to f32 where they are read; null: there is nothing. Those of 16
// bits turn in f32 where no policy rounds anything but results.
inline const Kernels::Rotation* WideningOf(const Plan& plan, int n, const Kernels& kernels,
                                           ChannelOrder order) {
  if (!TurnsAsItIs(plan, n) || StageOf(plan, n).turned != ROPE_DTYPE_F32) return nullptr;
  const Kernels::Rotation& widening = kernels.widening[plan.tensors[n].dtype - 1][order];
  return widening.rotate != nullptr ? &widening : nullptr;
}

// What turns heads of tensor n, as they are or have been decoded to f32, to codes or blocks of
// Q8_0, which go to the output; null: there is nothing. Its rows have the order of what turns them
// otherwise.
inline const Kernels::Rotation* CodingOf(const Plan& plan, int n, const Kernels& kernels,
                                         ChannelOrder order) {
  const bool turns_decoded = plan.fused != nullptr && plan.fused->Decodes(n) && !LoadsRest(plan, n);
  if (!(turns_decoded || TurnsAsItIs(plan, n)) || StageOf(plan, n).turned != ROPE_DTYPE_F32 ||
      plan.context->rounding.arithmetic != Arithmetic::kFused) {
    return nullptr;
  }
  const Output& output = plan.fused->outputs[n];
  if (plan.fused->norms[n] != nullptr || output.repeats != 1) return nullptr;
  const int dtype = plan.tensors[n].dtype - 1;
  const rope_context& context = *plan.context;
  const bool is_whole = context.segments.size() == 1 && kernels.CodesWholeHeads(context.pairs);
  if (output.dtype == ROPE_DTYPE_Q8_0) {
    const Kernels::Rotation& coding = kernels.coding_q8[dtype][order];
    return is_whole && coding.rotate != nullptr ? &coding : nullptr;
  }
  if (!IsCode(output.dtype)) return nullptr;
  const int code = static_cast<int>(CodeOf(output.dtype));
  if (!output.HasScaleArray()) {
    const Kernels::Rotation& coding = kernels.coding[dtype][code][order];
    const bool fits = is_whole || plan.tensors[n].dtype == ROPE_DTYPE_BF16;
    return fits && coding.rotate != nullptr ? &coding : nullptr;
  }
  const Kernels::Rotation& coding = kernels.coding_by_largest[dtype][code][order];
  const bool fits = is_whole && output.scales.computed && output.scales.group == context.rotary_dim;
  return fits && coding.rotate != nullptr ? &coding : nullptr;
}

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_STAGE_H_
