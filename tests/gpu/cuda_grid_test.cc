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
#include "gpu/kernel.h"
#include "gpu/launch.h"
#include "librope/rope.h"
#include "math/operation.h"
#include "math/pairing.h"
#include "support/elements.h"
#include "support/handles.h"
#include "support/memory.h"
#include "support/random_call.h"
#include "walk.h"

namespace rope::gpu {
namespace {

constexpr Names kNames = {"", "", "q", "k", "q_out", "k_out", ".data", {}};

using rope::testing::Config;
using rope::testing::Context;
using rope::testing::Create;
using rope::testing::FromLine;
using rope::testing::IsSame;
using rope::testing::kLine;
using rope::testing::RandomCall;

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
  const rope_status s = ForEachLaunch(plan, multiprocessors, &Walk, &w);
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
  for (int v = 0; v < kVariants; ++v) {
    EXPECT_EQ(walked.count(v), 1u)
        << "dtype " << VariantAt(v).dtype << " form " << VariantAt(v).form << " arithmetic "
        << static_cast<int>(VariantAt(v).arithmetic);
  }
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
  ASSERT_EQ(MakePlan("test", kNames, context.get(), &args, DataOf::kCall, &plan, &shapes, nullptr,
                     nullptr),
            ROPE_OK)
      << rope_last_error();
  *arena = Arena{};
  std::vector<uint8_t> writes(bytes, 0);
  arena->ranges.push_back({in, in + bytes, nullptr});
  arena->ranges.push_back({out, out + bytes, &writes});
  Walked w;
  ASSERT_EQ(ForEachLaunch(plan, 132, &Walk, &w), ROPE_OK) << rope_last_error();
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
