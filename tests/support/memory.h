// Memory of three kinds: beside a page without access, of any size but on no page until it is
// touched, and from the start of a cache line.
#ifndef LIBROPE_TESTS_SUPPORT_MEMORY_H_
#define LIBROPE_TESTS_SUPPORT_MEMORY_H_

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rope::testing {

enum class Edge { kStart, kEnd };

// `bytes` that begin right behind, or end right before, a page without access: reading or writing
// one byte too far ends the test.
class Guarded {
 public:
  Guarded(size_t bytes, Edge edge) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t inside = (bytes + page - 1) / page * page;
    size_ = inside + 2 * page;
    map_ = static_cast<char*>(mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(map_ + page, inside, PROT_READ | PROT_WRITE);
    data_ = map_ + page + (edge == Edge::kEnd ? inside - bytes : 0);
  }
  ~Guarded() { munmap(map_, size_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  char* map_;
  char* data_;
  size_t size_;
};

// Zeros that take memory only where they are touched; NULL where the system has not so many
// addresses.
class Untouched {
 public:
  explicit Untouched(size_t bytes) : size_(bytes) {
    map_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                -1, 0);
  }
  ~Untouched() {
    if (map_ != MAP_FAILED) munmap(map_, size_);
  }
  Untouched(const Untouched&) = delete;
  Untouched& operator=(const Untouched&) = delete;
  char* data() const { return map_ == MAP_FAILED ? nullptr : static_cast<char*>(map_); }

 private:
  void* map_;
  size_t size_;
};

constexpr size_t kLine = 64;

// The first byte of `memory` from which a cache line begins.
inline size_t ToLine(const void* memory) {
  return (kLine - reinterpret_cast<uintptr_t>(memory) % kLine) % kLine;
}
// The first element; kLine / sizeof(T) elements more than needed make room for it.
template <class T>
T* FromLine(std::vector<T>* memory) {
  return memory->data() + ToLine(memory->data()) / sizeof(T);
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_MEMORY_H_
