// Calls whose heads threads of a GPU hold, on the walked grid: heads of models, with norms and to
// outputs that differ from their inputs, have the bytes of the CPU and of the definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "call_walk.h"
#include "model_heads.h"
#include "gpu/launch.h"
#include "librope/rope.h"
#include "norm_cases.h"
#include "output_cases.h"
#include "staged_walk.h"
#include "support/errors.h"
#include "support/handles.h"
#include "support/random.h"

namespace rope::gpu {
namespace {

using rope::testing::ModelHeads;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kDivide = 4;
#else
constexpr int kDivide = 1;
#endif

// Whether heads of every dtype were held so, in as many cases as it takes.
bool HasHeads(int vectors, int pairs, bool adjacent) {
  if (kDivide > 1) return true;
  for (rope_dtype dtype = 1; dtype <= kDtypes; ++dtype) {
    if (walked_heads.count({dtype, vectors, pairs, adjacent}) == 0) return false;
  }
  return true;
}
// Those of each number of vectors: wholly turned in halves and side by side, and still.
void ExpectHeads() {
  for (const int vectors : {2, 4, 8}) {
    EXPECT_TRUE(HasHeads(vectors, 16 * vectors, false)) << vectors;
    EXPECT_TRUE(HasHeads(vectors, 16 * vectors, true)) << vectors;
    EXPECT_TRUE(HasHeads(vectors, 0, false)) << vectors;
  }
}

class HeldNorms : public rope::testing::NormCases {
 protected:
  void SetUp() override {
    NormCases::SetUp();
    arena = &arena_;
    like_ = rope::testing::NormedModelHeads();
  }
  Arena arena_;
  Walker walker_;
};

TEST_P(HeldNorms, EqualTheCpuByteForByte) {
  walked_heads.clear();
  for (int n = 1; n <= 2000 / kDivide && !HasFailure(); ++n) {
    SCOPED_TRACE("seed " + std::to_string(n));
    RunCase(static_cast<uint64_t>(n), &walker_);
  }
  ExpectHeads();
  for (const int pairs : {32, 64}) EXPECT_TRUE(HasHeads(8, pairs, false)) << pairs;
  EXPECT_TRUE(HasHeads(4, 32, false));  // partly, as below
}
INSTANTIATE_BEST_TARGET(HeldNorms);

class HeldOutputs : public StagedGrid {
 protected:
  Walker walker_{kWalks};
};

TEST_F(HeldOutputs, EqualTheDefinitionByteForByte) {
  walked_heads.clear();
  rope::testing::OutputTally tally;
  rope::testing::RunAllOutputs(ModelHeads(), 30 / kDivide, &walker_, &tally);
  EXPECT_GT(tally.normed, 100 / kDivide);
  ExpectHeads();
}

}  // namespace
}  // namespace rope::gpu
