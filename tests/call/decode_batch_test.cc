// A batch of sequences with one token each, as engines decode them, has the bytes of a call on each
// of its rows, on every instruction set. The library turns such a batch as one row of tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "support/cache_call.h"
#include "support/convert_call.h"
#include "support/handles.h"
#include "support/prepared_call.h"
#include "support/random_call.h"
#include "support/reference.h"
#include "support/row_of_batch.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

constexpr int kMostRows = 40;  // several blocks of tokens

// `bytes()` is all that the call writes, as one vector or several; `restore(bytes)` writes it back.
template <class Bytes, class Restore>
void ExpectRows(const rope_config& config, const Context& context, const rope_qk_args& args,
                const Bytes& bytes, const Restore& restore) {
  const auto before = bytes();
  for (int64_t b = 0; b < args.batch; ++b) {
    const RowOfBatch row(config, args, b);
    ASSERT_OK(rope_apply_qk(context.get(), &row.args)) << "row " << b;
  }
  const auto want = bytes();
  restore(before);
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  ASSERT_TRUE(bytes() == want);
  restore(before);
  ASSERT_OK(ApplyPrepared(context.get(), args));
  ASSERT_TRUE(bytes() == want) << "prepared";
}

class DecodeBatch : public TargetTest {};
INSTANTIATE_TARGETS(DecodeBatch);

TEST_P(DecodeBatch, TurnsAsItsRows) {
  int calls = 0;
  for (uint64_t seed = 1; seed <= 250; ++seed) {
    RandomCall call(seed, RandomCall::kEverything);
    call.single_tokens = true;
    call.MakeApply();
    const rope_positions& p = call.args.positions;
    if (call.args.cos_sin != nullptr || p.cu_seqlens != nullptr || p.shard != nullptr) continue;
    if (p.batch_repeat > 1) continue;
    const Context context = call.CreateContext();
    const auto bytes = [&] {
      std::vector<std::vector<char>> all;
      for (const RandomCall::Buffer& buffer : call.buffers) all.push_back(buffer.bytes);
      return all;
    };
    const auto restore = [&](const std::vector<std::vector<char>>& all) {
      for (size_t i = 0; i < all.size(); ++i) {
        std::copy(all[i].begin(), all[i].end(), call.buffers[i].bytes.begin());
      }
    };
    ExpectRows(call.config(), context, call.args, bytes, restore);
    if (HasFatalFailure()) FAIL() << "seed " << seed << ": " << call.Describe();
    ++calls;
  }
  EXPECT_GT(calls, 100);
}

TEST_P(DecodeBatch, IsStoredAsItsRows) {
  uint64_t seed = 1;
  int64_t stored = 0;
  for (const rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
    const rope_config config = Config(32, pairing);
    const Context context = Create(config);
    CacheWish w;
    w.least_tokens = w.most_tokens = 1;
    w.most_batch = kMostRows;
    for (w.kind = ROPE_SLOTS_MAPPED; w.kind <= ROPE_SLOTS_LINEAR; ++w.kind) {
      for (int n = 0; n < 120; ++n, ++seed) {
        w.variant = (seed & 1) != 0;
        w.alike = n % 3 == 0;
        w.dtype = static_cast<rope_dtype>(1 + n % kLastDtype);
        w.cache_layout = n / 4 % 2 != 0   ? ROPE_LAYOUT_NHD
                         : n / 8 % 2 != 0 ? ROPE_LAYOUT_HND
                                          : ROPE_LAYOUT_STRIDED;
        w.layout = static_cast<rope_layout>(1 + n % ROPE_LAYOUT_STRIDED);
        w.keys = static_cast<Keys>(n % 3);
        w.positions = static_cast<rope_position_kind>(ROPE_POSITIONS_OFFSET + n / 3 % 4);
        CacheCall call(config, w, seed);
        ExpectRows(
            config, context, call.args(), [&] { return call.memory(); },
            [&](const Lines& memory) { call.Restore(memory); });
        if (HasFatalFailure()) FAIL() << "seed " << seed;
        stored += call.stored();
      }
    }
  }
  EXPECT_GT(stored, 5000);
}

TEST_P(DecodeBatch, IsNormedAndCodedAsItsRows) {
  uint64_t seed = 1;
  for (const rope_config& config : ConvertConfigs()) {
    const Context context = Create(config);
    for (int n = 0; n < 6; ++n, ++seed) {
      ConvertCall call(config, n % 2 != 0, kernels().fused, seed, kMostRows);
      ExpectRows(
          config, context, call.args(), [&] { return call.memory(); },
          [&](const std::vector<char>& memory) {
            std::copy(memory.begin(), memory.end(), call.memory().begin());
          });
      if (HasFatalFailure()) FAIL() << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace rope::testing
