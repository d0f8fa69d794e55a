// The list of backends.
#include <cstddef>

#include "context/backend.h"

namespace rope {

extern const Backend kCpuBackend;   // cpu/backend.cc
extern const Backend kCudaBackend;  // cuda/backend.cu; cuda/none.cc

namespace {

struct Entry {
  rope_device device;
  const Backend* backend;
};
constexpr Entry kBackends[] = {
    {ROPE_DEVICE_CPU, &kCpuBackend},  // of device 0, too
    {ROPE_DEVICE_CUDA, &kCudaBackend},
};

template <size_t kCount>
constexpr bool HaveOwnNumbers(const Entry (&entries)[kCount]) {
  for (size_t i = 0; i < kCount; ++i) {
    if (entries[i].device <= 0) return false;
    for (size_t j = 0; j < i; ++j) {
      if (entries[i].device == entries[j].device) return false;
    }
  }
  return true;
}
static_assert(HaveOwnNumbers(kBackends), "every device has a number of its own");

}  // namespace

const Backend* FindBackend(rope_device device) {
  if (device == 0) return kBackends[0].backend;
  for (const Entry& entry : kBackends) {
    if (entry.device == device) return entry.backend;
  }
  return nullptr;
}

}  // namespace rope
