// Prepared calls: for each tensor they are applied to, the bits of rope_apply_qk, whatever became
// of the arrays that they were made from; and what they refuse.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "context/backend.h"
#include "context/context.h"
#include "support/cache_call.h"
#include "support/errors.h"
#include "support/handles.h"
#include "support/prepared_call.h"
#include "support/random_call.h"
#include "support/targets.h"

// Sanitizers give null for more memory than there is, as the system does.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace rope::testing {
namespace {

// All bytes of positions and rows become others.
void Scribble(RandomCall* c) {
  for (size_t i = 0; i < c->buffers.size(); ++i) {
    const bool of_tensor = std::any_of(
        std::begin(c->tensors), std::end(c->tensors),
        [&](const auto& t) { return t.present && (t.in_buffer == i || t.out_buffer == i); });
    if (of_tensor) continue;
    for (char& byte : c->buffers[i].bytes) byte = static_cast<char>(byte ^ 0x5a);
  }
}

class PreparedOnTarget : public TargetTest {};

TEST_P(PreparedOnTarget, GivesTheBitsOfTheCall) {
  const uint64_t seeds = LongTests() ? 40000 : 2500;
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    RandomCall c(seed, RandomCall::kEverything);
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Context context = c.CreateContext();
    c.MakeApply();
    const auto before = c.Snapshot();
    ASSERT_OK(rope_apply_qk(context.get(), &c.args)) << c.Describe();
    const auto expected = c.Snapshot();
    c.Restore(before);
    const Prepared prepared = Prepare(context, c.args);
    ASSERT_NE(prepared, nullptr) << c.Describe();
    const rope_qk_data data = DataOf(c.args);
    for (int layer = 0; layer < 2; ++layer) {
      c.Restore(before);
      Scribble(&c);
      ASSERT_OK(rope_prepared_apply(prepared.get(), &data)) << c.Describe();
      for (const RandomCall::CallTensor& t : c.tensors) {
        if (!t.present) continue;
        for (size_t i : {t.in_buffer, t.out_buffer}) {
          ASSERT_EQ(c.buffers[i].bytes, expected[i].bytes) << c.Describe();
        }
      }
    }
  }
}
// The only token of a call, whose row several segments share.
TEST_P(PreparedOnTarget, OneTokenOfSeveralAxesHasTheBitsOfTheCall) {
  constexpr int kDim = 16, kHeads = 3;
  rope_config config = Config(kDim, ROPE_PAIRING_HALVES_PER_AXIS);
  config.axes = 2;
  config.mrope_section[0] = 3;
  config.mrope_section[1] = 5;
  const Context context = Create(config);
  std::vector<float> q;
  for (int i = 0; i < kHeads * kDim; ++i) q.push_back(static_cast<float>(i % 13) - 5);
  std::vector<float> prepared_q = q;
  const int64_t ids[] = {3, 5};
  rope_qk_args args = Args(1, 1);
  args.q = Tensor(q.data(), ROPE_DTYPE_F32, kHeads);
  args.positions = Ids(ROPE_POSITIONS_IDS_BTA, ids);
  const Prepared prepared = Prepare(context, args);
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  rope_qk_data data = ROPE_INIT(rope_qk_data);
  data.q = prepared_q.data();
  ASSERT_OK(rope_prepared_apply(prepared.get(), &data));
  EXPECT_EQ(prepared_q, q);
}

// NATIVE, where CPUs have instructions of their own for f16: infinity times the sine of position 0
// is a NaN, whose sign is not the one that f32 gives it. The only token of a call and of a prepared
// one, by a position that rows are made from in short ways and by one that they are not, are as
// others.
TEST_P(PreparedOnTarget, OneTokenOfF16HasTheNansOfTheCall) {
  constexpr int kDim = 66, kHeads = 3;
  constexpr uint16_t kOne = 0x3c00, kInfinity = 0x7c00;
  const int64_t whole[] = {0, 0};
  const float coordinates[] = {0, 0};
  for (rope_pairing pairing : {ROPE_PAIRING_HALVES, ROPE_PAIRING_INTERLEAVED}) {
    rope_config config = Config(kDim, pairing);
    config.angle = ROPE_ANGLE_EXACT;
    config.rounding = ROPE_ROUNDING_NATIVE;
    const Context context = Create(config);
    std::vector<uint16_t> given;
    for (int i = 0; i < 2 * kHeads * kDim; ++i) given.push_back(i % 5 == 0 ? kInfinity : kOne);
    for (int i = 0; i < kHeads * kDim; ++i) given[given.size() / 2 + i] = given[i];
    const auto turned = [&](int tokens, bool by_coordinates, bool prepared) {
      std::vector<uint16_t> q = given;
      rope_qk_args args = Args(1, tokens);
      args.q = Tensor(q.data(), ROPE_DTYPE_F16, kHeads);
      args.positions = Ids(ROPE_POSITIONS_IDS_BT, whole);
      if (by_coordinates) {
        args.positions.ids_i64 = nullptr;
        args.positions.ids_f32 = coordinates;
      }
      if (prepared) {
        rope_qk_data data = ROPE_INIT(rope_qk_data);
        data.q = q.data();
        EXPECT_OK(rope_prepared_apply(Prepare(context, args).get(), &data));
      } else {
        EXPECT_OK(rope_apply_qk(context.get(), &args));
      }
      q.resize(kHeads * kDim);
      return q;
    };
    const std::vector<uint16_t> expected = turned(2, false, false);
    EXPECT_NE(expected, std::vector<uint16_t>(given.begin(), given.begin() + kHeads * kDim));
    for (int way = 0; way < 8; ++way) {
      EXPECT_EQ(turned(1 + (way & 1), (way & 2) != 0, (way & 4) != 0), expected) << way;
    }
  }
}

// Rows of which one has values for each channel. How the others are rotated must not depend on
// whose block they share: a call, a prepared one, one cut into tasks and one for each token have
// the same bits, also those of NaN, and on targets without FMA, where rows per channel are rotated
// with it.
TEST_P(PreparedOnTarget, ARowPerChannelChangesItsOwnTokenOnly) {
  constexpr int kDim = 128, kTokens = 1800, kHeads = 3;
  const Context context = Create(Config(kDim));
  std::vector<float> cos(kTokens * kDim), sin(cos.size()), given(kTokens * kHeads * kDim);
  for (size_t i = 0; i < cos.size(); ++i) {
    const float angle = 0.01f * static_cast<float>(i / kDim) * static_cast<float>(i % (kDim / 2));
    cos[i] = std::cos(angle);
    sin[i] = std::sin(angle);
  }
  cos[3] += 0.125f;
  for (size_t i = 0; i < given.size(); ++i) given[i] = 0.37f * static_cast<float>(i % 251) - 40;
  const uint32_t nans[] = {0x7fd1cb96, 0xffc00001, 0x7f800001};
  for (size_t i = 0; i < given.size(); i += 97) std::memcpy(&given[i], &nans[i % 3], 4);
  const auto rows_from = [&](int64_t token) {
    return Rows(ROPE_COS_SIN_FULL_HALVES, ROPE_DTYPE_F32, kDim / 2, 1, &cos[token * kDim],
                &sin[token * kDim]);
  };
  const auto bits_of = [](const std::vector<float>& values) {
    std::vector<uint32_t> bits(values.size());
    std::memcpy(bits.data(), values.data(), 4 * values.size());
    return bits;
  };
  std::vector<float> q = given;
  rope_cos_sin rows = rows_from(0);
  rope_qk_args args = Args(1, kTokens);
  args.q = Tensor(q.data(), ROPE_DTYPE_F32, kHeads);
  args.cos_sin = &rows;
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  const auto want = bits_of(q);

  q = given;
  const Prepared prepared = Prepare(context, args);
  const rope_qk_data data = DataOf(args);
  ASSERT_OK(rope_prepared_apply(prepared.get(), &data));
  EXPECT_EQ(bits_of(q), want) << "prepared";

  q = given;
  const rope_runner runner = {[](void*, rope_task_fn fn, void* task, uint32_t count) -> int32_t {
                                for (uint32_t i = 0; i < count; ++i) fn(task, i);
                                return 0;
                              },
                              nullptr};
  args.runner = &runner;
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  EXPECT_EQ(bits_of(q), want) << "in tasks";

  q = given;
  args.runner = nullptr;
  args.tokens = 1;
  for (int64_t t = 0; t < kTokens; ++t) {
    rows = rows_from(t);
    args.q.data = &q[t * kHeads * kDim];
    ASSERT_OK(rope_apply_qk(context.get(), &args));
  }
  EXPECT_EQ(bits_of(q), want) << "token by token";
}

INSTANTIATE_TARGETS(PreparedOnTarget);

// One call of q and k in bf16, 3 sequences of 2 tokens.
struct Layers {
  static constexpr int kDim = 64, kHeads = 4, kTokens = 2, kBatch = 3;
  Context context = Create(Config(kDim));
  rope_qk_args args = Args(kBatch, kTokens);
  int32_t offsets[kBatch] = {5, 0, 131071};

  Layers() {
    args.q = Tensor(nullptr, ROPE_DTYPE_BF16, kHeads);
    args.k = Tensor(nullptr, ROPE_DTYPE_BF16, 1);
    args.positions.kind = ROPE_POSITIONS_SEQ_OFFSETS;
    args.positions.offsets_i32 = offsets;
  }
  static std::vector<uint16_t> Values(int heads, uint16_t first) {
    std::vector<uint16_t> values(kBatch * kTokens * kDim * static_cast<size_t>(heads));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<uint16_t>(0x3c00 + (first + i) % 0x300);
    }
    return values;
  }
};

TEST(Prepared, ServesEveryLayerAndManyThreads) {
  Layers layers;
  const Prepared prepared = Prepare(layers.context, layers.args);
  const auto run = [&](uint16_t layer, bool* same) {
    auto q = Layers::Values(Layers::kHeads, layer), k = Layers::Values(1, layer);
    auto want_q = q, want_k = k;
    rope_qk_data data = ROPE_INIT(rope_qk_data);
    data.q = q.data();
    data.k = k.data();
    rope_qk_args args = layers.args;
    args.q.data = want_q.data();
    args.k.data = want_k.data();
    *same = rope_prepared_apply(prepared.get(), &data) == ROPE_OK &&
            rope_apply_qk(layers.context.get(), &args) == ROPE_OK && q == want_q && k == want_k &&
            q != Layers::Values(Layers::kHeads, layer);
  };
  constexpr int kThreads = 4, kLayers = 32;
  bool same[kThreads][kLayers] = {};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int l = 0; l < kLayers; ++l) run(static_cast<uint16_t>(100 * t + l), &same[t][l]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& of_thread : same) {
    for (bool one : of_thread) EXPECT_TRUE(one);
  }
}

// Each thread has a layer of its own.
TEST(Prepared, StoresInTheCachesOfManyThreads) {
  const rope_config config = Config(64);
  const Context context = Create(config);
  for (const rope_slot_kind kind : {ROPE_SLOTS_MAPPED, ROPE_SLOTS_PAGED, ROPE_SLOTS_LINEAR}) {
    CacheWish w;
    w.kind = kind;
    w.dtype = ROPE_DTYPE_BF16;
    w.keys = Keys::kInPlace;
    CacheCall call(config, w, 7);
    const PreparedCall described(call.args());
    const Prepared prepared = Prepare(context, described.args());
    ASSERT_NE(prepared, nullptr);
    const Lines before = call.memory(), want = call.Want(context);
    call.Scribble();
    std::vector<Lines> layers(4, before);
    std::vector<std::thread> threads;
    for (Lines& layer : layers) {
      threads.emplace_back([&] {
        rope_qk_data there = described.data;
        for (void** pointer : {&there.q, &there.k, &there.q_out, &there.k_out, &there.v,
                               &there.v_out, &there.cache_k, &there.cache_v}) {
          if (*pointer == nullptr) continue;
          *pointer = layer.data() + (static_cast<char*>(*pointer) - call.memory().data());
        }
        for (int n = 0; n < 50; ++n) {
          layer = before;
          EXPECT_EQ(rope_prepared_apply(prepared.get(), &there), ROPE_OK);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Lines& layer : layers) EXPECT_TRUE(layer == want) << "kind " << kind;
  }
}

TEST(Prepared, WithNothingToDoLooksAtNothing) {
  const Context context = Create(Config(64));
  for (rope_qk_args args : {Args(1, 0), Args(0, 0), Args(0, 5)}) {
    SCOPED_TRACE(args.tokens);
    args.runner = reinterpret_cast<const rope_runner*>(16);
    const Prepared prepared = Prepare(context, args);
    ASSERT_NE(prepared, nullptr);
    rope_qk_data data = ROPE_INIT(rope_qk_data);
    EXPECT_OK(rope_prepared_apply(prepared.get(), &data));
    data.q = &data;
    if (args.tokens == 0) {
      EXPECT_OK(rope_prepared_apply(prepared.get(), &data));
    } else {  // as rope_apply_qk: the batch was forgotten
      EXPECT_EQ(rope_prepared_apply(prepared.get(), &data), kInvalid);
      ExpectMessage("rope_prepared_apply", {"data->q must be NULL", "batch 0"});
      std::swap(data.q, data.k);
      EXPECT_EQ(rope_prepared_apply(prepared.get(), &data), kInvalid);
      ExpectMessage("rope_prepared_apply", {"data->k must be NULL", "batch 0"});
    }
  }
  rope_prepared_destroy(nullptr);
}

TEST(Prepared, KeepsACopyOfTheRunner) {
  constexpr int kTokens = 2400;
  const Context context = Create(Config(128));
  int tasks_run = 0;
  rope_runner runner = {[](void* pool, rope_task_fn fn, void* task, uint32_t count) -> int32_t {
                          for (uint32_t i = 0; i < count; ++i) fn(task, i);
                          *static_cast<int*>(pool) += static_cast<int>(count);
                          return 0;
                        },
                        &tasks_run};
  rope_qk_args args = Args(1, kTokens);
  args.q = Tensor(nullptr, ROPE_DTYPE_F32, 2);
  args.positions = Offset(0);
  args.runner = &runner;
  const Prepared prepared = Prepare(context, args);
  runner = {};
  std::vector<float> q(kTokens * 2 * 128, 1.0f), want = q;
  rope_qk_data data = ROPE_INIT(rope_qk_data);
  data.q = q.data();
  ASSERT_OK(rope_prepared_apply(prepared.get(), &data));
  EXPECT_GT(tasks_run, 1);
  args.runner = nullptr;
  args.q.data = want.data();
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  EXPECT_EQ(q, want);
}

TEST(Prepared, MoreRowsThanMemoryIsAStatus) {
  const Context context = Create(Config(128));
  rope_qk_args args = Args(1, int64_t{1} << 50);
  args.q = Tensor(nullptr, ROPE_DTYPE_BF16, 1);
  args.positions = Offset(0);
  auto* const untouched = reinterpret_cast<rope_prepared*>(&args);
  rope_prepared* prepared = untouched;
  EXPECT_EQ(rope_prepared_create(context.get(), &args, &prepared), ROPE_ERROR_OUT_OF_MEMORY);
  ExpectMessage("rope_prepared_create", {"out of memory"});
  args.tokens = int64_t{1} << 54;
  EXPECT_EQ(rope_prepared_create(context.get(), &args, &prepared), ROPE_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(prepared, untouched);

  // One row, read as the keys of all tokens: more rows of cos and sin than 64 bits count.
  constexpr int kHeads = 4;
  const double frequency[kHeads] = {1, 2, 3, 4};
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = 2;
  config.pairing = ROPE_PAIRING_HALVES;
  config.frequency = frequency;
  config.freq_heads = kHeads;
  config.table_length = 1;
  args = Args(1, int64_t{1} << 62);
  args.k = Tensor(nullptr, ROPE_DTYPE_F32, kHeads, ROPE_LAYOUT_STRIDED);
  args.positions = Offset(0);
  const int64_t slot = 0;
  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  cache.kind = ROPE_SLOTS_MAPPED;
  cache.pages = cache.page_size = 1;
  cache.k = Tensor(nullptr, ROPE_DTYPE_F32, kHeads, ROPE_LAYOUT_NHD);
  cache.slots_i64 = &slot;
  cache.slots_length = 1;
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.cache = &cache;
  args.fused = &fused;
  const Context by_head = Create(config);
  EXPECT_EQ(rope_prepared_create(by_head.get(), &args, &prepared), ROPE_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(prepared, untouched);
}

// --- What is refused -----------------------------------------------------------------------------

constexpr int kDim = 8, kTokens = 4;
alignas(64) float memory[4096];
float *const kQ = memory + 1024, *const kK = memory + 2048, *const kOut = memory + 3072;

rope_qk_args GoodArgs() {
  rope_qk_args args = Args(1, kTokens);
  args.q = Tensor(nullptr, ROPE_DTYPE_F32, 2);
  args.k = Tensor(nullptr, ROPE_DTYPE_F32, 1);
  args.k_out = args.k;
  args.positions = Offset(3);
  return args;
}

TEST(PreparedErrors, OfArgumentsAreThoseOfTheCall) {
  using A = rope_qk_args;
  const BadInput<A> bad[] = {
      {"struct_size", [](A* a) { a->struct_size = 8; }, kInvalid, {"args->struct_size (8)"}},
      {"operation", [](A* a) { a->operation = 99; }, kUnsupported, {"args->operation (99)"}},
      {"no positions", [](A* a) { a->positions = {}; }, kInvalid, {"args->positions.kind"}},
      {"no tensors",
       [](A* a) { a->q = a->k = a->k_out = {}; },
       kInvalid,
       {"args->q and args->k", "absent"}},
      {"stream", [](A* a) { a->stream = memory; }, kInvalid, {"args->stream"}},
      {"dtype", [](A* a) { a->q.dtype = 0; }, kInvalid, {"args->q.dtype (0)"}},
      {"heads", [](A* a) { a->k.heads = 0; }, kInvalid, {"args->k.heads (0)"}},
      {"q.data", [](A* a) { a->q.data = kQ; }, kInvalid, {"args->q.data (0x", "must be NULL"}},
      {"k_out.data", [](A* a) { a->k_out.data = kQ; }, kInvalid, {"args->k_out.data (0x"}},
      {"overlapping heads",
       [](A* a) { SetStrides(&a->k_out, 0, 4, 8); },
       kInvalid,
       {"args->k_out: strides"}},
      {"an output without its input", [](A* a) { a->k = {}; }, kInvalid, {"k_out is set"}},
  };
  const Context context = Create(Config(kDim));
  for (const auto& row : bad) {
    rope_qk_args args = GoodArgs();
    row.change(&args);
    auto* const untouched = reinterpret_cast<rope_prepared*>(memory);
    rope_prepared* prepared = untouched;
    ExpectParts("rope_prepared_create", row, rope_prepared_create(context.get(), &args, &prepared));
    EXPECT_EQ(prepared, untouched) << row.name;
  }
  const rope_qk_args args = GoodArgs();
  rope_prepared* prepared = nullptr;
  EXPECT_EQ(rope_prepared_create(nullptr, &args, &prepared), kInvalid);
  ExpectMessage("rope_prepared_create", {"context (NULL)"});
  EXPECT_EQ(rope_prepared_create(context.get(), nullptr, &prepared), kInvalid);
  ExpectMessage("rope_prepared_create", {"args (NULL)"});
  EXPECT_EQ(rope_prepared_create(context.get(), &args, nullptr), kInvalid);
  ExpectMessage("rope_prepared_create", {"out (NULL)"});
  EXPECT_EQ(prepared, nullptr);
}

TEST(PreparedErrors, ABackendWithoutThemSaysSo) {
  const Context context = Create(Config(kDim));
  Backend backend = *context->backend;
  backend.name = "CUDA";
  backend.prepare = nullptr;
  context->backend = &backend;
  const rope_qk_args args = GoodArgs();
  rope_prepared* prepared = nullptr;
  EXPECT_EQ(rope_prepared_create(context.get(), &args, &prepared), kUnsupported);
  ExpectMessage("rope_prepared_create", {"context must be a CPU context", "CUDA"});
  EXPECT_EQ(prepared, nullptr);
}

TEST(PreparedErrors, OfDataNameThePointerAndWriteNothing) {
  using D = rope_qk_data;
  const auto beside = [](float* data) {
    return static_cast<void*>(reinterpret_cast<char*>(data) + 2);
  };
  const BadInput<D> bad[] = {
      {"struct_size", [](D* d) { d->struct_size = 32; }, kInvalid, {"data->struct_size (32)"}},
      {"reserved", [](D* d) { d->reserved = 1; }, kUnsupported, {"data->reserved"}},
      {"no q", [](D* d) { d->q = nullptr; }, kInvalid, {"data->q (NULL)", "has q"}},
      {"no k", [](D* d) { d->k = nullptr; }, kInvalid, {"data->k (NULL)"}},
      {"no k_out", [](D* d) { d->k_out = nullptr; }, kInvalid, {"data->k_out (NULL)"}},
      {"q_out", [](D* d) { d->q_out = memory; }, kInvalid, {"data->q_out (0x", "has no q_out"}},
      {"q beside", [&](D* d) { d->q = beside(kQ); }, kInvalid, {"data->q (0x", "aligned"}},
      {"k_out beside", [&](D* d) { d->k_out = beside(kK); }, kInvalid, {"data->k_out (0x"}},
      {"beyond the address space",
       [](D* d) { d->q = reinterpret_cast<void*>(~uintptr_t{15}); },
       kInvalid,
       {"data->q", "address space"}},
      {"q is k_out", [](D* d) { d->k_out = d->q; }, kInvalid, {"data->q overlaps data->k_out"}},
      {"k in q", [](D* d) { d->k = kQ + 8; }, kInvalid, {"data->q overlaps data->k"}},
      {"k_out in k", [](D* d) { d->k_out = kK + 8; }, kInvalid, {"data->k_out overlaps data->k"}},
  };
  const Context context = Create(Config(kDim));
  const Prepared prepared = Prepare(context, GoodArgs());
  for (size_t i = 0; i < std::size(memory); ++i) memory[i] = static_cast<float>(i);
  const std::vector<float> before(std::begin(memory), std::end(memory));
  rope_qk_data good = ROPE_INIT(rope_qk_data);
  good.q = kQ;
  good.k = kK;
  good.k_out = kOut;
  for (const auto& row : bad) {
    rope_qk_data data = good;
    row.change(&data);
    ExpectParts("rope_prepared_apply", row, rope_prepared_apply(prepared.get(), &data));
    EXPECT_EQ(std::memcmp(memory, before.data(), sizeof(memory)), 0) << row.name;
  }
  EXPECT_EQ(rope_prepared_apply(nullptr, &good), kInvalid);
  ExpectMessage("rope_prepared_apply", {"prepared (NULL)"});
  EXPECT_EQ(rope_prepared_apply(prepared.get(), nullptr), kInvalid);
  ExpectMessage("rope_prepared_apply", {"data (NULL)"});
  EXPECT_OK(rope_prepared_apply(prepared.get(), &good));
  EXPECT_NE(std::memcmp(memory, before.data(), sizeof(memory)), 0);
  good.k_out = kK;  // exactly its input
  EXPECT_OK(rope_prepared_apply(prepared.get(), &good));

  const Prepared only_q = [&] {
    rope_qk_args args = GoodArgs();
    args.k = args.k_out = {};
    return Prepare(context, args);
  }();
  EXPECT_EQ(rope_prepared_apply(only_q.get(), &good), kInvalid);
  ExpectMessage("rope_prepared_apply", {"data->k (0x", "has no k"});
}

}  // namespace
}  // namespace rope::testing
