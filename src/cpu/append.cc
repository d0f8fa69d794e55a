#include "cpu/append.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include <hwy/cache_control.h>

namespace rope::cpu {
namespace {

// The part of a run that lies in one page.
SlotRun PieceOf(const Plan& plan, int64_t batch, int64_t index, int count) {
  const SlotSource& slots = plan.fused->slots;
  const Token token = LocateToken(plan.positions, batch, index);
  const Slot first = SlotOf(slots, token, plan.tokens);
  if (first.page < 0 || count == 1) return {first, 1};
  int64_t most = std::min(count, slots.page_size - first.index);
  if (slots.kind != ROPE_SLOTS_MAPPED) {
    const int32_t* const runs = plan.positions.cu_seqlens;
    const int64_t end = runs != nullptr ? runs[token.sequence + 1] : plan.tokens;
    return {first, static_cast<int>(std::clamp<int64_t>(end - index, 1, most))};
  }
  const int64_t at = batch * plan.tokens + index;
  most = std::min(most, slots.slots_length - at);
  const int64_t slot = first.page * slots.page_size + first.index;
  const auto follow = [&](const auto* numbers) {
    int n = 1;
    while (n < most && numbers[at + n] == slot + n) ++n;
    return n;
  };
  return {first, slots.slots_i64 != nullptr ? follow(slots.slots_i64) : follow(slots.slots_i32)};
}

// Heads of `count` tokens, from strides to strides.
template <class CopyBytes>
void CopyHeads(const Copy& copy, const char* in, char* out, int count, CopyBytes copy_bytes) {
  const HeadStrides &from = copy.in_strides, &to = copy.out_strides;
  const int64_t row = copy.width * copy.heads;
  const bool rows = copy.heads == 1 || (from.head == copy.width && to.head == copy.width);
  if (rows && (count == 1 || (from.token == row && to.token == row))) {
    copy_bytes(out, in, row * count);
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
      copy_bytes(token_out + h * to.head, token_in + h * from.head, copy.width);
    }
  }
}

}  // namespace

SlotRun LongRunOf(const Plan& plan, const HeadStrides& strides, int64_t batch, int64_t token,
                  int count) {
  SlotRun run = PieceOf(plan, batch, token, count);
  const int64_t page_size = plan.fused->slots.page_size;
  if (run.first.page < 0 || !PagesFollow(strides, page_size)) return run;
  const int64_t first = run.first.page * page_size + run.first.index;
  while (run.count < count) {
    const SlotRun next = PieceOf(plan, batch, token + run.count, count - run.count);
    if (next.first.page < 0 ||
        next.first.page * page_size + next.first.index != first + run.count) {
      break;
    }
    run.count += next.count;
  }
  return run;
}

bool CopyCanStream(const Copy& copy) {
  const HeadStrides& s = copy.out_strides;
  const int64_t misaligned =
      reinterpret_cast<intptr_t>(copy.out) | s.batch | s.token | s.head | copy.width;
  return misaligned % 64 == 0;
}

void CopyTokens(const Plan& plan, const KeptSlots* kept, const Kernels& kernels, const Copy& copy,
                bool streams, int64_t batch, int64_t first, int count) {
  for (int i = 0; i < count;) {
    SlotRun run = {{batch, 0}, count};
    int64_t out = TokenOffset(copy.out_strides, batch, first);
    if (copy.to_slots) {
      run = RunOf(plan, kept, copy.out_strides, batch, first + i, count - i);
      out = TokenOffset(copy.out_strides, run.first.page, run.first.index);
    }
    if (run.first.page >= 0) {
      const char* const in = copy.in + TokenOffset(copy.in_strides, batch, first + i);
      if (streams) {
        CopyHeads(copy, in, copy.out + out, run.count, kernels.copy_streaming);
      } else {
        CopyHeads(copy, in, copy.out + out, run.count, [](char* to, const char* from, int64_t n) {
          std::memcpy(to, from, static_cast<size_t>(n));
        });
      }
    }
    i += run.count;
  }
  if (streams) hwy::FlushStream();
}

}  // namespace rope::cpu
