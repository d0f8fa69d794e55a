// The CUDA kernels without a GPU: walks every block and thread of the launches that a call makes,
// with the very functions the kernels consist of, and compares with the CPU backend bit for bit.
// Every access to a tensor must be aligned and inside it, and every output written exactly once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cpu/kernels.h"
#include "gpu/kernel.h"
#include "gpu/launch.h"
#include "librope/rope.h"
#include "math/operation.h"
#include "math/pairing.h"
#include "support/elements.h"
#include "support/handles.h"
#include "support/random_call.h"

namespace rope::gpu {
namespace {

using rope::testing::Config;
using rope::testing::Context;
using rope::testing::Create;
using rope::testing::IsSame;
using rope::testing::RandomCall;

// Device memory as the test sees it: ranges that may be read or written, and how often each byte
// of an output was. With `content` null nothing is dereferenced: bytes follow from addresses, and
// stores are kept.
struct Arena {
  struct Range {
    const char* begin;
    const char* end;
    std::vector<uint8_t>* writes;  // null: read only
  };
  std::vector<Range> ranges;
  bool is_virtual = false;
  std::map<uint64_t, std::vector<uint32_t>> stores;
  int64_t loads = 0, bytes_written = 0;
  bool failed = false;

  const Range* Find(const char* at, int bytes, bool write) {
    for (const Range& r : ranges) {
      if (at >= r.begin && at + bytes <= r.end && (!write || r.writes != nullptr)) return &r;
    }
    return nullptr;
  }
};
Arena* arena;

// What virtual memory holds: small numbers, exact in every dtype.
uint32_t VirtualWord(uint64_t address) {
  const auto value = static_cast<float>((address >> 2) * 2654435761u >> 28 & 15) - 7;
  return FloatBits(value);
}

struct HostMemory {
  template <int kBytes>
  static Vector<kBytes> Load(const char* from) {
    Vector<kBytes> v{};
    const auto address = reinterpret_cast<uint64_t>(from);
    EXPECT_EQ(address % kBytes, 0u);
    ++arena->loads;
    if (arena->is_virtual) {
      for (int w = 0; w < (kBytes + 3) / 4; ++w) v.words[w] = VirtualWord(address + 4 * w);
      return v;
    }
    if (arena->Find(from, kBytes, false) == nullptr) {
      arena->failed = true;
    } else {
      std::memcpy(v.words, from, kBytes);
    }
    return v;
  }

  template <int kBytes>
  static void Store(char* to, const Vector<kBytes>& v) {
    const auto address = reinterpret_cast<uint64_t>(to);
    EXPECT_EQ(address % kBytes, 0u);
    arena->bytes_written += kBytes;
    if (arena->is_virtual) {
      const bool is_new =
          arena->stores.emplace(address, std::vector<uint32_t>(v.words, v.words + kBytes / 4))
              .second;
      EXPECT_TRUE(is_new);
      return;
    }
    const Arena::Range* range = arena->Find(to, kBytes, true);
    if (range == nullptr) {
      arena->failed = true;
      return;
    }
    for (int i = 0; i < kBytes; ++i) {
      if ((*range->writes)[static_cast<size_t>(to - range->begin + i)]++ != 0) arena->failed = true;
    }
    std::memcpy(to, v.words, kBytes);
  }

  template <bool kAgain>
  static TwoRows LoadRows(const CosSin* from) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(from) % 16, 0u);
    TwoRows rows;
    std::memcpy(&rows, from, sizeof(rows));
    return rows;
  }
  static void StoreRow(CosSin* to, CosSin value) { *to = value; }
};

std::set<int> walked;  // variants

template <int kIndex>
void WalkBlock(const Launch& l, uint32_t block_x, uint32_t block_y) {
  constexpr Variant kVariant = VariantAt(kIndex);
  using Body = Kernel<kVariant.dtype, kVariant.form, kVariant.eager, HostMemory>;
  std::vector<Thread> threads;
  for (uint32_t z = 0; z < l.shape.z; ++z) {
    for (uint32_t y = 0; y < l.shape.y; ++y) {
      for (uint32_t x = 0; x < l.shape.x; ++x) {
        threads.push_back({block_x, block_y, x, y, z, l.shape.x, l.shape.y, l.shape.z});
      }
    }
  }
  // Shared memory: not a byte more than the launch asks for, 16-byte aligned, content unknown.
  const size_t rows = l.shared_bytes / sizeof(CosSin);
  std::unique_ptr<CosSin[]> memory(new CosSin[rows + 2]);
  auto* shared =
      reinterpret_cast<CosSin*>((reinterpret_cast<uintptr_t>(memory.get()) + 15) & ~uintptr_t{15});
  std::fill(memory.get(), memory.get() + rows + 2, CosSin{1e30f, 1e30f});
  std::vector<typename Body::Held> held(threads.size());
  for (size_t i = 0; i < threads.size(); ++i) {
    Body::Locate(l.params, threads[i], &held[i]);
    Body::Load(l.params, threads[i], &held[i]);
  }
  for (const Thread& t : threads) Body::MakeRow(l.params, t, shared);
  for (size_t i = threads.size(); i-- > 0;) {
    Body::Rotate(l.params, threads[i], held[i], shared);
  }
}

template <size_t... kIndices>
void WalkBlockOf(const Launch& l, uint32_t x, uint32_t y, std::index_sequence<kIndices...>) {
  using Walk = void (*)(const Launch&, uint32_t, uint32_t);
  static constexpr Walk kWalks[] = {&WalkBlock<static_cast<int>(kIndices)>...};
  kWalks[IndexOf(l.variant)](l, x, y);
}

void WalkBlock(const Launch& l, uint32_t x, uint32_t y) {
  WalkBlockOf(l, x, y, std::make_index_sequence<kVariants>());
}

struct Walked {
  int launches = 0;
  std::vector<Launch> kept;  // if asked for
  bool walk = true, keep = false;
};

rope_status Walk(const Launch& l, void* data) {
  auto* w = static_cast<Walked*>(data);
  ++w->launches;
  walked.insert(IndexOf(l.variant));
  EXPECT_LE(l.shape.x * l.shape.y * l.shape.z, static_cast<uint32_t>(kMaxThreads));
  EXPECT_LE(l.shape.z, 64u);
  EXPECT_LE(l.shape.grid_y, 65535u);
  EXPECT_LE(l.shape.grid_x, static_cast<uint32_t>(INT32_MAX));
  EXPECT_LE(l.shared_bytes, 48u << 10);
  if (w->keep) w->kept.push_back(l);
  for (uint32_t y = 0; w->walk && y < l.shape.grid_y; ++y) {
    for (uint32_t x = 0; x < l.shape.grid_x; ++x) WalkBlock(l, x, y);
  }
  return ROPE_OK;
}

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
  ASSERT_OK(MakePlan("test", {"", "", "q", "k"}, context.get(), &args, &plan));
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
    EXPECT_GT(context->pairs, 64);
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
    EXPECT_EQ(walked.count(v), 1u) << "dtype " << VariantAt(v).dtype << " form "
                                   << VariantAt(v).form << " eager " << VariantAt(v).eager;
  }
}

// A call out of place with channels outside the span: f32, q alone, at `in_at` and `out_at` bytes
// behind a 16-byte boundary, heads `head_stride` channels apart (0: contiguous).
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
  const auto boundary = [](std::vector<char>* memory) {
    const auto at = reinterpret_cast<uintptr_t>(memory->data());
    return memory->data() + (16 - at % 16) % 16;
  };
  std::vector<char> in_memory(bytes + 32), out_memory(bytes + 32);
  char* const in = boundary(&in_memory) + e.in_at;
  char* const out = boundary(&out_memory) + e.out_at;
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
  ASSERT_EQ(MakePlan("test", {"", "", "q", "k"}, context.get(), &args, &plan), ROPE_OK)
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

TEST_F(CudaGrid, CountsTokensWithoutDivision) {
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
TEST_F(CudaGrid, ExtentsBeyond32Bits) {
  for (const rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
    const Context context = Plain(64, pairing, ROPE_ANGLE_EXACT);
    for (const auto& [batch, tokens] :
         {std::pair<int64_t, int64_t>{1, 5000000000}, {70000, 65536}, {3000000000, 1}}) {
      const int heads = 3;
      const Plan plan = VirtualPlan(*context, batch, tokens, heads);
      Walked w;
      w.walk = false;
      w.keep = true;
      ASSERT_EQ(ForEachLaunch(plan, 132, &Walk, &w), ROPE_OK);
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

// More heads than the rows of one grid take: each launch goes on where the one before ended.
TEST_F(CudaGrid, HeadsBeyondOneGrid) {
  const Context context = Plain(64, ROPE_PAIRING_HALVES, ROPE_ANGLE_EXACT);
  constexpr int kHeads = 10000000;
  const Plan plan = VirtualPlan(*context, 1, 1, kHeads);
  Walked w;
  w.walk = false;
  w.keep = true;
  ASSERT_EQ(ForEachLaunch(plan, 132, &Walk, &w), ROPE_OK);
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
TEST_F(CudaGrid, LaunchShapes) {
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
                             {e.q, e.k},
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

TEST_F(CudaGrid, OneLaunchForQAndK) {
  const Context context = Plain(512, ROPE_PAIRING_HALVES, ROPE_ANGLE_FLOAT32);
  Plan plan = VirtualPlan(*context, 1, 4096, 8);
  plan.tensor_count = 2;
  plan.tensors[1] = plan.tensors[0];
  Walked w;
  w.walk = false;
  ASSERT_EQ(ForEachLaunch(plan, 132, &Walk, &w), ROPE_OK);
  EXPECT_EQ(w.launches, 1);
  plan.tensors[1].dtype = ROPE_DTYPE_BF16;
  ASSERT_EQ(ForEachLaunch(plan, 132, &Walk, &w), ROPE_OK);
  EXPECT_EQ(w.launches, 1 + 2);
}

// q and k of two dtypes are launches of their own, and k cannot be rotated in place here.
TEST_F(CudaGrid, ARefusedCallHasWrittenNothing) {
  const Context context = Plain(1024, ROPE_PAIRING_INTERLEAVED_TO_HALVES, ROPE_ANGLE_EXACT);
  Plan plan = VirtualPlan(*context, 1, 7, 2);
  plan.tensor_count = 2;
  plan.tensors[1] = plan.tensors[0];
  plan.tensors[1].dtype = ROPE_DTYPE_BF16;
  Walked w;
  w.walk = false;
  EXPECT_EQ(ForEachLaunch(plan, 132, &Walk, &w), ROPE_OK);
  EXPECT_GT(w.launches, 2);  // the frequencies of 512 pairs do not fit into one
  plan.tensors[1].out = const_cast<char*>(plan.tensors[1].in);
  w.launches = 0;
  EXPECT_EQ(ForEachLaunch(plan, 132, &Walk, &w), ROPE_ERROR_UNSUPPORTED);
  EXPECT_EQ(w.launches, 0);
}

}  // namespace
}  // namespace rope::gpu
