// What a validated call does besides rotating q and k in their dtype. Lives on the caller's stack,
// beside the Plan.
#ifndef LIBROPE_SRC_CALL_FUSED_PLAN_H_
#define LIBROPE_SRC_CALL_FUSED_PLAN_H_

#include <cstdint>

#include "call/call.h"
#include "math/element.h"
#include "math/norm.h"
#include "math/scale.h"
#include "math/slots.h"
#include "math/tensor.h"
#include "math/token_position.h"

namespace rope {

// What the output of heads is. Each head is written `repeats` times in a row, where the strides of
// the output and of its scales lead from the first one of a head to that of the next. With BACKWARD
// each is the sum of `sums` heads of the input, one after the other.
struct Output {
  rope_dtype dtype;
  int32_t repeats, sums;
  // Of a dtype in 8 bits.
  Beside scales_at;  // where an array of scales is given
  GroupScales scales;

  bool HasScaleArray() const { return IsCode(dtype) && scales.groups != 0; }
  void SetLike(rope_dtype in) {
    dtype = in;
    repeats = sums = 1;
  }
  // Whether heads of a dtype, or their sums, are of it, each once.
  bool IsLike(rope_dtype in) const { return dtype == in && repeats == 1; }
};

// What is read in slots of `source`. In 8 bits it counts as f32, which it stands for.
struct SourceHeads {
  rope_dtype dtype;
  GroupScales scales;  // of a dtype that is a code

  bool IsDecoded() const { return IsInEightBits(dtype); }
  bool HasScaleArray() const { return IsCode(dtype) && scales.groups != 0; }
};

// Whether codes that do not turn stay as they are: coded again and again, their scales would drift.
enum class KeptCodes {
  kNever,
  kAlways,
  kOverTheirScales,  // where the scales of the output are those that are read
};

inline KeptCodes KeptCodesOf(const SourceHeads& from, const Output& to) {
  if (from.dtype != to.dtype) return KeptCodes::kNever;
  if (!IsCode(from.dtype)) return KeptCodes::kAlways;
  const auto always_if = [](bool same) { return same ? KeptCodes::kAlways : KeptCodes::kNever; };
  const GroupScales &read = from.scales, &written = to.scales;
  if (read.groups == 0 || written.groups == 0) {
    return always_if(read.groups == written.groups && read.value == written.value);
  }
  const bool same_groups =
      read.group == written.group && read.groups == written.groups && read.dtype == written.dtype;
  if (!same_groups || read.computed != written.computed) return KeptCodes::kNever;
  if (written.computed) {
    return always_if(read.power_of_two == written.power_of_two && read.least == written.least);
  }
  const bool same_strides =
      read.strides.token == written.strides.token && read.strides.head == written.strides.head;
  return same_strides ? KeptCodes::kOverTheirScales : KeptCodes::kNever;
}

// Heads that do not turn, to an output or to slots.
struct Copy {
  Beside from, to;
  const char* in;
  char* out;
  HeadStrides in_strides, out_strides;  // bytes; of slots: from page to page, from slot to slot
  int64_t width;                        // bytes of a head that is read
  int32_t heads;
  rope_dtype dtype;
  Output output;
  const Norm* norm;  // null: the same values

  bool FromSlots() const { return from == kSourceV; }
  bool ToSlots() const { return to == kCacheV; }
};

// What is copied.
struct Copies {
  int32_t count;
  Copy of[3];
};

// rope_qk_args.fused, and outputs of another dtype or with more heads. Of a prepared call it has
// no addresses.
struct FusedPlan {
  // A plan that does nothing besides rotating q and k.
  void Clear() {
    cached = -1;
    gathered = kNone;
    in_place = converts = adds = false;
    copies.count = 0;
    slots.kind = source.kind = 0;
    dropped = source_dropped = nullptr;
    norms[0] = norms[1] = norms[2] = nullptr;
    grad_parts = 0;
  }
  // v, which lies as k does, is copied, and nothing else. It is to be normed by none, and its
  // output is like it.
  Copy* CopyLike(const Tensor& k, int64_t width, Beside from, const void* in, Beside to,
                 void* out) {
    copies.count = 1;
    Copy* const v = &copies.of[0];
    v->from = from;
    v->to = to;
    v->in = static_cast<const char*>(in);
    v->out = static_cast<char*>(out);
    v->in_strides = k.in_strides;
    v->out_strides = k.out_strides;
    v->width = width;
    v->heads = k.heads;
    v->dtype = k.dtype;
    v->output.SetLike(k.dtype);
    v->norm = nullptr;
    return v;
  }
  // Becomes a copy of the plan of a prepared call, of which only what it uses is copied: the whole
  // takes as long as all the checks of its addresses.
  void TakeUsed(const FusedPlan& other, int32_t tensor_count) {
    cached = other.cached;
    gathered = other.gathered;
    in_place = other.in_place;
    converts = other.converts;
    adds = other.adds;
    for (int n = 0; n < tensor_count; ++n) {
      outputs[n] = other.outputs[n];
      norms[n] = other.norms[n];
    }
    for (int n = tensor_count; n < 3; ++n) norms[n] = nullptr;
    copies.count = other.copies.count;
    for (int n = 0; n < copies.count; ++n) copies.of[n] = other.copies.of[n];
    slots = other.slots;
    source.kind = other.source.kind;
    dropped = other.dropped;
    grad_parts = other.grad_parts;
    if (has_norms()) {
      q_norm = other.q_norm;
      k_norm = other.k_norm;
      v_norm = other.v_norm;
      TakeNormsFrom(other);
    }
  }
  // Whether tensor n is read in 8 bits; Tensor::dtype is F32 then.
  bool Decodes(int32_t n) const { return n >= gathered && source_k.IsDecoded(); }
  bool has_slots() const { return (slots.kind | source.kind) != 0; }
  // Whether heads turn and are copied as they are, to outputs or to slots, and that is all.
  bool only_moves() const { return source.kind == 0 && !converts && !adds && !has_norms(); }
  // Whether some heads are normed: by one norm, or by any.
  bool IsUsed(const Norm& norm) const {
    return HasNorm([&norm](const Norm* used) { return used == &norm; });
  }
  bool has_norms() const {
    return HasNorm([](const Norm* used) { return used != nullptr; });
  }
  // After this has become a copy of `other`, by whose norms its heads would be normed.
  void TakeNormsFrom(const FusedPlan& other) {
    const auto take = [&](const Norm** norm) {
      if (*norm == &other.q_norm) *norm = &q_norm;
      if (*norm == &other.k_norm) *norm = &k_norm;
      if (*norm == &other.v_norm) *norm = &v_norm;
    };
    for (const Norm*& norm : norms) take(&norm);
    for (int n = 0; n < copies.count; ++n) take(&copies.of[n].norm);
  }

  // Which of Plan::tensors has slots as its output: there out_strides.batch leads from page to page
  // and out_strides.token from slot to slot. -1: none. The same tensor with an output of its own
  // stands behind it, and is to be rotated after it: it may be in place.
  int32_t cached;
  // From which of Plan::tensors on their inputs are slots of `source`, as strides there say. The
  // one with slots as its output stands last, as it may be in place. kNone: none are.
  int32_t gathered;
  static constexpr int32_t kNone = INT32_MAX;
  bool in_place;      // source and cache are one memory, and some token stays where it is
  bool converts;      // some output is not like its input
  bool adds;          // some output is a sum of heads
  Output outputs[3];  // of Plan::tensors
  Copies copies;
  // kind 0: nothing goes to slots. Plan::positions say which sequence a token has.
  SlotSource slots;
  uint32_t* dropped;               // of a device: null, or counts the tokens whose slot is missing
  SlotSource source;               // kind 0: nothing is read in slots
  SourceHeads source_k, source_v;  // with a source
  uint32_t* source_dropped;
  PositionSource from;   // of operations that have one: the positions before
  const Norm* norms[3];  // of Plan::tensors; null: none
  Norm q_norm, k_norm, v_norm;
  int32_t grad_parts;  // of the gradients of weights that the norms ask for; 0: none does

 private:
  template <class Is>
  bool HasNorm(const Is& is) const {
    for (const Norm* norm : norms) {
      if (is(norm)) return true;
    }
    for (int n = 0; n < copies.count; ++n) {
      if (is(copies.of[n].norm)) return true;
    }
    return false;
  }
};

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_FUSED_PLAN_H_
