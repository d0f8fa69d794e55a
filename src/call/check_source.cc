#include "call/check_source.h"

#include <algorithm>
#include <climits>
#include <cstddef>

#include "base/status.h"
#include "call/slot_run.h"

namespace rope {
namespace {

// Tokens that are read in slots that follow each other, and written likewise. Slots are numbers.
struct Move {
  int64_t batch, token;
  int64_t from, to;  // to: -1: to no slot
  int count;
};

struct Range {
  int64_t first = INT64_MAX, end = 0;

  void Add(int64_t slot, int64_t count) {
    first = std::min(first, slot);
    end = std::max(end, slot + count);
  }
};

template <class Visit>
void ForEachMove(const Call& call, const SlotSource& source, const SlotSource& cache,
                 const PositionSource& positions, Visit visit) {
  for (int64_t b = 0; b < call.batch; ++b) {
    for (int64_t t = 0; t < call.tokens;) {
      const auto most = static_cast<int>(std::min<int64_t>(call.tokens - t, INT_MAX));
      const SlotRun from = RunInPage(source, positions, call.tokens, b, t, most);
      if (from.first.page < 0) {
        ++t;
        continue;
      }
      const SlotRun to = RunInPage(cache, positions, call.tokens, b, t, from.count);
      const auto number = [](const Slot& slot, int32_t page_size) {
        return slot.page < 0 ? -1 : slot.page * page_size + slot.index;
      };
      visit(Move{b, t, number(from.first, source.page_size), number(to.first, cache.page_size),
                 to.count});
      t += to.count;
    }
  }
}

// Bits for slots from `first` on, on the stack: calls allocate nothing.
class Window {
 public:
  static constexpr int64_t kSlots = 1 << 16;

  Window(int64_t first, int64_t end) : first_(first), end_(std::min(end, first + kSlots)) {
    const auto words = static_cast<size_t>((end_ - first_ + 63) / 64);
    std::fill_n(written_, words, 0);
    std::fill_n(again_, words, 0);
  }

  int64_t end() const { return end_; }

  void Write(int64_t slot, int count) {
    ForEachOf(slot, count, [this](int64_t at, size_t word, uint64_t bit) {
      (void)at;
      again_[word] |= written_[word] & bit;
      written_[word] |= bit;
    });
  }

  // The slot of a move that another token writes; -1: none.
  int64_t Clash(const Move& move) const {
    int64_t clash = -1;
    const bool stays = move.from == move.to;
    ForEachOf(move.from, move.count, [&](int64_t at, size_t word, uint64_t bit) {
      const uint64_t others = stays ? again_[word] : written_[word];
      if ((others & bit) != 0 && clash < 0) clash = at;
    });
    return clash;
  }

 private:
  template <class Visit>
  void ForEachOf(int64_t slot, int count, Visit visit) const {
    const int64_t last = std::min(slot + count, end_);
    for (int64_t at = std::max(slot, first_); at < last; ++at) {
      const auto i = static_cast<size_t>(at - first_);
      visit(at, i / 64, uint64_t{1} << i % 64);
    }
  }

  const int64_t first_, end_;
  uint64_t written_[kSlots / 64], again_[kSlots / 64];
};

// One window of slots. Apart: its stack is not that of every call.
__attribute__((noinline)) rope_status CheckWindow(const Call& call, const SlotSource& source,
                                                  const SlotSource& cache,
                                                  const PositionSource& positions, int64_t* first,
                                                  int64_t end) {
  Window window(*first, end);
  ForEachMove(call, source, cache, positions, [&](const Move& move) {
    if (move.to >= 0) window.Write(move.to, move.count);
  });
  rope_status status = ROPE_OK;
  ForEachMove(call, source, cache, positions, [&](const Move& move) {
    const int64_t slot = status == ROPE_OK ? window.Clash(move) : -1;
    if (slot < 0) return;
    status =
        Fail(ROPE_ERROR_INVALID_ARGUMENT,
             "%s: args->fused->source: token %lld of batch row %lld is read in slot %lld, which "
             "is written for another token: where source and cache are one memory, a slot that "
             "is written must be read by that token alone",
             call.function, static_cast<long long>(move.token + slot - move.from),
             static_cast<long long>(move.batch), static_cast<long long>(slot));
  });
  *first = window.end();
  return status;
}

}  // namespace

rope_status CheckMoves(const Call& call, const SlotSource& source, const SlotSource& cache,
                       const PositionSource& positions, bool* in_place) {
  Range read, written;
  *in_place = false;
  ForEachMove(call, source, cache, positions, [&](const Move& move) {
    read.Add(move.from, move.count);
    if (move.to >= 0) written.Add(move.to, move.count);
    *in_place |= move.from == move.to;
  });
  const int64_t end = std::min(read.end, written.end);
  for (int64_t first = std::max(read.first, written.first); first < end;) {
    if (rope_status s = CheckWindow(call, source, cache, positions, &first, end)) return s;
  }
  return ROPE_OK;
}

}  // namespace rope
