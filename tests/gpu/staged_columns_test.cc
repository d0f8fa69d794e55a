// Calls whose heads are cut into columns on a GPU, on the walked grid: heads of models, with norms
// and to outputs that differ from their inputs, have the bytes of the CPU and of the definition,
// however their columns lie.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "call_walk.h"
#include "column_cases.h"
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

using rope::testing::ColumnConfigs;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kDivide = 4;
#else
constexpr int kDivide = 1;
#endif

// Whether heads of every dtype lay so, in as many cases as it takes.
bool HasColumns(int vectors, int pairs, int span_at, bool adjacent) {
  if (kDivide > 1) return true;
  for (rope_dtype dtype = 1; dtype <= kDtypes; ++dtype) {
    if (walked_columns.count({dtype, vectors, pairs, span_at, adjacent}) == 0) return false;
  }
  return true;
}

class ColumnNorms : public rope::testing::NormCases {
 protected:
  void SetUp() override {
    NormCases::SetUp();
    arena = &arena_;
    like_ = rope::testing::NormedColumnConfigs();
  }
  Arena arena_;
  Walker walker_;
};

TEST_P(ColumnNorms, EqualTheCpuByteForByte) {
  walked_columns.clear();
  for (int n = 1; n <= 2000 / kDivide && !HasFailure(); ++n) {
    SCOPED_TRACE("seed " + std::to_string(n));
    RunCase(static_cast<uint64_t>(n), &walker_);
  }
  for (const rope_config& c : ColumnConfigs()) {
    if (c.scaling == ROPE_SCALING_NOPE) continue;
    const bool adjacent = c.pairing == ROPE_PAIRING_INTERLEAVED;
    EXPECT_TRUE(HasColumns(c.head_dim / 32, c.rotary_dim / 2, c.rotary_offset, adjacent))
        << c.head_dim << " " << c.rotary_dim << " " << c.rotary_offset;
  }
}
INSTANTIATE_BEST_TARGET(ColumnNorms);

class ColumnOutputs : public StagedGrid {
 protected:
  Walker walker_{kWalks};
};

TEST_F(ColumnOutputs, EqualTheDefinitionByteForByte) {
  walked_columns.clear();
  rope::testing::OutputTally tally;
  rope::testing::RunAllOutputs(ColumnConfigs(), 24 / kDivide, &walker_, &tally);
  EXPECT_GT(tally.normed, 100 / kDivide);
  for (const int vectors : {2, 4, 8}) {
    EXPECT_TRUE(HasColumns(vectors, 16 * vectors, 0, false)) << vectors;
  }
  EXPECT_TRUE(HasColumns(8, 128, 0, true));
}

}  // namespace
}  // namespace rope::gpu
