// Outputs of another dtype than their input or with its heads repeated, on every instruction set,
// against the definition (support/convert_call.h). Each byte is compared; a prepared call must
// write the same ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "support/convert_call.h"
#include "support/handles.h"
#include "support/prepared_call.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

void Expect(ConvertCall* call, const Context& context) {
  const std::vector<char> before = call->memory(), want = call->Want(context);
  ASSERT_OK(rope_apply_qk(context.get(), &call->args()));
  const std::vector<char> written = call->memory();
  call->ExpectMemory(want);
  if (::testing::Test::HasFatalFailure()) return;
  std::copy(before.begin(), before.end(), call->memory().begin());
  ASSERT_OK(ApplyPrepared(context.get(), call->args()));
  ASSERT_TRUE(call->memory() == written) << "prepared";
}

class ConvertTest : public TargetTest {};
INSTANTIATE_TARGETS(ConvertTest);

TEST_P(ConvertTest, OutputsAreTheResultsConvertedOnce) {
  uint64_t seed = 1;
  for (const rope_config& config : ConvertConfigs()) {
    const Context context = Create(config);
    for (int n = 0; n < 3; ++n, ++seed) {
      ConvertCall call(config, false, true, seed);
      Expect(&call, context);
      if (HasFatalFailure()) FAIL() << "seed " << seed;
    }
  }
}

TEST_P(ConvertTest, NormedOutputsToo) {
  uint64_t seed = 1000;
  for (const rope_config& config : ConvertConfigs()) {
    const Context context = Create(config);
    for (int n = 0; n < 3; ++n, ++seed) {
      ConvertCall call(config, true, kernels().fused, seed);
      Expect(&call, context);
      if (HasFatalFailure()) FAIL() << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace rope::testing
