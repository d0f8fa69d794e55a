// Calls of BACKWARD with norms and repeated heads on a GPU: the cases that staged_gradients_test
// walks on the host.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "device.h"
#include "gpu/model_heads.h"
#include "gpu/gradient_cases.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

using CudaGradients = OnDeviceOnly<GradientCases>;

TEST_P(CudaGradients, EqualTheCpuByteForByte) {
  const int cases = Cases(1200);
  for (int n = 1; n <= cases && !HasFailure(); ++n) {
    SCOPED_TRACE("seed " + std::to_string(n));
    RunCase(static_cast<uint64_t>(n), &device_);
  }
}

TEST_P(CudaGradients, OfHeadsInColumnsEqualTheCpuByteForByte) {
  like_ = NormedModelHeads();
  const int cases = Cases(3000);
  for (int n = 1; n <= cases && !HasFailure(); ++n) {
    SCOPED_TRACE("seed " + std::to_string(n));
    RunCase(static_cast<uint64_t>(n), &device_);
  }
}

INSTANTIATE_BEST_TARGET(CudaGradients);

}  // namespace
}  // namespace rope::testing
