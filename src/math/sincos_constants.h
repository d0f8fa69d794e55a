// The numbers behind cos and sin on every backend. Angles are split into quarter turns: a whole
// number (the quadrant) and a rest u in [-1/2, 1/2], and
//
//     sin(pi/2 u) = u * S(u^2)        cos(pi/2 u) = C(u^2)
//
// with the polynomials below, evaluated in f32 by Horner's rule with fused multiply-add, in this
// order, everywhere. Largest error of cos and sin, from an angle or a phase to the f32
// result: 9.3e-8 (tests/math/sincos_test.cc).
#ifndef LIBROPE_SRC_MATH_SINCOS_CONSTANTS_H_
#define LIBROPE_SRC_MATH_SINCOS_CONSTANTS_H_

#include <cstdint>

namespace rope {

inline constexpr float kSin0 = 0x1.921fb6p+0f;
inline constexpr float kSin1 = -0x1.4abbbep-1f;
inline constexpr float kSin2 = 0x1.465e9p-4f;
inline constexpr float kSin3 = -0x1.2d9302p-8f;

inline constexpr float kCos1 = -0x1.3bd3ccp+0f;
inline constexpr float kCos2 = 0x1.03c1dep-2f;
inline constexpr float kCos3 = -0x1.55c66cp-6f;
inline constexpr float kCos4 = 0x1.d9f7bcp-11f;

// 2 / pi in two f32 parts: quarter turns per radian.
inline constexpr float kQuartersPerRadian = 0x1.45f306p-1f;
inline constexpr float kQuartersPerRadianLow = 0x1.b9391p-26f;

// Below this the two-part product of an f32 angle is exact to far below an f32 ulp; above, the bits
// of 1 / (2 pi) are used (sincos.h).
inline constexpr float kMaxFastAngle = 0x1p23f;

// The first 256 fraction bits of 1 / (2 pi).
inline constexpr uint32_t kInverseTwoPi[] = {0x28be60dbu, 0x9391054au, 0x7f09d5f4u, 0x7d4d3770u,
                                             0x36d8a566u, 0x4f10e410u, 0x7f9458eau, 0xf7aef158u};

}  // namespace rope

#endif  // LIBROPE_SRC_MATH_SINCOS_CONSTANTS_H_
