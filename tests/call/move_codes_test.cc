// Keys and values in 8 bits that move from slots to slots, and others that come into 8 bits or
// leave them, on every instruction set, against the definition (support/move_codes_call.h). Each
// byte is compared.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
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
  int64_t kept = 0, coded = 0, native = 0;
  std::map<rope_operation, int> read;  // calls on keys in 8 bits
  const uint64_t seeds = LongTests() ? 60000 : 3000;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    Random r(seed);
    const std::vector<rope_config> sets = MoveCodesSets(&r);
    const Context context = CreateSets(sets);
    MoveCodesCall call(sets, seed);
    const std::vector<char> want = call.Want(context);
    ASSERT_OK(rope_apply_qk(context.get(), &call.args()));
    call.ExpectMemory(want);
    if (HasFatalFailure()) FAIL() << "seed " << seed;
    kept += call.kept();
    coded += call.coded();
    read[call.operation()] += call.reads_codes();
    native += sets[0].rounding == ROPE_ROUNDING_NATIVE ? call.coded() : 0;
  }
  EXPECT_GT(kept, 10000);
  EXPECT_GT(coded, 1000000);
  EXPECT_GT(native, 10000);
  for (rope_operation operation : {ROPE_OPERATION_FORWARD, ROPE_OPERATION_INVERSE,
                                   ROPE_OPERATION_SHIFT, ROPE_OPERATION_REROTATE}) {
    EXPECT_GT(read[operation], 400) << operation;
  }
}

}  // namespace
}  // namespace rope::testing
