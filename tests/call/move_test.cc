// Keys and values from slots to slots, against a plain reference: gathered into a tensor, turned
// there by rope_apply_qk, copied by the slots' definition (support/move_call). Each byte of one
// buffer is compared.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "support/enumerators.h"
#include "support/handles.h"
#include "support/move_call.h"
#include "support/random.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

void ExpectAsReference(const Context& context, MoveCall& call) {
  const rope_qk_args& args = call.args();
  const Lines want = call.Want(context);
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  const auto differs = std::mismatch(want.begin(), want.end(), call.memory().begin()).first;
  ASSERT_EQ(differs - want.begin(), static_cast<int64_t>(want.size())) << "the first wrong byte";
}

rope_config Partial(rope_pairing pairing) {
  rope_config config = Config(24, pairing);
  config.rotary_dim = 16;
  config.rotary_offset = 8;
  return config;
}

rope_config Nope(rope_config config) {
  config.scaling = ROPE_SCALING_NOPE;
  return config;
}

TEST(Moves, AreThoseOfGatheredTensors) {
  std::vector<rope_config> configs = {Config(32),
                                      Config(32, ROPE_PAIRING_INTERLEAVED),
                                      Config(64),
                                      Partial(ROPE_PAIRING_HALVES),
                                      Partial(ROPE_PAIRING_INTERLEAVED_TO_HALVES),
                                      Nope(Config(16)),
                                      Nope(Partial(ROPE_PAIRING_HALVES))};
  for (size_t i = 0; i < 5; ++i) {
    configs.push_back(configs[i]);
    configs.back().angle = ROPE_ANGLE_EXACT;
  }
  configs.push_back(Config(16));
  configs.back().rounding = ROPE_ROUNDING_EAGER;
  const std::vector<const cpu::Kernels*> targets = cpu::ListKernels();
  const uint64_t seeds = LongTests() ? 200000 : ShortTests() ? 2000 : 12000;
  int64_t moved = 0;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    Random r(seed);
    MoveWish w = RandomWish(&r);
    const rope_config& config = configs[r.Below(static_cast<int64_t>(configs.size()))];
    w.sets = r.Sometimes(4) ? 2 : 1;
    rope_config other = config;
    if (config.scaling != ROPE_SCALING_NOPE) other.theta = 500000, other.attention_factor = 1.25;
    const OnTarget target(targets[seed % targets.size()]);
    const Context context = w.sets == 2 ? CreateSets({config, other}) : Create(config);
    MoveCall call(config, w, seed);
    ExpectAsReference(context, call);
    if (HasFatalFailure()) FAIL() << "seed " << seed;
    moved += call.moved();
  }
  EXPECT_GT(moved, static_cast<int64_t>(8 * seeds));
}

// Frequencies per head: the heads of each row part by part.
TEST(Moves, OfHeadsWithFrequenciesOfTheirOwn) {
  std::vector<double> frequency;
  for (int i = 0; i < 2 * 8; ++i) frequency.push_back(1.0 / (1 + i));
  rope_config config = Config(16);
  config.theta = 0;
  config.frequency = frequency.data();
  config.freq_heads = 2;
  config.table_length = 8;
  for (rope_angle angle : {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT}) {
    config.angle = angle;
    const Context context = Create(config);
    for (uint64_t seed = 1; seed <= 200; ++seed) {
      Random r(seed);
      MoveWish w = RandomWish(&r);
      w.head_multiple = 2;
      MoveCall call(config, w, seed);
      ExpectAsReference(context, call);
      if (HasFatalFailure()) FAIL() << "seed " << seed;
    }
  }
}

// Rows whose channels differ go token by token, rows per head part by part.
TEST(Moves, ByRowsOfCosAndSin) {
  constexpr int kDim = 16;
  const Context context = Create(Config(kDim));
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Random r(seed);
    MoveWish w = RandomWish(&r);
    w.operation = ROPE_OPERATION_FORWARD;
    w.packed = false;
    w.head_multiple = r.Of({1, 1, 2});
    MoveCall call(Config(kDim), w, seed);
    std::vector<float> cos(call.batch() * call.tokens() * kDim * w.head_multiple), sin(cos.size());
    for (size_t i = 0; i < cos.size(); ++i) {
      cos[i] = static_cast<float>(r.Pick(-50, 50)) / 50;
      sin[i] = static_cast<float>(r.Pick(-50, 50)) / 50;
    }
    rope_cos_sin rows = Rows(ROPE_COS_SIN_FULL_HALVES, ROPE_DTYPE_F32, kDim / 2, call.batch(),
                             cos.data(), sin.data());
    rows.heads = w.head_multiple == 1 ? 0 : w.head_multiple;
    for (size_t row = 0; row < cos.size() && r.Sometimes(2); row += kDim) {
      std::copy_n(&cos[row], kDim / 2, &cos[row + kDim / 2]);
      std::copy_n(&sin[row], kDim / 2, &sin[row + kDim / 2]);
    }
    call.ReadRows(&rows);
    ExpectAsReference(context, call);
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
}

// More than the caches hold, whole lines, and tasks of several threads.
TEST(Moves, OfManyTokens) {
  const rope_config config = Config(64);
  const Context context = Create(config);
  const Pool pool = CreatePool(3);
  for (Way way : {Way::kApart, Way::kStay, Way::kElsewhere, Way::kMixed}) {
    const rope_layout layout =
        way == Way::kApart || way == Way::kMixed ? ROPE_LAYOUT_HND : ROPE_LAYOUT_NHD;
    MoveWish w;
    w.operation = ROPE_OPERATION_REROTATE;
    w.way = way;
    w.source = w.cache = ROPE_SLOTS_PAGED;
    w.source_layout = w.cache_layout = layout;
    w.aligned = w.to_cache_alone = true;
    w.least_tokens = w.most_tokens = 6000;
    w.head_multiple = 8, w.most_heads = 1;
    MoveCall call(config, w, 7);
    call.RunBy(rope_pool_runner(pool.get()));
    ExpectAsReference(context, call);
    if (HasFatalFailure()) FAIL() << static_cast<int>(way);
  }
}

}  // namespace
}  // namespace rope::testing
