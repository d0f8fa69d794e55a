// Each norm that is refused names its field, value and rule, and nothing is written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "librope/rope.h"
#include "support/bad_norms.h"
#include "support/errors.h"
#include "support/handles.h"

namespace rope::testing {
namespace {

using namespace bad_norms;  // NOLINT: what these tests are about

TEST(NormErrors, NameFieldValueAndRuleAndWriteNothing) {
  for (const Bad& bad : kBad) {
    Call call;
    bad.change(&call);
    const Context context = Create(call.config);
    ExpectParts("rope_apply_qk", bad, rope_apply_qk(context.get(), &call.args));
    for (const float* values : {call.q, call.k, call.v, call.out, call.x_values}) {
      for (size_t i = 0; i < kFloats; ++i) ASSERT_EQ(values[i], 1.5f) << bad.name;
    }
    for (float value : call.grad) ASSERT_EQ(value, 1.5f) << bad.name;
  }
}

TEST(NormErrors, TheCallWithoutThemIsGood) {
  for (int change = 0; change < 20; ++change) {
    Call call;
    switch (change) {
      case 1: call.Given(); break;
      case 2: call.Layer(); break;
      case 3: call.After(); break;
      case 4: call.V(); break;
      case 5: call.norm.weight_stride_head = kDim; break;
      case 6:
        call.norm.kind = ROPE_NORM_KIND_LAYER_BIAS;
        call.norm.bias = call.bias;
        break;
      case 7:  // a NOPE context turns nothing: nothing is between the norm and the store
        call.Narrow(), call.Layer(), call.config.scaling = ROPE_SCALING_NOPE;
        break;
      case 8: call.Source(), call.fused.q_norm = nullptr; break;
      case 9:
        call.norm.span = ROPE_NORM_SPAN_ALL_HEADS;
        call.norm.weight_stride_head = kDim;
        break;
      case 10:  // the weights of one head are all
        call.norm.span = ROPE_NORM_SPAN_ALL_HEADS;
        call.args.q.heads = 1;
        break;
      case 11:
        call.Given(), call.norm.kind = ROPE_NORM_KIND_RMS_PLAIN;
        call.norm.weight = nullptr, call.norm.weight_dtype = 0, call.norm.weight_stride_head = 0;
        break;
      case 12: call.Backward(); break;
      // All heads together to another dtype or to more heads, of an RMS kind and BEFORE; and what
      // ALL_HEADS is refused of, of each head alone.
      case 13: call.AllHeads(), call.Convert(); break;
      case 14: call.AllHeads(), call.Repeat(); break;
      case 15: call.Layer(), call.After(), call.Convert(); break;
      case 16: call.ConvertV(), call.Layer(); break;
      case 17: call.CacheK(), call.Layer(), call.After(); break;
      case 18:  // LAYER of all heads, alike in slots and beside them
        call.CacheK(), call.AllHeads(), call.Layer();
        call.source.k.dtype = ROPE_DTYPE_F32;
        call.args.k_out = call.args.k;
        break;
      case 19:  // heads that are added
        call.Backward(), call.x.heads = kHeads / 2;
        call.args.q_out = Tensor(call.out, ROPE_DTYPE_F32, kHeads / 2);
        break;
      default: break;
    }
    EXPECT_EQ(rope_apply_qk(Create(call.config).get(), &call.args), ROPE_OK)
        << change << rope_last_error();
  }
}

// A struct of a later release with a field in use, and one without.
TEST(NormErrors, LargerStructsAreReadIfTheirRestIsZero) {
  struct Later {
    rope_norm norm;
    int64_t of_a_later_release;
  };
  Call call;
  Later later = {call.norm, 0};
  later.norm.struct_size = sizeof(Later);
  call.fused.q_norm = &later.norm;
  const Context context = Create(call.config);
  EXPECT_EQ(rope_apply_qk(context.get(), &call.args), ROPE_OK) << rope_last_error();
  later.of_a_later_release = 1;
  EXPECT_EQ(rope_apply_qk(context.get(), &call.args), ROPE_ERROR_UNSUPPORTED);
  ExpectMessage("rope_apply_qk", {"args->fused->q_norm uses a field at byte 96"});
}

TEST(NormErrors, HeadsWithRowsOfTheirOwnShareNoNorm) {
  Call call;
  std::vector<float> rows(kTokens * 2 * kDim, 0.5f);
  rope_cos_sin cos_sin =
      Rows(ROPE_COS_SIN_SPLIT, ROPE_DTYPE_F32, kDim / 2, 1, rows.data(), rows.data());
  cos_sin.heads = 2;
  call.args.positions = {};
  call.args.cos_sin = &cos_sin;
  const Context context = Create(call.config);
  EXPECT_EQ(rope_apply_qk(context.get(), &call.args), ROPE_OK) << rope_last_error();
  call.norm.weight_stride_head = kDim;
  EXPECT_EQ(rope_apply_qk(context.get(), &call.args), ROPE_ERROR_UNSUPPORTED);
  call.norm = ROPE_INIT(rope_norm);
  call.norm.kind = ROPE_NORM_KIND_RMS_PLAIN;
  call.norm.eps = 1e-6;
  call.norm.span = ROPE_NORM_SPAN_ALL_HEADS;
  EXPECT_EQ(rope_apply_qk(context.get(), &call.args), ROPE_ERROR_UNSUPPORTED);
  ExpectMessage("rope_apply_qk", {"args->fused->q_norm must have ROPE_NORM_SPAN_HEAD"});
  Call gradients;
  gradients.Backward();
  gradients.args.positions = {};
  gradients.args.cos_sin = &cos_sin;
  EXPECT_EQ(rope_apply_qk(context.get(), &gradients.args), ROPE_ERROR_UNSUPPORTED);
  ExpectMessage("rope_apply_qk", {"args->fused->q_norm must be NULL with BACKWARD where heads"});
}

// Gradients of repeated heads: which outputs are theirs.
TEST(NormErrors, HeadsAreAddedWhereTheyDivide) {
  float in[kFloats], out[kFloats];
  std::fill_n(in, kFloats, 1.5f);
  std::fill_n(out, kFloats, 1.5f);
  const Context context = Create(Config(kDim));
  rope_qk_args args = Args(1, kTokens);
  args.positions = Offset(3);
  args.q = Tensor(in, ROPE_DTYPE_F32, kHeads);
  args.q_out = Tensor(out, ROPE_DTYPE_F32, 3);
  args.operation = ROPE_OPERATION_BACKWARD;
  EXPECT_EQ(rope_apply_qk(context.get(), &args), ROPE_ERROR_INVALID_ARGUMENT);
  ExpectMessage("rope_apply_qk", {"args->q_out.heads (3) must be that of args->q (4), or divide"});
  args.q_out.heads = 2;
  rope_prepared* prepared = nullptr;
  rope_qk_args shapes = args;
  shapes.q.data = shapes.q_out.data = nullptr;
  EXPECT_EQ(rope_prepared_create(context.get(), &shapes, &prepared), ROPE_ERROR_UNSUPPORTED);
  ExpectMessage("rope_prepared_create",
                {"args->q_out.heads (2) must be that of args->q (4) in prepared calls"});
  shapes.q_out.heads = kHeads;
  rope_fused fused = ROPE_INIT(rope_fused);
  shapes.fused = &fused;
  fused.v = shapes.q, fused.v_out = shapes.q_out;
  fused.v.head_dim = fused.v_out.head_dim = kDim;
  fused.v_out.heads = 1;
  EXPECT_EQ(rope_prepared_create(context.get(), &shapes, &prepared), ROPE_ERROR_UNSUPPORTED);
  ExpectMessage("rope_prepared_create", {"args->fused->v_out.heads (1) must be that of "
                                         "args->fused->v (4) in prepared calls"});
  for (rope_operation operation : {ROPE_OPERATION_FORWARD, ROPE_OPERATION_INVERSE}) {
    args.operation = operation;
    EXPECT_EQ(rope_apply_qk(context.get(), &args), ROPE_ERROR_INVALID_ARGUMENT);
    ExpectMessage("rope_apply_qk",
                  {"args->q_out.heads (2) must be a multiple of those of args->q (4)"});
  }
  args.operation = ROPE_OPERATION_BACKWARD;
  args.q_out.data = in + 2 * kDim;  // where the other heads of each token are
  SetStrides(&args.q_out, 0, kHeads * kDim, kDim);
  EXPECT_EQ(rope_apply_qk(context.get(), &args), ROPE_ERROR_INVALID_ARGUMENT);
  ExpectMessage("rope_apply_qk", {"args->q_out overlaps args->q"});
  args.q_out = Tensor(in, ROPE_DTYPE_F32, 2);
  EXPECT_EQ(rope_apply_qk(context.get(), &args), ROPE_ERROR_INVALID_ARGUMENT);
  for (int i = 0; i < static_cast<int>(kFloats); ++i) ASSERT_EQ(in[i] + out[i], 3.0f);
  args.q_out.data = out;
  std::vector<float> rows(kTokens * 2 * kDim, 0.5f);
  rope_cos_sin cos_sin =
      Rows(ROPE_COS_SIN_SPLIT, ROPE_DTYPE_F32, kDim / 2, 1, rows.data(), rows.data());
  cos_sin.heads = 2;
  rope_qk_args by_rows = args;
  by_rows.positions = {};
  by_rows.cos_sin = &cos_sin;
  EXPECT_EQ(rope_apply_qk(context.get(), &by_rows), ROPE_ERROR_UNSUPPORTED);
  ExpectMessage("rope_apply_qk", {"args->q_out.heads (2) must be that of args->q (4) where heads "
                                  "have rows or frequencies of their own"});
  by_rows.k = by_rows.q, by_rows.k_out = by_rows.q_out;
  by_rows.q = by_rows.q_out = {};
  EXPECT_EQ(rope_apply_qk(context.get(), &by_rows), ROPE_ERROR_UNSUPPORTED);
  ExpectMessage("rope_apply_qk", {"args->k_out.heads (2) must be that of args->k (4)"});
  EXPECT_EQ(rope_apply_qk(context.get(), &args), ROPE_OK) << rope_last_error();
}

}  // namespace
}  // namespace rope::testing
