// Keys and values in 8 bits that move from slots to slots, and others that come into 8 bits or
// leave them, on every instruction set, against the definition (support/move_codes_call.h). Each
// byte is compared.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "support/handles.h"
#include "support/move_codes_call.h"
#include "support/random.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

class MoveCodesTest : public TargetTest {};
INSTANTIATE_TARGETS(MoveCodesTest);

TEST_P(MoveCodesTest, EachByteIsThatOfTheDefinition) {
  const std::vector<rope_config> configs = MoveCodesConfigs();
  int64_t kept = 0, coded = 0;
  const uint64_t seeds = LongTests() ? 60000 : 3000;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    Random r(seed);
    const rope_config& config = configs[r.Below(static_cast<int64_t>(configs.size()))];
    rope_config other = config;
    other.theta = 500000, other.attention_factor = 1.25;
    const bool two = r.Sometimes(4) && config.scaling != ROPE_SCALING_NOPE;
    const Context context = two ? CreateSets({config, other}) : Create(config);
    MoveCodesCall call(config, two ? std::vector<double>{1, 1.25} : std::vector<double>{1}, seed);
    const std::vector<char> want = call.Want(context);
    ASSERT_OK(rope_apply_qk(context.get(), &call.args()));
    call.ExpectMemory(want);
    if (HasFatalFailure()) FAIL() << "seed " << seed;
    kept += call.kept();
    coded += call.coded();
  }
  EXPECT_GT(kept, 10000);
  EXPECT_GT(coded, 1000000);
}

}  // namespace
}  // namespace rope::testing
