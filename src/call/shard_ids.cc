#include "call/shard_ids.h"

#include "base/aligned.h"
#include "base/status.h"
#include "call/check_positions.h"
#include "call/overlap.h"
#include "call/plan.h"
#include "context/context.h"

namespace rope {
namespace {

constexpr int64_t kMostNumbers = INT64_MAX / 16;  // whose bytes fit into 63 bits

rope_status CheckOutput(const char* function, const char* name, const int64_t* array) {
  if (IsAligned(array, alignof(int64_t))) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s (%p) must be aligned to %zu bytes", function,
              name, static_cast<const void*>(array), alignof(int64_t));
}

rope_status CheckReach(const char* function, const char* name, const int64_t* array,
                       int64_t count) {
  const uint64_t most = (UINTPTR_MAX - reinterpret_cast<uintptr_t>(array)) / sizeof *array;
  if (static_cast<uint64_t>(count) <= most && count <= kMostNumbers) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: %s (%p) with %lld numbers reaches beyond the address space", function, name,
              static_cast<const void*>(array), static_cast<long long>(count));
}

// `count` numbers of `size` bytes, one behind the other.
Memory ArrayOf(const char* name, const void* data, int64_t count, int64_t size) {
  return {name, {{1, 1, count}, {0, 0, size}, size}, reinterpret_cast<uintptr_t>(data)};
}

// What is written may not meet the other, nor what is read before the last number is written.
rope_status CheckOverlap(const char* function, int64_t batch, int64_t tokens,
                         const rope_positions& positions, const int64_t* ids,
                         const int64_t* numbers) {
  if (ids != nullptr) {
    if (rope_status s = CheckReach(function, "ids", ids, batch * tokens)) return s;
  }
  if (numbers != nullptr) {
    if (rope_status s = CheckReach(function, "numbers", numbers, tokens)) return s;
  }
  const bool packed = positions.cu_seqlens != nullptr;
  const int64_t offsets = packed ? positions.sequences : batch / BatchRepeatOf(positions);
  const Memory all[] = {
      ArrayOf("ids", ids, batch * tokens, sizeof *ids),
      ArrayOf("numbers", numbers, tokens, sizeof *numbers),
      ArrayOf("positions->cu_seqlens", positions.cu_seqlens, int64_t{positions.sequences} + 1,
              sizeof(int32_t)),
      ArrayOf("positions->offsets_i32", positions.offsets_i32, offsets, sizeof(int32_t)),
      ArrayOf("positions->offsets_i64", positions.offsets_i64, offsets, sizeof(int64_t))};
  for (int out = 0; out < 2; ++out) {
    for (int other = out + 1; other < 5; ++other) {
      const Memory &a = all[out], &b = all[other];
      if (a.base == 0 || b.base == 0 || AreDisjoint({a.of, a.base}, {b.of, b.base})) continue;
      return FailOverlap(function, a, b, "");
    }
  }
  return ROPE_OK;
}

}  // namespace

rope_status WriteShardIds(const char* function, int64_t batch, int64_t tokens,
                          const rope_positions* positions, int64_t* ids, int64_t* numbers) {
  if (positions == nullptr) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: positions (NULL) must not be NULL", function);
  }
  // What checks of positions ask a context for: one axis, arrays in main memory.
  rope_context context{};
  context.axes = context.freq_heads = 1;
  context.backend = FindBackend(0);
  const Call call = {function, context, batch, tokens};
  if (rope_status s = CheckSizes(call, "")) return s;
  if (batch == 0 || tokens == 0) return ROPE_OK;
  if (ids == nullptr && numbers == nullptr) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: ids and numbers (NULL) must not both be NULL: there is nothing to write",
                function);
  }
  if (rope_status s = CheckOutput(function, "ids", ids)) return s;
  if (rope_status s = CheckOutput(function, "numbers", numbers)) return s;
  rope_positions read = *positions;
  read.freq_sets = nullptr;
  PositionSource source;
  if (rope_status s = CheckPositions(call, "positions->", read, &source)) return s;
  if (source.type != PositionSource::kNone && !source.per_sequence) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: positions->kind (ROPE_POSITIONS_%s) must be OFFSET or SEQ_OFFSETS: the others "
                "have ids",
                function, NameOfPositionKind(positions->kind));
  }
  if (rope_status s = CheckOverlap(function, batch, tokens, read, ids, numbers)) return s;
  const int64_t repeat = BatchRepeatOf(read);
  for (int64_t b = 0; ids != nullptr && b < batch; ++b) {
    for (int64_t t = 0; t < tokens; ++t) {
      ids[b * tokens + t] = IntegerPosition(source, LocateToken(source, b / repeat, t), 0);
    }
  }
  for (int64_t t = 0; numbers != nullptr && t < tokens; ++t) {
    const Token token = LocateToken(source, 0, t);
    const int64_t first = source.cu_seqlens != nullptr ? source.cu_seqlens[token.sequence] : 0;
    numbers[t] = first + (token.index - token.start);
  }
  return ROPE_OK;
}

}  // namespace rope
