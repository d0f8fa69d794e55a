// Calls with a norm, each wrong in one place, and what the message about it names.
#ifndef LIBROPE_TESTS_SUPPORT_BAD_NORMS_H_
#define LIBROPE_TESTS_SUPPORT_BAD_NORMS_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "librope/rope.h"
#include "support/errors.h"
#include "support/handles.h"
#include "support/normed_call.h"

namespace rope::testing::bad_norms {

inline constexpr int kDim = NormedCall::kDim, kHeads = NormedCall::kHeads,
                     kTokens = NormedCall::kTokens;
inline constexpr size_t kFloats = NormedCall::kFloats;

// With all that norms may meet.
struct Call : NormedCall {
  float k[kFloats], out[kFloats];
  float x_values[kFloats], grad[kDim * kHeads * 3];
  rope_tensor x{};
  rope_kv_cache source = ROPE_INIT(rope_kv_cache);
  const int32_t slots[kTokens] = {1, 0};

  Call() {
    for (float* values : {k, out, x_values}) std::fill_n(values, kFloats, 1.5f);
    std::fill_n(grad, kDim * kHeads * 3, 1.5f);
  }

  void Backward() {
    args.operation = ROPE_OPERATION_BACKWARD;
    x = args.q;
    x.data = x_values;
    norm.x = &x;
    norm.weight_grad = grad;
    norm.grad_parts = 3;
  }
  void Narrow() { args.q.dtype = ROPE_DTYPE_BF16; }
  void AllHeads() {
    norm.span = ROPE_NORM_SPAN_ALL_HEADS;
    norm.weight_stride_head = kDim;
  }
  void Layer() { norm.kind = ROPE_NORM_KIND_LAYER; }
  // q to another dtype, or each head twice.
  void Convert() { args.q_out = Tensor(out, ROPE_DTYPE_BF16, kHeads); }
  void Repeat() {
    args.q.heads = kHeads / 2;
    args.q_out = Tensor(out, ROPE_DTYPE_F32, kHeads);
  }
  void After() { norm.order = ROPE_NORM_ORDER_AFTER; }
  void V() {
    NormedCall::V();
    fused.v_norm = &norm;
  }
  // v to another dtype.
  void ConvertV() {
    V();
    fused.q_norm = nullptr;
    fused.v_out = Tensor(out, ROPE_DTYPE_F16, kHeads);
    fused.v_out.head_dim = kDim;
  }
  // k with a norm, to a cache of another dtype.
  void CacheK() {
    args.k = Tensor(k, ROPE_DTYPE_F32, kHeads);
    fused.q_norm = nullptr;
    fused.k_norm = &norm;
    source.kind = ROPE_SLOTS_MAPPED;
    source.pages = 1;
    source.page_size = kTokens;
    source.k = Tensor(out, ROPE_DTYPE_BF16, kHeads, ROPE_LAYOUT_NHD);
    source.slots_i32 = slots;
    source.slots_length = kTokens;
    fused.cache = &source;
  }
  void Source() {
    source.kind = ROPE_SLOTS_MAPPED;
    source.pages = 1;
    source.page_size = kTokens;
    source.k = Tensor(k, ROPE_DTYPE_F32, kHeads, ROPE_LAYOUT_NHD);
    source.slots_i32 = slots;
    source.slots_length = kTokens;
    fused.source = &source;
    args.k_out = Tensor(out, ROPE_DTYPE_F32, kHeads);
  }
};
using Bad = BadInput<Call>;

inline const Bad kBad[] = {
    {"no kind",
     [](Call* c) { c->norm.kind = 0; },
     kInvalid,
     {"args->fused->q_norm->kind (0) is required"}},
    {"unknown kind",
     [](Call* c) { c->norm.kind = 6; },
     kUnsupported,
     {"args->fused->q_norm->kind (6) is not known to this version"}},
    {"negative kind", [](Call* c) { c->norm.kind = -1; }, kUnsupported, {"kind (-1)"}},
    {"unknown span", [](Call* c) { c->norm.span = 3; }, kUnsupported, {"q_norm->span (3)"}},
    {"unknown order", [](Call* c) { c->norm.order = 2; }, kUnsupported, {"q_norm->order (2)"}},
    {"unknown rounding",
     [](Call* c) { c->norm.rounding = 3; },
     kUnsupported,
     {"q_norm->rounding (3)"}},
    {"no eps",
     [](Call* c) { c->norm.eps = 0; },
     kInvalid,
     {"args->fused->q_norm->eps (0) is required, and must be positive"}},
    {"negative eps", [](Call* c) { c->norm.eps = -1e-6; }, kInvalid, {"eps (-1e-06)"}},
    {"an eps that is 0 as a float",
     [](Call* c) { c->norm.eps = 1e-60; },
     kInvalid,
     {"eps (1e-60)", "as a float"}},
    {"an eps that is infinite as a float",
     [](Call* c) { c->norm.eps = 1e60; },
     kInvalid,
     {"eps (1e+60)", "finite"}},
    {"NaN for eps", [](Call* c) { c->norm.eps = std::nan(""); }, kInvalid, {"eps (nan)"}},
    {"no weight",
     [](Call* c) { c->norm.weight = nullptr; },
     kInvalid,
     {"q_norm->weight (NULL) is required by ROPE_NORM_KIND_RMS"}},
    {"weight of PLAIN",
     [](Call* c) { c->norm.kind = ROPE_NORM_KIND_RMS_PLAIN; },
     kInvalid,
     {"q_norm->weight", "must be NULL with ROPE_NORM_KIND_RMS_PLAIN"}},
    {"weight_dtype of PLAIN",
     [](Call* c) { c->norm.kind = ROPE_NORM_KIND_RMS_PLAIN, c->norm.weight = nullptr; },
     kInvalid,
     {"q_norm->weight_dtype must be 0 with ROPE_NORM_KIND_RMS_PLAIN"}},
    {"weight_stride_head of PLAIN",
     [](Call* c) {
       c->norm.kind = ROPE_NORM_KIND_RMS_PLAIN, c->norm.weight = nullptr;
       c->norm.weight_dtype = 0, c->norm.weight_stride_head = kDim;
     },
     kInvalid,
     {"q_norm->weight_stride_head must be 0"}},
    {"no weight_dtype",
     [](Call* c) { c->norm.weight_dtype = 0; },
     kInvalid,
     {"q_norm->weight_dtype (0) is required by ROPE_NORM_KIND_RMS, which has weights"}},
    {"unknown weight_dtype",
     [](Call* c) { c->norm.weight_dtype = 4; },
     kUnsupported,
     {"q_norm->weight_dtype (ROPE_DTYPE_F8_E4M3) must be F32, F16 or BF16"}},
    {"misaligned weight",
     [](Call* c) { c->norm.weight = Odd(c->weight); },
     kInvalid,
     {"q_norm->weight", "must be aligned to its element (4 bytes)"}},
    {"bias of RMS",
     [](Call* c) { c->norm.bias = c->bias; },
     kInvalid,
     {"q_norm->bias", "must be NULL with ROPE_NORM_KIND_RMS"}},
    {"bias of LAYER",
     [](Call* c) { c->Layer(), c->norm.bias = c->bias; },
     kInvalid,
     {"q_norm->bias", "must be NULL with ROPE_NORM_KIND_LAYER"}},
    {"no bias",
     [](Call* c) { c->norm.kind = ROPE_NORM_KIND_LAYER_BIAS; },
     kInvalid,
     {"q_norm->bias", "is required by ROPE_NORM_KIND_LAYER_BIAS"}},
    {"misaligned bias",
     [](Call* c) { c->norm.kind = ROPE_NORM_KIND_LAYER_BIAS, c->norm.bias = Odd(c->bias); },
     kInvalid,
     {"q_norm->bias", "must be aligned"}},
    {"negative stride of weights",
     [](Call* c) { c->norm.weight_stride_head = -kDim; },
     kInvalid,
     {"q_norm->weight_stride_head (-64) must be 0, or 64 or more, the channels of a head"}},
    {"rows of weights that overlap",
     [](Call* c) { c->norm.weight_stride_head = kDim - 1; },
     kInvalid,
     {"q_norm->weight_stride_head (63) must be 0, or 64 or more"}},
    {"ALL_HEADS with one row of weights",
     [](Call* c) { c->norm.span = ROPE_NORM_SPAN_ALL_HEADS; },
     kInvalid,
     {"q_norm->weight_stride_head (0) must be 64 or more, the channels of a head: with "
      "ROPE_NORM_SPAN_ALL_HEADS and GIVEN each has its weights"}},
    {"GIVEN with one row of weights",
     [](Call* c) { c->Given(), c->norm.weight_stride_head = 0; },
     kInvalid,
     {"q_norm->weight_stride_head (0) must be 64 or more"}},
    {"stride of weights beyond memory",
     [](Call* c) { c->norm.weight_stride_head = INT64_MAX / 8; },
     kInvalid,
     {"q_norm->weight_stride_head (1152921504606846975)", "beyond the address space"}},
    {"GIVEN without rstd",
     [](Call* c) { c->Given(), c->norm.rstd = nullptr; },
     kInvalid,
     {"q_norm->rstd", "is required by ROPE_NORM_SPAN_GIVEN"}},
    {"GIVEN with eps",
     [](Call* c) { c->Given(), c->norm.eps = 1e-6; },
     kInvalid,
     {"q_norm->eps (1e-06) must be 0 with ROPE_NORM_SPAN_GIVEN"}},
    {"GIVEN with LAYER",
     [](Call* c) { c->Given(), c->Layer(); },
     kInvalid,
     {"q_norm->span", "must not be set with ROPE_NORM_KIND_LAYER"}},
    {"rstd without GIVEN",
     [](Call* c) { c->norm.rstd = c->rstd; },
     kInvalid,
     {"q_norm->rstd", "must be NULL with another span than GIVEN"}},
    {"misaligned rstd",
     [](Call* c) { c->Given(), c->norm.rstd = reinterpret_cast<const float*>(Odd(c->rstd)); },
     kInvalid,
     {"q_norm->rstd", "must be aligned"}},
    {"a norm of no tensor",
     [](Call* c) { c->fused.k_norm = &c->norm; },
     kInvalid,
     {"args->fused->k_norm is set, but args->k is absent"}},
    {"a norm of no v",
     [](Call* c) { c->fused.v_norm = &c->norm; },
     kInvalid,
     {"args->fused->v_norm is set, but args->fused->v is absent"}},
    {"v_norm after the rotation",
     [](Call* c) { c->V(), c->After(), c->fused.q_norm = nullptr; },
     kInvalid,
     {"args->fused->v_norm->order (ROPE_NORM_ORDER_AFTER) must be 0: v does not turn"}},
    {"BACKWARD without x",
     [](Call* c) { c->Backward(), c->norm.x = nullptr; },
     kInvalid,
     {"args->fused->q_norm->x", "is required by BACKWARD"}},
    {"BACKWARD with an absent x",
     [](Call* c) { c->Backward(), c->x = {}; },
     kInvalid,
     {"args->fused->q_norm->x[0] is required by BACKWARD"}},
    {"x of another dtype",
     [](Call* c) { c->Backward(), c->x.dtype = ROPE_DTYPE_F16; },
     kInvalid,
     {"args->fused->q_norm->x[0] (ROPE_DTYPE_F16, 4 heads of 64 channels) must be like the output "
      "(ROPE_DTYPE_F32, "}},
    {"x of other heads",
     [](Call* c) { c->Backward(), c->x.heads = 2; },
     kInvalid,
     {"q_norm->x[0] (ROPE_DTYPE_F32, 2 heads"}},
    {"x of another width",
     [](Call* c) { c->config.rotary_dim = 32, c->Backward(), c->x.head_dim = 32; },
     kInvalid,
     {"q_norm->x[0]", "of 32 channels"}},
    {"a field of x",
     [](Call* c) { c->Backward(), c->x.layout = 9; },
     kUnsupported,
     {"args->fused->q_norm->x[0].layout (9)"}},
    {"misaligned x",
     [](Call* c) { c->Backward(), c->x.data = const_cast<void*>(Odd(c->x_values)); },
     kInvalid,
     {"args->fused->q_norm->x[0].data", "must be aligned"}},
    {"an output on x",
     [](Call* c) { c->Backward(), c->x.data = c->q; },
     kInvalid,
     {"args->fused->q_norm->x[0] overlaps args->q"}},
    {"an output on the gradients of weights",
     [](Call* c) { c->Backward(), c->norm.weight_grad = c->q + 5; },
     kInvalid,
     {"args->fused->q_norm->weight_grad overlaps args->q"}},
    {"gradients of weights on those of biases",
     [](Call* c) {
       c->Backward(), c->norm.kind = ROPE_NORM_KIND_LAYER_BIAS, c->norm.bias = c->bias;
       c->norm.bias_grad = c->grad + 3 * kDim - 1;
     },
     kInvalid,
     {"args->fused->q_norm->bias_grad overlaps args->fused->q_norm->weight_grad"}},
    {"negative parts",
     [](Call* c) { c->Backward(), c->norm.grad_parts = -1; },
     kInvalid,
     {"q_norm->grad_parts (-1) must not be negative"}},
    {"gradients without parts",
     [](Call* c) { c->Backward(), c->norm.grad_parts = 0; },
     kInvalid,
     {"q_norm->grad_parts (0) is required with weight_grad"}},
    {"parts without gradients",
     [](Call* c) { c->Backward(), c->norm.weight_grad = nullptr; },
     kInvalid,
     {"q_norm->grad_parts (3) must be 0 without weight_grad"}},
    {"gradients of weights of PLAIN",
     [](Call* c) {
       c->Backward(), c->norm.kind = ROPE_NORM_KIND_RMS_PLAIN;
       c->norm.weight = nullptr, c->norm.weight_dtype = 0;
     },
     kInvalid,
     {"q_norm->weight_grad", "must be NULL with ROPE_NORM_KIND_RMS_PLAIN"}},
    {"gradients of biases of RMS",
     [](Call* c) { c->Backward(), c->norm.bias_grad = c->grad + 1000; },
     kInvalid,
     {"q_norm->bias_grad", "must be NULL with ROPE_NORM_KIND_RMS"}},
    {"misaligned gradients of weights",
     [](Call* c) {
       c->Backward(), c->norm.weight_grad = static_cast<float*>(const_cast<void*>(Odd(c->grad)));
     },
     kInvalid,
     {"q_norm->weight_grad", "must be aligned to its element (4 bytes)"}},
    {"gradients of weights at the end of memory",
     [](Call* c) {
       c->Backward(), c->norm.weight_grad = reinterpret_cast<float*>(UINTPTR_MAX - 63);
     },
     kInvalid,
     {"args->fused->q_norm->weight_grad", "with 3 parts reaches beyond the address space"}},
    {"other parts in another norm",
     [](Call* c) {
       c->Backward(), c->args.k = Tensor(c->k, ROPE_DTYPE_F32, kHeads);
       static rope_norm other;
       other = c->norm;
       other.grad_parts = 2;
       other.weight_grad = c->grad + 3 * kDim;
       c->fused.k_norm = &other;
     },
     kInvalid,
     {"args->fused->k_norm->grad_parts (2) must be that of args->fused->q_norm (3)"}},
    {"x without BACKWARD",
     [](Call* c) { c->Backward(), c->args.operation = ROPE_OPERATION_FORWARD; },
     kInvalid,
     {"q_norm->x", "must be NULL with an operation that is not BACKWARD"}},
    {"gradients of weights without BACKWARD",
     [](Call* c) { c->norm.weight_grad = c->grad; },
     kInvalid,
     {"q_norm->weight_grad", "must be NULL with an operation that is not BACKWARD"}},
    {"gradients of biases without BACKWARD",
     [](Call* c) { c->norm.bias_grad = c->grad; },
     kInvalid,
     {"q_norm->bias_grad"}},
    {"parts without BACKWARD",
     [](Call* c) { c->norm.grad_parts = 1; },
     kInvalid,
     {"q_norm->grad_parts (1) must be 0 with an operation that is not BACKWARD"}},
    {"reserved", [](Call* c) { c->norm.reserved = 1; }, kUnsupported, {"q_norm->reserved"}},
    {"BACKWARD of GIVEN",
     [](Call* c) { c->Given(), c->Backward(); },
     kUnsupported,
     {"q_norm->span (ROPE_NORM_SPAN_GIVEN) must not be set with BACKWARD"}},
    {"BACKWARD of AFTER",
     [](Call* c) { c->After(), c->Backward(); },
     kUnsupported,
     {"q_norm->order (ROPE_NORM_ORDER_AFTER) must not be set with BACKWARD"}},
    {"BACKWARD to another width",
     [](Call* c) {
       c->config.rotary_dim = 32, c->Backward();
       c->args.q_out = Tensor(c->out, ROPE_DTYPE_F32, kHeads);
       c->args.q_out.head_dim = 32;
     },
     kInvalid,
     {"args->fused->q_norm needs an output with the head_dim of its input"}},
    {"gradients of weights without tokens",
     [](Call* c) { c->Backward(), c->args.tokens = 0; },
     kInvalid,
     {"args->fused->q_norm->grad_parts (3) must be 0 in a call without tokens"}},
    {"gradients of weights without rows",
     [](Call* c) {
       c->Backward(), c->args.batch = 0;
       c->args.q.data = c->args.k.data = nullptr;
     },
     kInvalid,
     {"args->fused->q_norm->grad_parts (3) must be 0 in a call without tokens"}},
    {"INVERSE",
     [](Call* c) { c->args.operation = ROPE_OPERATION_INVERSE; },
     kUnsupported,
     {"args->fused->q_norm must be NULL with ROPE_OPERATION_INVERSE"}},
    {"keys from slots",
     [](Call* c) { c->Source(); },
     kUnsupported,
     {"args->fused->q_norm must be NULL with args->fused->source in this version"}},
    {"AFTER, to another width",
     [](Call* c) {
       c->After(), c->config.rotary_dim = 32;
       c->args.q_out = Tensor(c->out, ROPE_DTYPE_F32, kHeads);
       c->args.q_out.head_dim = 32;
     },
     kInvalid,
     {"q_norm->order (ROPE_NORM_ORDER_AFTER) needs outputs with the head_dim of their input"}},
    {"FLOAT32 in an EAGER context",
     [](Call* c) { c->Narrow(), c->config.rounding = ROPE_ROUNDING_EAGER; },
     kUnsupported,
     {"q_norm->rounding (ROPE_NORM_ROUNDING_FLOAT32) must be ROUNDED or EAGER",
      "config->rounding must be ROPE_ROUNDING_FLOAT32"}},
    {"AFTER of all heads in FLOAT32",
     [](Call* c) { c->Narrow(), c->After(), c->AllHeads(); },
     kUnsupported,
     {"q_norm->rounding", "with ROPE_NORM_ORDER_AFTER, ROPE_NORM_SPAN_ALL_HEADS"}},
    {"LAYER of all heads in FLOAT32",
     [](Call* c) { c->Narrow(), c->Layer(), c->AllHeads(); },
     kUnsupported,
     {"q_norm->rounding", "with ROPE_NORM_KIND_LAYER, ROPE_NORM_SPAN_ALL_HEADS"}},
    {"AFTER of all heads to another dtype",
     [](Call* c) { c->AllHeads(), c->After(), c->Convert(); },
     kUnsupported,
     {"args->fused->q_norm->span (ROPE_NORM_SPAN_ALL_HEADS) must be another one with "
      "ROPE_NORM_ORDER_AFTER, where an output has another dtype or more heads"}},
    {"LAYER of all heads to another dtype",
     [](Call* c) { c->AllHeads(), c->Layer(), c->Convert(); },
     kUnsupported,
     {"args->fused->q_norm->span (ROPE_NORM_SPAN_ALL_HEADS) must be another one with a mean, where "
      "an output has another dtype or more heads"}},
    {"AFTER of all heads to more heads",
     [](Call* c) { c->AllHeads(), c->After(), c->Repeat(); },
     kUnsupported,
     {"q_norm->span (ROPE_NORM_SPAN_ALL_HEADS) must be another one with ROPE_NORM_ORDER_AFTER"}},
    {"LAYER of all heads to more heads",
     [](Call* c) { c->AllHeads(), c->Layer(), c->Repeat(); },
     kUnsupported,
     {"q_norm->span (ROPE_NORM_SPAN_ALL_HEADS) must be another one with a mean"}},
    {"LAYER of all heads of v to another dtype",
     [](Call* c) { c->ConvertV(), c->AllHeads(), c->Layer(); },
     kUnsupported,
     {"args->fused->v_norm->span (ROPE_NORM_SPAN_ALL_HEADS) must be another one with a mean"}},
    {"AFTER of all heads to slots of another dtype",
     [](Call* c) { c->CacheK(), c->AllHeads(), c->After(); },
     kUnsupported,
     {"args->fused->k_norm->span (ROPE_NORM_SPAN_ALL_HEADS) must be another one with "
      "ROPE_NORM_ORDER_AFTER"}},
    {"LAYER of all heads to slots of another dtype, and in place",
     [](Call* c) { c->CacheK(), c->AllHeads(), c->Layer(), c->args.k_out = c->args.k; },
     kUnsupported,
     {"args->fused->k_norm->span (ROPE_NORM_SPAN_ALL_HEADS) must be another one with a mean"}},
    {"LAYER of all heads to another dtype beside slots",
     [](Call* c) {
       c->CacheK(), c->AllHeads(), c->Layer();
       c->source.k.dtype = ROPE_DTYPE_F32;
       c->args.k_out = Tensor(c->v, ROPE_DTYPE_BF16, kHeads);
     },
     kUnsupported,
     {"args->fused->k_norm->span (ROPE_NORM_SPAN_ALL_HEADS) must be another one with a mean"}},
    {"BACKWARD to another dtype",
     [](Call* c) { c->Backward(), c->Convert(); },
     kUnsupported,
     {"args->fused->q_norm must be NULL with BACKWARD where an output has another dtype than its "
      "input"}},
    {"BACKWARD of v to another dtype",
     [](Call* c) { c->ConvertV(), c->Backward(), c->x.head_dim = kDim; },
     kUnsupported,
     {"args->fused->v_norm must be NULL with BACKWARD where an output has another dtype than its "
      "input"}},
    {"BACKWARD of heads that are added to another dtype",
     [](Call* c) { c->Backward(), c->Convert(), c->args.q_out.heads = c->x.heads = kHeads / 2; },
     kUnsupported,
     {"args->q_out.dtype (ROPE_DTYPE_BF16) must be that of args->q (ROPE_DTYPE_F32), whose heads "
      "are added"}},
    {"a struct of no size",
     [](Call* c) { c->norm.struct_size = 0; },
     kInvalid,
     {"args->fused->q_norm->struct_size (0)"}},
};

}  // namespace rope::testing::bad_norms

#endif  // LIBROPE_TESTS_SUPPORT_BAD_NORMS_H_
