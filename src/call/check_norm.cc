#include "call/check_norm.h"

#include <cmath>
#include <iterator>

#include "base/aligned.h"
#include "base/decimal.h"
#include "base/dtype_text.h"
#include "base/status.h"
#include "base/struct_size.h"
#include "call/check_tensors.h"
#include "math/element.h"

namespace rope {
namespace {

rope_status Unknown(const Call& call, const char* name, const char* field, int32_t value) {
  return Fail(ROPE_ERROR_UNSUPPORTED, "%s: %s->%s (%d) is not known to this version", call.function,
              name, field, value);
}

// A pointer that some norms need and others must not have.
rope_status CheckGiven(const Call& call, const char* name, const char* field, const void* data,
                       bool needed, const char* by) {
  if ((data != nullptr) == needed) return ROPE_OK;
  if (needed) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s->%s (NULL) is required by %s", call.function,
                name, field, by);
  }
  return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s->%s (%p) must be NULL with %s", call.function,
              name, field, data, by);
}

rope_status CheckAligned(const Call& call, const char* name, const char* field, const void* data,
                         int size) {
  if (IsAligned(data, static_cast<size_t>(size))) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: %s->%s (%p) must be aligned to its element (%d bytes)", call.function, name,
              field, data, size);
}

// By number.
constexpr const char* kKindNames[] = {
    "",
    "ROPE_NORM_KIND_RMS",
    "ROPE_NORM_KIND_RMS_ONE_PLUS",
    "ROPE_NORM_KIND_RMS_PLAIN",
    "ROPE_NORM_KIND_LAYER",
    "ROPE_NORM_KIND_LAYER_BIAS",
};
static_assert(std::size(kKindNames) == std::size(kNormRules));

rope_status CheckChoices(const Call& call, const char* name, const rope_norm& n) {
  if (n.kind == 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s->kind (0) is required", call.function, name);
  }
  if (n.kind < 0 || n.kind >= static_cast<int32_t>(std::size(kNormRules))) {
    return Unknown(call, name, "kind", n.kind);
  }
  if (n.span < 0 || n.span > ROPE_NORM_SPAN_GIVEN) return Unknown(call, name, "span", n.span);
  if (n.order < 0 || n.order > ROPE_NORM_ORDER_AFTER) return Unknown(call, name, "order", n.order);
  if (n.rounding < 0 || n.rounding > ROPE_NORM_ROUNDING_EAGER) {
    return Unknown(call, name, "rounding", n.rounding);
  }
  return ROPE_OK;
}

// Of a prepared call.
rope_status CheckNoData(const Call& call, const char* name, const char* field, const void* data) {
  if (data == nullptr) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: %s->%s (%p) must be NULL: each rope_prepared_apply is given it", call.function,
              name, field, data);
}

rope_status CheckEps(const Call& call, const char* name, const rope_norm& n) {
  const auto eps = static_cast<float>(n.eps);
  if (n.span == ROPE_NORM_SPAN_GIVEN) {
    if (n.eps == 0) return ROPE_OK;
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s->eps (%s) must be 0 with ROPE_NORM_SPAN_GIVEN, whose rstd contains it",
                call.function, name, Decimal(n.eps).text);
  }
  if (eps > 0 && std::isfinite(eps)) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: %s->eps (%s) is required, and must be positive and finite as a float",
              call.function, name, Decimal(n.eps).text);
}

rope_status CheckRstd(const Call& call, const char* name, const rope_norm& n, const NormRule& rule,
                      DataOf data_of) {
  const bool is_given = n.span == ROPE_NORM_SPAN_GIVEN;
  if (is_given && rule.has_mean) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s->span (ROPE_NORM_SPAN_GIVEN) must not be set with %s, which needs a mean, "
                "too",
                call.function, name, kKindNames[n.kind]);
  }
  if (data_of == DataOf::kApplication) return CheckNoData(call, name, "rstd", n.rstd);
  if (rope_status s = CheckGiven(call, name, "rstd", n.rstd, is_given,
                                 is_given ? "ROPE_NORM_SPAN_GIVEN" : "another span than GIVEN")) {
    return s;
  }
  return CheckAligned(call, name, "rstd", n.rstd, sizeof(float));
}

// What is normed together has weights of its own in each head, in every model: one row for all of
// them is never meant there.
rope_status CheckWeightStride(const Call& call, const char* name, const rope_norm& n,
                              const NormedTensor& tensor, int size) {
  const auto stride = static_cast<long long>(n.weight_stride_head);
  const bool may_share = n.span == ROPE_NORM_SPAN_HEAD || tensor.heads == 1;
  if (stride < tensor.channels && !(stride == 0 && may_share)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s->weight_stride_head (%lld) must be %s%d or more, the channels of a head%s",
                call.function, name, stride, may_share ? "0, or " : "", tensor.channels,
                may_share ? "" : ": with ROPE_NORM_SPAN_ALL_HEADS and GIVEN each has its weights");
  }
  int64_t reach;
  if (__builtin_mul_overflow(n.weight_stride_head, int64_t{tensor.heads} * size, &reach)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s->weight_stride_head (%lld) must not reach beyond the address space",
                call.function, name, stride);
  }
  return ROPE_OK;
}

rope_status CheckWeights(const Call& call, const char* name, const rope_norm& n,
                         const NormRule& rule, const NormedTensor& tensor, DataOf data_of) {
  const char* const kind = kKindNames[n.kind];
  if (data_of == DataOf::kApplication) {
    if (rope_status s = CheckNoData(call, name, "weight", n.weight)) return s;
    if (rope_status s = CheckNoData(call, name, "bias", n.bias)) return s;
  } else {
    if (rope_status s = CheckGiven(call, name, "weight", n.weight, rule.has_weight, kind)) return s;
    if (rope_status s = CheckGiven(call, name, "bias", n.bias, rule.has_bias, kind)) return s;
  }
  if (!rule.has_weight) {
    if (n.weight_dtype == 0 && n.weight_stride_head == 0) return ROPE_OK;
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s->%s must be 0 with %s, which has no weights",
                call.function, name, n.weight_dtype != 0 ? "weight_dtype" : "weight_stride_head",
                kind);
  }
  if (!IsDtype(n.weight_dtype)) {
    if (n.weight_dtype == 0) {
      return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                  "%s: %s->weight_dtype (0) is required by %s, which has weights", call.function,
                  name, kind);
    }
    return Fail(ROPE_ERROR_UNSUPPORTED,
                "%s: %s->weight_dtype (%s) must be F32, F16 or BF16 in this version", call.function,
                name, DtypeText(n.weight_dtype).text);
  }
  const int size = ElementSize(n.weight_dtype);
  if (rope_status s = CheckAligned(call, name, "weight", n.weight, size)) return s;
  if (rope_status s = CheckAligned(call, name, "bias", n.bias, size)) return s;
  return CheckWeightStride(call, name, n, tensor, size);
}

// What is between the norm and the rotation.
rope_status CheckOrder(const Call& call, const char* name, const rope_norm& n, const NormRule& rule,
                       const NormedTensor& tensor, Norm* norm) {
  norm->in_f32 = false;
  const bool after = n.order == ROPE_NORM_ORDER_AFTER;
  if (after && !tensor.turns) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s->order (ROPE_NORM_ORDER_AFTER) must be 0: v does not turn", call.function,
                name);
  }
  if (after && !tensor.keeps_width) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s->order (ROPE_NORM_ORDER_AFTER) needs outputs with the head_dim of their "
                "input",
                call.function, name);
  }
  if (!tensor.turns || call.context.nope || !IsNarrow(tensor.dtype) ||
      n.rounding != ROPE_NORM_ROUNDING_FLOAT32) {
    return ROPE_OK;
  }
  norm->in_f32 = after || rule.has_mean;
  if (norm->in_f32 && n.span == ROPE_NORM_SPAN_ALL_HEADS) {
    return Fail(ROPE_ERROR_UNSUPPORTED,
                "%s: %s->rounding (ROPE_NORM_ROUNDING_FLOAT32) must be ROUNDED or EAGER with %s, "
                "ROPE_NORM_SPAN_ALL_HEADS and 16-bit tensors in this version",
                call.function, name, after ? "ROPE_NORM_ORDER_AFTER" : kKindNames[n.kind]);
  }
  if (call.context.rounding.arithmetic == Arithmetic::kFused) return ROPE_OK;
  return Fail(ROPE_ERROR_UNSUPPORTED,
              "%s: %s->rounding (ROPE_NORM_ROUNDING_FLOAT32) must be ROUNDED or EAGER: the context "
              "rounds products of 16-bit channels, as a model's own code does (config->rounding). "
              "Where nothing is to be rounded, config->rounding must be ROPE_ROUNDING_FLOAT32",
              call.function, name);
}

// Fields that only BACKWARD reads.
rope_status CheckNoGradients(const Call& call, const char* name, const rope_norm& n) {
  constexpr char kOther[] = "an operation that is not BACKWARD";
  if (rope_status s = CheckGiven(call, name, "x", n.x, false, kOther)) return s;
  if (rope_status s = CheckGiven(call, name, "weight_grad", n.weight_grad, false, kOther)) return s;
  if (rope_status s = CheckGiven(call, name, "bias_grad", n.bias_grad, false, kOther)) return s;
  if (n.grad_parts == 0) return ROPE_OK;
  return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s->grad_parts (%d) must be 0 with %s",
              call.function, name, n.grad_parts, kOther);
}

// What FORWARD was given.
rope_status CheckX(const Call& call, const NormNames& names, const rope_norm& n,
                   const NormedTensor& tensor, BesideShape* shape) {
  if (rope_status s = CheckGiven(call, names.norm, "x", n.x, true, "BACKWARD")) return s;
  const rope_tensor& x = *n.x;
  const TensorKind kind = tensor.turns ? TensorKind::kHeads : TensorKind::kOthers;
  if (IsAbsent(x)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s is required by BACKWARD", call.function,
                names.x);
  }
  if (rope_status s = DescribeBeside(call, names.x, x, kind, DataOf::kCall, shape)) return s;
  const auto width = static_cast<int32_t>(shape->of.width / shape->element);
  if (x.dtype == tensor.dtype && x.heads == tensor.heads && width == tensor.channels) {
    return ROPE_OK;
  }
  return Fail(ROPE_ERROR_INVALID_ARGUMENT,
              "%s: %s (%s, %d heads of %d channels) must be like the output (%s, %d heads of %d "
              "channels), which is its gradient",
              call.function, names.x, DtypeText(x.dtype).text, x.heads, width,
              DtypeText(tensor.dtype).text, tensor.heads, tensor.channels);
}

// The gradients of weights and biases.
rope_status CheckParts(const Call& call, const NormNames& names, const rope_norm& n,
                       const NormRule& rule, const NormedTensor& tensor, Footprint* shape) {
  const char* const kind = kKindNames[n.kind];
  if (n.grad_parts < 0) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: %s->grad_parts (%d) must not be negative",
                call.function, names.norm, n.grad_parts);
  }
  if (n.weight_grad != nullptr && !rule.has_weight) {
    return CheckGiven(call, names.norm, "weight_grad", n.weight_grad, false, kind);
  }
  if (n.bias_grad != nullptr && !rule.has_bias) {
    return CheckGiven(call, names.norm, "bias_grad", n.bias_grad, false, kind);
  }
  const bool wanted = n.weight_grad != nullptr || n.bias_grad != nullptr;
  if (wanted != (n.grad_parts != 0)) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                wanted ? "%s: %s->grad_parts (%d) is required with %s"
                       : "%s: %s->grad_parts (%d) must be 0 without %s",
                call.function, names.norm, n.grad_parts,
                wanted && n.weight_grad == nullptr ? "bias_grad" : "weight_grad");
  }
  for (const float* grad : {n.weight_grad, n.bias_grad}) {
    const char* const field = grad == n.bias_grad ? "bias_grad" : "weight_grad";
    if (rope_status s = CheckAligned(call, names.norm, field, grad, sizeof(float))) return s;
  }
  const int64_t weights = int64_t{tensor.channels} * (n.weight_stride_head != 0 ? tensor.heads : 1);
  int64_t bytes;
  const auto least = static_cast<int64_t>(INTPTR_MAX);
  if (__builtin_mul_overflow(weights * int64_t{sizeof(float)}, int64_t{n.grad_parts}, &bytes) ||
      bytes > least) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s->grad_parts (%d) times %lld weights reaches beyond the address space",
                call.function, names.norm, n.grad_parts, static_cast<long long>(weights));
  }
  *shape = {{1, 1, 1}, {0, 0, 0}, bytes};
  return ROPE_OK;
}

rope_status CheckGradients(const Call& call, const NormNames& names, const rope_norm& n,
                           const NormRule& rule, const NormedTensor& tensor,
                           GradientShapes* shapes) {
  if (n.span == ROPE_NORM_SPAN_GIVEN || n.order == ROPE_NORM_ORDER_AFTER) {
    return Fail(ROPE_ERROR_UNSUPPORTED, "%s: %s->%s must not be set with BACKWARD in this version",
                call.function, names.norm,
                n.span == ROPE_NORM_SPAN_GIVEN ? "span (ROPE_NORM_SPAN_GIVEN)"
                                               : "order (ROPE_NORM_ORDER_AFTER)");
  }
  if (!tensor.keeps_width) {
    return Fail(ROPE_ERROR_INVALID_ARGUMENT,
                "%s: %s needs an output with the head_dim of its input with BACKWARD",
                call.function, names.norm);
  }
  if (rope_status s = CheckX(call, names, n, tensor, &shapes->x)) return s;
  return CheckParts(call, names, n, rule, tensor, &shapes->weights);
}

}  // namespace

rope_status CheckNorm(const Call& call, const NormNames& names, const rope_norm* given,
                      const NormedTensor& tensor, DataOf data_of, Norm* norm,
                      GradientShapes* shapes) {
  const char* const name = names.norm;
  rope_norm copy;
  if (given->struct_size != sizeof(rope_norm)) {
    if (rope_status s = CopyStruct(call.function, name, given, &copy)) return s;
    given = &copy;
  }
  const rope_norm& n = *given;
  if (rope_status s = CheckChoices(call, name, n)) return s;
  const NormRule& rule = kNormRules[n.kind];
  if (rope_status s = CheckEps(call, name, n)) return s;
  if (rope_status s = CheckRstd(call, name, n, rule, data_of)) return s;
  if (rope_status s = CheckWeights(call, name, n, rule, tensor, data_of)) return s;
  if (rope_status s = CheckOrder(call, name, n, rule, tensor, norm)) return s;
  if (n.reserved != 0) {
    return Fail(ROPE_ERROR_UNSUPPORTED, "%s: %s->reserved must be 0 in this version", call.function,
                name);
  }
  if (rope_status s = tensor.backward ? CheckGradients(call, names, n, rule, tensor, shapes)
                                      : CheckNoGradients(call, name, n)) {
    return s;
  }
  shapes->present = tensor.backward;
  norm->gradients = {};
  if (tensor.backward) {
    norm->in_f32 = false;  // gradients are, whatever the norm is
    const int64_t* const strides = shapes->x.of.strides;
    norm->gradients = {
        static_cast<const char*>(n.x->data),
        {strides[0], strides[1], strides[2]},
        n.weight_grad,
        n.bias_grad,
        n.grad_parts,
        n.weight_stride_head != 0 ? int64_t{tensor.channels} * tensor.heads : tensor.channels};
  }
  norm->rule = rule;
  norm->eps = static_cast<float>(n.eps);
  norm->weight = static_cast<const char*>(n.weight);
  norm->bias = static_cast<const char*>(n.bias);
  norm->weight_dtype = n.weight_dtype;
  norm->span = n.span;
  norm->rounding = n.rounding;
  norm->after = n.order == ROPE_NORM_ORDER_AFTER && !call.context.nope;
  norm->channels = tensor.channels;
  norm->weight_stride = rule.has_weight ? n.weight_stride_head * ElementSize(n.weight_dtype) : 0;
  norm->rstd = n.rstd;
  return ROPE_OK;
}

rope_status PlaceNorm(const Call& call, const NormDataNames& names, const NormData& data,
                      Norm* norm) {
  const int size = norm->rule.has_weight ? ElementSize(norm->weight_dtype) : 1;
  if (rope_status s = CheckAligned(call, "data", names.weight, data.weight, size)) return s;
  if (rope_status s = CheckAligned(call, "data", names.bias, data.bias, size)) return s;
  if (rope_status s = CheckAligned(call, "data", names.rstd, data.rstd, sizeof(float))) return s;
  norm->weight = static_cast<const char*>(data.weight);
  norm->bias = static_cast<const char*>(data.bias);
  norm->rstd = data.rstd;
  return ROPE_OK;
}

}  // namespace rope
