// Calls that pass through shared memory on a GPU, on the walked grid and by a plain reference: the
// same bytes. Every access to a tensor must be aligned and inside memory, and every output written
// at most once, whatever the order of blocks and threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gpu/launch.h"
#include "librope/rope.h"
#include "math/element.h"
#include "staged_walk.h"
#include "support/elements.h"
#include "support/handles.h"
#include "support/move_call.h"
#include "support/random.h"

namespace rope::gpu {
namespace {

using rope::testing::Config;
using rope::testing::Context;
using rope::testing::Create;
using rope::testing::CreateSets;
using rope::testing::Lines;
using rope::testing::MoveCall;
using rope::testing::MoveWish;
using rope::testing::Random;
using rope::testing::RandomMoveConfig;
using rope::testing::RandomMoveWish;
using rope::testing::Rows;

struct MoveTally {
  int64_t moved = 0;
  int refused = 0, several = 0, sets = 0, rows = 0, before = 0;
};

void RunMove(uint64_t seed, MoveTally* tally) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random r(seed);
  MoveWish w = RandomMoveWish(&r);
  rope_config config = RandomMoveConfig(w.dtype, &r);
  std::vector<rope_config> configs = {config};
  if (config.scaling != ROPE_SCALING_NOPE && r.Sometimes(4)) {
    w.sets = r.Of({2, 12});
    for (int s = 1; s < w.sets; ++s) {
      configs.push_back(config);
      configs.back().theta = 10000 + 1000 * s;
      configs.back().attention_factor = 1 + 0.25 * s;
    }
  }
  const Context cpu = CreateSets(configs), device = CreateSets(configs);
  ASSERT_TRUE(cpu != nullptr && device != nullptr) << rope_last_error();
  device->backend = &kStagedDevice;
  const bool rows = w.operation == ROPE_OPERATION_FORWARD && w.sets == 1 && r.Sometimes(2) &&
                    config.rounding != ROPE_ROUNDING_NATIVE;
  const bool row_heads = rows && r.Sometimes(2);
  if (rows) w.packed = false;
  if (row_heads) w.head_multiple = 2;
  MoveCall call(config, w, seed);
  std::vector<float> cos(call.batch() * call.tokens() * config.head_dim * 2), sin(cos.size());
  for (size_t i = 0; i < cos.size(); ++i) {
    cos[i] = static_cast<float>(r.Pick(-50, 50)) / 50;
    sin[i] = static_cast<float>(r.Pick(-50, 50)) / 50;
  }
  rope_cos_sin table = Rows(r.Sometimes(2) ? ROPE_COS_SIN_FULL_HALVES : ROPE_COS_SIN_SPLIT,
                            ROPE_DTYPE_F32, cpu->pairs, call.batch(), cos.data(), sin.data());
  table.heads = row_heads ? 2 : 0;
  if (rows) call.ReadRows(&table);

  const rope_qk_args& args = call.args();
  const Lines want = call.Want(cpu);
  if (::testing::Test::HasFailure()) return;
  WalkedStaged walked;
  const rope_status s = WalkCall(device, args, {SpanOf(call.memory())}, &r, &walked);
  if (s == ROPE_ERROR_UNSUPPORTED) {
    EXPECT_EQ(arena->bytes_written, 0);
    ++tally->refused;
    return;
  }
  ASSERT_EQ(s, ROPE_OK) << rope_last_error();
  const auto at = std::mismatch(want.begin(), want.end(), call.memory().begin()).first;
  ASSERT_EQ(at - want.begin(), static_cast<int64_t>(want.size()))
      << "the first wrong byte; operation " << w.operation << " dtype " << w.dtype << " head_dim "
      << config.head_dim << " rotary_dim " << config.rotary_dim << " pairing " << config.pairing
      << " angle " << config.angle << " rounding " << config.rounding << " scaling "
      << config.scaling << " sets " << w.sets << " way " << static_cast<int>(w.way) << " rows "
      << rows << row_heads;
  tally->moved += call.moved();
  tally->several += walked.launches > 1;
  tally->sets += w.sets > 1;
  tally->rows += rows;
  tally->before += w.operation == ROPE_OPERATION_REROTATE;
}

TEST_F(StagedGrid, MovesEqualTheReferenceByteForByte) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr uint32_t kCases = 500;
#else
  constexpr uint32_t kCases = 2500;
#endif
  MoveTally tally;
  for (uint64_t seed = 1; seed <= kCases && !HasFailure(); ++seed) RunMove(seed, &tally);
  EXPECT_GT(tally.moved, kCases);
  EXPECT_GT(tally.refused, 0);
  EXPECT_GT(tally.several, 25);
  EXPECT_GT(tally.sets, 25);
  EXPECT_GT(tally.rows, 25);
  EXPECT_GT(tally.before, 25);
  for (int kernel = 0; kernel < 2 * kDtypes; ++kernel) {  // to outputs like their inputs
    EXPECT_EQ(walked_staged.count(kernel), 1u) << kernel;
  }
}

// Keys in place or to k_out, without slots: integers and coordinates, several axes, sums over them,
// in several sets. One coordinate of some calls is no number.
void RunRerotate(uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random r(seed);
  const int dim = r.Of({16, 64}), pairs = dim / 2, axes = r.Of({1, 2, 3}), heads = 2;
  rope_config config = Config(dim, r.Of({ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}));
  config.angle = r.Of({ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT});
  config.axes = axes;
  std::vector<double> frequency;
  const bool sums = r.Sometimes(2);
  const int freq_heads = sums && r.Sometimes(2) ? 2 : 1;
  if (sums) {
    for (int i = 0; i < axes * freq_heads * pairs; ++i) {
      frequency.push_back(static_cast<double>(r.Pick(1, 1000)) / 1000);
    }
    config.theta = 0;
    config.frequency = frequency.data();
    config.freq_heads = freq_heads;
    config.table_length = pairs;
  } else if (axes > 1) {
    for (int a = 0; a < axes; ++a) config.mrope_section[a] = pairs / axes;
    config.mrope_section[0] += pairs % axes;
  }
  rope_config other = config;
  other.attention_factor = 1.25;
  const int sets = sums ? 1 : r.Pick(1, 2);
  const auto create = [&] {
    return sets == 2 ? CreateSets({config, other}) : CreateSets({config});
  };
  const Context cpu = create(), device = create();
  ASSERT_TRUE(cpu != nullptr && device != nullptr) << rope_last_error();
  device->backend = &kStagedDevice;

  const int64_t batch = r.Pick(1, 3), tokens = r.Pick(1, 9), count = axes * batch * tokens;
  std::vector<int64_t> ids[2];
  std::vector<float> coordinates[2];
  std::vector<int32_t> of_set[2];
  rope_positions positions[2] = {};
  for (int p = 0; p < 2; ++p) {
    for (int64_t i = 0; i < count; ++i) {
      ids[p].push_back(r.Pick(-3000, 5000));
      coordinates[p].push_back(static_cast<float>(r.Pick(-3000, 5000)) / 64);
    }
    for (int64_t b = 0; b < batch; ++b) of_set[p].push_back(r.Pick(0, sets - 1));
    if (r.Sometimes(9)) coordinates[p][r.Below(count)] = std::numeric_limits<float>::quiet_NaN();
    positions[p].kind = axes > 1 ? ROPE_POSITIONS_IDS_ABT : ROPE_POSITIONS_IDS_BT;
    if (r.Sometimes(2)) {
      positions[p].ids_f32 = coordinates[p].data();
    } else {
      positions[p].ids_i64 = ids[p].data();
    }
    if (sets == 2) positions[p].freq_sets = of_set[p].data();
  }
  const rope_dtype dtype = r.Pick(1, rope::testing::kLastDtype);
  Lines memory(2 * batch * tokens * heads * dim * ElementSize(dtype));
  for (int64_t i = 0; i < 2 * batch * tokens * heads * dim; ++i) {
    StoreElement(dtype, memory.data(), i, static_cast<float>(r.Pick(-1000, 1000)) / 500);
  }
  rope_qk_args args = rope::testing::Args(batch, tokens);
  args.operation = ROPE_OPERATION_REROTATE;
  args.k = rope::testing::Tensor(memory.data(), dtype, heads);
  if (r.Sometimes(2)) {
    args.k_out =
        rope::testing::Tensor(memory.data() + memory.size() / 2, dtype, heads, ROPE_LAYOUT_BHSD);
  }
  rope_fused fused = ROPE_INIT(rope_fused);
  args.positions = positions[0];
  fused.from_positions = &positions[1];
  args.fused = &fused;
  const Lines before = memory;
  ASSERT_OK(rope_apply_qk(cpu.get(), &args));
  const Lines want = memory;
  std::copy(before.begin(), before.end(), memory.begin());
  WalkedStaged walked;
  ASSERT_OK(WalkCall(device, args, {SpanOf(memory)}, &r, &walked));
  for (int64_t i = 0; i < 2 * batch * tokens * heads * dim; ++i) {
    ASSERT_TRUE(rope::testing::IsSame(dtype, want.data(), memory.data(), i))
        << "element " << i << " axes " << axes << " sums " << sums << " sets " << sets << " angle "
        << config.angle << " coordinates " << (positions[0].ids_f32 != nullptr)
        << (positions[1].ids_f32 != nullptr);
  }
}

TEST_F(StagedGrid, RerotateEqualsTheCpu) {
  for (uint64_t seed = 1; seed <= 1500 && !HasFailure(); ++seed) RunRerotate(seed);
}

// A slot that does not exist is skipped and counted, in the source or else in the cache.
TEST_F(StagedGrid, MissingSlotsAreSkippedAndCounted) {
  constexpr int kDim = 8;
  const Context device = Create(Config(kDim));
  device->backend = &kStagedDevice;
  // The output is not aligned to vectors, and so a launch of its own: each token counts once.
  const auto at = [](int n) { return (n * 8 * kDim + (n == 2 ? 1 : 0)) * sizeof(float); };
  Lines memory(at(3) + sizeof(float));
  const auto tensor = [&](int n) {
    return rope::testing::Tensor(memory.data() + at(n), ROPE_DTYPE_F32, 1,
                                 n < 2 ? ROPE_LAYOUT_NHD : ROPE_LAYOUT_BSHD);
  };
  for (int i = 0; i <= 3 * 8 * kDim; ++i) StoreElement(ROPE_DTYPE_F32, memory.data(), i, 1.0f + i);
  const int64_t from[] = {0, 8, -1, 3, 4, 1000, 6}, to[] = {7, 1, 99, -3, 8, 4, 5};
  rope_kv_cache source = ROPE_INIT(rope_kv_cache);
  source.kind = ROPE_SLOTS_MAPPED;
  source.pages = 4;
  source.page_size = 2;
  source.slots_length = 7;
  rope_kv_cache cache = source;
  source.slots_i64 = from;
  cache.slots_i64 = to;
  uint32_t missing_from = 10, missing_to = 20;
  source.dropped = &missing_from;
  cache.dropped = &missing_to;
  source.k = tensor(0);
  cache.k = tensor(1);
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.source = &source;
  fused.cache = &cache;
  rope_qk_args args = rope::testing::Args(1, 7);
  args.operation = ROPE_OPERATION_FORWARD;
  args.positions = rope::testing::Offset(0);
  args.k_out = tensor(2);
  args.fused = &fused;
  const Lines before = memory;
  Random r(1);
  WalkedStaged walked;
  ASSERT_OK(WalkCall(device, args, {SpanOf(memory)}, &r, &walked));
  EXPECT_EQ(walked.launches, 2);
  EXPECT_EQ(missing_from, 12u);
  EXPECT_EQ(missing_to, 21u);  // of token 4 alone: tokens 2 and 5 are not read
  const auto changed = [&](int n, int slot) {
    const size_t bytes = kDim * sizeof(float), from = at(n) + static_cast<size_t>(slot) * bytes;
    return std::memcmp(before.data() + from, memory.data() + from, bytes) != 0;
  };
  for (int slot = 0; slot < 8; ++slot) {
    EXPECT_FALSE(changed(0, slot)) << slot;
    EXPECT_EQ(changed(1, slot), slot == 7 || slot == 5) << slot;
    EXPECT_EQ(changed(2, slot), slot == 0 || slot == 3 || slot == 4 || slot == 6) << slot;
  }
}

// Also where the heads of a token are those of several blocks.
TEST_F(StagedGrid, MissingSlotsOfManyHeadsAreCountedOnce) {
  constexpr int kDim = 72, kHeads = 128, kTokens = 3;
  const Context device = Create(Config(kDim));
  device->backend = &kStagedDevice;
  Lines memory(2 * 4 * kHeads * kDim * sizeof(float));
  const int64_t from[kTokens] = {0, 99, 2}, to[kTokens] = {1, 3, 9};
  uint32_t missing_from = 10, missing_to = 20;
  rope_kv_cache source = ROPE_INIT(rope_kv_cache);
  source.kind = ROPE_SLOTS_MAPPED;
  source.pages = 1;
  source.page_size = 4;
  source.slots_length = kTokens;
  rope_kv_cache cache = source;
  source.slots_i64 = from;
  cache.slots_i64 = to;
  source.dropped = &missing_from;
  cache.dropped = &missing_to;
  source.k = rope::testing::Tensor(memory.data(), ROPE_DTYPE_F32, kHeads, ROPE_LAYOUT_NHD);
  cache.k = rope::testing::Tensor(memory.data() + memory.size() / 2, ROPE_DTYPE_F32, kHeads,
                                  ROPE_LAYOUT_NHD);
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.source = &source;
  fused.cache = &cache;
  rope_qk_args args = rope::testing::Args(1, kTokens);
  args.operation = ROPE_OPERATION_FORWARD;
  args.positions = rope::testing::Offset(5);
  args.fused = &fused;
  Random r(1);
  WalkedStaged walked;
  ASSERT_OK(WalkCall(device, args, {SpanOf(memory)}, &r, &walked));
  EXPECT_EQ(missing_from, 11u);
  EXPECT_EQ(missing_to, 21u);
}

// Where the slots of a move lie, only the kernel knows: what the CPU compares is not compared.
TEST_F(StagedGrid, ChecksOfAMoveDoNotReadTheDevice) {
  const Context device = Create(Config(8));
  device->backend = &kStagedDevice;
  const auto nowhere = [](uintptr_t at) { return reinterpret_cast<void*>(4096 * at); };
  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  cache.kind = ROPE_SLOTS_MAPPED;
  cache.pages = 4;
  cache.page_size = 2;
  cache.slots_length = 3;
  cache.slots_i64 = static_cast<int64_t*>(nowhere(1));
  cache.dropped = static_cast<uint32_t*>(nowhere(2));
  cache.k = rope::testing::Tensor(nowhere(3), ROPE_DTYPE_F32, 1, ROPE_LAYOUT_NHD);
  const rope_positions before =
      rope::testing::Ids(ROPE_POSITIONS_IDS_T, static_cast<int64_t*>(nowhere(4)));
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.source = fused.cache = &cache;
  fused.from_positions = &before;
  rope_qk_args args = rope::testing::Args(1, 3);
  args.operation = ROPE_OPERATION_REROTATE;
  args.positions = rope::testing::Offset(0);
  args.fused = &fused;
  Planned planned;
  ASSERT_OK(planned.Make(device, args));
  EXPECT_EQ(planned.fused.dropped, cache.dropped);
  EXPECT_EQ(planned.fused.source_dropped, cache.dropped);
}

}  // namespace
}  // namespace rope::gpu
