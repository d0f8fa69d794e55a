#include "call/check_rows.h"

#include <algorithm>
#include <cstddef>

#include "base/aligned.h"
#include "base/dtype_text.h"
#include "base/status.h"
#include "base/struct_size.h"
#include "call/overlap.h"
#include "math/element.h"

namespace rope {
namespace {

// Where the rows of tokens and heads begin, in elements. `width` is that of a row.
struct RowStrides {
  int64_t token, head;
};

rope_status CheckStrides(const char* function, const char* name, const rope_cos_sin& rows,
                         int64_t width, RowStrides* strides) {
  const bool by_head = rows.stride_head != 0;
  if (rows.reserved != 0) {
    return Fail(ROPE_ERROR_UNSUPPORTED, "%s: %s->reserved (%d) must be 0 in this version", function,
                name, rows.reserved);
  }
  if (by_head && rows.heads == 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s->stride_head (%lld) must be 0 without heads",
                function, name, static_cast<long long>(rows.stride_head));
  }
  if (by_head && rows.stride_head < width) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s->stride_head (%lld) must be 0 or at least the row's width (%lld)", function,
                name, static_cast<long long>(rows.stride_head), static_cast<long long>(width));
  }
  if (by_head && rows.stride_token == 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s->stride_token (0) is required with stride_head", function, name);
  }
  // Without stride_head the rows of a token's heads follow each other.
  const int64_t least = by_head ? width : width * std::max(rows.heads, 1);
  if (rows.stride_token != 0 && rows.stride_token < least) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s->stride_token (%lld) must be 0 or at least the row's width (%lld)%s",
                function, name, static_cast<long long>(rows.stride_token),
                static_cast<long long>(least), least != width ? ", of all heads" : "");
  }
  strides->token = rows.stride_token != 0 ? rows.stride_token : least;
  strides->head = by_head ? rows.stride_head : width;
  return ROPE_OK;
}

}  // namespace

rope_status CheckRows(const Call& call, const char* name, const rope_cos_sin* given, RowUse use,
                      CosSinTable* table, int32_t* row_heads) {
  const auto& [function, context, batch, tokens] = call;
  if (given == nullptr) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s (NULL) must not be NULL", function, name);
  }
  rope_cos_sin extended;
  const rope_cos_sin* rows = given;
  if (given->struct_size != sizeof(rope_cos_sin)) {
    if (rope_status s = CopyStruct(function, name, given, &extended)) return s;
    rows = &extended;
  }
  if (rows->format == 0 || rows->dtype == 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s->%s (0) is required", function, name,
                rows->format == 0 ? "format" : "dtype");
  }
  if (!IsFormat(rows->format)) {
    return Fail(ROPE_ERROR_UNSUPPORTED, "%s: %s->format (%d) is not known to this version",
                function, name, rows->format);
  }
  const CosSinFormat& format = kCosSinFormats[rows->format];
  if (use == RowUse::kRead && !format.is_read) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s->format (ROPE_COS_SIN_%s) must be one that is read: this is of outputs "
                "alone",
                function, name, kCosSinFormatNames[rows->format]);
  }
  if (!IsDtype(rows->dtype)) {
    return Fail(ROPE_ERROR_UNSUPPORTED,
                "%s: %s->dtype (%s) must be F32, F16 or BF16 in this version", function, name,
                DtypeText(rows->dtype).text);
  }
  if (format.is_angles() && rows->dtype != ROPE_DTYPE_F32) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s->dtype (%s) must be F32 for angles", function,
                name, DtypeText(rows->dtype).text);
  }
  if (rows->pairs != context.pairs) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s->pairs (%d) must be the context's number of pairs (%d)", function, name,
                rows->pairs, context.pairs);
  }
  const bool shared = use == RowUse::kRead && rows->batch == 1;
  if (rows->batch != batch && !shared) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s->batch (%lld) must be the call's batch (%lld)%s", function, name,
                static_cast<long long>(rows->batch), static_cast<long long>(batch),
                use == RowUse::kRead ? " or 1" : "");
  }
  const bool two_tensors = format.tensors == 2;
  if (rows->data == nullptr || two_tensors != (rows->sin != nullptr)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s->%s", function, name,
                rows->data == nullptr ? "data (NULL) must not be NULL"
                : two_tensors         ? "sin (NULL) is required by a format with two tensors"
                                      : "sin must be NULL in a format with one tensor");
  }
  const auto size = static_cast<size_t>(ElementSize(rows->dtype));
  if (!IsAligned(rows->data, size) || !IsAligned(rows->sin, size)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s->%s must be aligned to its element (%zu bytes)", function, name,
                IsAligned(rows->data, size) ? "sin" : "data", size);
  }
  // Those of a context whose heads share frequencies: any to read, one row for all to write.
  const bool by_context = context.freq_heads != 1 || use == RowUse::kWrite;
  const int32_t own_heads = context.freq_heads != 1 ? context.freq_heads : 0;
  if (rows->heads < 0 || (by_context && rows->heads != own_heads)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s->heads (%d) must be %d, %s", function, name,
                rows->heads, own_heads,
                own_heads != 0          ? "the context's freq_heads"
                : use == RowUse::kWrite ? "because all heads have the same rows"
                                        : "or as many as have rows of their own");
  }
  const int64_t width = format.Width(context.pairs);
  RowStrides strides{};
  if (rope_status s = CheckStrides(function, name, *rows, width, &strides)) return s;
  const int64_t heads = std::max(rows->heads, 1);
  int64_t of_tokens = 0, of_heads = 0, all = 0;
  const uintptr_t last =
      std::max(reinterpret_cast<uintptr_t>(rows->data), reinterpret_cast<uintptr_t>(rows->sin));
  bool beyond = __builtin_mul_overflow(strides.token, tokens, &of_tokens) ||
                __builtin_mul_overflow(strides.head, heads, &of_heads);
  const int64_t rows_of_batch = rows->stride_head != 0 ? std::max(of_tokens, of_heads) : of_tokens;
  beyond = beyond || __builtin_mul_overflow(rows_of_batch, batch, &all);
  if (rows->stride_head != 0) {  // the heads of the last token
    beyond = beyond || __builtin_add_overflow(all, of_heads, &all);
  }
  if (beyond || all > INT64_MAX / 8 || static_cast<uint64_t>(all) * size > UINTPTR_MAX - last) {
    return Fail(
        ROPE_ERROR_INVALID_ARGUMENT,
        "%s: %s: stride_token, stride_head, tokens, heads and batch reach beyond the address "
        "space",
        function, name);
  }
  *table = {format,     rows->dtype, shared ? 0 : rows_of_batch, strides.token, strides.head,
            rows->data, rows->sin};
  *row_heads = static_cast<int32_t>(heads);
  if (use == RowUse::kWrite && (two_tensors || heads > 1)) {
    const auto bytes = static_cast<int64_t>(size);
    const Footprint of = {{batch, tokens, heads},
                          {rows_of_batch * bytes, strides.token * bytes, strides.head * bytes},
                          width * bytes};
    if (!IsInjective(of)) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: %s: stride_token (%lld) and stride_head (%lld) let rows overlap", function,
                  name, static_cast<long long>(strides.token),
                  static_cast<long long>(strides.head));
    }
    if (two_tensors && !AreDisjoint({of, reinterpret_cast<uintptr_t>(rows->data)},
                                    {of, reinterpret_cast<uintptr_t>(rows->sin)})) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: %s->sin (%p) overlaps data (%p): the rows of the two must be disjoint",
                  function, name, rows->sin, rows->data);
    }
  }
  return ROPE_OK;
}

}  // namespace rope
