// A call on one token some of whose heads are normed, which has a way of its own through the CPU
// backend (cpu/one_token.h), has the bits that the token has in a call on three; prepared, too.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "math/element.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/norm_call.h"
#include "support/prepared_call.h"
#include "support/random.h"
#include "support/single_tokens.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

using A = rope_qk_args;

class OneNormedTokenOf : public TargetTest {};

// The norm as that of a token: what each token is given.
rope_norm NormOf(const Weighted& weighted, int token) {
  rope_norm norm = weighted.norm;
  if (norm.rstd != nullptr) norm.rstd += token;
  return norm;
}

TEST_P(OneNormedTokenOf, IsNormedAndTurnsAsOneOfThree) {
  int normed = 0;
  const int seeds = ShortTests() ? 500 : 3000;
  for (int seed = 0; seed < seeds; ++seed) {
    Random random(static_cast<uint64_t>(seed) + 1);
    rope_config config = RandomConfig(&random);
    if (random.Sometimes(12)) config.scaling = ROPE_SCALING_NOPE, config.theta = 0;
    RandomContext context(&random, config);
    if (!context.exists()) continue;
    RandomHeads tensors(&random, &context);
    Heads &q = tensors.q, &k = tensors.k;
    for (Heads* heads : {&q, &k}) {  // outputs of their own strides, of whole heads or of spans
      if (heads->to.data == nullptr) continue;
      const int64_t step = config.head_dim * random.Pick(1, 2);
      SetStrides(&heads->to, 3 * heads->to.heads * step, heads->to.heads * step, step);
      if (config.rotary_dim != 0 && random.Sometimes(3)) heads->to.head_dim = config.rotary_dim;
    }
    const Weighted q_norm(&random, q.of.heads, config.head_dim, 3, true, true),
        k_norm(&random, k.of.heads, config.head_dim, 3, true, true);
    const bool norms_q = !random.Sometimes(4), norms_k = !random.Sometimes(4);
    const int64_t ids[] = {70, 71, 1000000};
    A all = Args(1, 3);
    all.positions = Ids(ROPE_POSITIONS_IDS_T, ids);
    all.q = q.of, all.k = k.of, all.q_out = q.to, all.k_out = k.to;
    A one = all;
    one.tokens = 1;
    one.positions.ids_i64 += 1;
    for (rope_tensor* t : {&one.q, &one.k, &one.q_out, &one.k_out}) MoveBy(t, 1);
    rope_fused fused = ROPE_INIT(rope_fused), fused_one = fused;
    const rope_norm norms[] = {NormOf(q_norm, 0), NormOf(k_norm, 0)},
                    norms_one[] = {NormOf(q_norm, 1), NormOf(k_norm, 1)};
    if (norms_q) fused.q_norm = &norms[0], fused_one.q_norm = &norms_one[0];
    if (norms_k) fused.k_norm = &norms[1], fused_one.k_norm = &norms_one[1];
    all.fused = &fused;
    one.fused = &fused_one;

    const std::vector<char> q_in = q.in, k_in = k.in;
    SCOPED_TRACE("seed " + std::to_string(seed));
    const rope_status status = rope_apply_qk(context.get(), &all);
    const auto middle = [](const Heads& heads) {
      const bool apart = heads.to.data != nullptr;
      const std::vector<char>& bytes = apart ? heads.out : heads.in;
      const auto token = static_cast<ptrdiff_t>((apart ? heads.to : heads.of).stride_token *
                                                ElementSize(heads.of.dtype));
      return std::vector<char>(bytes.begin() + token, bytes.begin() + 2 * token);
    };
    const auto restore = [&] {
      q.in = q_in, k.in = k_in;
      q.out.assign(q.out.size(), 0), k.out.assign(k.out.size(), 0);
    };
    const std::vector<char> q_want = middle(q), k_want = middle(k);
    restore();
    ASSERT_EQ(rope_apply_qk(context.get(), &one), status) << rope_last_error();
    if (status != ROPE_OK) continue;
    ++normed;
    ASSERT_TRUE(IsTurnedAlike(q.of.dtype, middle(q), q_want));
    ASSERT_TRUE(IsTurnedAlike(k.of.dtype, middle(k), k_want));
    restore();
    ASSERT_EQ(ApplyPrepared(context.get(), one), ROPE_OK) << rope_last_error();
    ASSERT_TRUE(IsTurnedAlike(q.of.dtype, middle(q), q_want)) << "prepared";
    ASSERT_TRUE(IsTurnedAlike(k.of.dtype, middle(k), k_want)) << "prepared";
  }
  EXPECT_GT(normed, seeds / 4);
}

INSTANTIATE_TARGETS(OneNormedTokenOf);

}  // namespace
}  // namespace rope::testing
