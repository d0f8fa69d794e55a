// The choice of the instruction set: our own detection against Highway's, and the environment
// variable LIBROPE_CPU_TARGET.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "cpu/kernels.h"
#include "cpu/target.h"
#include "support/errors.h"
#include "support/handles.h"

namespace rope::testing {
namespace {

std::string Backend() {
  const Context context = Create(Config(64));
  return context == nullptr ? "" : rope_context_backend(context.get());
}

class CpuTarget : public ::testing::Test {
 protected:
  void TearDown() override { unsetenv("LIBROPE_CPU_TARGET"); }
};

TEST_F(CpuTarget, DetectionAgreesWithHighway) {
#ifdef ROPE_TEST_LIBHWY
  // All that Highway has for this architecture, not only what was compiled.
  const int64_t fallbacks = HWY_SCALAR | HWY_EMU128;
  const int64_t ours = cpu::DetectTargets();
  const int64_t theirs = hwy::SupportedTargets() & ~fallbacks;
#if HWY_ARCH_X86 || HWY_ARCH_ARM_A64
  EXPECT_EQ(ours, theirs);
#else
  EXPECT_EQ(ours, 0) << "and of Highway " << theirs;
#endif
#else
  GTEST_SKIP() << "libhwy was not found by pkg-config";
#endif
}

TEST_F(CpuTarget, F16ArithmeticIsWhatLinuxSaysOfTheCpu) {
#if HWY_ARCH_X86 && defined(__linux__)
  std::stringstream flags;
  flags << std::ifstream("/proc/cpuinfo").rdbuf();
  EXPECT_EQ(cpu::HasF16Arithmetic(), flags.str().find("avx512_fp16") != std::string::npos);
#else
  GTEST_SKIP() << "an emulator shows the flags of its host";
#endif
}

// The kernels of a target that DetectTargets() does not ask for are compiled, and never run: a
// later Highway has more of them. A CPU that has the target is not needed to find that out.
TEST_F(CpuTarget, EveryCompiledTargetIsAskedFor) {
#if HWY_ARCH_X86 || HWY_ARCH_ARM_A64
  std::stringstream source;
  source << std::ifstream(ROPE_TEST_TARGET_CC).rdbuf();
  for (int64_t rest = HWY_TARGETS & ~HWY_STATIC_TARGET; rest != 0; rest &= rest - 1) {
    const std::string line = std::string("targets |= HWY_") + hwy::TargetName(rest & -rest) + ";";
    EXPECT_NE(source.str().find(line), std::string::npos) << line;
  }
#else
  GTEST_SKIP() << "the only target is the compiler's own";
#endif
}

TEST_F(CpuTarget, TheListIsOrderedAndWithoutDuplicates) {
  const std::vector<const cpu::Kernels*> all = cpu::ListKernels();
  ASSERT_FALSE(all.empty());
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_STRNE(all[i]->target, all[j]->target);
  }
  EXPECT_EQ(Backend(), std::string("cpu ") + all.front()->target);
}

TEST_F(CpuTarget, TheVariableChooses) {
  for (const cpu::Kernels* kernels : cpu::ListKernels()) {
    setenv("LIBROPE_CPU_TARGET", kernels->target, 1);
    EXPECT_EQ(Backend(), std::string("cpu ") + kernels->target);
  }
}

TEST_F(CpuTarget, EmptyMeansTheBest) {
  const std::string best = Backend();
  setenv("LIBROPE_CPU_TARGET", "", 1);
  EXPECT_EQ(Backend(), best);
}

TEST_F(CpuTarget, AnotherNameIsRefused) {
  std::string names;
  for (const cpu::Kernels* kernels : cpu::ListKernels()) {
    names += (names.empty() ? "" : ", ") + std::string(kernels->target);
  }
  for (const char* wrong : {"nonsense", "avx2", " ", "AVX2,SSE4", "RVV", "%s%n"}) {
    setenv("LIBROPE_CPU_TARGET", wrong, 1);
    const rope_config config = Config(64);
    auto* const untouched = reinterpret_cast<rope_context*>(16);
    rope_context* context = untouched;
    EXPECT_EQ(rope_context_create(&config, &context), kInvalid) << wrong;
    EXPECT_EQ(context, untouched);
    EXPECT_EQ(std::string(rope_last_error()),
              "rope_context_create: the environment variable LIBROPE_CPU_TARGET (\"" +
                  std::string(wrong) +
                  "\") must be unset, empty, or a target of this library and CPU: " + names);
    unsetenv("LIBROPE_CPU_TARGET");
  }
}

}  // namespace
}  // namespace rope::testing
