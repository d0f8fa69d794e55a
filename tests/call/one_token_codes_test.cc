// One token whose keys and values go to a cache in 8 bits, Q8_0 too, which has ways of its own
// through the checks (call/check_append.h) and through the CPU backend (cpu/one_token.h): the bytes
// of the same token in a call on three, prepared or not. What of it is refused is in
// one_token_errors_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "math/element.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/prepared_call.h"
#include "support/q8_0.h"
#include "support/random.h"
#include "support/single_tokens.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

rope_scale RandomScale(Random* random, const rope_config& config, float* at, int heads) {
  rope_scale scale = ROPE_INIT(rope_scale);
  scale.round_first = random->Pick(0, 1);
  if (random->Sometimes(3)) {
    scale.value = random->Of({0.01f, 0.75f, 3.0f});
    return scale;
  }
  scale.group = random->Of({0, config.head_dim / 2});
  const int groups = scale.group == 0 ? 1 : 2;
  const bool e8m0 = random->Sometimes(3);
  scale.dtype = e8m0 ? ROPE_DTYPE_E8M0 : ROPE_DTYPE_F32;
  scale.computed = random->Pick(0, 1);
  scale.power_of_two = scale.computed != 0 && (e8m0 || random->Sometimes(2)) ? 1 : 0;
  scale.min_scale = scale.computed != 0 ? random->Of({0.0, 0.25}) : 0;
  scale.data = at;
  scale.stride_head = groups;
  scale.stride_token = int64_t{heads} * groups;
  scale.stride_batch = 2 * scale.stride_token;
  return scale;
}

// Keys and values as codes: the token between two whose slots are nowhere, and the same token
// alone, prepared and not.
class CodesOfOneToken : public TargetTest {};
INSTANTIATE_TARGETS(CodesOfOneToken);

TEST_P(CodesOfOneToken, AreThoseOfOneOfThree) {
  int stored = 0, blocks = 0;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    Random random(seed);
    RandomContext context(&random);
    if (!context.exists()) continue;
    const rope_config& config = context.config;
    const rope_dtype dtype = context.Dtype();
    Heads q = MakeHeads(&random, config, dtype, true), k = MakeHeads(&random, config, dtype, true);
    const int heads = k.of.heads, dim = config.head_dim;
    std::vector<char> v_in(k.in);
    const bool in_blocks = dim % kBlock == 0 && random.Sometimes(4);
    const rope_dtype code =
        in_blocks ? rope_dtype{ROPE_DTYPE_Q8_0} : random.Pick(ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_I8);
    constexpr int kPages = 3, kPageSize = 2;
    std::vector<char> codes(
        static_cast<size_t>(BytesInMemory(code, 2 * kPages * kPageSize * heads * dim)));
    std::vector<float> scales(static_cast<size_t>(2 * kPages * kPageSize * heads * 2));
    for (float& scale : scales) scale = random.Of({0.5f, 2.0f, 0.03f});
    const std::vector<float> scales_before = scales;
    const size_t half = codes.size() / 2;
    const rope_scale of_k = RandomScale(&random, config, scales.data(), heads),
                     of_v = random.Sometimes(2)
                                ? RandomScale(&random, config, &scales[scales.size() / 2], heads)
                                : [&] {
                                    rope_scale scale = of_k;
                                    if (scale.data != nullptr)
                                      scale.data = &scales[scales.size() / 2];
                                    return scale;
                                  }();
    const int64_t slots[] = {-1, random.Below(kPages * kPageSize), -1};
    rope_kv_cache stores = ROPE_INIT(rope_kv_cache);
    stores.kind = ROPE_SLOTS_MAPPED;
    stores.pages = kPages;
    stores.page_size = kPageSize;
    stores.slots_i64 = slots;
    stores.slots_length = 3;
    const rope_layout layout = random.Of({ROPE_LAYOUT_NHD, ROPE_LAYOUT_HND});
    stores.k = Tensor(codes.data(), code, heads, layout);
    stores.v = Tensor(&codes[half], code, heads, layout);
    stores.v.head_dim = dim;
    if (!in_blocks) stores.k.scale = &of_k, stores.v.scale = &of_v;
    rope_fused beside = ROPE_INIT(rope_fused);
    beside.cache = &stores;
    beside.v = k.of;
    beside.v.data = v_in.data();
    beside.v.head_dim = dim;
    rope_qk_args all = Args(1, 3);
    all.positions = Offset(random.Of<int64_t>({0, -5, int64_t{1} << 24}) + random.Below(1000));
    all.q = q.of, all.k = k.of;
    all.fused = &beside;
    if (random.Sometimes(4)) all.q = {};
    rope_qk_args one = all;
    one.tokens = 1;
    ++one.positions.offset;
    MoveBy(&one.q, 1), MoveBy(&one.k, 1);
    rope_kv_cache of_one = stores;
    of_one.slots_i64 = slots + 1;
    of_one.slots_length = 1;
    rope_fused beside_one = beside;
    beside_one.cache = &of_one;
    MoveBy(&beside_one.v, 1);
    one.fused = &beside_one;

    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::vector<char> q_in = q.in;
    const std::vector<char> k_in = k.in;
    const auto middle = [&] {
      const auto token = static_cast<ptrdiff_t>(q.of.stride_token * ElementSize(dtype));
      return std::vector<char>(q.in.begin() + token, q.in.begin() + 2 * token);
    };
    const auto restart = [&] {
      q.in = q_in;
      scales = scales_before;
      std::fill(codes.begin(), codes.end(), '\x55');
    };
    restart();
    const rope_status status = rope_apply_qk(context.get(), &all);
    const std::vector<char> turned = middle(), want = codes;
    const std::vector<float> want_scales = scales;
    restart();
    ASSERT_EQ(rope_apply_qk(context.get(), &one), status) << rope_last_error();
    if (status != ROPE_OK) continue;
    ++stored;
    blocks += in_blocks;
    const auto expect = [&] {
      ASSERT_TRUE(IsTurnedAlike(dtype, middle(), turned));
      ASSERT_TRUE(codes == want);
      ASSERT_EQ(std::memcmp(scales.data(), want_scales.data(), scales.size() * sizeof(float)), 0);
      ASSERT_TRUE(k.in == k_in);
    };
    ASSERT_NO_FATAL_FAILURE(expect());
    restart();
    ASSERT_OK(ApplyPrepared(context.get(), one));
    ASSERT_NO_FATAL_FAILURE(expect());
  }
  EXPECT_GT(stored, 1500);
  EXPECT_GT(blocks, 200);
}

}  // namespace
}  // namespace rope::testing
