// torch.pow(base, exponents) of f32 values on a CPU, bit for bit: what transformers makes
// frequencies with.
//
// torch takes whole pairs of vectors of exponents through SLEEF's powf, and the rest, one by one,
// through that of the C library. The two differ in the last bit of one result in fifty.
//
// The steps are those of SLEEF's variant with fused multiply-add, and two vectors have the 32
// floats of AVX-512. Elsewhere: with AVX2 the steps are the same and two vectors have 16 floats, on
// Arm (NEON, from reading) 8; so the C library gets fewer elements, and none on any of them where
// their number is a multiple of 32. SLEEF without fused multiply-add would take the errors of
// products from products of halves, with other last bits; but an x86 CPU without AVX2 takes all
// elements through the C library.
//
// SLEEF (https://sleef.org) is the work of Naoki Shibata and contributors. What is taken from it
// are the steps and the coefficients.
#ifndef LIBROPE_SRC_CONTEXT_TORCH_POW_H_
#define LIBROPE_SRC_CONTEXT_TORCH_POW_H_

namespace rope {

// The unevaluated sum of two floats.
struct FloatFloat {
  float high, low;
};

class TorchPow {
 public:
  // base >= 0, as a tensor of one element; `count` exponents.
  TorchPow(float base, int count);

  // base^exponent for the exponent at `index` of the tensor, 0 <= exponent < 1.
  float operator()(int index, float exponent) const;

 private:
  static constexpr int kTwoVectors = 32;  // elements

  float base_;
  int vectorized_;  // elements that go through SLEEF
  FloatFloat log_;  // of base_, for these
};

}  // namespace rope

#endif  // LIBROPE_SRC_CONTEXT_TORCH_POW_H_
