#include "call/check_cache.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "base/aligned.h"
#include "base/limits.h"
#include "base/status.h"

namespace rope {
namespace {

constexpr const char* kKinds[] = {"", "MAPPED", "PAGED", "LINEAR"};
static_assert(std::size(kKinds) == ROPE_SLOTS_LINEAR + 1);

// The fields that only some kinds use, by the bits of a set of them.
constexpr const char* kFields[] = {"slots_i32",   "slots_i64",         "slots_length", "page_table",
                                   "page_starts", "page_table_stride", "starts"};
constexpr unsigned kUsed[] = {0, 0b0000111, 0b1111000, 0b1000000};  // by kind

// Whether fields that only another kind uses are empty, and arrays are aligned.
bool HasItsFields(const rope_kv_cache& c) {
  const auto bits = [](const void* array) { return reinterpret_cast<intptr_t>(array); };
  const int64_t mapped = bits(c.slots_i32) | bits(c.slots_i64) | c.slots_length,
                paged = bits(c.page_table) | bits(c.page_starts) | c.page_table_stride;
  const int64_t unused = c.kind == ROPE_SLOTS_MAPPED  ? paged | bits(c.starts)
                         : c.kind == ROPE_SLOTS_PAGED ? mapped
                                                      : mapped | paged;
  const int64_t misaligned =
      (bits(c.slots_i64) & 7) | ((bits(c.slots_i32) | bits(c.page_table) | bits(c.page_starts) |
                                  bits(c.starts) | bits(c.dropped)) &
                                 3);
  return (unused | misaligned) == 0;
}

// The same, where it is not so: which one.
__attribute__((noinline)) rope_status CheckFields(const Call& call, const char* name,
                                                  const rope_kv_cache& c) {
  const bool set[] = {c.slots_i32 != nullptr,  c.slots_i64 != nullptr,   c.slots_length != 0,
                      c.page_table != nullptr, c.page_starts != nullptr, c.page_table_stride != 0,
                      c.starts != nullptr};
  unsigned unused = 0;
  for (size_t i = 0; i < std::size(set); ++i) unused |= unsigned{set[i]} << i;
  unused &= ~kUsed[c.kind];
  for (size_t i = 0; unused != 0 && i < std::size(kFields); ++i) {
    if ((unused >> i & 1) == 0) continue;
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s%s is set, but ROPE_SLOTS_%s does not use it",
                call.function, name, kFields[i], kKinds[c.kind]);
  }
  const auto aligned = [&](const char* field, const void* array, size_t size) {
    if (IsAligned(array, size)) return true;
    Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s%s (%p) must be aligned to %zu bytes", call.function,
         name, field, array, size);
    return false;
  };
  const bool all = aligned("slots_i32", c.slots_i32, 4) && aligned("slots_i64", c.slots_i64, 8) &&
                   aligned("page_table", c.page_table, 4) &&
                   aligned("page_starts", c.page_starts, 4) && aligned("starts", c.starts, 4) &&
                   aligned("dropped", c.dropped, 4);
  return all ? ROPE_OK : ROPE_ERROR_INVALID_ARGUMENT;
}

rope_status Required(const Call& call, const char* name, const char* field) {
  return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s%s (NULL) is required", call.function, name,
              field);
}

rope_status CheckMapped(const Call& call, const char* name, const rope_kv_cache& c) {
  const int given = (c.slots_i32 != nullptr) + (c.slots_i64 != nullptr);
  if (given != 1) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %sslots_i32, slots_i64: %d arrays are set, and exactly 1 is required",
                call.function, name, given);
  }
  if (c.slots_length < 1) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %sslots_length (%lld) is required, and must be positive", call.function, name,
                static_cast<long long>(c.slots_length));
  }
  return ROPE_OK;
}

rope_status CheckPaged(const Call& call, const char* name, const rope_kv_cache& c,
                       int64_t sequences) {
  if (c.page_table == nullptr) return Required(call, name, "page_table");
  if ((c.page_table_stride != 0) == (c.page_starts != nullptr)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %spage_table_stride (%lld) and page_starts (%s): exactly one of them must be "
                "given",
                call.function, name, static_cast<long long>(c.page_table_stride),
                c.page_starts != nullptr ? "set" : "NULL");
  }
  int64_t entries;
  if (c.page_table_stride < 0 || __builtin_mul_overflow(sequences, c.page_table_stride, &entries) ||
      entries > INT64_MAX / static_cast<int64_t>(sizeof(int32_t))) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %spage_table_stride (%lld) must not be negative, and %lld rows of it must fit "
                "into the address space",
                call.function, name, static_cast<long long>(c.page_table_stride),
                static_cast<long long>(sequences));
  }
  return ROPE_OK;
}

// Messages about one slot name the entry that is wrong.
template <class T>
rope_status CheckSlots(const Call& call, const char* name, const char* field, const T* slots,
                       int64_t count, const SlotSource& source) {
  int64_t end;
  if (__builtin_mul_overflow(source.pages, int64_t{source.page_size}, &end)) {
    return ROPE_OK;  // of a source whose pages repeat: each number is a slot
  }
  for (int64_t i = 0; i < count; ++i) {
    if (slots[i] < end) continue;
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s%s[%lld] (%lld) must be below %lld, the number of slots in %lld pages of %d",
                call.function, name, field, static_cast<long long>(i),
                static_cast<long long>(slots[i]), static_cast<long long>(end),
                static_cast<long long>(source.pages), source.page_size);
  }
  return ROPE_OK;
}

// The row of a sequence in page_table.
rope_status CheckPageStarts(const Call& call, const char* name, const SlotSource& source,
                            int64_t sequence) {
  if (source.page_starts == nullptr) return ROPE_OK;
  const int32_t first = source.page_starts[sequence], end = source.page_starts[sequence + 1];
  if (first >= 0 && end >= first) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: %spage_starts[%lld] and the next one (%d, %d) break the rule: not negative, "
              "never decreasing",
              call.function, name, static_cast<long long>(sequence), first, end);
}

// Tokens [start, start + count) of a sequence.
rope_status CheckPages(const Call& call, const char* name, const SlotSource& source,
                       int64_t sequence, int64_t start, int64_t count) {
  const PageRow row = PageRowOf(source, sequence);
  const int64_t last_index = start + std::min(count, INT64_MAX - start) - 1;  // beyond any page
  const int64_t first = start / source.page_size, last = last_index / source.page_size;
  if (last >= row.count) {
    return Fail(
        ROPE_ERROR_INVALID_ARGUMENT,
        "%s: %spage_table: sequence %lld has %lld pages of %d (%s), and its tokens go to the "
        "indices %lld to %lld, which must be below %lld",
        call.function, name, static_cast<long long>(sequence), static_cast<long long>(row.count),
        source.page_size, source.page_starts != nullptr ? "by page_starts" : "page_table_stride",
        static_cast<long long>(start), static_cast<long long>(last_index),
        static_cast<long long>(row.count * source.page_size));
  }
  for (int64_t entry = row.first + first; entry <= row.first + last; ++entry) {
    if (source.page_table[entry] < source.pages) continue;
    return Fail(
        ROPE_ERROR_INVALID_ARGUMENT,
        "%s: %spage_table[%lld] (%d), which sequence %lld needs, must be below pages (%lld)",
        call.function, name, static_cast<long long>(entry), source.page_table[entry],
        static_cast<long long>(sequence), static_cast<long long>(source.pages));
  }
  return ROPE_OK;
}

rope_status CheckStarts(const Call& call, const char* name, const SlotSource& source,
                        const PositionSource& positions, int64_t sequences) {
  const int32_t* const runs = positions.cu_seqlens;
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t start = source.starts[s];
    const int64_t count = runs != nullptr ? int64_t{runs[s + 1]} - runs[s] : call.tokens;
    if (start < 0) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %sstarts[%lld] (%lld) must not be negative",
                  call.function, name, static_cast<long long>(s), static_cast<long long>(start));
    }
    const bool paged = source.kind == ROPE_SLOTS_PAGED;
    if (paged) {
      if (rope_status status = CheckPageStarts(call, name, source, s)) return status;
    }
    if (count == 0) continue;
    if (paged) {
      if (rope_status status = CheckPages(call, name, source, s, start, count)) return status;
    } else if (count > source.page_size - start) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: %sstarts[%lld] (%lld): the last of the %lld tokens of this sequence goes to "
                  "index %lld of its page, which must be below page_size (%d)",
                  call.function, name, static_cast<long long>(s), static_cast<long long>(start),
                  static_cast<long long>(count),
                  static_cast<long long>(start + std::min(count, INT64_MAX - start) - 1),
                  source.page_size);
    }
  }
  return ROPE_OK;
}

}  // namespace

rope_status CheckCache(const Call& call, const char* name, const rope_kv_cache& c,
                       const PositionSource& positions, SlotSource* slots) {
  const char* const function = call.function;
  if (c.kind <= 0 || c.kind >= static_cast<int32_t>(std::size(kKinds))) {
    return c.kind == 0
               ? Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %skind (0) is required", function, name)
               : Fail(ROPE_ERROR_UNSUPPORTED, "%s: %skind (%d) is not known to this version",
                      function, name, c.kind);
  }
  if (!HasItsFields(c)) return CheckFields(call, name, c);
  if (c.dropped != nullptr && call.context.backend->host_memory) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %sdropped must be NULL in a %s context, which refuses a slot that does not "
                "exist",
                function, name, call.context.backend->name);
  }
  if (positions.place == PositionSource::kShard && c.kind != ROPE_SLOTS_MAPPED) {
    return Fail(
        ROPE_ERROR_UNSUPPORTED,
        "%s: %skind (ROPE_SLOTS_%s) must be MAPPED with args->positions.shard: how the cache "
        "of one rank counts the tokens of a sequence is not told",
        function, name, kKinds[c.kind]);
  }
  const int64_t sequences = positions.cu_seqlens != nullptr ? positions.sequences : call.batch;
  if (c.kind == ROPE_SLOTS_MAPPED) {
    if (rope_status s = CheckMapped(call, name, c)) return s;
  } else {
    if (c.starts == nullptr) return Required(call, name, "starts");
    if (c.kind == ROPE_SLOTS_PAGED) {
      if (rope_status s = CheckPaged(call, name, c, sequences)) return s;
    } else if (sequences > c.pages) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: %spages (%lld) must be at least the number of sequences (%lld), each of "
                  "which owns one",
                  function, name, static_cast<long long>(c.pages),
                  static_cast<long long>(sequences));
    }
  }
  *slots = {c.kind,         c.page_size,  c.pages,       c.slots_i32,         c.slots_i64,
            c.slots_length, c.page_table, c.page_starts, c.page_table_stride, c.starts};
  if (!call.context.backend->host_memory) return ROPE_OK;
  if (c.kind != ROPE_SLOTS_MAPPED) return CheckStarts(call, name, *slots, positions, sequences);
  const int64_t count = std::min(c.slots_length, call.batch * call.tokens);
  return c.slots_i64 != nullptr ? CheckSlots(call, name, "slots_i64", c.slots_i64, count, *slots)
                                : CheckSlots(call, name, "slots_i32", c.slots_i32, count, *slots);
}

}  // namespace rope
