// Rows of caches as engines of MLA lay them out (support/mla_rows), by every instruction set.
#include "support/mla_rows.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/handles.h"
#include "support/machine.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

class MlaRowsTest : public TargetTest {
 protected:
  CpuMachine machine_;
  MlaRows rows_{&machine_};
};

TEST_P(MlaRowsTest, Of656BytesAreThoseOfFlashMla) {
  for (const bool normed : {false, true}) {
    rows_.ExpectFourGroups(656, true, normed);
    rows_.ExpectFourGroups(656, false, normed);
  }
}
TEST_P(MlaRowsTest, Of528BytesLeaveTheKeysApart) {
  for (const bool normed : {false, true}) rows_.ExpectFourGroups(528, true, normed);
}
TEST_P(MlaRowsTest, Of584BytesAreThoseOfDeepSeekV4) {
  for (const int page_size : {16, 64}) rows_.ExpectScalesBehindRows(page_size, false);
}
TEST_P(MlaRowsTest, Of584BytesAreNormedAsOneHead) {
  for (const int page_size : {16, 64}) rows_.ExpectScalesBehindRows(page_size, true);
}
TEST_P(MlaRowsTest, Of576BytesHaveOneScale) { rows_.ExpectOneScale(); }
TEST_P(MlaRowsTest, Of132BytesAreThoseOfAnIndexer) {
  for (const bool normed : {false, true}) rows_.ExpectIndexer(normed);
}
TEST_P(MlaRowsTest, OfAbsorbedQueriesHaveRestAndSpan) { rows_.ExpectAbsorbedQueries(); }
TEST_P(MlaRowsTest, OfPrefillKeysShareTheSpan) { rows_.ExpectPrefillKeys(); }

INSTANTIATE_TARGETS(MlaRowsTest);

}  // namespace
}  // namespace rope::testing
