// Memory beside a page without access: reading or writing one byte too far ends the test.
#ifndef LIBROPE_TESTS_SUPPORT_GUARDED_H_
#define LIBROPE_TESTS_SUPPORT_GUARDED_H_

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

namespace rope::testing {

enum class Edge { kStart, kEnd };

// `bytes` that begin right behind, or end right before, a page without access.
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

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_GUARDED_H_
