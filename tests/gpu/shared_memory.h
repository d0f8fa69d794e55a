// What the threads of a walked block share.
#ifndef LIBROPE_TESTS_GPU_SHARED_MEMORY_H_
#define LIBROPE_TESTS_GPU_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

namespace rope::gpu {

// Not a byte more than a launch asks for, content unknown.
class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes)
      : memory_(new char[bytes + 16]),
        data_(reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory_.get()) + 15) &
                                      ~uintptr_t{15})) {
    std::memset(data_, 0x7b, bytes);
  }
  char* data() const { return data_; }

 private:
  std::unique_ptr<char[]> memory_;
  char* data_;
};

}  // namespace rope::gpu

#endif  // LIBROPE_TESTS_GPU_SHARED_MEMORY_H_
