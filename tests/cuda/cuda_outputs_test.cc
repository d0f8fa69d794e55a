// Outputs and caches of another dtype, in 8 bits or with repeated heads, and moves of what is in 8
// bits, on a GPU: the cases that staged_outputs_test and staged_held_test walk on the host.
#include <gtest/gtest.h>

#include "device.h"
#include "gpu/model_heads.h"
#include "gpu/output_cases.h"
#include "support/mla_rows.h"
#include "support/slot_kinds.h"

namespace rope::testing {
namespace {

using CudaOutputs = OnDeviceOnly<::testing::Test>;

TEST_F(CudaOutputs, EqualTheDefinitionByteForByte) {
  OutputTally tally;
  RunAllOutputs(ConvertConfigs(), Cases(5), &device_, &tally);
}

TEST_F(CudaOutputs, OfModelsEqualTheDefinitionByteForByte) {
  OutputTally tally;
  RunAllOutputs(ModelHeads(), Cases(24), &device_, &tally);
}

TEST_F(CudaOutputs, EqualTheCpuWithRowsSetsAndSharedPositions) {
  RunOwnCalls(Cases(400), &device_);
}

TEST_F(CudaOutputs, MovesOfCodesEqualTheDefinitionByteForByte) {
  RunMovesOfCodes(static_cast<uint64_t>(Cases(2000)), &device_);
}

TEST_F(CudaOutputs, SlotKindsHaveTheBytesOfSlotsThatAreSpeltOut) {
  ExpectSlotKindsAgree(&device_, Cases(200));
}

TEST_F(CudaOutputs, RowsOfMlaAreThoseOfTheirEngines) { ExpectMlaRows(&device_); }

}  // namespace
}  // namespace rope::testing
