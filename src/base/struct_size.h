// Structs that grow: the reading rule of every struct that begins with struct_size. A smaller
// struct counts as zero-extended; a larger one is accepted while its unknown tail is zero (the rule
// of the Linux kernel's copy_struct_from_user, which limits the size to a page as we do).
#ifndef LIBROPE_SRC_BASE_STRUCT_SIZE_H_
#define LIBROPE_SRC_BASE_STRUCT_SIZE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/status.h"
#include "librope/rope.h"

namespace rope {

// The smallest struct_size that is read: the end of the fields that every release has had. Fields
// appended later must leave these as they are, or programs built before would be refused.
template <class T>
inline constexpr size_t kMinimumSize = 0;
template <>
inline constexpr size_t kMinimumSize<rope_config> = offsetof(rope_config, device_index) +
                                                    sizeof(rope_config::device_index);
template <>
inline constexpr size_t kMinimumSize<rope_qk_args> = offsetof(rope_qk_args, cos_sin);
template <>
inline constexpr size_t kMinimumSize<rope_cos_sin> = offsetof(rope_cos_sin, sin) +
                                                     sizeof(rope_cos_sin::sin);
template <>
inline constexpr size_t kMinimumSize<rope_qk_data> = offsetof(rope_qk_data, k_out) +
                                                     sizeof(rope_qk_data::k_out);
template <>
inline constexpr size_t kMinimumSize<rope_kv_cache> = offsetof(rope_kv_cache, page_table_stride) +
                                                      sizeof(rope_kv_cache::page_table_stride);
template <>
inline constexpr size_t kMinimumSize<rope_fused> = offsetof(rope_fused, v_out) +
                                                   sizeof(rope_fused::v_out);
template <>
inline constexpr size_t kMinimumSize<rope_norm> = offsetof(rope_norm, rstd) +
                                                  sizeof(rope_norm::rstd);
template <>
inline constexpr size_t kMinimumSize<rope_scale> = offsetof(rope_scale, stride_head) +
                                                   sizeof(rope_scale::stride_head);
template <>
inline constexpr size_t kMinimumSize<rope_info> = offsetof(rope_info, head_dim);

// No struct will be larger, and each is made of 32-bit words: another struct_size is not one, but
// what was in memory where ROPE_INIT was forgotten. Nothing is read by it.
inline constexpr uint32_t kLargestStruct = 4096;

template <class T>
bool IsZero(const T& value) {
  static constexpr T kZero{};
  return std::memcmp(&value, &kZero, sizeof(T)) == 0;
}

// Whether all bytes from one field on to another, or to the end, are 0, also those of fields to
// come: one test for all, where a call must not pay for each.
template <size_t kFirst, size_t kEnd = 0, class T>
bool IsZeroFrom(const T& value) {
  constexpr size_t end = kEnd != 0 ? kEnd : sizeof(T);
  static_assert(kFirst % sizeof(uint64_t) == 0 && end % sizeof(uint64_t) == 0);
  uint64_t any = 0, word;
  for (size_t at = kFirst; at < end; at += sizeof(word)) {
    std::memcpy(&word, reinterpret_cast<const char*>(&value) + at, sizeof(word));
    any |= word;
  }
  return any == 0;
}

// Whether struct_size can be the size of `name`, the argument as the message shows it.
inline rope_status CheckStructSize(const char* function, const char* name, uint32_t size,
                                   size_t minimum) {
  if (size >= minimum && size <= kLargestStruct && size % sizeof(uint32_t) == 0) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: %s->struct_size (%u) must be a multiple of 4 from %zu to %u: start the struct "
              "with ROPE_INIT",
              function, name, size, minimum, kLargestStruct);
}

// The same, and no field in use that this version does not know.
template <class T>
rope_status CheckStruct(const char* function, const char* name, const T* from) {
  if (rope_status s = CheckStructSize(function, name, from->struct_size, kMinimumSize<T>)) return s;
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  for (size_t i = sizeof(T); i < from->struct_size; ++i) {
    if (bytes[i] != 0) {
      return Fail(ROPE_ERROR_UNSUPPORTED,
                  "%s: %s uses a field at byte %zu that this version (%zu bytes) does not know",
                  function, name, i, sizeof(T));
    }
  }
  return ROPE_OK;
}

template <class T>
rope_status CopyStruct(const char* function, const char* name, const T* from, T* to) {
  if (from == nullptr) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s (NULL) must not be NULL", function, name);
  }
  if (rope_status status = CheckStruct(function, name, from)) return status;
  *to = T{};
  std::memcpy(to, from, std::min<size_t>(from->struct_size, sizeof(T)));
  return ROPE_OK;
}

}  // namespace rope

#endif  // LIBROPE_SRC_BASE_STRUCT_SIZE_H_
