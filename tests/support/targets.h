// Every instruction set that the library has kernels for and this CPU runs, as test parameters.
// Needs the library's objects.
#ifndef LIBROPE_TESTS_SUPPORT_TARGETS_H_
#define LIBROPE_TESTS_SUPPORT_TARGETS_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "cpu/kernels.h"

namespace rope::testing {

// Contexts created while it lives use the target.
class OnTarget {
 public:
  explicit OnTarget(const cpu::Kernels* kernels) {
    setenv("LIBROPE_CPU_TARGET", kernels->target, 1);
  }
  ~OnTarget() { unsetenv("LIBROPE_CPU_TARGET"); }
  OnTarget(const OnTarget&) = delete;
};

class TargetTest : public ::testing::TestWithParam<const cpu::Kernels*> {
 protected:
  const cpu::Kernels& kernels() const { return *GetParam(); }

 private:
  const OnTarget target_{GetParam()};
};

inline std::string TargetName(const ::testing::TestParamInfo<const cpu::Kernels*>& info) {
  return info.param->target;
}

#define INSTANTIATE_TARGETS(suite)                                                          \
  INSTANTIATE_TEST_SUITE_P(Targets, suite, ::testing::ValuesIn(::rope::cpu::ListKernels()), \
                           ::rope::testing::TargetName)

// The best of those with fused multiply-add, whose bits CUDA has; none on a CPU without it.
inline std::vector<const cpu::Kernels*> BestFusedTarget() {
  for (const cpu::Kernels* kernels : cpu::ListKernels()) {
    if (kernels->fused) return {kernels};
  }
  return {};
}

#define INSTANTIATE_BEST_TARGET(suite)                                                             \
  INSTANTIATE_TEST_SUITE_P(Target, suite, ::testing::ValuesIn(::rope::testing::BestFusedTarget()), \
                           ::rope::testing::TargetName);                                           \
  GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(suite)

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_TARGETS_H_
