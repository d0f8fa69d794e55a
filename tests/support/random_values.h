// Normally distributed numbers, the same in every run.
#ifndef LIBROPE_TESTS_SUPPORT_RANDOM_VALUES_H_
#define LIBROPE_TESTS_SUPPORT_RANDOM_VALUES_H_

#include <cstddef>
#include <random>
#include <vector>

namespace rope::testing {

inline std::vector<float> RandomValues(size_t count, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_RANDOM_VALUES_H_
