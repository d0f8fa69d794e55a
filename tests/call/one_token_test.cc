// A call on one token, which has ways of its own through the checks (call/check_token.h) and
// through the CPU backend (cpu/one_token.h), turns heads as a call on more tokens does. In a cache,
// prepared or not, it is what a call and copies are.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "math/element.h"
#include "support/cache_call.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/prepared_call.h"
#include "support/random.h"
#include "support/single_tokens.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

using A = rope_qk_args;

class OneTokenOf : public TargetTest {};

TEST_P(OneTokenOf, TurnsAsOneOfThree) {
  for (int seed = 0; seed < 3000; ++seed) {
    Random random(static_cast<uint64_t>(seed) + 1);
    RandomContext context(&random);
    if (!context.exists()) continue;
    RandomHeads heads(&random, &context);
    Heads &q = heads.q, &k = heads.k;
    const int64_t first =
        random.Of<int64_t>({0, 77, -5, int64_t{1} << 24, int64_t{1} << 40}) + random.Below(1000);
    const int64_t ids[] = {first, first + 1, first + 2};
    const float coordinates[] = {0.5f, static_cast<float>(random.Below(4096)), 2};
    const int32_t runs[] = {0, 1, 3};
    A all = Args(1, 3);
    all.operation = random.Pick(0, ROPE_OPERATION_SHIFT);
    const bool counted = all.operation != ROPE_OPERATION_SHIFT && random.Sometimes(2);
    const bool packed = counted && random.Sometimes(3);
    const bool floats = !counted && context.config.angle != ROPE_ANGLE_EXACT && random.Sometimes(3);
    all.positions = counted  ? Offset(first)
                    : floats ? Ids(ROPE_POSITIONS_IDS_T, coordinates)
                             : Ids(ROPE_POSITIONS_IDS_T, ids);
    if (packed) all.positions.cu_seqlens = runs, all.positions.sequences = 2;
    all.q = q.of, all.k = k.of, all.q_out = q.to, all.k_out = k.to;

    A one = all;
    one.tokens = 1;
    if (packed) {
      one.positions = Offset(first);  // the second sequence begins with this token
    } else if (counted) {
      one.positions.offset += 1;
    } else {
      one.positions.ids_i64 += floats ? 0 : 1;
      if (floats) ++one.positions.ids_f32;
    }
    for (rope_tensor* t : {&one.q, &one.k, &one.q_out, &one.k_out}) MoveBy(t, 1);
    if (random.Sometimes(4)) one.q = one.q_out = all.q = all.q_out = {};

    const std::vector<char> q_in = q.in, k_in = k.in;
    SCOPED_TRACE("seed " + std::to_string(seed));
    const rope_status status = rope_apply_qk(context.get(), &all);
    const auto middle = [](const Heads& heads) {
      const std::vector<char>& bytes = heads.to.data != nullptr ? heads.out : heads.in;
      const auto token = static_cast<size_t>(heads.of.stride_token * ElementSize(heads.of.dtype));
      return std::vector<char>(bytes.begin() + static_cast<ptrdiff_t>(token),
                               bytes.begin() + static_cast<ptrdiff_t>(2 * token));
    };
    const std::vector<char> q_turned = middle(q), k_turned = middle(k);
    q.in = q_in, k.in = k_in;
    q.out.assign(q.out.size(), 0), k.out.assign(k.out.size(), 0);
    ASSERT_EQ(rope_apply_qk(context.get(), &one), status) << rope_last_error();
    if (status != ROPE_OK) continue;
    ASSERT_TRUE(IsTurnedAlike(q.of.dtype, middle(q), q_turned));
    ASSERT_TRUE(IsTurnedAlike(k.of.dtype, middle(k), k_turned));
  }
}

TEST_P(OneTokenOf, GoesToItsSlot) {
  int stored = 0;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    Random random(seed);
    RandomContext context(&random);
    if (!context.exists()) continue;
    CacheWish wish;
    wish.alike = random.Sometimes(2);  // for which there is a short way to a plan
    wish.kind = random.Pick(ROPE_SLOTS_MAPPED, ROPE_SLOTS_LINEAR);
    wish.variant = random.Sometimes(2);
    wish.dtype = context.Dtype();
    wish.q_dtype = random.Sometimes(4) ? context.Dtype() : wish.dtype;
    wish.cache_layout = random.Pick(ROPE_LAYOUT_STRIDED, ROPE_LAYOUT_HND);
    wish.layout = random.Pick(1, ROPE_LAYOUT_STRIDED);
    wish.keys = random.Of({Keys::kCacheOnly, Keys::kInPlace, Keys::kOut});
    wish.positions = ROPE_POSITIONS_OFFSET + random.Pick(0, 3);
    wish.packed = random.Sometimes(3);
    wish.most_tokens = wish.most_batch = 1;
    CacheCall call(context.config, wish, seed);
    stored += static_cast<int>(call.stored());
    SCOPED_TRACE("seed " + std::to_string(seed));
    const A& args = call.args();
    const Lines unturned = call.memory(), want = call.Want(context.context());
    ASSERT_EQ(rope_apply_qk(context.get(), &args), ROPE_OK) << rope_last_error();
    ASSERT_TRUE(call.memory() == want);
    const PreparedCall described(args);
    const Prepared prepared = Prepare(context.context(), described.args());
    ASSERT_NE(prepared, nullptr);
    call.Scribble();
    for (int layer = 0; layer < 2; ++layer) {
      call.Restore(unturned);
      ASSERT_EQ(rope_prepared_apply(prepared.get(), &described.data), ROPE_OK) << rope_last_error();
      ASSERT_TRUE(call.memory() == want) << layer;
    }
  }
  EXPECT_GT(stored, 1000);
}

INSTANTIATE_TARGETS(OneTokenOf);

}  // namespace
}  // namespace rope::testing
