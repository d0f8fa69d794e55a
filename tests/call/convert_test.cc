// Outputs of another dtype than their input or with its heads repeated, on every instruction set,
// against the definition (support/convert_call.h). Each byte is compared; a prepared call must
// write the same ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "support/convert_call.h"
#include "support/elements.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/prepared_call.h"
#include "support/random_call.h"
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

// By positions of any kind and ids on several axes, of packed sequences, shards, rows that share
// them and several frequency sets, or by rows of cos and sin, of heads, and for each channel.
TEST_P(ConvertTest, OutputsOfAnyTurnToo) {
  const uint64_t seeds = LongTests() ? 20000 : ShortTests() ? 150 : 300;
  std::map<std::string, int> met;
  int64_t coded[ROPE_DTYPE_Q8_0 + 1] = {};
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    RandomCall turns(seed, RandomCall::kEverything);
    turns.single_tokens = seed % 5 == 0;
    turns.MakeApply();
    const Context context = turns.CreateContext();
    ConvertCall call(turns, seed % 2 == 0, kernels().fused, seed + (uint64_t{1} << 32));
    Expect(&call, context);
    if (HasFatalFailure()) FAIL() << "seed " << seed << ": " << turns.Describe();
    const rope_qk_args& args = call.args();
    const rope_positions& p = args.positions;
    const rope_config& config = turns.config();
    ++met["positions " + std::to_string(p.kind)];
    ++met["rounding " + std::to_string(config.rounding)];
    met["one token"] += args.batch * args.tokens == 1;
    met["a token of each sequence"] += args.batch > 3;
    met["ids on axes"] += p.kind > ROPE_POSITIONS_IDS_BT && config.axes > 1;
    met["sequences"] += p.cu_seqlens != nullptr;
    met["shards"] += p.shard != nullptr;
    met["sets"] += p.freq_sets != nullptr;
    met["shared positions"] += p.batch_repeat > 1;
    met["rows of heads"] += turns.rows.heads > 1;
    met["frequencies of heads"] += config.freq_heads > 1;
    met["rows of channels"] += turns.rows.format == ROPE_COS_SIN_FULL_HALVES ||
                               turns.rows.format == ROPE_COS_SIN_FULL_INTERLEAVED;
    met["normed"] += call.is_normed();
    for (rope_dtype code = 1; code <= ROPE_DTYPE_Q8_0; ++code) coded[code] += call.turned(code);
    if (call.turned(ROPE_DTYPE_Q8_0) == 0) continue;
    ++met["blocks, pairing " + std::to_string(config.pairing)];
    ++met["blocks, rounding " + std::to_string(config.rounding)];
    met["blocks, normed"] += call.is_normed();
    met["blocks, of heads that are repeated"] +=
        (args.q_out.dtype == ROPE_DTYPE_Q8_0 && args.q_out.heads > args.q.heads) ||
        (args.k_out.dtype == ROPE_DTYPE_Q8_0 && args.k_out.heads > args.k.heads);
  }
  // Position kinds (0: none), roundings, pairings, roundings of blocks, and what else there is.
  EXPECT_EQ(met.size(), 1 + kLastPositionKind + 2 * (1 + kLastRounding) + kLastPairing + 13);
  for (const auto& [what, calls] : met) {
    EXPECT_GT(calls, static_cast<int>(seeds / 100)) << what;
  }
  for (rope_dtype code : {ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E5M2, ROPE_DTYPE_I8, ROPE_DTYPE_Q8_0}) {
    EXPECT_GT(coded[code], static_cast<int64_t>(10 * seeds)) << code;
  }
}

// Where codes come from the rotation itself, heads that are repeated have a way of their own.
TEST_P(ConvertTest, RepeatedHeadsInCodesAreThoseOfOne) {
  constexpr int kDim = 64, kHeads = 3, kTokens = 5, kRepeats = 2;
  for (rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
    const Context context = Create(Config(kDim, pairing));
    for (rope_dtype in : {ROPE_DTYPE_F32, ROPE_DTYPE_F16, ROPE_DTYPE_BF16}) {
      std::vector<char> q(kTokens * kHeads * kDim * SizeOf(in));
      for (int i = 0; i < kTokens * kHeads * kDim; ++i) {
        WriteElement(in, &q[i * SizeOf(in)], (i * 37 % 201 - 100) / 32.0);
      }
      for (rope_dtype code : {ROPE_DTYPE_F8_E4M3, ROPE_DTYPE_F8_E5M2, ROPE_DTYPE_I8}) {
        const auto coded = [&](int repeats) {
          rope_scale scale = ROPE_INIT(rope_scale);
          scale.value = 0.0625f;
          std::vector<char> out(kTokens * kHeads * repeats * kDim);
          rope_qk_args args = Args(1, kTokens);
          args.positions = Offset(3);
          args.q = Tensor(q.data(), in, kHeads);
          args.q_out = Tensor(out.data(), code, kHeads * repeats);
          args.q_out.scale = &scale;
          EXPECT_OK(rope_apply_qk(context.get(), &args));
          return out;
        };
        const std::vector<char> one = coded(1), repeated = coded(kRepeats);
        for (size_t i = 0; i < repeated.size(); ++i) {
          const size_t head = i / kDim / kRepeats;
          ASSERT_EQ(repeated[i], one[head * kDim + i % kDim])
              << "channel " << i << ", pairing " << pairing << ", " << in << " to " << code;
        }
      }
    }
  }
}

}  // namespace
}  // namespace rope::testing
