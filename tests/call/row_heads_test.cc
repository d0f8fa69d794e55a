// Rows of cos and sin for each head: each head of a tensor has the bits that a call on it alone
// gives with its own row, whatever the strides of the rows are; the rows of a model that has such
// (data/angles.json); and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "model/oracle_array.h"
#include "support/errors.h"
#include "support/handles.h"
#include "support/load_json.h"
#include "support/random_call.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

int64_t SizeOf(rope_dtype dtype) { return dtype == ROPE_DTYPE_F32 ? 4 : 2; }

// The heads of `t` that have row `head` of `heads`, as a tensor of their own.
rope_tensor HeadsOf(const rope_tensor& t, const rope_qk_args& args, int64_t width, int32_t heads,
                    int32_t head) {
  if (t.data == nullptr) return t;
  rope_tensor part = t;
  if (t.layout == ROPE_LAYOUT_BSHD) {
    SetStrides(&part, args.tokens * t.heads * width, t.heads * width, width);
  } else if (t.layout == ROPE_LAYOUT_BHSD) {
    SetStrides(&part, t.heads * args.tokens * width, width, args.tokens * width);
  } else if (t.layout == ROPE_LAYOUT_SBHD) {
    SetStrides(&part, t.heads * width, args.batch * t.heads * width, width);
  }
  part.heads = t.heads / heads;
  part.data =
      static_cast<char*>(t.data) + int64_t{head} * part.heads * part.stride_head * SizeOf(t.dtype);
  return part;
}

class RowHeadsOnTarget : public TargetTest {};

TEST_P(RowHeadsOnTarget, EachHeadHasTheBitsOfItsOwnRow) {
  int several = 0;
  const uint64_t seeds = LongTests() ? 100000 : 6000;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    RandomCall c(seed, RandomCall::kEverything);
    SCOPED_TRACE("seed " + std::to_string(seed));
    c.MakeApply();
    const rope_cos_sin& rows = c.rows;
    if (c.args.cos_sin == nullptr || rows.heads == 0 || c.config().freq_heads > 1) continue;
    const Context context = c.CreateContext();
    several += rows.heads > 1 ? 1 : 0;
    const auto before = c.Snapshot();
    ASSERT_OK(rope_apply_qk(context.get(), &c.args)) << c.Describe();
    const auto got = c.Snapshot();
    c.Restore(before);

    const int64_t width = rope_cos_sin_width(rows.format, rows.pairs);
    const int64_t head_step = rows.stride_head != 0 ? rows.stride_head : width;
    const int64_t token_step = rows.stride_token != 0 ? rows.stride_token : width * rows.heads;
    const int64_t batch_step =
        std::max(c.args.tokens * token_step, rows.stride_head != 0 ? rows.heads * head_step : 0);
    for (int64_t b = 0; b < c.args.batch; ++b) {
      for (int32_t head = 0; head < rows.heads; ++head) {
        const int64_t at = (rows.batch == 1 ? 0 : b * batch_step) + head * head_step;
        rope_cos_sin row = rows;
        row.heads = 0;
        row.stride_head = 0;
        row.stride_token = token_step;
        row.batch = 1;
        row.data = static_cast<char*>(rows.data) + at * SizeOf(rows.dtype);
        if (rows.sin != nullptr) row.sin = static_cast<char*>(rows.sin) + at * SizeOf(rows.dtype);
        rope_qk_args args = c.args;
        args.cos_sin = &row;
        args.batch = 1;
        for (rope_tensor* t : {&args.q, &args.k, &args.q_out, &args.k_out}) {
          const int64_t wide = c.WidthOf(*t);
          *t = HeadsOf(*t, c.args, wide, rows.heads, head);
          if (t->data == nullptr) continue;
          t->data = static_cast<char*>(t->data) + b * t->stride_batch * SizeOf(t->dtype);
        }
        ASSERT_OK(rope_apply_qk(context.get(), &args)) << c.Describe();
      }
    }
    for (size_t n = 0; n < got.size(); ++n) {
      ASSERT_EQ(c.buffers[n].bytes, got[n].bytes) << "buffer " << n << " " << c.Describe();
    }
  }
  EXPECT_GT(several, 100);
}

// FoPE: cos and sin are sums, and no angle has them. Adjacent heads of q share the row of a head of
// k. The products are below 8 in size, and librope rounds their sum once less than torch.
TEST_P(RowHeadsOnTarget, TurnHeadsAsPublicCode) {
  const nlohmann::json all = LoadJson("angles.json");
  ASSERT_EQ(all["rows"].size(), 1u);
  for (const nlohmann::json& c : all["rows"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    ASSERT_EQ(c["pairing"], "halves");
    const OracleArray shape(c["cos"]);
    const int64_t tokens = shape.shape[0];
    const auto heads = static_cast<int32_t>(shape.shape[1]),
               pairs = static_cast<int32_t>(shape.shape[2]);
    std::vector<float> cos = shape.ToFloat(), sin = OracleArray(c["sin"]).ToFloat(),
                       q = OracleArray(c["q"]).ToFloat(), k = OracleArray(c["k"]).ToFloat();
    rope_cos_sin rows = Rows(ROPE_COS_SIN_SPLIT, ROPE_DTYPE_F32, pairs, 1, cos.data(), sin.data());
    rows.heads = heads;
    rope_qk_args args = Args(1, tokens);
    args.q = Tensor(q.data(), ROPE_DTYPE_F32, static_cast<int32_t>(OracleArray(c["q"]).shape[1]));
    args.k = Tensor(k.data(), ROPE_DTYPE_F32, heads);
    args.cos_sin = &rows;
    const Context context = Create(Config(2 * pairs));
    ASSERT_OK(rope_apply_qk(context.get(), &args));
    const std::vector<float> want_q = OracleArray(c["turned_q"]).ToFloat(),
                             want_k = OracleArray(c["turned_k"]).ToFloat();
    ASSERT_EQ(q.size(), 2 * k.size());
    for (size_t i = 0; i < q.size(); ++i) ASSERT_NEAR(q[i], want_q[i], 2e-6) << i;
    for (size_t i = 0; i < k.size(); ++i) ASSERT_NEAR(k[i], want_k[i], 2e-6) << i;
  }
}

INSTANTIATE_TARGETS(RowHeadsOnTarget);

// Enough data for tasks of several threads, tokens first and heads first.
TEST(RowHeads, ThreadsChangeNoBit) {
  constexpr int kTokens = 1800, kHeads = 6, kDim = 64;
  const Context context = Create(Config(kDim));
  std::vector<float> rows(kTokens * kHeads * kDim);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = 0.001f * static_cast<float>(i % 977);
  for (const rope_layout layout : {ROPE_LAYOUT_BSHD, ROPE_LAYOUT_BHSD}) {
    std::vector<float> q(rows.size()), alone;
    for (size_t i = 0; i < q.size(); ++i) q[i] = 0.5f * static_cast<float>(i % 331);
    alone = q;
    rope_cos_sin cos_sin = Rows(ROPE_COS_SIN_COMPLEX, ROPE_DTYPE_F32, kDim / 2, 1, rows.data());
    cos_sin.heads = kHeads;
    rope_qk_args args = Args(1, kTokens);
    args.q = Tensor(alone.data(), ROPE_DTYPE_F32, kHeads, layout);
    args.cos_sin = &cos_sin;
    ASSERT_OK(rope_apply_qk(context.get(), &args));
    const Pool pool = CreatePool(3);
    args.runner = rope_pool_runner(pool.get());
    args.q.data = q.data();
    ASSERT_OK(rope_apply_qk(context.get(), &args));
    EXPECT_EQ(q, alone);
  }
}

TEST(RowHeads, WhatIsRefusedNamesItsField) {
  const Context context = Create(Config(8));
  std::vector<float> rows(1024), q(1024);
  rope_cos_sin cos_sin = Rows(ROPE_COS_SIN_PACKED, ROPE_DTYPE_F32, 4, 1, rows.data());
  rope_qk_args args = Args(1, 3);
  args.q = Tensor(q.data(), ROPE_DTYPE_F32, 6);
  args.cos_sin = &cos_sin;
  const auto refused = [&](rope_status status, std::vector<const char*> parts) {
    const std::vector<float> before = q;
    EXPECT_EQ(rope_apply_qk(context.get(), &args), status);
    ExpectMessageWith("rope_apply_qk", parts);
    EXPECT_EQ(q, before);
  };
  cos_sin.heads = 4;
  refused(kInvalid, {"args->q.heads (6)", "multiple of args->cos_sin->heads (4)"});
  args.k = Tensor(q.data() + 512, ROPE_DTYPE_F32, 2);
  cos_sin.heads = 3;
  refused(kInvalid, {"args->k.heads (2)", "multiple of args->cos_sin->heads (3)"});
  args.k = {};
  cos_sin.heads = -1;
  refused(kInvalid, {"args->cos_sin->heads (-1)", "must be 0"});
  cos_sin.heads = 0;
  cos_sin.stride_head = 8;
  refused(kInvalid, {"args->cos_sin->stride_head (8)", "without heads"});
  cos_sin.heads = 3;
  refused(kInvalid, {"args->cos_sin->stride_token (0)", "required with stride_head"});
  cos_sin.stride_token = 8;
  cos_sin.stride_head = 7;
  refused(kInvalid, {"args->cos_sin->stride_head (7)", "width (8)"});
  cos_sin.stride_head = 0;
  cos_sin.stride_token = 23;
  refused(kInvalid, {"args->cos_sin->stride_token (23)", "(24)", "of all heads"});
  cos_sin.stride_token = 8;
  cos_sin.stride_head = INT64_MAX / 8;
  refused(kInvalid, {"args->cos_sin", "beyond the address space"});
  cos_sin.stride_head = 0;
  cos_sin.stride_token = 0;
  cos_sin.reserved = 1;
  refused(kUnsupported, {"args->cos_sin->reserved (1)"});
  cos_sin.reserved = 0;
  EXPECT_OK(rope_apply_qk(context.get(), &args));
  args.q_out = Tensor(q.data() + 256, ROPE_DTYPE_F32, 12);
  refused(kUnsupported, {"args->q_out.heads must be that of its input", "(2 times)"});

  const rope_positions positions = Offset(0);
  EXPECT_EQ(rope_cos_sin_fill(context.get(), 1, 3, &positions, &cos_sin, nullptr), kInvalid);
  ExpectMessage("rope_cos_sin_fill", {"out->heads (3)", "all heads have the same rows"});
}

}  // namespace
}  // namespace rope::testing
