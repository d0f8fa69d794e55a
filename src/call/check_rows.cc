#include "call/check_rows.h"

#include <algorithm>
#include <cstddef>

#include "base/aligned.h"
#include "base/status.h"
#include "base/struct_size.h"
#include "call/overlap.h"
#include "math/element.h"

namespace rope {

rope_status CheckRows(const Call& call, const char* name, const rope_cos_sin* given, RowUse use,
                      CosSinTable* table) {
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
                "%s: %s->format (%d) is an output format and cannot be read", function, name,
                rows->format);
  }
  if (!IsDtype(rows->dtype)) {
    return Fail(ROPE_ERROR_UNSUPPORTED, "%s: %s->dtype (%d) is not known to this version", function,
                name, rows->dtype);
  }
  if (format.is_angles() && rows->dtype != ROPE_DTYPE_F32) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s->dtype (%d) must be ROPE_DTYPE_F32 (1) for angles", function, name,
                rows->dtype);
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
  const int64_t width = format.Width(context.pairs);
  if (rows->stride_token != 0 && rows->stride_token < width) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s->stride_token (%lld) must be 0 or at least the row's width (%lld)",
                function, name, static_cast<long long>(rows->stride_token),
                static_cast<long long>(width));
  }
  const int64_t stride = rows->stride_token != 0 ? rows->stride_token : width;
  int64_t rows_of_batch = 0, all = 0;
  const uintptr_t last =
      std::max(reinterpret_cast<uintptr_t>(rows->data), reinterpret_cast<uintptr_t>(rows->sin));
  if (__builtin_mul_overflow(stride, tokens, &rows_of_batch) ||
      __builtin_mul_overflow(rows_of_batch, batch, &all) || all > INT64_MAX / 8 ||
      static_cast<uint64_t>(all) * size > UINTPTR_MAX - last) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s: stride_token, tokens and batch reach beyond the address space", function,
                name);
  }
  *table = {format, rows->dtype, shared ? 0 : rows_of_batch, stride, rows->data, rows->sin};
  if (use == RowUse::kWrite && two_tensors) {
    const auto bytes = static_cast<int64_t>(size);
    const Footprint of = {
        {batch, tokens, 1}, {rows_of_batch * bytes, stride * bytes, 0}, width * bytes};
    if (!AreDisjoint({of, reinterpret_cast<uintptr_t>(rows->data)},
                     {of, reinterpret_cast<uintptr_t>(rows->sin)})) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: %s->sin (%p) overlaps data (%p): the rows of the two must be disjoint",
                  function, name, rows->sin, rows->data);
    }
  }
  return ROPE_OK;
}

}  // namespace rope
