// The checks of an output beside its input, which may have another dtype and number of heads.
#ifndef LIBROPE_SRC_CALL_CHECK_OUTPUT_H_
#define LIBROPE_SRC_CALL_CHECK_OUTPUT_H_

#include "call/beside_shape.h"
#include "call/call.h"
#include "call/fused_plan.h"
#include "call/tensor_kind.h"

namespace rope {

// An output that is not like its input.
rope_status DescribeUnlike(const Call& call, const char* name, const rope_tensor& out,
                           TensorKind kind, const char* in_name, const rope_tensor& in,
                           rope_operation operation, DataOf data_of, Beside scales, Output* output,
                           HeadStrides* strides, BesideShape* beside);

// What an output is, of a call with a FusedPlan, beside its input. `strides` of the output, in
// bytes, become those from head to head of the input. An array of scales is `scales` of `beside`.
inline rope_status DescribeOutput(const Call& call, const char* name, const rope_tensor& out,
                                  TensorKind kind, const char* in_name, const rope_tensor& in,
                                  rope_operation operation, DataOf data_of, Beside scales,
                                  Output* output, HeadStrides* strides, BesideShape* beside) {
  output->SetLike(in.dtype);
  if (out.dtype == in.dtype && out.heads == in.heads) return ROPE_OK;
  return DescribeUnlike(call, name, out, kind, in_name, in, operation, data_of, scales, output,
                        strides, beside);
}

}  // namespace rope

#endif  // LIBROPE_SRC_CALL_CHECK_OUTPUT_H_
