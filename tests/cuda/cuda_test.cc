// The CUDA backend on a GPU, through the C API: bit-identical to the CPU, at its manners with
// streams, graphs and errors. Without a device every test is skipped with the library's reason.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device.h"
#include "math/element.h"
#include "support/cache_call.h"
#include "support/child.h"
#include "support/elements.h"
#include "support/handles.h"
#include "support/move_call.h"
#include "support/random.h"
#include "support/random_call.h"

namespace rope::testing {
namespace {

rope_config PlainConfig(rope_device device, rope_angle angle = ROPE_ANGLE_EXACT) {
  rope_config config = Config(128, ROPE_PAIRING_HALVES, 500000);
  config.angle = angle;
  config.device = device;
  return config;
}
Context CreateOn(rope_device device, rope_angle angle = ROPE_ANGLE_EXACT) {
  return Create(PlainConfig(device, angle));
}

using Cuda = OnDeviceOnly<::testing::Test>;

// Runs everywhere: a process that sees no device.
TEST(CudaUnavailable, SaysWhy) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto create = [] {
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    const rope_config config = PlainConfig(ROPE_DEVICE_CUDA);
    rope_context* context = nullptr;
    const rope_status s = rope_context_create(&config, &context);
    std::fprintf(stderr, "%s\n", rope_last_error());
    std::exit(s == ROPE_ERROR_UNAVAILABLE && context == nullptr ? 0 : 1);
  };
  EXPECT_EXIT(create(), ::testing::ExitedWithCode(0),
              "config->device \\(CUDA\\): no usable device");
}

// What differs from the memory of a call on the CPU: up to three elements of each buffer.
void ExpectSame(const RandomCall& call, const std::vector<RandomCall::Buffer>& on_cpu) {
  for (size_t n = 0; n < on_cpu.size(); ++n) {
    const rope_dtype dtype = on_cpu[n].dtype;
    if (dtype == 0) continue;  // positions
    const char *const cpu = on_cpu[n].bytes.data(), *const cuda = call.buffers[n].bytes.data();
    int bad = 0;
    const auto count = static_cast<int64_t>(on_cpu[n].bytes.size()) / ElementSize(dtype);
    for (int64_t i = 0; i < count; ++i) {
      if (IsSame(dtype, cpu, cuda, i) || ++bad > 3) continue;
      ADD_FAILURE() << "buffer " << n << " dtype " << dtype << " element " << i << ": "
                    << LoadElement(dtype, cuda, i) << ", on the CPU " << LoadElement(dtype, cpu, i)
                    << "; " << call.Describe();
    }
  }
}

// run(seed) for so many seeds, or until one has failed.
template <class Run>
void ForSeeds(int full, Run run) {
  const auto cases = static_cast<uint64_t>(Cases(full));
  for (uint64_t seed = 1; seed <= cases && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run(seed);
  }
}

TEST_F(Cuda, RandomCallsEqualTheCpuBitForBit) {
  ForSeeds(3000, [&](uint64_t seed) {
    RandomCall call(seed, RandomCall::kEverything);
    const Context cpu = call.CreateContext(), cuda = call.CreateContext(ROPE_DEVICE_CUDA);
    ASSERT_TRUE(cpu != nullptr && cuda != nullptr) << call.Describe();
    call.MakeApply();
    const auto before = call.Snapshot();
    ASSERT_OK(rope_apply_qk(cpu.get(), &call.args));
    const auto on_cpu = call.Snapshot();
    call.Restore(before);
    const rope_status s = device_.Apply(cuda, call.args);
    if (s == ROPE_ERROR_UNSUPPORTED) return;  // in place, channels moved, too many pairs
    ASSERT_EQ(s, ROPE_OK) << rope_last_error();
    ExpectSame(call, on_cpu);
  });
}

TEST_F(Cuda, FilledRowsEqualTheCpuBitForBit) {
  ForSeeds(500, [&](uint64_t seed) {
    RandomCall call(seed, RandomCall::kEverything);
    const Context cpu = call.CreateContext(), cuda = call.CreateContext(ROPE_DEVICE_CUDA);
    ASSERT_TRUE(cpu != nullptr && cuda != nullptr) << call.Describe();
    call.MakeFill();
    const rope_qk_args& a = call.args;
    const auto before = call.Snapshot();
    ASSERT_OK(rope_cos_sin_fill(cpu.get(), a.batch, a.tokens, &a.positions, &call.rows, nullptr));
    const auto on_cpu = call.Snapshot();
    call.Restore(before);
    ASSERT_OK(device_.Fill(cuda, a.batch, a.tokens, a.positions, call.rows));
    ExpectSame(call, on_cpu);
  });
}

// The first byte of the memory of a call that is not as wanted.
template <class Bytes>
int64_t FirstOther(const Bytes& want, const Bytes& got) {
  return std::mismatch(want.begin(), want.end(), got.begin()).first - want.begin();
}

TEST_F(Cuda, AppendsEqualTheReferenceByteForByte) {
  int made = 0;
  ForSeeds(3000, [&](uint64_t seed) {
    Random r(seed);
    CacheCase e = RandomCacheCase(&r);
    e.wish.sets = 1;
    const Context cpu = Create(e.config), cuda = device_.Create({e.config});
    ASSERT_TRUE(cpu != nullptr && cuda != nullptr);
    CacheCall call(e.config, e.wish, seed);
    call.args();
    const Lines want = call.Want(cpu);
    std::vector<uint32_t> dropped(1);
    call.cache()->dropped = dropped.data();
    const rope_status s = device_.Apply(cuda, call.args());
    if (s == ROPE_ERROR_UNSUPPORTED) return;  // in place, channels moved, too many pairs
    ASSERT_EQ(s, ROPE_OK) << rope_last_error();
    EXPECT_EQ(FirstOther(want, call.memory()), static_cast<int64_t>(want.size()));
    EXPECT_EQ(dropped[0], call.missing());
    ++made;
  });
  EXPECT_GT(2 * made, Cases(3000));
}

TEST_F(Cuda, MovesEqualTheReferenceByteForByte) {
  int made = 0;
  ForSeeds(2000, [&](uint64_t seed) {
    Random r(seed);
    const MoveWish wish = RandomMoveWish(&r);
    const rope_config config = RandomMoveConfig(wish.dtype, &r);
    const Context cpu = Create(config), cuda = device_.Create({config});
    ASSERT_TRUE(cpu != nullptr && cuda != nullptr);
    MoveCall call(config, wish, seed);
    call.args();
    const Lines want = call.Want(cpu);
    const rope_status s = device_.Apply(cuda, call.args());
    if (s == ROPE_ERROR_UNSUPPORTED) return;  // in place, channels moved, too many pairs
    ASSERT_EQ(s, ROPE_OK) << rope_last_error();
    EXPECT_EQ(FirstOther(want, call.memory()), static_cast<int64_t>(want.size()));
    ++made;
  });
  EXPECT_GT(2 * made, Cases(2000));
}

// tokens x 1 head of f32 on both devices by the same ids.
void CompareIds(rope_angle angle, const std::vector<int64_t>& ids) {
  const Context cpu = CreateOn(ROPE_DEVICE_CPU, angle);
  const Context cuda = CreateOn(ROPE_DEVICE_CUDA, angle);
  std::vector<float> q(ids.size() * 128, 0.75f);
  DeviceBytes device_q(q.size() * 4), device_ids(ids.size() * 8);
  device_q.CopyFrom(q.data(), q.size() * 4);
  device_ids.CopyFrom(ids.data(), ids.size() * 8);
  rope_qk_args args = Args(1, static_cast<int64_t>(ids.size()));
  args.q = Tensor(q.data(), ROPE_DTYPE_F32, 1);
  args.positions = Ids(ROPE_POSITIONS_IDS_T, ids.data());
  ASSERT_OK(rope_apply_qk(cpu.get(), &args));
  args.q.data = device_q.data();
  args.positions.ids_i64 = device_ids.as<int64_t>();
  ASSERT_OK(rope_apply_qk(cuda.get(), &args));
  EXPECT_EQ(device_q.Read<float>(), q);
}

TEST_F(Cuda, EveryPositionEqualsTheCpu) {
  std::vector<int64_t> ids = {0, 1, INT32_MAX, int64_t{INT32_MAX} + 1, INT64_MAX, INT64_MIN, -1};
  for (int bit = 0; bit < 63; ++bit) ids.push_back((int64_t{1} << bit) - bit % 3);
  std::mt19937_64 random(3);
  while (ids.size() < 4096) ids.push_back(static_cast<int64_t>(random() >> (33 - random() % 10)));
  CompareIds(ROPE_ANGLE_EXACT, ids);
  CompareIds(ROPE_ANGLE_FLOAT32, ids);
  CompareIds(ROPE_ANGLE_DIVIDE, ids);
}

// A call on q[tokens, heads, 128] in bf16 at positions offset + i.
rope_qk_args OffsetCall(void* q, int64_t tokens, int heads, int64_t offset, cudaStream_t stream) {
  rope_qk_args args = Args(1, tokens);
  args.q = Tensor(q, ROPE_DTYPE_BF16, heads);
  args.positions = Offset(offset);
  args.stream = stream;
  return args;
}

std::vector<uint16_t> RandomBf16(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint16_t> values(count);
  for (auto& v : values) v = Bf16FromFloat(static_cast<float>(random() % 2000) * 0.001f - 1);
  return values;
}

// The first call of a fresh context is captured; replays see what the position array holds then.
TEST_F(Cuda, GraphsReplayWithThePositionsOfTheMoment) {
  const Context cpu = CreateOn(ROPE_DEVICE_CPU);
  Context cuda = CreateOn(ROPE_DEVICE_CUDA);
  constexpr int64_t kTokens = 4;
  std::vector<uint16_t> expected = RandomBf16(kTokens * 8 * 128, 4);
  DeviceBytes q(expected.size() * 2), offset(8);
  q.CopyFrom(expected.data(), expected.size() * 2);
  cudaStream_t stream;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  rope_qk_args args = OffsetCall(q.data(), kTokens, 8, 0, stream);
  args.positions.kind = ROPE_POSITIONS_SEQ_OFFSETS;
  args.positions.offsets_i64 = offset.as<int64_t>();
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  ASSERT_OK(rope_apply_qk(cuda.get(), &args));
  ASSERT_OK(rope_apply_qk(cuda.get(), &args));
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  size_t nodes = 0;
  CUDA_OK(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 2u) << "one kernel for each call, nothing else";
  CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
  cuda.reset();  // a captured graph outlives its context
  for (int64_t step : {0, 5, 100000}) {
    offset.CopyFrom(&step, 8);
    CUDA_OK(cudaGraphLaunch(exec, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    rope_qk_args host = OffsetCall(expected.data(), kTokens, 8, step, nullptr);
    for (int call = 0; call < 2; ++call) ASSERT_OK(rope_apply_qk(cpu.get(), &host));
    EXPECT_EQ(q.Read<uint16_t>(), expected) << "offset " << step;
  }
  CUDA_OK(cudaGraphExecDestroy(exec));
  CUDA_OK(cudaGraphDestroy(graph));
  CUDA_OK(cudaStreamDestroy(stream));
}

// A captured append stores at the positions, and in the slots, that the arrays hold at a replay.
TEST_F(Cuda, GraphsAppendToTheSlotsOfTheMoment) {
  const Context cpu = CreateOn(ROPE_DEVICE_CPU);
  Context cuda = CreateOn(ROPE_DEVICE_CUDA);
  constexpr int kHeads = 8, kSlots = 32, kRow = kHeads * 128;
  std::vector<uint16_t> q = RandomBf16(4 * kRow, 7), kv = RandomBf16(2 * kRow, 8);
  std::vector<uint16_t> want(2 * kSlots * kRow, kPoison * 0x101);
  DeviceBytes device_q(q.size() * 2), device_kv(kv.size() * 2), device_cache(want.size() * 2);
  DeviceBytes offset(8), slot(8);
  device_q.CopyFrom(q.data(), q.size() * 2);
  device_kv.CopyFrom(kv.data(), kv.size() * 2);
  rope_kv_cache cache = ROPE_INIT(rope_kv_cache);
  cache.kind = ROPE_SLOTS_MAPPED;
  cache.pages = 2;
  cache.page_size = kSlots / 2;
  cache.slots_length = 1;
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.cache = &cache;
  const auto args = [&](uint16_t* q_at, uint16_t* kv_at, uint16_t* cache_at) {
    rope_qk_args a = OffsetCall(q_at, 1, 4 * kHeads, 0, nullptr);
    a.fused = &fused;
    a.k = Tensor(kv_at, ROPE_DTYPE_BF16, kHeads);
    fused.v = Tensor(kv_at + kRow, ROPE_DTYPE_BF16, kHeads);
    cache.k = Tensor(cache_at, ROPE_DTYPE_BF16, kHeads, ROPE_LAYOUT_NHD);
    cache.v = Tensor(cache_at + kSlots * kRow, ROPE_DTYPE_BF16, kHeads, ROPE_LAYOUT_HND);
    fused.v.head_dim = cache.v.head_dim = 128;
    return a;
  };
  cudaStream_t stream;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  rope_qk_args on_device =
      args(device_q.as<uint16_t>(), device_kv.as<uint16_t>(), device_cache.as<uint16_t>());
  on_device.stream = stream;
  on_device.positions.kind = ROPE_POSITIONS_SEQ_OFFSETS;
  on_device.positions.offsets_i64 = offset.as<int64_t>();
  cache.slots_i64 = slot.as<int64_t>();
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  ASSERT_OK(rope_apply_qk(cuda.get(), &on_device));
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  size_t nodes = 0;
  CUDA_OK(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT_EQ(nodes, 1u) << "q, k and v in one kernel";
  CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
  cuda.reset();  // a captured graph outlives its context
  for (int64_t step : {3, 17, -1, 30}) {
    offset.CopyFrom(&step, 8);
    slot.CopyFrom(&step, 8);
    CUDA_OK(cudaGraphLaunch(exec, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    rope_qk_args host = args(q.data(), kv.data(), want.data());
    host.positions.offset = step;
    cache.slots_i64 = &step;
    ASSERT_OK(rope_apply_qk(cpu.get(), &host));
    EXPECT_EQ(device_q.Read<uint16_t>(), q) << step;
    EXPECT_EQ(device_cache.Read<uint16_t>(), want) << step;
  }
  CUDA_OK(cudaGraphExecDestroy(exec));
  CUDA_OK(cudaGraphDestroy(graph));
  CUDA_OK(cudaStreamDestroy(stream));
}

// Kernels carry the frequencies in their parameters, which CUDA copies at the launch.
TEST_F(Cuda, QueuedWorkOutlivesItsContext) {
  const Context cpu = CreateOn(ROPE_DEVICE_CPU);
  Context cuda = CreateOn(ROPE_DEVICE_CUDA);
  constexpr int64_t kTokens = 64;
  std::vector<uint16_t> expected = RandomBf16(kTokens * 8 * 128, 6);
  std::vector<float> rows(kTokens * 128);
  DeviceBytes q(expected.size() * 2), device_rows(rows.size() * 4);
  q.CopyFrom(expected.data(), expected.size() * 2);
  rope_cos_sin table = ROPE_INIT(rope_cos_sin);
  table.format = ROPE_COS_SIN_PACKED;
  table.dtype = ROPE_DTYPE_F32;
  table.pairs = 64;
  table.batch = 1;
  table.data = rows.data();
  rope_qk_args args = OffsetCall(expected.data(), kTokens, 8, 1000, nullptr);
  ASSERT_OK(rope_apply_qk(cpu.get(), &args));
  ASSERT_OK(rope_cos_sin_fill(cpu.get(), 1, kTokens, &args.positions, &table, nullptr));

  cudaStream_t stream;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const auto queue = [&](DeviceBytes* to) {
    args = OffsetCall(to->data(), kTokens, 8, 1000, stream);
    table.data = device_rows.data();
    const rope_status status = rope_apply_qk(cuda.get(), &args);
    return status != ROPE_OK
               ? status
               : rope_cos_sin_fill(cuda.get(), 1, kTokens, &args.positions, &table, stream);
  };
  DeviceBytes other(q.size());  // a first launch may load the kernels, and wait for what runs
  ASSERT_EQ(queue(&other), ROPE_OK) << rope_last_error();
  CUDA_OK(cudaMemsetAsync(device_rows.data(), kPoison, device_rows.size(), stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  // Nothing after this begins before the context has gone.
  std::atomic<bool> gone{false};
  const auto wait = [](void* flag) {
    while (!*static_cast<std::atomic<bool>*>(flag)) std::this_thread::yield();
  };
  CUDA_OK(cudaLaunchHostFunc(stream, wait, &gone));
  const rope_status queued = queue(&q);
  cuda.reset();
  args = rope_qk_args{};
  gone = true;
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(queued, ROPE_OK);
  EXPECT_EQ(q.Read<uint16_t>(), expected);
  EXPECT_EQ(device_rows.Read<float>(), rows);
  CUDA_OK(cudaStreamDestroy(stream));
}

// Which is all that a child may do with it: destroying calls nothing of CUDA.
TEST_F(Cuda, AChildAfterForkMayDestroyAContext) {
  Context cuda = CreateOn(ROPE_DEVICE_CUDA);
  DeviceBytes q(8 * 128 * 2);
  const rope_qk_args args = OffsetCall(q.data(), 1, 8, 1, nullptr);
  ASSERT_OK(rope_apply_qk(cuda.get(), &args));
  ExpectChildEnds([&] {
    cuda.reset();
    _exit(0);
  });
  EXPECT_OK(rope_apply_qk(cuda.get(), &args));
  CUDA_OK(cudaDeviceSynchronize());
}

// Eight threads, each with a stream, share one context.
TEST_F(Cuda, StreamsOfSeveralThreadsShareAContext) {
  const Context cpu = CreateOn(ROPE_DEVICE_CPU);
  const Context cuda = CreateOn(ROPE_DEVICE_CUDA);
  std::vector<std::thread> threads;
  for (uint32_t n = 0; n < 8; ++n) {
    threads.emplace_back([&, n] {
      std::vector<uint16_t> expected = RandomBf16(64 * 8 * 128, n);
      DeviceBytes q(expected.size() * 2);
      q.CopyFrom(expected.data(), expected.size() * 2);
      CUDA_OK(cudaDeviceSynchronize());
      cudaStream_t stream;
      CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      for (int step = 0; step < 50; ++step) {
        rope_qk_args args = OffsetCall(q.data(), 64, 8, n * 1000 + step, stream);
        ASSERT_OK(rope_apply_qk(cuda.get(), &args));
        args = OffsetCall(expected.data(), 64, 8, n * 1000 + step, nullptr);
        ASSERT_OK(rope_apply_qk(cpu.get(), &args));
      }
      CUDA_OK(cudaStreamSynchronize(stream));
      EXPECT_EQ(q.Read<uint16_t>(), expected);
      CUDA_OK(cudaStreamDestroy(stream));
    });
  }
  for (auto& t : threads) t.join();
}

// Many calls in a row without waiting: each starts while the one before it drains.
TEST_F(Cuda, ChainsStayOrdered) {
  const Context cpu = CreateOn(ROPE_DEVICE_CPU);
  const Context cuda = CreateOn(ROPE_DEVICE_CUDA);
  std::vector<uint16_t> expected = RandomBf16(33 * 8 * 128, 5);
  DeviceBytes q(expected.size() * 2);
  q.CopyFrom(expected.data(), expected.size() * 2);
  for (int step = 0; step < Cases(1000); ++step) {
    rope_qk_args args = OffsetCall(q.data(), 33, 8, step, nullptr);
    ASSERT_OK(rope_apply_qk(cuda.get(), &args));
    args.q.data = expected.data();
    ASSERT_OK(rope_apply_qk(cpu.get(), &args));
  }
  EXPECT_EQ(q.Read<uint16_t>(), expected);
}

// More than 2^31 elements: heads at the end, in the middle and at the start.
TEST_F(Cuda, TensorsMayExceed32Bits) {
  if (Cases(2) == 1) GTEST_SKIP() << "too slow under compute-sanitizer";
  constexpr int kHeads = 8;
  constexpr int64_t kTokens = (int64_t{1} << 31) / (kHeads * 128) + 4097;
  constexpr size_t kBytes = static_cast<size_t>(kTokens) * kHeads * 128 * 2;
  size_t free_bytes = 0, all = 0;
  CUDA_OK(cudaMemGetInfo(&free_bytes, &all));
  if (free_bytes < kBytes + (size_t{256} << 20)) GTEST_SKIP() << "needs " << kBytes << " bytes";
  const Context cpu = CreateOn(ROPE_DEVICE_CPU);
  const Context cuda = CreateOn(ROPE_DEVICE_CUDA);
  rope_norm norm = ROPE_INIT(rope_norm);
  norm.kind = ROPE_NORM_KIND_RMS_PLAIN;
  norm.eps = 1e-6;
  rope_fused with_norm = ROPE_INIT(rope_fused);
  with_norm.q_norm = &norm;
  for (const bool is_normed : {false, true}) {
    const rope_fused* const fused = is_normed ? &with_norm : nullptr;
    DeviceBytes q(kBytes);
    rope_qk_args args = OffsetCall(q.data(), kTokens, kHeads, 7, nullptr);
    args.fused = fused;
    ASSERT_OK(rope_apply_qk(cuda.get(), &args));
    CUDA_OK(cudaDeviceSynchronize());
    constexpr int64_t kSome = 64;
    for (const int64_t first :
         {int64_t{0}, kTokens / 2, (int64_t{1} << 31) / 1024 - kSome / 2, kTokens - kSome}) {
      std::vector<uint16_t> expected(kSome * kHeads * 128, kPoison * 0x101), got(expected.size());
      rope_qk_args host = OffsetCall(expected.data(), kSome, kHeads, 7 + first, nullptr);
      host.fused = fused;
      ASSERT_OK(rope_apply_qk(cpu.get(), &host));
      CUDA_OK(cudaMemcpy(got.data(), q.as<uint16_t>() + first * kHeads * 128, got.size() * 2,
                         cudaMemcpyDeviceToHost));
      EXPECT_EQ(got, expected) << "from token " << first;
    }
  }
}

// An error of the caller stays for the caller to see, and the current device is not changed.
TEST_F(Cuda, LeavesDeviceAndErrorsOfTheProgramAlone) {
  (void)cudaGetLastError();
  ASSERT_NE(cudaMemset(nullptr, 0, size_t{1} << 60), cudaSuccess);
  const cudaError_t before = cudaPeekAtLastError();
  const Context cuda = CreateOn(ROPE_DEVICE_CUDA);
  DeviceBytes q(8 * 128 * 2);
  rope_qk_args args = OffsetCall(q.data(), 1, 8, 1, nullptr);
  EXPECT_OK(rope_apply_qk(cuda.get(), &args));
  EXPECT_EQ(cudaPeekAtLastError(), before);
  (void)cudaGetLastError();
  int device = -1;
  CUDA_OK(cudaGetDevice(&device));
  EXPECT_EQ(device, 0);
  const std::string name = rope_context_backend(cuda.get());
  EXPECT_EQ(name.rfind("cuda:0 sm_", 0), 0u) << name;

  int count = 0;
  CUDA_OK(cudaGetDeviceCount(&count));
  rope_config absent = PlainConfig(ROPE_DEVICE_CUDA);
  absent.device_index = count;
  rope_context* context = nullptr;
  EXPECT_EQ(rope_context_create(&absent, &context), ROPE_ERROR_UNAVAILABLE);
  if (count < 2) return;
  CUDA_OK(cudaSetDevice(1));
  EXPECT_EQ(rope_apply_qk(cuda.get(), &args), ROPE_ERROR_INVALID_ARGUMENT);
  CUDA_OK(cudaSetDevice(0));
}

}  // namespace
}  // namespace rope::testing
