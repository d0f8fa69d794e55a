#include "cpu/append.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include <hwy/cache_control.h>

#include "cpu/gradients.h"
#include "cpu/norm_tiles.h"
#include "cpu/staged.h"
#include "math/element.h"
#include "math/operation.h"

namespace rope::cpu {
namespace {

inline void CopyBytes(char* to, const char* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

// Heads of `count` tokens, from strides to strides, in the largest pieces.
template <class Bytes>
void CopyHeads(const Copy& copy, const char* in, char* out, int count, Bytes copy_bytes) {
  const HeadStrides &from = copy.in_strides, &to = copy.out_strides;
  const int64_t width = copy.width, row = width * copy.heads;
  const bool rows = copy.heads == 1 || (from.head == width && to.head == width);
  if (rows && (count == 1 || (from.token == row && to.token == row))) {
    copy_bytes(out, in, row * count);
    return;
  }
  if (!rows && from.token == width && to.token == width) {  // from pages of HND to others
    for (int32_t h = 0; h < copy.heads; ++h) {
      copy_bytes(out + h * to.head, in + h * from.head, width * count);
    }
    return;
  }
  for (int i = 0; i < count; ++i) {
    const char* const token_in = in + i * from.token;
    char* const token_out = out + i * to.token;
    if (rows) {
      copy_bytes(token_out, token_in, row);
      continue;
    }
    for (int32_t h = 0; h < copy.heads; ++h) {
      copy_bytes(token_out + h * to.head, token_in + h * from.head, width);
    }
  }
}

void NormCopy(const Plan& plan, const Kernels& kernels, const Copy& copy, const char* in, char* out,
              int64_t token, int count) {
  Tensor tensor = {};
  tensor.in_strides = copy.in_strides;
  tensor.out_strides = copy.out_strides;
  tensor.heads = copy.heads;
  tensor.dtype = copy.dtype;
  const WrittenRun run = {0, count, out};
  NormTokens({kernels, *plan.context, *copy.norm, tensor}, {0, 0, copy.norm->channels}, in,
             {&run, 1}, token);
}

// The gradient of v.
void PassCopy(const Plan& plan, const Kernels& kernels, const Copy& copy, int64_t batch,
              int64_t token, int count, int64_t grad_part) {
  const GradientOf of = {
      kernels,          *plan.context,
      copy.norm,        copy.in_strides,
      copy.out_strides, copy.output.sums,
      copy.heads,       static_cast<int32_t>(copy.width / ElementSize(copy.dtype)),
      copy.dtype};
  const char* x = nullptr;
  if (copy.norm != nullptr) {
    const NormGradients& gradients = copy.norm->gradients;
    x = gradients.x + TokenOffset(gradients.x_strides, batch, token);
  }
  PassGradients(of, {}, copy.in + TokenOffset(copy.in_strides, batch, token), x,
                copy.out + TokenOffset(copy.out_strides, batch, token), grad_part, count);
}

// Whether codes that fill lines do so from each group on that is coded by a scale of its own.
bool GroupsFillLines(const Output& output) {
  return !output.HasScaleArray() || output.scales.group % 64 == 0;
}

// By way of the stages, or codes with their scales as they are.
void StageCopy(const Plan& plan, const Kernels& kernels, const Copy& copy, bool streams,
               const Piece& piece, int64_t batch, int64_t token) {
  const auto channels = static_cast<int32_t>(ChannelsOf(copy.dtype, copy.width));
  const bool is_coded = IsInEightBits(copy.dtype);
  const rope_dtype dtype = is_coded ? ROPE_DTYPE_F32 : copy.dtype;
  const CodedHeads coded =
      is_coded ? CodedHeadsOf(plan.fused->source_v, SourceOfToken(plan, batch, token), 0, 0)
               : CodedHeads{};
  const StagedHeads staged = {kernels,
                              *plan.context,
                              piece.in,
                              piece.out,
                              copy.in_strides,
                              copy.out_strides,
                              copy.heads,
                              channels,
                              0,
                              channels,
                              dtype,
                              StageOf(dtype, copy.output, copy.norm, false),
                              copy.output,
                              ScalesAt(copy.output, piece.place, 0),
                              copy.norm,
                              batch * plan.tokens + token,
                              coded,
                              streams && GroupsFillLines(copy.output)};
  if (!KeepsCodes(staged)) return Convert(staged, piece.count);
  if (piece.in != piece.out && streams) {
    CopyHeads(copy, piece.in, piece.out, piece.count, kernels.copy_streaming);
  } else if (piece.in != piece.out) {
    CopyHeads(copy, piece.in, piece.out, piece.count, CopyBytes);
  }
  CopyScales(staged, piece.count);
}

}  // namespace

SlotRun LongRunOf(const Plan& plan, const SlotSource& slots, const HeadStrides& strides,
                  int64_t batch, int64_t token, int count) {
  const auto in_page = [&](int64_t from, int most) {
    return RunInPage(slots, plan.positions, plan.tokens, batch, from, most);
  };
  SlotRun run = in_page(token, count);
  const int64_t page_size = slots.page_size;
  if (run.first.page < 0 || !PagesFollow(strides, page_size)) return run;
  const int64_t first = run.first.page * page_size + run.first.index;
  while (run.count < count) {
    const SlotRun next = in_page(token + run.count, count - run.count);
    if (next.first.page < 0 ||
        next.first.page * page_size + next.first.index - first != run.count) {
      break;
    }
    run.count += next.count;
  }
  return run;
}

bool CodesFillLines(const Output& output, int64_t places, int64_t channels) {
  return IsCode(output.dtype) && output.repeats == 1 && GroupsFillLines(output) &&
         (places | channels) % 64 == 0;
}

bool CopyCanStream(const Copy& copy) {
  const HeadStrides& s = copy.out_strides;
  const int64_t places = reinterpret_cast<intptr_t>(copy.out) | s.batch | s.token | s.head;
  if (copy.in == copy.out) return false;  // what has just been read is in the caches
  if (copy.output.IsLike(copy.dtype)) return (places | copy.width) % 64 == 0;
  return CodesFillLines(copy.output, places, ChannelsOf(copy.dtype, copy.width));
}

namespace {

// Calls run(copy, out, place) for what goes anywhere.
template <class Run>
void ForEachBeside(const FusedPlan& fused, const Slot& slot, const Run& run) {
  for (int n = 0; n < fused.copies.count; ++n) {
    const Copy& copy = fused.copies.of[n];
    if (!copy.ToSlots()) {
      run(copy, copy.out, Place{});
    } else if (slot.page >= 0) {
      run(copy, copy.out + TokenOffset(copy.out_strides, slot.page, slot.index),
          Place{slot.page, slot.index});
    }
  }
}

}  // namespace

void CopyBeside(const FusedPlan& fused, const Slot& slot) {
  ForEachBeside(fused, slot, [](const Copy& copy, char* out, const Place&) {
    CopyHeads(copy, copy.in, out, 1, CopyBytes);
  });
}

void NormBeside(const Plan& plan, const Kernels& kernels, const FusedPlan& fused,
                const Slot& slot) {
  ForEachBeside(fused, slot, [&](const Copy& copy, char* out, const Place&) {
    if (copy.norm == nullptr) return CopyHeads(copy, copy.in, out, 1, CopyBytes);
    NormCopy(plan, kernels, copy, copy.in, out, 0, 1);
  });
}

void ConvertBeside(const Plan& plan, const Kernels& kernels, const FusedPlan& fused,
                   const Slot& slot) {
  ForEachBeside(fused, slot, [&](const Copy& copy, char* out, const Place& place) {
    if (copy.output.IsLike(copy.dtype)) return CopyHeads(copy, copy.in, out, 1, CopyBytes);
    StageCopy(plan, kernels, copy, false, {copy.in, out, 1, place}, 0, 0);
  });
}

void CopyTokens(const Plan& plan, const KeptSlots* kept, const Kernels& kernels, const Copy& copy,
                bool streams, int64_t batch, int64_t first, int count, int64_t grad_part) {
  if (kOperations[plan.operation].is_gradient() &&
      (copy.norm != nullptr || copy.output.sums != 1)) {
    PassCopy(plan, kernels, copy, batch, first, count, grad_part);
    return;
  }
  const Ends ends = {copy.in,         copy.out,
                     copy.in_strides, copy.out_strides,
                     copy.output,     copy.FromSlots() ? &plan.fused->source_v : nullptr,
                     copy.ToSlots()};
  for (int i = 0; i < count;) {
    const int64_t token = first + i;
    const Piece piece = PieceOf(plan, kept, ends, batch, token, count - i);
    i += piece.count;
    if (piece.in == nullptr || piece.out == nullptr) continue;
    if (!copy.output.IsLike(copy.dtype) || IsInEightBits(copy.dtype)) {
      StageCopy(plan, kernels, copy, streams, piece, batch, token);
    } else if (copy.norm != nullptr) {
      NormCopy(plan, kernels, copy, piece.in, piece.out, batch * plan.tokens + token, piece.count);
    } else if (piece.in == piece.out) {
      continue;
    } else if (streams) {
      CopyHeads(copy, piece.in, piece.out, piece.count, kernels.copy_streaming);
    } else {
      CopyHeads(copy, piece.in, piece.out, piece.count, CopyBytes);
    }
  }
  if (streams) hwy::FlushStream();
}

}  // namespace rope::cpu
