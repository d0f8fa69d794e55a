#include "cpu/target.h"

#include <hwy/detect_targets.h>

#if HWY_ARCH_X86
#include <cpuid.h>
#elif HWY_ARCH_ARM_A64 && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

namespace rope::cpu {

#if HWY_ARCH_X86

namespace {

// Features that __builtin_cpu_supports has no name for in Clang 14. That the operating system keeps
// the registers which they use is asked of the compiler with "avx2" and "avx512f".
struct MoreFeatures {
  bool f16c = false, lzcnt = false, vaes = false, avx512fp16 = false;

  MoreFeatures() {
    unsigned a, b, c, d;
    if (__get_cpuid(1, &a, &b, &c, &d)) f16c = (c >> 29 & 1) != 0;
    if (__get_cpuid(0x80000001, &a, &b, &c, &d)) lzcnt = (c >> 5 & 1) != 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
      vaes = (c >> 9 & 1) != 0;
      avx512fp16 = (d >> 23 & 1) != 0;
    }
  }
};

}  // namespace

// Each target needs all of the one before it, as in HWY_TARGET_STR of hwy/ops/set_macros-inl.h.
int64_t DetectTargets() {
  __builtin_cpu_init();
  const MoreFeatures more;
  int64_t targets = 0;
#ifdef HWY_SSE2
  if (!__builtin_cpu_supports("sse2")) return targets;
  targets |= HWY_SSE2;
#endif
  if (!__builtin_cpu_supports("ssse3")) return targets;
  targets |= HWY_SSSE3;
  if (!__builtin_cpu_supports("sse4.1") || !__builtin_cpu_supports("sse4.2") ||
      !__builtin_cpu_supports("pclmul") || !__builtin_cpu_supports("aes")) {
    return targets;
  }
  targets |= HWY_SSE4;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("bmi") ||
      !__builtin_cpu_supports("bmi2") || !__builtin_cpu_supports("fma") || !more.f16c ||
      !more.lzcnt) {
    return targets;
  }
  targets |= HWY_AVX2;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512cd") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512bw")) {
    return targets;
  }
  targets |= HWY_AVX3;
  if (!__builtin_cpu_supports("vpclmulqdq") || !__builtin_cpu_supports("avx512vbmi") ||
      !__builtin_cpu_supports("avx512vbmi2") || !__builtin_cpu_supports("avx512vnni") ||
      !__builtin_cpu_supports("avx512bitalg") || !__builtin_cpu_supports("avx512vpopcntdq") ||
      !__builtin_cpu_supports("gfni") || !more.vaes) {
    return targets;
  }
  targets |= HWY_AVX3_DL;
  if (!__builtin_cpu_supports("avx512bf16")) return targets;
#ifdef HWY_AVX3_ZEN4  // Highway avoids what is slow on AMD's
  if (__builtin_cpu_is("amd")) targets |= HWY_AVX3_ZEN4;
#endif
#ifdef HWY_AVX3_SPR
  if (more.avx512fp16) targets |= HWY_AVX3_SPR;
#endif
  return targets;
}

bool HasF16Arithmetic() {
  return (DetectTargets() & HWY_AVX3) != 0 && MoreFeatures().avx512fp16;
}

bool HasBf16Conversion() {
  return (DetectTargets() & HWY_AVX3) != 0 && __builtin_cpu_supports("avx512bf16");
}

#elif HWY_ARCH_ARM_A64 && defined(__linux__)

int64_t DetectTargets() {
  const unsigned long caps = getauxval(AT_HWCAP), caps2 = getauxval(AT_HWCAP2);
  int64_t targets = 0;
#ifdef HWY_NEON_WITHOUT_AES
  targets |= HWY_NEON_WITHOUT_AES;
#endif
  if ((caps & HWCAP_AES) != 0) {
    targets |= HWY_NEON;
#ifdef HWY_NEON_BF16
    if ((caps & HWCAP_ASIMDHP) != 0 && (caps & HWCAP_ASIMDDP) != 0 && (caps2 & HWCAP2_BF16) != 0) {
      targets |= HWY_NEON_BF16;
    }
#endif
  }
  if ((caps & HWCAP_SVE) == 0) return targets;
  targets |= HWY_SVE;
  const bool sve2 = (caps2 & HWCAP2_SVE2) != 0 && (caps2 & HWCAP2_SVEAES) != 0;
  if (sve2) targets |= HWY_SVE2;
  // Two targets are for one length of vectors only.
  const int length = prctl(PR_SVE_GET_VL);
  if (length < 0) return targets;
  const int bytes = length & PR_SVE_VL_LEN_MASK;
  if (bytes == 32) targets |= HWY_SVE_256;
  if (bytes == 16 && sve2 && (caps2 & HWCAP2_SVEI8MM) != 0 && (caps2 & HWCAP2_SVEBF16) != 0) {
    targets |= HWY_SVE2_128;
  }
  return targets;
}

bool HasF16Arithmetic() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDHP) != 0; }

#else

int64_t DetectTargets() { return 0; }
bool HasF16Arithmetic() { return false; }

#endif

}  // namespace rope::cpu
