#include "support/heap.h"

#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <utility>

namespace rope::testing {
namespace {

// The account itself is no part of it.
template <class T>
struct FromMalloc {
  using value_type = T;
  FromMalloc() = default;
  template <class U>
  FromMalloc(const FromMalloc<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(std::malloc(n * sizeof(T))); }
  void deallocate(T* at, size_t) { std::free(at); }
  bool operator==(const FromMalloc&) const { return true; }
  bool operator!=(const FromMalloc&) const { return false; }
};
using Sizes =
    std::map<uintptr_t, size_t, std::less<>, FromMalloc<std::pair<const uintptr_t, size_t>>>;

std::mutex mutex;

// Made by the first `new`, and never destroyed: memory is given and taken until the program ends.
Sizes& AllSizes() {
  alignas(Sizes) static char memory[sizeof(Sizes)];
  static Sizes* const kSizes = new (memory) Sizes;
  return *kSizes;
}

void* Take(size_t size, size_t alignment) {
  void* const data = std::aligned_alloc(alignment, (size / alignment + 1) * alignment);
  if (data == nullptr) throw std::bad_alloc();
  const std::lock_guard<std::mutex> lock(mutex);
  AllSizes()[reinterpret_cast<uintptr_t>(data)] = size;
  return data;
}

void Give(void* data) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    AllSizes().erase(reinterpret_cast<uintptr_t>(data));
  }
  std::free(data);
}

}  // namespace

Block BlockAt(uintptr_t address) {
  const std::lock_guard<std::mutex> lock(mutex);
  auto next = AllSizes().upper_bound(address);
  if (next == AllSizes().begin() || address - (--next)->first >= next->second) return {};
  return {reinterpret_cast<char*>(next->first), next->second};
}

}  // namespace rope::testing

using rope::testing::Give;
using rope::testing::Take;

void* operator new(size_t size) { return Take(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(size_t size, std::align_val_t alignment) {
  return Take(size, static_cast<size_t>(alignment));
}
void operator delete(void* data) noexcept { Give(data); }
void operator delete(void* data, size_t) noexcept { Give(data); }
void operator delete(void* data, std::align_val_t) noexcept { Give(data); }
void operator delete(void* data, size_t, std::align_val_t) noexcept { Give(data); }
