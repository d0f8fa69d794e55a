// From plans to launches: tokens are counted without division, extents and heads may exceed what
// one launch takes, and calls get the shapes that the kernels were designed around. What is walked
// lies in memory that is only addresses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "context/context.h"
#include "gpu/launch.h"
#include "host_memory.h"
#include "math/element.h"
#include "math/rotate.h"
#include "support/handles.h"
#include "walk.h"

namespace rope::gpu {
namespace {

using rope::testing::Config;
using rope::testing::Context;
using rope::testing::Create;

class LaunchTest : public ::testing::Test {
 protected:
  void SetUp() override { arena = &arena_; }
  Arena arena_;
};

struct Split {
  int64_t batch, tokens;
};

rope_status CheckSplit(const Launch& l, void* data) {
  const auto& split = *static_cast<const Split*>(data);
  const TokenRange& r = l.params.source.tokens;
  std::vector<uint32_t> tries = {0, 1, r.count / 2, r.count - 1};
  if (split.tokens < r.count) {
    for (int64_t k : {int64_t{1}, int64_t{2}, split.batch / 3, r.count / split.tokens}) {
      for (int64_t d : {-1, 0, 1}) tries.push_back(static_cast<uint32_t>(k * split.tokens + d));
    }
  }
  for (uint32_t n : tries) {
    if (n >= r.count) continue;
    const int64_t flat = r.first_batch * split.tokens + r.first_index + n;
    const TokenIndex at = SplitToken(r, n);
    EXPECT_EQ(at.batch, flat / split.tokens) << n << " of " << split.tokens;
    EXPECT_EQ(at.index, flat % split.tokens) << n << " of " << split.tokens;
  }
  return ROPE_OK;
}

Context Plain(int head_dim, rope_pairing pairing, rope_angle angle) {
  rope_config config = Config(head_dim, pairing);
  config.angle = angle;
  return Create(config);
}

// A call whose q (f32) lies at addresses that nothing dereferences.
Plan VirtualPlan(const rope_context& context, int64_t batch, int64_t tokens, int heads) {
  Plan plan{};
  plan.row_heads = 1;
  plan.function = "test";
  plan.context = &context;
  plan.batch = batch;
  plan.tokens = tokens;
  plan.tensor_count = 1;
  Tensor& t = plan.tensors[0];
  t.in = reinterpret_cast<char*>(0x100000000000);
  t.out = reinterpret_cast<char*>(0x200000000000);
  t.heads = heads;
  t.dtype = ROPE_DTYPE_F32;
  t.in_strides.head = context.head_dim * 4;
  t.in_strides.token = heads * t.in_strides.head;
  t.in_strides.batch = tokens * t.in_strides.token;
  t.out_strides = t.in_strides;
  return plan;
}

TEST_F(LaunchTest, CountsTokensWithoutDivision) {
  const Context context = Plain(64, ROPE_PAIRING_HALVES, ROPE_ANGLE_EXACT);
  std::mt19937_64 random(2);
  for (int round = 0; round < 3000; ++round) {
    const int bits = static_cast<int>(random() % 33);
    Split split{1 + static_cast<int64_t>(random() % 100000),
                1 + static_cast<int64_t>(random() & ((uint64_t{1} << bits) - 1))};
    while (split.batch > 1 && split.batch * split.tokens > int64_t{1} << 34) split.batch /= 2;
    const Plan plan = VirtualPlan(*context, split.batch, split.tokens, 1);
    ASSERT_EQ(ForEachLaunch(plan, 132, &CheckSplit, &split), ROPE_OK);
  }
}

// Extents far beyond 2^31 elements: the first, last and some other blocks, on virtual memory.
TEST_F(LaunchTest, ExtentsMayExceed32Bits) {
  for (const rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
    const Context context = Plain(64, pairing, ROPE_ANGLE_EXACT);
    for (const auto& [batch, tokens] :
         {std::pair<int64_t, int64_t>{1, 5000000000}, {70000, 65536}, {3000000000, 1}}) {
      const int heads = 3;
      const Plan plan = VirtualPlan(*context, batch, tokens, heads);
      Walked w;
      w.walk = false;
      w.keep = true;
      ASSERT_EQ(ForEachLaunch(plan, 132, Walk, &w), ROPE_OK);
      int64_t counted = 0;
      for (const Launch& l : w.kept) {
        counted += l.params.source.tokens.count;
        for (const uint32_t block : {0u, l.shape.grid_x / 3, l.shape.grid_x - 1}) {
          *arena = Arena{};
          arena->is_virtual = true;
          for (uint32_t y = 0; y < l.shape.grid_y; ++y) WalkBlock(l, block, y);
          size_t vectors = 0;
          for (uint32_t z = 0; z < l.shape.z; ++z) {
            const int64_t n = int64_t{block} * l.shape.z + z;
            if (n >= l.params.source.tokens.count) continue;
            const TokenRange& r = l.params.source.tokens;
            const int64_t flat = r.first_batch * tokens + r.first_index + n;
            const int64_t index = flat % tokens;
            for (int h = 0; h < heads; ++h) {
              const uint64_t at = static_cast<uint64_t>(flat * heads + h) * 64;
              for (int channel = 0; channel < 64; channel += 4) {
                const auto found = arena->stores.find(0x200000000000 + (at + channel) * 4);
                ASSERT_NE(found, arena->stores.end());
                ++vectors;
                for (int e = 0; e < 4; ++e) {
                  const bool halves = pairing == ROPE_PAIRING_HALVES;
                  const int c = channel + e, pair = halves ? c % 32 : c / 2;
                  const bool first = halves ? c < 32 : c % 2 == 0;
                  const PairIndex of = ChannelsOf(!halves, pair, 32);
                  const FrequencySet& set = context->sets[0];
                  const CosSin cs = CosSinOfPosition(
                      static_cast<uint64_t>(set.turns_high[pair]) << 32 | set.turns_low[pair],
                      index);
                  const Pair x = {BitsFloat(VirtualWord(0x100000000000 + (at + of.first) * 4)),
                                  BitsFloat(VirtualWord(0x100000000000 + (at + of.second) * 4))};
                  const Pair turned = Rotate(x, cs, cs);
                  ASSERT_EQ(found->second[static_cast<size_t>(e)],
                            FloatBits(first ? turned.x0 : turned.x1));
                }
              }
            }
          }
          EXPECT_EQ(arena->stores.size(), vectors) << "nothing else is written";
        }
      }
      EXPECT_EQ(counted, batch * tokens);
    }
  }
}

// Heads so far apart that their offsets have more than 32 bits.
TEST_F(LaunchTest, HeadsMayLieFarApart) {
  const Context context = Plain(64, ROPE_PAIRING_HALVES, ROPE_ANGLE_EXACT);
  constexpr int kHeads = 3, kTokens = 9;
  constexpr int64_t kApart = int64_t{1} << 31;
  for (const bool input : {true, false}) {
    Plan plan = VirtualPlan(*context, 1, kTokens, kHeads);
    (input ? plan.tensors[0].in_strides : plan.tensors[0].out_strides).head = kApart;
    Walked w;
    w.keep = true;
    *arena = Arena{};
    arena->is_virtual = true;
    ASSERT_EQ(ForEachLaunch(plan, 132, Walk, &w), ROPE_OK);
    ASSERT_EQ(w.kept.size(), 1u);
    EXPECT_FALSE(w.kept[0].plain);
    EXPECT_EQ(arena->stores.size(), static_cast<size_t>(kTokens * kHeads * 16));
    const uint64_t last = (kHeads - 1) * (input ? 256 : kApart) + (kTokens - 1) * kHeads * 256;
    EXPECT_EQ(arena->stores.count(0x200000000000 + last), 1u);
  }
}

// More heads than the rows of one grid take: each launch goes on where the one before ended.
TEST_F(LaunchTest, HeadsBeyondOneGridGoOnInTheNext) {
  const Context context = Plain(64, ROPE_PAIRING_HALVES, ROPE_ANGLE_EXACT);
  constexpr int kHeads = 10000000;
  const Plan plan = VirtualPlan(*context, 1, 1, kHeads);
  Walked w;
  w.walk = false;
  w.keep = true;
  ASSERT_EQ(ForEachLaunch(plan, 132, Walk, &w), ROPE_OK);
  ASSERT_GT(w.launches, 1);
  int64_t row = 0;  // heads before this launch: few tokens, so that a thread has one head
  for (const Launch& l : w.kept) {
    ASSERT_EQ(l.shape.heads_per_thread, 1u);
    for (const uint32_t block : {0u, l.shape.grid_y / 2, l.shape.grid_y - 1}) {
      *arena = Arena{};
      arena->is_virtual = true;
      WalkBlock(l, 0, block);
      const int64_t first = row + int64_t{block} * l.shape.y;
      const int64_t count = std::min<int64_t>(l.shape.y, kHeads - first);
      ASSERT_GT(count, 0);
      ASSERT_FALSE(arena->stores.empty());
      EXPECT_EQ(arena->bytes_written, count * 64 * 4);
      EXPECT_EQ(arena->stores.begin()->first, 0x200000000000 + static_cast<uint64_t>(first) * 256);
    }
    row += int64_t{l.shape.grid_y} * l.shape.y;
  }
  EXPECT_GE(row, kHeads);
  EXPECT_LT(row, kHeads + int64_t{w.kept[0].shape.y});
}

struct Expected {
  int lanes, q, k, pairs;
  int64_t tokens;
  uint32_t x, y, z, grid_y;
};

// The shapes that the kernels were designed around, on a device of 132 multiprocessors.
TEST_F(LaunchTest, ShapesAreThoseOfTheDesign) {
  const Expected cases[] = {
      {8, 32, 8, 64, 8192, 8, 20, 1, 1},    // 32+8 x 128 bf16
      {16, 32, 8, 64, 8192, 16, 20, 1, 1},  // f32
      {8, 8, 1, 64, 32768, 8, 5, 4, 1},    {8, 64, 8, 64, 8192, 8, 36, 1, 1},
      {8, 128, 8, 64, 8192, 8, 34, 1, 2},  {4, 128, 1, 32, 8192, 4, 65, 1, 1},  // MLA
      {4, 16, 1, 32, 8192, 4, 9, 8, 1},    {5, 32, 32, 40, 8192, 5, 32, 1, 1},
      {6, 32, 32, 48, 8192, 6, 32, 1, 1},  {16, 16, 8, 128, 8192, 16, 12, 1, 1},
      {4, 14, 2, 32, 8192, 4, 8, 4, 1},    {8, 32, 8, 64, 1, 8, 8, 1, 5},  // decode
      {8, 32, 8, 64, 64, 8, 8, 1, 5},
  };
  for (const Expected& e : cases) {
    const Shape s = ShapeOf({static_cast<uint32_t>(e.lanes),
                             {static_cast<uint32_t>(e.q), static_cast<uint32_t>(e.k)},
                             e.tokens,
                             static_cast<uint32_t>(e.pairs) * 8,
                             132});
    EXPECT_EQ(s.x, e.x);
    EXPECT_EQ(s.y, e.y) << e.q << "+" << e.k << " lanes " << e.lanes;
    EXPECT_EQ(s.z, e.z) << e.q << "+" << e.k << " lanes " << e.lanes;
    EXPECT_EQ(s.grid_y, e.grid_y);
    EXPECT_EQ(s.grid_x, (e.tokens + s.z - 1) / s.z);
  }
}

TEST_F(LaunchTest, QAndKOfOneDtypeShareALaunch) {
  const Context context = Plain(512, ROPE_PAIRING_HALVES, ROPE_ANGLE_FLOAT32);
  Plan plan = VirtualPlan(*context, 1, 4096, 8);
  plan.tensor_count = 2;
  plan.tensors[1] = plan.tensors[0];
  Walked w;
  w.walk = false;
  ASSERT_EQ(ForEachLaunch(plan, 132, Walk, &w), ROPE_OK);
  EXPECT_EQ(w.launches, 1);
  plan.tensors[1].dtype = ROPE_DTYPE_BF16;
  ASSERT_EQ(ForEachLaunch(plan, 132, Walk, &w), ROPE_OK);
  EXPECT_EQ(w.launches, 1 + 2);
}

// VirtualPlan with k and v of 8 heads, which go to 100 pages of 16 slots, NHD.
struct VirtualAppend {
  explicit VirtualAppend(const rope_context& context) : plan(VirtualPlan(context, 1, 4096, 32)) {
    plan.fused = &fused;
    plan.tensor_count = 2;
    Tensor& k = plan.tensors[1] = plan.tensors[0];
    k.heads = 8;
    k.in_strides = {0, 8 * 512, 512};
    k.in = reinterpret_cast<char*>(0x300000000000);
    k.out = reinterpret_cast<char*>(0x400000000000);
    k.out_strides = {16 * 8 * 512, 8 * 512, 512};
    fused.cached = 1;
    fused.slots.kind = ROPE_SLOTS_LINEAR;
    fused.slots.pages = 100;
    fused.slots.page_size = 16;
    AddV(0x600000000000, k.out_strides, true);
  }
  void AddV(uint64_t out, const HeadStrides& strides, bool to_slots) {
    Copy& v = fused.copies.of[fused.copies.count++];
    v.from = kV;
    v.to = to_slots ? kCacheV : kVOut;
    v.in = reinterpret_cast<char*>(0x500000000000);
    v.out = reinterpret_cast<char*>(out);
    v.in_strides = plan.tensors[1].in_strides;
    v.out_strides = strides;
    v.width = 512;
    v.heads = 8;
    v.dtype = plan.tensors[1].dtype;
    v.norm = nullptr;
  }
  Tensor& k() { return plan.tensors[1]; }
  Copy& v() { return fused.copies.of[0]; }

  FusedPlan fused{};
  Plan plan;
};

struct AppendCase {
  const char* name;
  void (*change)(VirtualAppend*);
  // Of each launch.
  struct Want {
    rope_dtype dtype;
    Form form;
    int sides, to_slots;
    uint32_t last_heads;  // of its last side
  };
  std::vector<Want> want;
};

TEST_F(LaunchTest, AppendsShareTheLaunchOfQ) {
  constexpr rope_dtype kF32 = ROPE_DTYPE_F32;
  const AppendCase cases[] = {
      {"aligned", [](VirtualAppend*) {}, {{kF32, kHalves16, 3, 2, 8}}},
      {"slots of k at 8 bytes",
       [](VirtualAppend* a) { a->k().out += 8; },
       {{kF32, kHalves2, 3, 2, 8}}},
      {"pages of k at 4 bytes",
       [](VirtualAppend* a) { a->k().out_strides.batch += 4; },
       {{kF32, kSingle, 3, 2, 8}}},
      {"a stride between pages that is not used",
       [](VirtualAppend* a) { a->k().out_strides.batch += 4, a->fused.slots.pages = 1; },
       {{kF32, kHalves16, 3, 2, 8}}},
      {"v at 4 bytes",
       [](VirtualAppend* a) { a->v().in += 4; },
       {{kF32, kHalves16, 2, 1, 8}, {kF32, kSingle, 1, 1, 8}}},
      {"v at 2 bytes",
       [](VirtualAppend* a) { a->v().out += 2; },
       {{kF32, kHalves16, 2, 1, 8}, {ROPE_DTYPE_F16, kSingle, 1, 1, 8}}},
      {"v to an output, too",
       [](VirtualAppend* a) { a->AddV(0x700000000000, a->v().in_strides, false); },
       {{kF32, kHalves16, 4, 2, 8}}},
      {"k to an output, too",
       [](VirtualAppend* a) {
         a->plan.tensors[2] = a->k();
         a->plan.tensors[2].out = reinterpret_cast<char*>(0x700000000000);
         a->plan.tensors[2].out_strides = a->k().in_strides;
         a->plan.tensor_count = 3;
       },
       {{kF32, kHalves16, 4, 2, 8}}},
      {"k in place, too",
       [](VirtualAppend* a) {
         a->plan.tensors[2] = a->k();
         a->plan.tensors[2].out = const_cast<char*>(a->k().in);
         a->plan.tensors[2].out_strides = a->k().in_strides;
         a->plan.tensor_count = 3;
       },
       {{kF32, kHalves16, 3, 2, 8}, {kF32, kHalves16, 1, 0, 8}}},
      {"q of another dtype",
       [](VirtualAppend* a) { a->plan.tensors[0].dtype = ROPE_DTYPE_BF16; },
       {{ROPE_DTYPE_BF16, kHalves16, 1, 0, 32}, {kF32, kHalves16, 2, 2, 8}}},
      // 2048 bytes are 128 vectors, and 16 lanes take 32.
      {"one wide head of v",
       [](VirtualAppend* a) { a->v().width = 2048, a->v().heads = 1; },
       {{kF32, kHalves16, 3, 2, 4}}},
      {"wide heads of v that lie apart",
       [](VirtualAppend* a) { a->v().width = 2048, a->v().out_strides.head = 16 * 2048; },
       {{kF32, kHalves16, 2, 1, 8}, {kF32, kHalves16, 1, 1, 8}}},
  };
  const Context context = Plain(128, ROPE_PAIRING_HALVES, ROPE_ANGLE_EXACT);
  for (const AppendCase& e : cases) {
    SCOPED_TRACE(e.name);
    VirtualAppend append(*context);
    uint32_t dropped = 0;
    append.fused.dropped = &dropped;
    e.change(&append);
    WalkedFused w;
    w.walk = false;
    w.keep = true;
    ASSERT_EQ(ForEachFusedLaunch(append.plan, 132, WalkFused, &w), ROPE_OK);
    ASSERT_EQ(w.kept.size(), e.want.size());
    int counts = 0;
    for (size_t n = 0; n < w.kept.size(); ++n) {
      const FusedParams& p = w.kept[n].params;
      const AppendCase::Want& want = e.want[n];
      EXPECT_EQ(w.kept[n].variant.dtype, want.dtype);
      EXPECT_EQ(w.kept[n].variant.form, want.form);
      ASSERT_EQ(p.side_count, want.sides);
      int to_slots = 0;
      for (int32_t s = 0; s < p.side_count; ++s) to_slots += p.sides[s].to_slots;
      EXPECT_EQ(to_slots, want.to_slots);
      EXPECT_EQ(p.sides[p.side_count - 1].heads, want.last_heads);
      counts += p.dropped != nullptr;
    }
    EXPECT_EQ(counts, 1);
  }
}

// q and k of two dtypes are launches of their own, and k cannot be rotated in place here.
TEST_F(LaunchTest, ARefusedCallHasWrittenNothing) {
  const Context context = Plain(1024, ROPE_PAIRING_INTERLEAVED_TO_HALVES, ROPE_ANGLE_EXACT);
  Plan plan = VirtualPlan(*context, 1, 7, 2);
  plan.tensor_count = 2;
  plan.tensors[1] = plan.tensors[0];
  plan.tensors[1].dtype = ROPE_DTYPE_BF16;
  Walked w;
  w.walk = false;
  EXPECT_EQ(ForEachLaunch(plan, 132, Walk, &w), ROPE_OK);
  EXPECT_GT(w.launches, 2);  // the frequencies of 512 pairs do not fit into one
  plan.tensors[1].out = const_cast<char*>(plan.tensors[1].in);
  w.launches = 0;
  EXPECT_EQ(ForEachLaunch(plan, 132, Walk, &w), ROPE_ERROR_UNSUPPORTED);
  EXPECT_EQ(w.launches, 0);
}

}  // namespace
}  // namespace rope::gpu
