// Calls with rope_fused that have a short way through the checks, made as they are and by the long
// way, which one goes whose rope_fused is that of a later version, with zeros at its end: both must
// write the same bytes, or refuse the call with the same message and write none.
#ifndef LIBROPE_TESTS_SUPPORT_SHORT_WAY_H_
#define LIBROPE_TESTS_SUPPORT_SHORT_WAY_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "librope/rope.h"

namespace rope::testing {

struct LaterFused {
  rope_fused fused;
  uint64_t more;
};

// The memory of all tensors of a call.
class WaysMemory {
 public:
  static constexpr int kSize = 8192;

  WaysMemory() {
    for (int i = 0; i < kSize; i += 2) {  // small numbers in every dtype
      const auto bits = static_cast<uint16_t>(0x3c00 + i * 7919 % 0x400);
      std::memcpy(before_ + i, &bits, sizeof(bits));
    }
  }

  char* at(int64_t offset) { return now_ + offset; }
  void Restore() { std::memcpy(now_, before_, kSize); }
  void Keep() { std::memcpy(kept_, now_, kSize); }
  bool IsAsBefore() const { return std::memcmp(now_, before_, kSize) == 0; }
  bool IsAsKept() const { return std::memcmp(now_, kept_, kSize) == 0; }

 private:
  alignas(64) char now_[kSize], before_[kSize], kept_[kSize];
};

// Whether the call is accepted, and writes something. `start(a)` makes it: A has `args` and, to
// which these point, `later`; it lies at one address, as messages may show it.
template <class A, class Start>
bool ExpectOneResult(const rope_context* context, WaysMemory* memory, const std::string& name,
                     const Start& start) {
  static A a;
  rope_status status[2];
  std::string message[2];
  for (int i = 0; i < 2; ++i) {
    start(&a);
    rope_fused& fused = a.later.fused;
    if (i == 1 && fused.struct_size == sizeof(rope_fused)) fused.struct_size = sizeof(LaterFused);
    memory->Restore();
    status[i] = rope_apply_qk(context, &a.args);
    message[i] = status[i] == ROPE_OK ? "" : rope_last_error();
    EXPECT_TRUE(status[i] == ROPE_OK || memory->IsAsBefore()) << name;
    if (i == 0) memory->Keep();
  }
  EXPECT_EQ(status[0], status[1]) << name << ": " << message[0] << "; " << message[1];
  EXPECT_EQ(message[0], message[1]) << name;
  EXPECT_TRUE(memory->IsAsKept()) << name;
  return status[0] == ROPE_OK && !memory->IsAsBefore();
}

// What is changed in a call, by each of some values.
template <class A>
struct FieldChange {
  std::string name;
  void (*make)(A* a, int64_t value);
  std::vector<int64_t> values = {1};
};

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_SHORT_WAY_H_
