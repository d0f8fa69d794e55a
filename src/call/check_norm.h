// The checks of a norm.
#ifndef LIBROPE_SRC_CALL_CHECK_NORM_H_
#define LIBROPE_SRC_CALL_CHECK_NORM_H_

#include "call/beside_shape.h"
#include "call/call.h"
#include "call/overlap.h"
#include "math/norm.h"

namespace rope {

// The tensor that a norm is of.
struct NormedTensor {
  rope_dtype dtype;
  int32_t heads, channels;  // channels of a head
  bool turns;               // q or k
  bool keeps_width;         // each output has as many channels
  bool backward;            // of which the gradient is asked for
};

// How messages call a norm, and what BACKWARD reads and writes for it.
struct NormNames {
  const char *norm, *x, *weight_grad, *bias_grad;
};

// Those of a call.
inline constexpr NormNames kNormNames[] = {
    {"args->fused->q_norm", "args->fused->q_norm->x[0]", "args->fused->q_norm->weight_grad",
     "args->fused->q_norm->bias_grad"},
    {"args->fused->k_norm", "args->fused->k_norm->x[0]", "args->fused->k_norm->weight_grad",
     "args->fused->k_norm->bias_grad"},
    {"args->fused->v_norm", "args->fused->v_norm->x[0]", "args->fused->v_norm->weight_grad",
     "args->fused->v_norm->bias_grad"},
};
enum Normed { kQ, kK, kNormedV };

// The memory of the latter, as far as it is known without addresses.
struct GradientShapes {
  bool present;
  BesideShape x;
  Footprint weights;  // of weight_grad, and of bias_grad
};

// Writes `shapes`, and Norm::gradients, with BACKWARD alone. Of a prepared call the norm has no
// addresses.
rope_status CheckNorm(const Call& call, const NormNames& names, const rope_norm* given,
                      const NormedTensor& tensor, DataOf data_of, Norm* norm,
                      GradientShapes* shapes);

// What a norm reads besides heads, and how messages call it.
struct NormData {
  const void *weight, *bias;
  const float* rstd;
};
struct NormDataNames {
  const char *weight, *bias, *rstd;
};

// Of an application of a prepared call, which has what the norm reads.
rope_status PlaceNorm(const Call& call, const NormDataNames& names, const NormData& data,
                      Norm* norm);

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_CHECK_NORM_H_
