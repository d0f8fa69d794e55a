// Keys and values in slots of a cache, against a plain reference: rope_apply_qk into a tensor, then
// a loop that copies by the slots' definition (support/cache_call). Each byte of one buffer is
// compared.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "support/cache_call.h"
#include "support/elements.h"
#include "support/enumerators.h"
#include "support/handles.h"
#include "support/prepared_call.h"
#include "support/random.h"
#include "support/reference.h"
#include "support/targets.h"

namespace rope::testing {
namespace {

// The first byte that differs, for a message; -1: none.
int64_t Differs(const Lines& a, const Lines& b) {
  const auto found = std::mismatch(a.begin(), a.end(), b.begin()).first;
  return found == a.end() ? -1 : found - a.begin();
}

void ExpectAsReference(const Context& context, CacheCall& call) {
  const rope_qk_args& args = call.args();
  const Lines want = call.Want(context);
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  ASSERT_EQ(Differs(call.memory(), want), -1);
}

// Two layers of a prepared call.
void ExpectPreparedAsReference(const Context& context, CacheCall& call) {
  const PreparedCall described(call.args());
  const Lines before = call.memory(), want = call.Want(context);
  const Prepared prepared = Prepare(context, described.args());
  ASSERT_NE(prepared, nullptr);
  call.Scribble();
  for (int layer = 0; layer < 2; ++layer) {
    call.Restore(before);
    ASSERT_OK(rope_prepared_apply(prepared.get(), &described.data));
    ASSERT_EQ(Differs(call.memory(), want), -1) << "layer " << layer;
  }
}

rope_config Partial(rope_pairing pairing) {
  rope_config config = Config(24, pairing);
  config.rotary_dim = 16;
  config.rotary_offset = 8;
  return config;
}

std::vector<rope_config> Configs() {
  std::vector<rope_config> configs;
  for (rope_pairing p = 1; p <= kLastPairing; ++p) {
    configs.push_back(Config(32, p));
    configs.push_back(Partial(p));
    for (rope_config* c : {&configs.back(), &configs[configs.size() - 2]}) {
      if (p != ROPE_PAIRING_HALVES_PER_AXIS) continue;
      const int pairs = (c->rotary_dim != 0 ? c->rotary_dim : c->head_dim) / 2;
      c->axes = 2;
      c->mrope_section[0] = c->mrope_section[1] = pairs / 2;
    }
  }
  configs.push_back(Config(16));
  configs.back().rounding = ROPE_ROUNDING_EAGER;
  configs.push_back(Config(16));
  configs.back().scaling = ROPE_SCALING_NOPE;
  configs.push_back(Partial(ROPE_PAIRING_HALVES));
  configs.back().scaling = ROPE_SCALING_NOPE;
  return configs;
}

TEST(Cache, EveryCombinationIsThatOfACallAndCopies) {
  uint64_t seed = 1;
  int64_t stored = 0;
  Random random(20261201);
  std::set<std::tuple<int, int, int, bool, int64_t>> met;  // all of these together
  for (const rope_config& config : Configs()) {
    std::vector<Context> contexts;  // of each target
    for (const cpu::Kernels* kernels : cpu::ListKernels()) {
      const OnTarget target(kernels);
      contexts.push_back(Create(config));
    }
    CacheWish w;
    for (w.kind = ROPE_SLOTS_MAPPED; w.kind <= ROPE_SLOTS_LINEAR; ++w.kind) {
      for (int variant = 0; variant < 2; ++variant) {
        w.variant = variant != 0;
        for (w.dtype = 1; w.dtype <= kLastDtype; ++w.dtype) {
          for (w.cache_layout = ROPE_LAYOUT_STRIDED; w.cache_layout <= ROPE_LAYOUT_HND;
               ++w.cache_layout) {
            for (w.layout = 1; w.layout <= ROPE_LAYOUT_STRIDED; ++w.layout) {
              for (w.keys = Keys::kCacheOnly; w.keys <= Keys::kOut;
                   w.keys = static_cast<Keys>(static_cast<int>(w.keys) + 1)) {
                for (int positions = 0; positions < 4; ++positions) {
                  w.positions = ROPE_POSITIONS_OFFSET + positions;
                  w.packed = random.Sometimes(2);
                  const int64_t target = random.Below(static_cast<int64_t>(contexts.size()));
                  met.insert({w.kind, w.dtype, w.positions, w.packed, target});
                  CacheCall call(config, w, seed);
                  ExpectAsReference(contexts[target], call);
                  if (HasFatalFailure()) FAIL() << "seed " << seed;
                  stored += call.stored();
                  ++seed;
                }
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(stored, 100000);
  EXPECT_EQ(met.size(), 3 * kLastDtype * 4 * 2 * cpu::ListKernels().size());
}

TEST(Cache, PreparedCallsHaveTheBitsOfTheCall) {
  const std::vector<rope_config> configs = Configs();
  const Pool pool = CreatePool(3);
  const uint64_t seeds = LongTests() ? 40000 : ShortTests() ? 600 : 3000;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    Random r(seed);
    CacheWish w;
    w.kind = r.Pick(ROPE_SLOTS_MAPPED, ROPE_SLOTS_LINEAR);
    w.variant = r.Sometimes(2);
    w.dtype = r.Pick(1, kLastDtype);
    w.cache_layout = r.Pick(ROPE_LAYOUT_STRIDED, ROPE_LAYOUT_HND);
    w.layout = r.Pick(1, ROPE_LAYOUT_STRIDED);
    w.keys = r.Of({Keys::kCacheOnly, Keys::kInPlace, Keys::kOut});
    w.positions = ROPE_POSITIONS_OFFSET + r.Pick(0, 3);
    w.packed = r.Sometimes(3);
    rope_config config = configs[r.Below(configs.size())];
    if (r.Sometimes(200)) {  // more than one task
      config = Config(128);
      w.least_tokens = 3000, w.most_tokens = 4000, w.most_batch = 1;
    }
    const Context context = Create(config);
    CacheCall call(config, w, seed);
    call.RunBy(rope_pool_runner(pool.get()));
    ExpectPreparedAsReference(context, call);
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
}

// Rows whose channels differ go token by token, rows per head part by part.
TEST(Cache, RowsOfCosAndSinTurnWhatIsStored) {
  constexpr int kDim = 16;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Random r(seed);
    rope_config config = Config(kDim);
    const int row_heads = r.Of({0, 0, 2});
    const Context context = Create(config);
    CacheWish w;
    w.kind = r.Pick(ROPE_SLOTS_MAPPED, ROPE_SLOTS_LINEAR);
    w.dtype = r.Pick(1, kLastDtype);
    w.cache_layout = r.Pick(ROPE_LAYOUT_STRIDED, ROPE_LAYOUT_HND);
    w.keys = r.Of({Keys::kCacheOnly, Keys::kInPlace, Keys::kOut});
    w.head_multiple = row_heads != 0 ? row_heads : 1;
    CacheCall call(config, w, seed);
    std::vector<float> cos(call.batch() * call.tokens() * kDim * w.head_multiple), sin(cos.size());
    for (size_t i = 0; i < cos.size(); ++i) {
      cos[i] = static_cast<float>(r.Pick(-50, 50)) / 50;
      sin[i] = static_cast<float>(r.Pick(-50, 50)) / 50;
    }
    rope_cos_sin rows = Rows(ROPE_COS_SIN_FULL_HALVES, ROPE_DTYPE_F32, kDim / 2, call.batch(),
                             cos.data(), sin.data());
    rows.heads = row_heads;
    if (r.Sometimes(2)) {  // some rows whose halves are equal
      for (size_t row = 0; row < cos.size(); row += kDim) {
        if (r.Sometimes(2)) continue;
        std::copy_n(&cos[row], kDim / 2, &cos[row + kDim / 2]);
        std::copy_n(&sin[row], kDim / 2, &sin[row + kDim / 2]);
      }
    }
    call.ReadRows(&rows);
    if (r.Sometimes(2)) {
      ExpectAsReference(context, call);
    } else {
      ExpectPreparedAsReference(context, call);
    }
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
}

// More than the last cache holds, which is written around it, and more than one task.
TEST(Cache, LargeCallsAreDividedAndStreamed) {
  const Pool pool = CreatePool(3);
  for (int n = 0; n < 24; ++n) {
    CacheWish w;
    w.kind = ROPE_SLOTS_MAPPED + n % 3;
    w.variant = n % 2 != 0;
    w.dtype = 1 + n % kLastDtype;
    w.cache_layout = ROPE_LAYOUT_NHD + n / 3 % 2;
    w.keys = static_cast<Keys>(n / 2 % 3);
    w.packed = n % 5 == 0;
    w.aligned = n % 4 != 3;
    w.most_heads = 8;
    w.least_tokens = w.packed ? 4000 : 3000;
    w.most_tokens = 4500;
    rope_config config = Config(128);
    if (n % 8 == 7) config.scaling = ROPE_SCALING_NOPE;
    const Context context = Create(config);
    CacheCall call(config, w, 100 + n);
    if (n % 3 != 0) call.RunBy(rope_pool_runner(pool.get()));
    ExpectAsReference(context, call);
    if (HasFatalFailure()) FAIL() << n;
  }
}

// A decode step: a token of each sequence.
TEST(Cache, DecodeStepsAreThoseOfACallAndCopies) {
  const rope_config config = Config(64);
  const Context context = Create(config);
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Random r(seed);
    CacheWish w;
    w.kind = r.Pick(ROPE_SLOTS_MAPPED, ROPE_SLOTS_LINEAR);
    w.variant = r.Sometimes(2);
    w.dtype = r.Of({ROPE_DTYPE_F32, ROPE_DTYPE_BF16});
    w.cache_layout = r.Pick(ROPE_LAYOUT_STRIDED, ROPE_LAYOUT_HND);
    w.positions = ROPE_POSITIONS_SEQ_OFFSETS;
    w.most_tokens = 1;
    w.most_batch = 64;
    CacheCall call(config, w, seed);
    ExpectAsReference(context, call);
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
}

// What an engine stores: v as k, in the short way to a plan.
TEST(Cache, KeysAndValuesDescribedAlikeAreThoseOfACallAndCopies) {
  const std::vector<rope_config> configs = Configs();
  for (uint64_t seed = 1; seed <= 4000; ++seed) {
    Random r(seed);
    CacheWish w;
    w.alike = true;
    w.kind = r.Pick(ROPE_SLOTS_MAPPED, ROPE_SLOTS_LINEAR);
    w.variant = r.Sometimes(2);
    w.dtype = r.Pick(1, kLastDtype);
    w.cache_layout = r.Pick(ROPE_LAYOUT_NHD, ROPE_LAYOUT_HND);
    w.layout = r.Pick(1, ROPE_LAYOUT_STRIDED);
    w.positions = ROPE_POSITIONS_OFFSET + r.Pick(0, 3);
    w.packed = r.Sometimes(3);
    w.most_tokens = w.most_batch = r.Of({1, 3});
    const rope_config& config = configs[r.Below(configs.size())];
    CacheCall call(config, w, seed);
    ExpectAsReference(Create(config), call);
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
}

// k of a fused kernel may be one head for all: with strides 0 it is only read.
// As tests on a device make them, whose memory is another.
TEST(Cache, CallsOnOtherMemoryAreTheSame) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Random r(seed);
    CacheCase e = RandomCacheCase(&r);
    e.wish.missing = false;
    e.wish.sets = 1;
    const Context context = Create(e.config);
    CacheCall call(e.config, e.wish, seed);
    call.args();
    const Lines before = call.memory(), want = call.Want(context);
    std::vector<std::unique_ptr<Lines>> others;
    CacheCall::Moved moved;
    call.MoveTo(&moved, [&](const char* data, size_t bytes) {
      others.push_back(std::make_unique<Lines>(data, data + bytes));
      return others.back()->data();
    });
    call.Scribble();
    ASSERT_OK(rope_apply_qk(context.get(), &moved.args)) << e.Describe();
    ASSERT_EQ(Differs(*others[0], want), -1) << e.Describe();
    ASSERT_EQ(Differs(call.memory(), before), -1) << e.Describe();
  }
}

TEST(Cache, AHeadThatIsReadForAllIsStoredForEach) {
  float k[8] = {1, 2, 3, 4, 5, 6, 7, 8}, cached[3 * 8] = {};
  const int32_t slots[] = {0};
  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  cache.kind = ROPE_SLOTS_MAPPED;
  cache.pages = cache.page_size = 1;
  cache.slots_i32 = slots;
  cache.slots_length = 1;
  cache.k = Tensor(cached, ROPE_DTYPE_F32, 3, ROPE_LAYOUT_NHD);
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.cache = &cache;
  rope_qk_args args = Args(1, 1);
  args.k = Tensor(k, ROPE_DTYPE_F32, 3);
  SetStrides(&args.k, 0, 0, 0);
  args.positions = Offset(0);
  args.fused = &fused;
  ASSERT_OK(rope_apply_qk(Create(Config(8)).get(), &args));
  for (int i = 0; i < 24; ++i) EXPECT_EQ(cached[i], static_cast<float>(i % 8 + 1));
}

// Without a cache, all tokens of v go to v_out.
TEST(Cache, ValuesMayBeCopiedWithoutOne) {
  float q[3 * 8] = {}, v[3 * 5], copied[3 * 5] = {};
  for (int i = 0; i < 15; ++i) v[i] = static_cast<float>(i + 1);
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.v = Tensor(v, ROPE_DTYPE_F32, 1);
  fused.v_out = Tensor(copied, ROPE_DTYPE_F32, 1);
  fused.v.head_dim = fused.v_out.head_dim = 5;
  rope_qk_args args = Args(1, 3);
  args.q = Tensor(q, ROPE_DTYPE_F32, 1);
  args.positions = Offset(0);
  args.fused = &fused;
  ASSERT_OK(rope_apply_qk(Create(Config(8)).get(), &args));
  for (int i = 0; i < 15; ++i) EXPECT_EQ(copied[i], v[i]);
}

// Two tokens in one slot leave all others right.
TEST(Cache, ATwiceGivenSlotHarmsNoOther) {
  constexpr int kTokens = 40, kDim = 32, kSlots = 64;
  const Context context = Create(Config(kDim));
  std::vector<float> k(kTokens * kDim, 1.5f), cached(kSlots * kDim, 9), want = cached;
  std::vector<int64_t> slots(kTokens);
  for (int i = 0; i < kTokens; ++i) slots[i] = i % 8 == 5 ? 3 : i;
  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  cache.kind = ROPE_SLOTS_MAPPED;
  cache.pages = 16;
  cache.page_size = 4;
  cache.slots_i64 = slots.data();
  cache.slots_length = kTokens;
  cache.k = Tensor(cached.data(), ROPE_DTYPE_F32, 1, ROPE_LAYOUT_HND);
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.cache = &cache;
  rope_qk_args args = Args(1, kTokens);
  args.k = Tensor(k.data(), ROPE_DTYPE_F32, 1);
  args.positions = Offset(3);
  args.fused = &fused;
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  args.fused = nullptr;
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  for (int i = 0; i < kTokens; ++i) {
    if (slots[i] != 3) std::copy_n(&k[i * kDim], kDim, &want[slots[i] * kDim]);
  }
  std::fill_n(&cached[3 * kDim], kDim, 9.0f);
  EXPECT_EQ(cached, want);
}

// They store nothing, wherever they would.
TEST(Cache, ASequenceWithoutTokensMayStartAnywhere) {
  float k[2] = {1, 2}, cached[2][2] = {};
  const int32_t runs[] = {0, 1, 1}, starts[] = {0, INT32_MAX}, table[] = {1, 9};
  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  cache.pages = 2;
  cache.page_size = 1;
  cache.starts = starts;
  cache.k = Tensor(cached, ROPE_DTYPE_F32, 1, ROPE_LAYOUT_NHD);
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.cache = &cache;
  rope_qk_args args = Args(1, 1);
  args.k = Tensor(k, ROPE_DTYPE_F32, 1);
  args.positions = Offset(0);
  args.positions.cu_seqlens = runs;
  args.positions.sequences = 2;
  args.fused = &fused;
  const Context context = Create(Config(2));
  cache.kind = ROPE_SLOTS_LINEAR;
  EXPECT_OK(rope_apply_qk(context.get(), &args));
  cache.kind = ROPE_SLOTS_PAGED;
  cache.page_table = table;
  cache.page_table_stride = 1;
  EXPECT_OK(rope_apply_qk(context.get(), &args));
  for (const auto& page : cached) EXPECT_EQ(page[1], 2);
}

}  // namespace
}  // namespace rope::testing
