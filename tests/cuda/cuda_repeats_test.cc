// Batch rows that share positions on a GPU: the cases that repeat_grid_test walks on the host.
#include <gtest/gtest.h>

#include "device.h"
#include "gpu/repeat_cases.h"

namespace rope::testing {
namespace {

using CudaRepeats = OnDeviceOnly<::testing::Test>;

TEST_F(CudaRepeats, CallsEqualTheCpuByteForByte) { repeat::RunAllRepeated(Cases(12), &device_); }

}  // namespace
}  // namespace rope::testing
