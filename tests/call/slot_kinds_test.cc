// PAGED and LINEAR slots have the bytes of slots that are spelt out (support/slot_kinds), by every
// instruction set.
#include "support/slot_kinds.h"

#include <gtest/gtest.h>

#include "support/handles.h"
#include "support/machine.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

using SlotKindsTest = TargetTest;

TEST_P(SlotKindsTest, HaveTheBytesOfSlotsThatAreSpeltOut) {
  CpuMachine machine;
  ExpectSlotKindsAgree(&machine, LongTests() ? 20000 : 600);
}

INSTANTIATE_TARGETS(SlotKindsTest);

}  // namespace
}  // namespace rope::testing
