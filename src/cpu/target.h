// Which instruction sets this CPU has, in the bits of Highway's targets. Highway's own answer is
// hwy::SupportedTargets(), for which its users need libhwy.so: librope needs only the headers.
#ifndef LIBROPE_SRC_CPU_TARGET_H_
#define LIBROPE_SRC_CPU_TARGET_H_

#include <cstdint>

namespace rope::cpu {

// The HWY_* bits of the targets that this CPU has and its operating system has enabled, among those
// that can be told apart here: those of x86 and Arm. Empty elsewhere, where kernels are compiled
// for the compiler's own target only.
int64_t DetectTargets();

// Whether this CPU has, and its operating system has enabled, instructions that multiply vectors of
// f16: AVX512-FP16 or NEON fp16.
bool HasF16Arithmetic();

// x86: likewise AVX512-BF16, which rounds vectors of f32 to bf16.
bool HasBf16Conversion();

}  // namespace rope::cpu

#endif  // LIBROPE_SRC_CPU_TARGET_H_
