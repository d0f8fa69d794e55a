// Each call with an output in 8 bits that is refused names its field, value and rule, and writes
// nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "support/errors.h"
#include "support/handles.h"

namespace rope::testing {
namespace {

constexpr int kDim = 8, kTokens = 4, kHeads = 2;
constexpr char kFunction[] = "rope_apply_qk";
float memory[4096], before[4096];

// q, k to k_out, k and v to a cache; k_out and the cache are in 8 bits, with scales of all kinds.
struct All {
  rope_qk_args args;
  rope_fused fused;
  rope_kv_cache cache;
  rope_scale of_q, of_k, of_v;
  int64_t slots[kTokens];
};
using Bad = BadInput<All>;

void Connect(All* a) {
  a->args.fused = &a->fused;
  a->fused.cache = &a->cache;
  a->cache.slots_i64 = a->slots;
  a->args.q_out.scale = &a->of_q;
  a->cache.k.scale = &a->of_k;
  a->cache.v.scale = &a->of_v;
}

All Good() {
  All a{};
  a.args = Args(1, kTokens);
  a.args.q = Tensor(memory, ROPE_DTYPE_F32, kHeads);
  a.args.q_out = Tensor(memory + 256, ROPE_DTYPE_F8_E4M3, kHeads);
  a.args.k = Tensor(memory + 512, ROPE_DTYPE_BF16, kHeads);
  a.args.positions = Offset(3);
  a.fused = ROPE_INIT(rope_fused);
  a.fused.v = Tensor(memory + 1024, ROPE_DTYPE_F16, kHeads);
  a.fused.v.head_dim = 6;
  a.cache = ROPE_INIT(rope_kv_cache);
  a.cache.kind = ROPE_SLOTS_MAPPED;
  a.cache.pages = kTokens;
  a.cache.page_size = 1;
  a.cache.slots_length = kTokens;
  a.cache.k = Tensor(memory + 2048, ROPE_DTYPE_I8, kHeads, ROPE_LAYOUT_NHD);
  a.cache.v = Tensor(memory + 3072, ROPE_DTYPE_F8_E5M2, kHeads, ROPE_LAYOUT_HND);
  a.cache.v.head_dim = 6;
  a.of_q = a.of_k = a.of_v = ROPE_INIT(rope_scale);
  a.of_q.value = 0.5f;
  a.of_k.computed = 1;
  a.of_k.dtype = ROPE_DTYPE_F32;
  a.of_k.data = memory + 2560;
  a.of_k.stride_batch = a.of_k.stride_token = kHeads;
  a.of_k.stride_head = 1;
  a.of_v.dtype = ROPE_DTYPE_E8M0;
  a.of_v.data = memory + 3584;
  a.of_v.group = 2;
  a.of_v.stride_head = 3;
  for (int i = 0; i < kTokens; ++i) a.slots[i] = i;
  return a;
}

const Bad kBad[] = {
    {"no scale",
     [](All* a) { a->args.q_out.scale = nullptr; },
     kInvalid,
     {"args->q_out.scale (NULL)", "required", "dtype (ROPE_DTYPE_F8_E4M3)"}},
    {"no scale of v",
     [](All* a) { a->cache.v.scale = nullptr; },
     kInvalid,
     {"args->fused->cache->v.scale (NULL)", "dtype (ROPE_DTYPE_F8_E5M2)"}},
    {"a scale that is not needed",
     [](All* a) {
       a->args.q_out = Tensor(memory + 256, ROPE_DTYPE_F16, kHeads), a->args.q_out.scale = &a->of_q;
     },
     kInvalid,
     {"args->q_out.scale (0x", "must be NULL", "dtype (ROPE_DTYPE_F16)"}},
    {"a scale of an input",
     [](All* a) { a->args.k.scale = &a->of_k; },
     kInvalid,
     {"args->k.scale (0x", "must be NULL"}},
    {"an input in 8 bits",
     [](All* a) { a->args.q.dtype = ROPE_DTYPE_I8; },
     kUnsupported,
     {"args->q.dtype (ROPE_DTYPE_I8)", "8 bits", "outputs"}},
    {"values in 8 bits",
     [](All* a) { a->fused.v.dtype = ROPE_DTYPE_F8_E4M3; },
     kUnsupported,
     {"args->fused->v.dtype (ROPE_DTYPE_F8_E4M3)"}},
    {"the dtype of scales",
     [](All* a) { a->args.q_out.dtype = ROPE_DTYPE_E8M0; },
     kInvalid,
     {"args->q_out.dtype (ROPE_DTYPE_E8M0)", "scales"}},
    {"a dtype that is not known",
     [](All* a) { a->args.q_out.dtype = 9; },
     kUnsupported,
     {"args->q_out.dtype (9)", "not known"}},
    {"a scale of Q8_0",
     [](All* a) { a->args.q_out.dtype = ROPE_DTYPE_Q8_0; },
     kInvalid,
     {"args->q_out.scale (0x",
      "must be NULL with dtype (ROPE_DTYPE_Q8_0), whose blocks have their own"}},
    {"heads that are no blocks of Q8_0",
     [](All* a) { a->cache.k.dtype = ROPE_DTYPE_Q8_0, a->cache.k.scale = nullptr; },
     kInvalid,
     {"args->fused->cache->k must have a head_dim (8) that is a multiple of 32"}},
    {"an input of Q8_0",
     [](All* a) { a->args.q.dtype = ROPE_DTYPE_Q8_0; },
     kUnsupported,
     {"args->q.dtype (ROPE_DTYPE_Q8_0)", "8 bits"}},
    {"struct_size",
     [](All* a) { a->of_q.struct_size = 8; },
     kInvalid,
     {"args->q_out.scale->struct_size (8)"}},
    {"reserved", [](All* a) { a->of_k.reserved = 1; }, kUnsupported, {"cache->k.scale->reserved"}},
    {"computed",
     [](All* a) { a->of_k.computed = 2; },
     kInvalid,
     {"cache->k.scale->computed (2)", "0 or 1"}},
    {"power_of_two",
     [](All* a) { a->of_k.power_of_two = -1; },
     kInvalid,
     {"power_of_two (-1)", "0 or 1"}},
    {"round_first",
     [](All* a) { a->of_q.round_first = 3; },
     kInvalid,
     {"round_first (3)", "0 or 1"}},
    {"round_first, all of its digits",
     [](All* a) { a->of_q.round_first = 2147483647; },
     kInvalid,
     {"round_first (2147483647)", "0 or 1"}},
    {"neither value nor data",
     [](All* a) { a->of_q.value = 0; },
     kInvalid,
     {"args->q_out.scale->value (0) and data (NULL)", "exactly one"}},
    {"both",
     [](All* a) { a->of_v.value = 1; },
     kInvalid,
     {"cache->v.scale->value (1)", "must be 0 with data"}},
    {"value negative", [](All* a) { a->of_q.value = -1; }, kInvalid, {"value (-1)", "2^-126"}},
    {"value infinite",
     [](All* a) { a->of_q.value = INFINITY; },
     kInvalid,
     {"value (inf)", "2^126"}},
    {"value too small", [](All* a) { a->of_q.value = 1e-40f; }, kInvalid, {"value (", "2^-126"}},
    {"value NaN", [](All* a) { a->of_q.value = NAN; }, kInvalid, {"value (", "nan"}},
    {"dtype with value",
     [](All* a) { a->of_q.dtype = ROPE_DTYPE_F32; },
     kInvalid,
     {"scale->dtype (ROPE_DTYPE_F32)", "value"}},
    {"group with value",
     [](All* a) { a->of_q.group = 4; },
     kInvalid,
     {"scale->group (4)", "value"}},
    {"stride with value",
     [](All* a) { a->of_q.stride_head = 1; },
     kInvalid,
     {"stride_head", "value"}},
    {"dtype missing",
     [](All* a) { a->of_k.dtype = 0; },
     kInvalid,
     {"cache->k.scale->dtype (0)", "F32"}},
    {"dtype of no scale",
     [](All* a) { a->of_k.dtype = ROPE_DTYPE_BF16; },
     kInvalid,
     {"scale->dtype (ROPE_DTYPE_BF16)", "E8M0"}},
    {"E8M0 without power_of_two",
     [](All* a) { a->of_k.dtype = ROPE_DTYPE_E8M0; },
     kInvalid,
     {"power_of_two (0)", "E8M0"}},
    {"power_of_two of given ones",
     [](All* a) { a->of_v.power_of_two = 1; },
     kInvalid,
     {"cache->v.scale->power_of_two (1)", "given"}},
    {"min_scale of given ones",
     [](All* a) { a->of_v.min_scale = 1; },
     kInvalid,
     {"min_scale (1)", "given"}},
    {"min_scale negative",
     [](All* a) { a->of_k.min_scale = -1; },
     kInvalid,
     {"min_scale (-1)", "2^-126"}},
    {"computed without data",
     [](All* a) { a->of_q.computed = 1; },
     kInvalid,
     {"args->q_out.scale->value (0.5)", "computed"}},
    {"group",
     [](All* a) { a->of_v.group = 4; },
     kInvalid,
     {"cache->v.scale->group (4)", "divide 6"}},
    {"group negative", [](All* a) { a->of_k.group = -2; }, kInvalid, {"group (-2)", "divide 8"}},
    {"stride negative",
     [](All* a) { a->of_v.stride_token = -1; },
     kInvalid,
     {"cache->v.scale->stride", "-1", "negative"}},
    {"a stride of 0 where scales are computed",
     [](All* a) { a->of_k.stride_batch = 0; },
     kInvalid,
     {"cache->k.scale->stride_batch, stride_token and stride_head (0, 2, 1) let", "computed",
      "pages"}},
    {"strides beyond the address space",
     [](All* a) { a->of_v.stride_batch = INT64_MAX / 2; },
     kInvalid,
     {"cache->v.scale->data", "address space"}},
    {"misaligned",
     [](All* a) { a->of_k.data = reinterpret_cast<char*>(memory + 2560) + 2; },
     kInvalid,
     {"cache->k.scale->data (0x", "(4 bytes)"}},
    {"computed scales in an output",
     [](All* a) { a->of_k.data = memory + 256; },
     kInvalid,
     {"cache->k.scale->data overlaps args->q_out"}},
    {"computed scales in an input",
     [](All* a) { a->of_k.data = memory + 1024; },
     kInvalid,
     {"args->fused->cache->k.scale->data overlaps args->fused->v"}},
    {"computed scales of q_out in q, without rope_fused",
     [](All* a) {
       a->args.fused = nullptr;
       a->of_q.value = 0;
       a->of_q.computed = 1;
       a->of_q.dtype = ROPE_DTYPE_F32;
       a->of_q.data = memory;
       a->of_q.stride_token = kHeads;
       a->of_q.stride_head = 1;
     },
     kInvalid,
     {"args->q_out.scale->data overlaps args->q"}},
};

TEST(ScaleErrors, EachIsNamedAndNothingIsWritten) {
  const Context context = Create(Config(kDim));
  for (const Bad& bad : kBad) {
    All a = Good();
    Connect(&a);
    bad.change(&a);
    std::memcpy(before, memory, sizeof(memory));
    ExpectParts(kFunction, bad, rope_apply_qk(context.get(), &a.args));
    EXPECT_EQ(std::memcmp(before, memory, sizeof(memory)), 0) << bad.name;
  }
  All a = Good();
  Connect(&a);
  EXPECT_OK(rope_apply_qk(context.get(), &a.args));
}

// Of a head of which only the span has codes, groups would not be those of the tensor.
TEST(ScaleErrors, ScalesOfWholeHeadsNeedWholeHeads) {
  rope_config config = Config(kDim);
  config.rotary_dim = 4;
  const Context context = Create(config);
  All a = Good();
  Connect(&a);
  a.args.k.head_dim = 4;
  ASSERT_EQ(rope_apply_qk(context.get(), &a.args), kInvalid);
  ExpectMessage(kFunction, {"args->fused->cache->k", "whole heads", "scale->data"});
  a.cache.k.head_dim = 4;
  EXPECT_OK(rope_apply_qk(context.get(), &a.args));
}

}  // namespace
}  // namespace rope::testing
