// Structs that grow: the reading rule of every struct that begins with struct_size. A smaller struct
// counts as zero-extended; a larger one is accepted while its unknown tail is zero (the rule of the
// Linux kernel's copy_struct_from_user).
#ifndef LIBROPE_SRC_STRUCTS_H_
#define LIBROPE_SRC_STRUCTS_H_

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "status.h"

namespace rope {

template <class T>
bool IsZero(const T& value) {
  static constexpr T kZero{};
  return std::memcmp(&value, &kZero, sizeof(T)) == 0;
}

// Checks struct_size alone: at least `minimum` (the size in the first release), no unknown field in
// use. `name` is the argument as the message shows it.
template <class T>
rope_status CheckStruct(const char* function, const char* name, const T* from, size_t minimum) {
  if (from->struct_size < minimum) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s->struct_size (%u) must be at least %zu: start the struct with ROPE_INIT",
                function, name, from->struct_size, minimum);
  }
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
rope_status CopyStruct(const char* function, const char* name, const T* from, size_t minimum,
                       T* to) {
  if (from == nullptr) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s (NULL) must not be NULL", function, name);
  }
  if (rope_status status = CheckStruct(function, name, from, minimum)) return status;
  *to = T{};
  std::memcpy(to, from, std::min<size_t>(from->struct_size, sizeof(T)));
  return ROPE_OK;
}

}  // namespace rope

#endif  // LIBROPE_SRC_STRUCTS_H_
