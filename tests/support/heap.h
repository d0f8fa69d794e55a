// Which block of the heap an address is in, for tests that copy all that a call points to. A
// program that links heap.cc keeps account of all memory that `new` gives.
#ifndef LIBROPE_TESTS_SUPPORT_HEAP_H_
#define LIBROPE_TESTS_SUPPORT_HEAP_H_

#include <cstddef>
#include <cstdint>

namespace rope::testing {

struct Block {
  char* data = nullptr;  // null: none
  size_t size = 0;
};
Block BlockAt(uintptr_t address);

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_HEAP_H_
