// Random numbers that are the same everywhere, as those of the standard's distributions are not.
// The hashes of tests/bits/expected.txt depend on each of them.
#ifndef LIBROPE_TESTS_SUPPORT_RANDOM_H_
#define LIBROPE_TESTS_SUPPORT_RANDOM_H_

#include <cstdint>
#include <initializer_list>

namespace rope::testing {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  int64_t Below(int64_t n) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(n)); }
  int Pick(int low, int high) { return low + static_cast<int>(Below(high - low + 1)); }
  bool Sometimes(int one_in) { return Below(one_in) == 0; }
  template <class T>
  T Of(std::initializer_list<T> values) {
    return values.begin()[Below(static_cast<int64_t>(values.size()))];
  }

 private:
  uint64_t state_;
};

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_RANDOM_H_
