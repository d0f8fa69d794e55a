// Calls with norms on a GPU: the cases that staged_norms_test and staged_held_test
// walk on the host.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "device.h"
#include "gpu/model_heads.h"
#include "gpu/norm_cases.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

using CudaNorms = OnDeviceOnly<NormCases>;

TEST_P(CudaNorms, EqualTheCpuByteForByte) {
  const int cases = Cases(1200);
  for (int n = 1; n <= cases && !HasFailure(); ++n) {
    SCOPED_TRACE("seed " + std::to_string(n));
    RunCase(static_cast<uint64_t>(n), &device_);
  }
}

TEST_P(CudaNorms, OfModelsEqualTheCpuByteForByte) {
  like_ = NormedModelHeads();
  const int cases = Cases(1200);
  for (int n = 1; n <= cases && !HasFailure(); ++n) {
    SCOPED_TRACE("seed " + std::to_string(n));
    RunCase(static_cast<uint64_t>(n), &device_);
  }
}

INSTANTIATE_BEST_TARGET(CudaNorms);

}  // namespace
}  // namespace rope::testing
