// Which slot of a cache a token has, from every kind of slots. Host and device.
#ifndef LIBROPE_SRC_MATH_SLOTS_H_
#define LIBROPE_SRC_MATH_SLOTS_H_

#include <cstdint>

#include "librope/rope.h"
#include "math/host_device.h"
#include "math/token_position.h"

namespace rope {

// A rope_kv_cache without its memory.
struct SlotSource {
  rope_slot_kind kind;
  int32_t page_size;
  int64_t pages;
  const int32_t* slots_i32;  // MAPPED: one of the two
  const int64_t* slots_i64;
  int64_t slots_length;
  const int32_t* page_table;   // PAGED
  const int32_t* page_starts;  // null: each row has page_table_stride entries
  int64_t page_table_stride;
  const int32_t* starts;  // PAGED, LINEAR

  ROPE_HD bool IsMapped() const { return kind == ROPE_SLOTS_MAPPED; }
  ROPE_HD bool IsPaged() const { return kind == ROPE_SLOTS_PAGED; }
};

// A slot of a page that exists, or a page below 0: kNowhere if the caller says so, kMissing if
// there is no such slot. The checks of a call in main memory refuse the latter; on a device, and
// where another thread has changed the numbers since, nothing is stored.
struct Slot {
  int64_t page;
  int32_t index;
};
inline constexpr int64_t kNowhere = -1, kMissing = -2;

// The entries of page_table that belong to a sequence.
struct PageRow {
  int64_t first, count;
};

ROPE_HD PageRow PageRowOf(const SlotSource& source, int64_t sequence) {
  if (source.page_starts == nullptr) {
    return {sequence * source.page_table_stride, source.page_table_stride};
  }
  const int64_t first = source.page_starts[sequence];
  return {first, source.page_starts[sequence + 1] - first};
}

// `page_of(n)`: n / page_size, of n from 0 on. Whatever the arrays hold, a slot is one of the
// cache.
template <class PageOf>
ROPE_HD Slot MappedSlot(const SlotSource& source, int64_t number, PageOf page_of) {
  if (number < 0) return {kNowhere, 0};
  const int64_t page = page_of(number);
  if (page >= source.pages) return {kMissing, 0};
  return {page, static_cast<int32_t>(number - page * source.page_size)};
}

// Of a token that is so many behind the first one of its sequence, whose place is `start`: its own,
// or a number below 0.
ROPE_HD int64_t PlaceOf(int64_t start, int64_t index) { return start < 0 ? start : start + index; }

ROPE_HD Slot LinearSlot(const SlotSource& source, int64_t sequence, int64_t place) {
  if (place < 0 || place >= source.page_size || sequence >= source.pages) return {kMissing, 0};
  return {sequence, static_cast<int32_t>(place)};
}

// PAGED: the page of a place, as page_table has it.
template <class PageOf>
ROPE_HD int64_t PageAt(const SlotSource& source, int64_t sequence, int64_t place, PageOf page_of) {
  if (place < 0) return kMissing;
  const PageRow row = PageRowOf(source, sequence);
  const int64_t entry = page_of(place);
  if (row.first < 0 || entry >= row.count) return kMissing;
  const int64_t page = source.page_table[row.first + entry];
  return page < 0 ? kNowhere : page;
}
template <class PageOf>
ROPE_HD Slot PagedSlot(const SlotSource& source, int64_t page, int64_t place, PageOf page_of) {
  if (page >= source.pages) return {kMissing, 0};
  if (page < 0) return {page, 0};
  return {page, static_cast<int32_t>(place - page_of(place) * source.page_size)};
}

// `tokens`: of a batch row.
template <class PageOf>
ROPE_HD Slot SlotOf(const SlotSource& source, const Token& token, int64_t tokens, PageOf page_of) {
  if (source.IsMapped()) {
    const int64_t at = token.batch * tokens + token.index;
    if (at >= source.slots_length) return {kNowhere, 0};
    return MappedSlot(
        source, source.slots_i64 != nullptr ? source.slots_i64[at] : source.slots_i32[at], page_of);
  }
  const int64_t place = PlaceOf(source.starts[token.sequence], token.index - token.start);
  if (!source.IsPaged()) return LinearSlot(source, token.sequence, place);
  return PagedSlot(source, PageAt(source, token.sequence, place, page_of), place, page_of);
}

struct QuotientBy {
  int32_t divisor;
  ROPE_HD int64_t operator()(int64_t n) const { return n / divisor; }
};

ROPE_HD Slot SlotOf(const SlotSource& source, const Token& token, int64_t tokens) {
  return SlotOf(source, token, tokens, QuotientBy{source.page_size});
}

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_SLOTS_H_
