// Calls on the walked grid and on the CPU: the same bits. Every access to a tensor must be aligned
// and inside it, and every output written exactly once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cpu/kernels.h"
#include "cuda/traits.h"
#include "gpu/kernel.h"
#include "gpu/launch.h"
#include "gpu/plain.h"
#include "librope/rope.h"
#include "math/operation.h"
#include "math/pairing.h"
#include "support/cache_call.h"
#include "support/elements.h"
#include "support/handles.h"
#include "support/memory.h"
#include "support/random.h"
#include "support/random_call.h"
#include "walk.h"

namespace rope::gpu {
namespace {

constexpr Names kNames = {"", "", "q", "k", "q_out", "k_out", ".data", {}};

using rope::testing::CacheCall;
using rope::testing::CacheCase;
using rope::testing::Config;
using rope::testing::Context;
using rope::testing::Create;
using rope::testing::CreateSets;
using rope::testing::FromLine;
using rope::testing::IsSame;
using rope::testing::kLine;
using rope::testing::Lines;
using rope::testing::Random;
using rope::testing::RandomCacheCase;
using rope::testing::RandomCall;
using rope::testing::Rows;

class CudaGrid : public ::testing::Test {
 protected:
  void SetUp() override {
    const rope::cpu::Kernels* kernels = nullptr;
    ASSERT_EQ(rope::cpu::ChooseKernels("CudaGrid", &kernels), ROPE_OK) << rope_last_error();
    if (!kernels->fused) GTEST_SKIP() << "this CPU has no fused multiply-add";
    arena = &arena_;
  }
  Arena arena_;
};

struct Tally {
  int per_channel = 0, copies = 0, few = 0, several = 0, refused = 0, sequences = 0, nope = 0;
};

// `walked` and the CPU's `expected` memory of a call, up to the third element that differs.
void ExpectSame(const RandomCall& call, const std::vector<RandomCall::Buffer>& expected) {
  for (size_t b = 0; b < expected.size(); ++b) {
    const rope_dtype dtype = call.buffers[b].dtype;
    if (dtype == 0) continue;  // positions
    const char* const want = expected[b].bytes.data();
    const char* const got = call.buffers[b].bytes.data();
    const auto elements = static_cast<int64_t>(expected[b].bytes.size()) / ElementSize(dtype);
    int bad = 0;
    for (int64_t i = 0; i < elements && bad < 3; ++i) {
      if (IsSame(dtype, want, got, i)) continue;
      ++bad;
      ADD_FAILURE() << "buffer " << b << " dtype " << dtype << " element " << i << ": "
                    << LoadElement(dtype, got, i) << ", on the CPU " << LoadElement(dtype, want, i)
                    << "; " << call.Describe();
    }
  }
}

// All kernels of kernel.h and of plain.h.
void ExpectAll(const std::set<int>& kernels) {
  for (int n = 0; n < kVariants; ++n) {
    const Variant v = VariantAt(n);
    for (const bool plain : {false, true}) {
      if (plain && !HasPlain(v)) continue;
      EXPECT_EQ(kernels.count(n + (plain ? kVariants : 0)), 1u)
          << "dtype " << v.dtype << " form " << v.form << " arithmetic "
          << static_cast<int>(v.arithmetic) << (plain ? " plain" : "");
    }
  }
}

// One random call, on the CPU and on the walked grid.
void RunCase(uint64_t seed, Tally* tally) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomCall c(seed, RandomCall::kEverything);
  const Context context = c.CreateContext();
  ASSERT_NE(context, nullptr) << c.Describe();
  c.MakeApply();
  const rope_qk_args& args = c.args;
  const auto before = c.Snapshot();
  ASSERT_OK(rope_apply_qk(context.get(), &args)) << c.Describe();
  const auto expected = c.Snapshot();
  c.Restore(before);

  Plan plan;
  Shapes shapes;
  ASSERT_OK(MakePlan("test", kNames, context.get(), &args, DataOf::kCall, &plan, &shapes, nullptr,
                     nullptr));
  *arena = Arena{};
  std::vector<std::unique_ptr<std::vector<uint8_t>>> writes;
  int64_t expected_bytes = 0;
  for (const RandomCall::CallTensor& t : c.tensors) {
    if (!t.present) continue;
    std::vector<char>& in = c.buffers[t.in_buffer].bytes;
    std::vector<char>& out = c.buffers[t.out_buffer].bytes;
    writes.push_back(std::make_unique<std::vector<uint8_t>>(out.size(), 0));
    arena->ranges.push_back({out.data(), out.data() + out.size(), writes.back().get()});
    if (!t.in_place) arena->ranges.push_back({in.data(), in.data() + in.size(), nullptr});
    int64_t channels = t.in_place || t.is_slice ? context->rotary_dim : context->head_dim;
    if (t.in_place && context->nope) channels = 0;
    expected_bytes += args.batch * args.tokens * t.in->heads * channels * ElementSize(t.in->dtype);
  }
  Walked w;
  const int32_t multiprocessors = c.random.Of({1, 4, 132});
  const rope_status s = ForEachLaunch(plan, multiprocessors, Walk, &w);
  if (s == ROPE_ERROR_UNSUPPORTED) {
    EXPECT_TRUE(MovesChannels(ChannelOrderOf(context->pairing, args.operation)));
    const int32_t terms = context->sums ? context->axes : 1;
    EXPECT_GT(context->pairs, 64 / terms / 8 * 8);
    EXPECT_EQ(arena->bytes_written, 0);
    ++tally->refused;
    return;
  }
  ASSERT_EQ(s, ROPE_OK) << rope_last_error();
  EXPECT_FALSE(arena->failed) << "outside of a tensor, or written twice";
  EXPECT_EQ(arena->bytes_written, expected_bytes) << c.Describe();
  ExpectSame(c, expected);
  tally->per_channel += args.cos_sin != nullptr && kCosSinFormats[c.rows.format].per_channel();
  tally->few += args.batch * args.tokens < 4 * multiprocessors ? 1 : 0;
  tally->several += w.launches > 1 ? 1 : 0;
  tally->sequences += args.positions.cu_seqlens != nullptr ? 1 : 0;
  tally->nope += context->nope ? 1 : 0;
  for (int n = 0; n < plan.tensor_count; ++n) tally->copies += plan.tensors[n].copies_rest ? 1 : 0;
}

TEST_F(CudaGrid, RandomCallsEqualTheCpuBitForBit) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr uint32_t kCases = 1000;
#else
  constexpr uint32_t kCases = 4000;
#endif
  Tally tally;
  for (uint64_t seed = 0; seed < kCases && !HasFailure(); ++seed) RunCase(seed, &tally);
  EXPECT_GT(tally.per_channel, 25);
  EXPECT_GT(tally.copies, 25);
  EXPECT_GT(tally.few, 25);
  EXPECT_GT(tally.several, 25);
  EXPECT_GT(tally.refused, 0);
  EXPECT_GT(tally.sequences, 25);
  EXPECT_GT(tally.nope, 5);
  ExpectAll(walked);
}

// A call out of place with channels outside the span: f32, q alone, at `in_at` and `out_at` bytes
// behind the start of a line, heads `head_stride` channels apart (0: contiguous).
struct CopyCase {
  const char* name;
  int head_dim, rotary_dim, rotary_offset;
  int head_stride;
  int in_at, out_at;
  rope_angle angle;
};

void ExpectCopied(const CopyCase& e) {
  constexpr int kTokens = 3, kHeads = 2;
  SCOPED_TRACE(e.name);
  rope_config config = Config(e.head_dim);
  config.rotary_dim = e.rotary_dim;
  config.rotary_offset = e.rotary_offset;
  config.angle = e.angle;
  const Context context = Create(config);
  const int stride = e.head_stride != 0 ? e.head_stride : e.head_dim;
  const size_t bytes = static_cast<size_t>(kTokens * kHeads * stride) * sizeof(float);
  std::vector<char> in_memory(bytes + 2 * kLine), out_memory(bytes + 2 * kLine);
  char* const in = FromLine(&in_memory) + e.in_at;
  char* const out = FromLine(&out_memory) + e.out_at;
  for (size_t i = 0; i < bytes / sizeof(float); ++i) {
    StoreElement(ROPE_DTYPE_F32, in, static_cast<int64_t>(i), 1.0f + static_cast<float>(i));
  }
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = 1;
  args.tokens = kTokens;
  args.positions.kind = ROPE_POSITIONS_OFFSET;
  args.positions.offset = 7;
  args.q.data = in;
  args.q.dtype = ROPE_DTYPE_F32;
  args.q.heads = kHeads;
  args.q.layout = ROPE_LAYOUT_STRIDED;
  args.q.stride_head = stride;
  args.q.stride_token = kHeads * stride;
  args.q_out = args.q;
  args.q_out.data = out;
  ASSERT_EQ(rope_apply_qk(context.get(), &args), ROPE_OK) << rope_last_error();
  const std::vector<char> expected(out, out + bytes);
  std::fill(out, out + bytes, 0);

  Plan plan;
  Shapes shapes;
  ASSERT_OK(MakePlan("test", kNames, context.get(), &args, DataOf::kCall, &plan, &shapes, nullptr,
                     nullptr));
  *arena = Arena{};
  std::vector<uint8_t> writes(bytes, 0);
  arena->ranges.push_back({in, in + bytes, nullptr});
  arena->ranges.push_back({out, out + bytes, &writes});
  Walked w;
  ASSERT_EQ(ForEachLaunch(plan, 132, Walk, &w), ROPE_OK) << rope_last_error();
  EXPECT_FALSE(arena->failed) << "outside of a tensor, or written twice";
  EXPECT_EQ(arena->bytes_written, int64_t{kTokens} * kHeads * e.head_dim * 4);
  EXPECT_EQ(std::memcmp(out, expected.data(), bytes), 0);
}

TEST_F(CudaGrid, CopiesTheRestOnceAndAligned) {
  const CopyCase cases[] = {
      {"all aligned", 16, 8, 4, 0, 0, 0, ROPE_ANGLE_FLOAT32},
      {"the span aligned, the head not", 12, 8, 2, 0, 8, 8, ROPE_ANGLE_FLOAT32},
      {"the input's head alone not aligned", 12, 8, 2, 0, 8, 0, ROPE_ANGLE_FLOAT32},
      {"a rest of half a vector", 10, 8, 0, 12, 0, 0, ROPE_ANGLE_FLOAT32},
      {"frequencies in several launches", 512, 400, 16, 0, 0, 0, ROPE_ANGLE_EXACT},
  };
  for (const CopyCase& e : cases) ExpectCopied(e);
}

// A context of a device as CUDA is: its checks do not read what lies there.
constexpr Backend kDevice = cuda::MakeBackend(nullptr, nullptr, nullptr);

// What a call writes, from its plan.
int64_t BytesOf(const Plan& plan, int64_t stored) {
  const rope_context& context = *plan.context;
  const int64_t tokens = plan.batch * plan.tokens;
  int64_t bytes = 0;
  for (int32_t n = 0; n < plan.tensor_count; ++n) {
    const Tensor& t = plan.tensors[n];
    if (context.nope && t.in == t.out) continue;
    bytes += (n == plan.fused->cached ? stored : tokens) * t.heads * ElementSize(t.dtype) *
             (t.copies_rest ? context.head_dim : context.rotary_dim);
  }
  for (int32_t n = 0; n < plan.fused->copies.count; ++n) {
    const Copy& c = plan.fused->copies.of[n];
    bytes += (c.ToSlots() ? stored : tokens) * c.heads * c.width;
  }
  return bytes;
}

struct AppendTally {
  int64_t stored = 0, missing = 0;
  int rows = 0, sets = 0, nope = 0, one = 0, two = 0, more = 0, refused = 0;
};

void RunAppend(uint64_t seed, AppendTally* tally) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random r(seed);
  const CacheCase e = RandomCacheCase(&r);
  std::vector<rope_config> configs(e.wish.sets, e.config);
  for (size_t s = 0; s < configs.size(); ++s) configs[s].theta = 10000 + 100 * static_cast<int>(s);
  const Context cpu = CreateSets(configs), device = CreateSets(configs);
  ASSERT_TRUE(cpu != nullptr && device != nullptr);
  device->backend = &kDevice;
  CacheCall call(e.config, e.wish, seed);
  std::vector<float> cos(call.batch() * call.tokens() * e.config.head_dim * 2), sin(cos.size());
  for (size_t i = 0; i < cos.size(); ++i) {
    cos[i] = static_cast<float>(r.Pick(-50, 50)) / 50;
    sin[i] = static_cast<float>(r.Pick(-50, 50)) / 50;
  }
  rope_cos_sin rows = Rows(r.Sometimes(2) ? ROPE_COS_SIN_FULL_HALVES : ROPE_COS_SIN_SPLIT,
                           ROPE_DTYPE_F32, cpu->pairs, call.batch(), cos.data(), sin.data());
  rows.heads = e.row_heads ? 2 : 0;
  if (e.rows) call.ReadRows(&rows);
  uint32_t dropped = 7;
  if (!r.Sometimes(4)) call.cache()->dropped = &dropped;

  const rope_qk_args& args = call.args();
  const Lines want = call.Want(cpu);
  Plan plan;
  Shapes shapes;
  FusedPlan fused;
  FusedShapes fused_shapes;
  ASSERT_OK(MakePlan("test", kNames, device.get(), &args, DataOf::kCall, &plan, &shapes, &fused,
                     &fused_shapes));
  *arena = Arena{};
  std::vector<uint8_t> writes(call.memory().size());
  const char* const begin = call.memory().data();
  arena->ranges.push_back({begin, begin + writes.size(), &writes});
  WalkedFused w;
  const rope_status s = ForEachFusedLaunch(plan, r.Of({1, 4, 132}), WalkFused, &w);
  if (s == ROPE_ERROR_UNSUPPORTED) {
    EXPECT_EQ(arena->bytes_written, 0);
    ++tally->refused;
    return;
  }
  ASSERT_EQ(s, ROPE_OK) << rope_last_error();
  EXPECT_FALSE(arena->failed) << "outside of memory, or written twice";
  EXPECT_EQ(arena->bytes_written, BytesOf(plan, call.stored()));
  const auto at = std::mismatch(want.begin(), want.end(), call.memory().begin()).first;
  ASSERT_EQ(at - want.begin(), static_cast<int64_t>(want.size())) << e.Describe();
  EXPECT_EQ(dropped, 7 + (call.cache()->dropped != nullptr ? call.missing() : 0));
  tally->stored += call.stored();
  tally->missing += call.missing();
  tally->rows += e.rows;
  tally->sets += plan.context->sets.size() > 1;
  tally->nope += plan.context->nope;
  ++(w.launches == 1 ? tally->one : w.launches == 2 ? tally->two : tally->more);
}

TEST_F(CudaGrid, AppendsEqualTheReferenceByteForByte) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr uint32_t kCases = 1000;
#else
  constexpr uint32_t kCases = 2500;
#endif
  AppendTally tally;
  for (uint64_t seed = 1; seed <= kCases && !HasFailure(); ++seed) RunAppend(seed, &tally);
  EXPECT_GT(tally.stored, 10000);
  EXPECT_GT(tally.missing, 1000);
  EXPECT_GT(tally.rows, 25);
  EXPECT_GT(tally.sets, 25);
  EXPECT_GT(tally.nope, 25);
  EXPECT_GT(tally.one, 25);
  EXPECT_GT(tally.two, 25);
  EXPECT_GT(tally.more, 25);
  EXPECT_GT(tally.refused, 0);
  ExpectAll(walked_fused);
}

// Arrays of a device are not read by the checks: only the kernel sees what they hold. All else is
// checked as on the CPU.
TEST_F(CudaGrid, ChecksOfAnAppendDoNotReadTheDevice) {
  const Context context = Create(Config(8)), cpu = Create(Config(8));
  context->backend = &kDevice;
  const auto nowhere = [](int at) {
    return reinterpret_cast<void*>(0x1000 + uintptr_t{4096} * at);
  };
  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  cache.kind = ROPE_SLOTS_PAGED;
  cache.pages = 2;
  cache.page_size = 2;
  cache.page_table = static_cast<int32_t*>(nowhere(1));
  cache.page_starts = static_cast<int32_t*>(nowhere(2));
  cache.starts = static_cast<int32_t*>(nowhere(3));
  cache.dropped = static_cast<uint32_t*>(nowhere(4));
  cache.k = rope::testing::Tensor(nowhere(5), ROPE_DTYPE_F32, 1, ROPE_LAYOUT_NHD);
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.cache = &cache;
  rope_qk_args args = rope::testing::Args(1, 3);
  args.k = rope::testing::Tensor(nowhere(6), ROPE_DTYPE_F32, 1);
  args.positions = rope::testing::Offset(0);
  args.fused = &fused;
  Plan plan;
  Shapes shapes;
  FusedPlan made;
  FusedShapes made_shapes;
  const auto make_for = [&](const Context& of) {
    return MakePlan("test", kNames, of.get(), &args, DataOf::kCall, &plan, &shapes, &made,
                    &made_shapes);
  };
  const auto make = [&] { return make_for(context); };
  ASSERT_OK(make());
  EXPECT_EQ(made.dropped, cache.dropped);
  EXPECT_EQ(make_for(cpu), ROPE_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(
      rope_last_error(),
      "test: args->fused->cache->dropped must be NULL in a CPU context, which refuses a slot "
      "that does not exist");
  cache.dropped = reinterpret_cast<uint32_t*>(0x1002);
  EXPECT_EQ(make(), ROPE_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(rope_last_error(),
               "test: args->fused->cache->dropped (0x1002) must be aligned to 4 bytes");
  cache.dropped = nullptr;
  ASSERT_OK(make());
  EXPECT_EQ(made.dropped, nullptr);
  cache.page_table_stride = 1;
  EXPECT_EQ(make(), ROPE_ERROR_INVALID_ARGUMENT);
  rope_prepared* prepared;
  EXPECT_EQ(rope_prepared_create(context.get(), &args, &prepared), ROPE_ERROR_UNSUPPORTED);
  EXPECT_STREQ(
      rope_last_error(),
      "rope_prepared_create: context must be a CPU context: there are no prepared calls of "
      "CUDA in this version");
}

// Whatever starts, runs and tables hold, a token goes to a slot of the cache or nowhere.
TEST_F(CudaGrid, SlotsOfAnyArraysExist) {
  std::mt19937 random(2);
  const auto any = [&] {
    const int shift = static_cast<int>(random() % 31);
    return static_cast<int32_t>(random()) >> shift;
  };
  int64_t found = 0;
  for (int round = 0; round < 20000; ++round) {
    int32_t cuts[] = {any(), any(), any()}, starts[] = {any(), any()}, table[8],
            first[] = {0, 4, 8};
    int64_t slots[8];
    for (int i = 0; i < 8; ++i)
      table[i] = any(), slots[i] = any() * (int64_t{1} << (random() % 33));
    PositionSource positions{};
    positions.cu_seqlens = cuts;
    positions.sequences = 2;
    SlotSource source{};
    source.kind = static_cast<rope_slot_kind>(1 + random() % 3);
    source.page_size = 1 + static_cast<int32_t>(random() % 40);
    source.pages = 2 + random() % 20;
    source.slots_i64 = slots;
    source.slots_length = 8;
    source.page_table = table;
    if (random() % 2 == 0) {
      source.page_starts = first;
    } else {
      source.page_table_stride = 4;
    }
    source.starts = starts;
    for (int64_t i = 0; i < 8; ++i) {
      const Slot slot = SlotOf(source, LocateTokenWide(positions, {0, i}), 8);
      ASSERT_LT(slot.page, source.pages);
      ASSERT_GE(slot.index, 0);
      ASSERT_LT(slot.index, source.page_size);
      found += slot.page >= 0;
    }
  }
  EXPECT_GT(found, 1000);
}

rope_status WalkFill(const FillLaunch& l, void*) {
  for (uint32_t n = 0; n < l.grid_x * kFillTokens; ++n) {
    if (n >= l.source.tokens.count) continue;
    for (uint32_t pair = 0; pair < l.source.pairs; ++pair) {
      l.with_angles ? Fill<true>(l.source, n, pair) : Fill<false>(l.source, n, pair);
    }
  }
  return ROPE_OK;
}

TEST_F(CudaGrid, FilledRowsEqualTheCpuBitForBit) {
  for (uint64_t seed = 0; seed < 1000 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomCall c(seed, RandomCall::kEverything);
    const Context context = c.CreateContext();
    ASSERT_NE(context, nullptr) << c.Describe();
    c.MakeFill();
    const rope_qk_args& a = c.args;
    const auto before = c.Snapshot();
    ASSERT_OK(rope_cos_sin_fill(context.get(), a.batch, a.tokens, &a.positions, &c.rows, nullptr));
    const auto expected = c.Snapshot();
    c.Restore(before);
    FillPlan plan;
    ASSERT_OK(MakeFillPlan("test", context.get(), a.batch, a.tokens, &a.positions, &c.rows, nullptr,
                           &plan));
    ASSERT_OK(ForEachFillLaunch(plan, &WalkFill, nullptr));
    ExpectSame(c, expected);
  }
}

// A sequence index that points nowhere means set 0; any cu_seqlens stays inside its arrays.
TEST_F(CudaGrid, DeviceArraysMayHoldAnything) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    const int32_t sequences = std::uniform_int_distribution<int32_t>(1, 700)(random);
    std::vector<int32_t> cuts(static_cast<size_t>(sequences) + 1);
    const bool valid = round % 2 == 0;
    for (auto& cut : cuts) {
      cut = valid ? std::uniform_int_distribution<int32_t>(0, 500)(random)
                  : static_cast<int32_t>(random());
    }
    if (valid) {
      std::sort(cuts.begin(), cuts.end());
      cuts.front() = 0;
      cuts.back() = 500;
    }
    for (int64_t index : {0, 1, 37, 255, 499}) {
      const int64_t found = FindSequenceWide(cuts.data(), sequences, index);
      ASSERT_GE(found, 0);
      ASSERT_LT(found, sequences);
      if (valid) {
        ASSERT_EQ(found, FindSequence(cuts.data(), sequences, index));
      }
    }
  }
  const int32_t sets[] = {3, -1, 4, INT32_MAX, INT32_MIN};
  CosSinSource source{};
  source.all_sets = 4;
  source.positions.freq_sets = sets;
  const int32_t expected[] = {3, 0, 0, 0, 0};
  for (int s = 0; s < 5; ++s) EXPECT_EQ(SetOf(source, Token{0, 0, s, 0}), expected[s]);
}

}  // namespace
}  // namespace rope::gpu
