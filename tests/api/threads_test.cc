// The contract with runners, the pool, and one context in many threads. Run under ThreadSanitizer
// too.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "support/child.h"
#include "support/errors.h"
#include "support/handles.h"
#include "support/random_values.h"

namespace {

// How many more threads the system grants.
constexpr int kUnlimited = 1 << 30;
std::atomic<int> threads_left{kUnlimited};

}  // namespace

// Stands before the system's for the whole program, so that a test can have threads refused. Limits
// of memory would do so too, but end a program under AddressSanitizer.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*start)(void*), void* argument) {
  static const auto system =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, __func__));
  if (threads_left <= 0) return EAGAIN;
  if (threads_left != kUnlimited) --threads_left;
  return system(thread, attributes, start, argument);
}

namespace rope::testing {
namespace {

constexpr int kDim = 128, kHeads = 8;
constexpr int64_t kTokenBytes = kDim * kHeads * 4;

std::vector<float> Random(int64_t tokens) {
  return RandomValues(static_cast<size_t>(tokens * kDim * kHeads));
}

rope_qk_args ArgsOf(int64_t batch, int64_t tokens, std::vector<float>* x,
                    const rope_runner* runner) {
  rope_qk_args args = Args(batch, tokens);
  args.q = Tensor(x->data(), ROPE_DTYPE_F32, kHeads);
  args.positions = Offset(3);
  args.runner = runner;
  return args;
}

// Runs tasks in an order of its choice, on several threads, and notes what it was asked.
struct Recorder {
  rope_runner runner{&Recorder::Run, this};
  int calls = 0;
  uint32_t count = 0;
  int32_t result = 0;
  bool backwards = false, threads = false;

  static int32_t Run(void* self, rope_task_fn fn, void* task, uint32_t count) {
    auto* r = static_cast<Recorder*>(self);
    ++r->calls;
    r->count = count;
    if (r->result != 0) return r->result;
    if (r->threads) {
      std::vector<std::thread> pack;
      for (uint32_t i = 0; i < count; ++i) pack.emplace_back([=] { fn(task, i); });
      for (std::thread& t : pack) t.join();
      return 0;
    }
    for (uint32_t i = 0; i < count; ++i) fn(task, r->backwards ? count - 1 - i : i);
    return 0;
  }
};

TEST(Runner, SmallCallsNeverReachIt) {
  const Context context = Create(Config(kDim));
  for (int64_t tokens : {int64_t{1}, int64_t{8}, (2 << 20) / kTokenBytes}) {
    Recorder recorder;
    std::vector<float> x = Random(tokens);
    const rope_qk_args args = ArgsOf(1, tokens, &x, &recorder.runner);
    ASSERT_OK(rope_apply_qk(context.get(), &args));
    EXPECT_EQ(recorder.calls, 0) << tokens;
  }
}

TEST(Runner, LargeCallsAreCutIntoTasksWorthAThread) {
  const Context context = Create(Config(kDim));
  for (int64_t tokens : {513, 600, 1000, 8000, 8001}) {
    for (int64_t batch : {1, 3}) {
      Recorder recorder;
      std::vector<float> x = Random(batch * tokens);
      const rope_qk_args args = ArgsOf(batch, tokens, &x, &recorder.runner);
      ASSERT_OK(rope_apply_qk(context.get(), &args));
      ASSERT_EQ(recorder.calls, 1);
      const int64_t bytes = batch * tokens * kTokenBytes;
      EXPECT_LE(recorder.count, (bytes + (256 << 10) - 1) / (256 << 10)) << tokens;
      EXPECT_GE(recorder.count, bytes / (1 << 20)) << tokens;
    }
  }
}

// Each task writes tokens of its own, and together they write all.
TEST(Runner, TasksAreDisjointAndComplete) {
  const Context context = Create(Config(kDim));
  struct OneByOne {
    rope_runner runner{&OneByOne::Run, this};
    std::vector<float>* x;
    std::vector<int> writers;
    static int32_t Run(void* self, rope_task_fn fn, void* task, uint32_t count) {
      auto* r = static_cast<OneByOne*>(self);
      r->writers.assign(r->x->size(), 0);
      for (uint32_t i = 0; i < count; ++i) {
        const std::vector<float> before = *r->x;
        fn(task, i);
        size_t changed = 0;
        for (size_t n = 0; n < before.size(); ++n) {
          const bool differs = std::memcmp(&before[n], &(*r->x)[n], 4) != 0;
          r->writers[n] += differs;
          changed += differs;
        }
        EXPECT_TRUE(i + 1 == count || changed * 4 >= 250 << 10) << "task " << i;
      }
      return 0;
    }
  } runner;
  std::vector<float> x = Random(3 * 177);
  runner.x = &x;
  rope_qk_args args = ArgsOf(3, 177, &x, &runner.runner);
  args.positions = Offset(1);
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  size_t twice = 0, once = 0;
  for (int w : runner.writers) twice += w > 1, once += w == 1;
  EXPECT_EQ(twice, 0u);
  EXPECT_GT(once, x.size() * 99 / 100);  // few values stay the same when turned
}

TEST(Runner, AnyOrderAndAnyThreadsGiveTheSameBits) {
  const Context context = Create(Config(kDim));
  const std::vector<float> source = Random(2 * 500);
  std::vector<float> want = source;
  rope_qk_args args = ArgsOf(2, 500, &want, nullptr);
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  for (int mode = 0; mode < 3; ++mode) {
    Recorder recorder;
    recorder.backwards = mode == 1;
    recorder.threads = mode == 2;
    std::vector<float> x = source;
    args = ArgsOf(2, 500, &x, &recorder.runner);
    ASSERT_OK(rope_apply_qk(context.get(), &args));
    EXPECT_EQ(x, want) << mode;
  }
}

TEST(Runner, ItsFailureIsAStatus) {
  const Context context = Create(Config(kDim));
  Recorder recorder;
  recorder.result = 42;
  std::vector<float> x = Random(1000);
  const rope_qk_args args = ArgsOf(1, 1000, &x, &recorder.runner);
  EXPECT_EQ(rope_apply_qk(context.get(), &args), ROPE_ERROR_RUNNER);
  ExpectMessage("rope_apply_qk", {"parallel_for", "42"});
}

// One that reports success without having run each task once.
TEST(Runner, ThatDoesNotRunEachTaskOnceIsNoticed) {
  const Context context = Create(Config(kDim));
  const auto status_of = [&](auto parallel_for) {
    const rope_runner runner = {parallel_for, nullptr};
    std::vector<float> x = Random(1000);
    const rope_qk_args args = ArgsOf(1, 1000, &x, &runner);
    return rope_apply_qk(context.get(), &args);
  };
  EXPECT_EQ(status_of([](void*, rope_task_fn, void*, uint32_t) -> int32_t { return 0; }),
            ROPE_ERROR_RUNNER);
  ExpectMessage("rope_apply_qk", {"parallel_for", "returned 0", "0 of"});
  EXPECT_EQ(status_of([](void*, rope_task_fn fn, void* task, uint32_t count) -> int32_t {
              for (uint32_t i = 0; i < 2 * count; ++i) fn(task, i % count);
              return 0;
            }),
            ROPE_ERROR_RUNNER);
  EXPECT_EQ(status_of([](void*, rope_task_fn fn, void* task, uint32_t count) -> int32_t {
              for (uint32_t i = 1; i < count; ++i) fn(task, i);
              return 0;
            }),
            ROPE_ERROR_RUNNER);
}

// Indices beyond the last one have nothing to do, also where tasks are parts of gradients.
TEST(Runner, ThatRunsMoreTasksThanThereAreIsNoticed) {
  constexpr int kHeads = 16, kTokens = 1000, kParts = 33;
  const Context context = Create(Config(kDim));
  const rope_runner runner = {[](void*, rope_task_fn fn, void* task, uint32_t count) -> int32_t {
                                for (uint32_t i = 0; i < count + 5; ++i) fn(task, i);
                                return 0;
                              },
                              nullptr};
  std::vector<float> gradient(kTokens * kHeads * kDim, 1),
      x = gradient, out = gradient, weight(kDim, 1), weight_grad(kParts * kDim + 1, -123);
  rope_norm norm = ROPE_INIT(rope_norm);
  norm.kind = ROPE_NORM_KIND_RMS;
  norm.eps = 1e-6;
  norm.weight = weight.data();
  norm.weight_dtype = ROPE_DTYPE_F32;
  norm.weight_grad = weight_grad.data();
  norm.grad_parts = kParts;
  const rope_tensor of_x = Tensor(x.data(), ROPE_DTYPE_F32, kHeads);
  norm.x = &of_x;
  rope_fused fused = ROPE_INIT(rope_fused);
  fused.q_norm = &norm;
  rope_qk_args args = Args(1, kTokens);
  args.operation = ROPE_OPERATION_BACKWARD;
  args.positions = Offset(3);
  args.q = Tensor(gradient.data(), ROPE_DTYPE_F32, kHeads);
  args.q_out = Tensor(out.data(), ROPE_DTYPE_F32, kHeads);
  args.fused = &fused;
  args.runner = &runner;
  EXPECT_EQ(rope_apply_qk(context.get(), &args), ROPE_ERROR_RUNNER);
  EXPECT_EQ(weight_grad.back(), -123);
  EXPECT_NE(weight_grad[kParts * kDim - 1], -123);
}

TEST(Pool, CallsEachIndexOnce) {
  for (int threads : {0, 1, 2, 5}) {
    const Pool pool = CreatePool(threads);
    const rope_runner* runner = rope_pool_runner(pool.get());
    ASSERT_NE(runner, nullptr);
    for (uint32_t count : {0u, 1u, 2u, 7u, 1000u}) {
      std::vector<std::atomic<int>> hits(count);
      const auto fn = [](void* task, uint32_t i) {
        ++(*static_cast<std::vector<std::atomic<int>>*>(task))[i];
      };
      EXPECT_EQ(runner->parallel_for(runner->pool, fn, &hits, count), 0);
      for (const auto& h : hits) EXPECT_EQ(h, 1);
    }
  }
}

TEST(Pool, UsesItsThreadsAndTheCallers) {
  const Pool pool = CreatePool(3);
  const rope_runner* runner = rope_pool_runner(pool.get());
  struct Seen {
    std::mutex mutex;
    std::set<std::thread::id> ids;
    std::atomic<int> arrived{0};
  } seen;
  // Each of three tasks waits for the others, so that three threads must take part.
  const auto fn = [](void* task, uint32_t) {
    auto* s = static_cast<Seen*>(task);
    {
      const std::lock_guard<std::mutex> lock(s->mutex);
      s->ids.insert(std::this_thread::get_id());
    }
    ++s->arrived;
    while (s->arrived < 3) std::this_thread::yield();
  };
  ASSERT_EQ(runner->parallel_for(runner->pool, fn, &seen, 3), 0);
  EXPECT_EQ(seen.ids.size(), 3u);
  EXPECT_EQ(seen.ids.count(std::this_thread::get_id()), 1u);
}

// parallel_for returns after the last task has finished, however long a worker holds one.
// What a thread turned before may still be in its caches: it gets the same part of each such call.
TEST(Pool, ThreadsKeepToTheirShares) {
  constexpr uint32_t kThreads = 3, kTasks = 2 * kThreads;
  const Pool pool = CreatePool(kThreads);
  const rope_runner* runner = rope_pool_runner(pool.get());
  std::thread::id first[kThreads];
  for (int call = 0; call < 200; ++call) {
    struct Task {
      std::atomic<uint32_t> waiting{0};
      std::thread::id by[kTasks];
    } task;
    const auto fn = [](void* opaque, uint32_t i) {
      auto& t = *static_cast<Task*>(opaque);
      t.by[i] = std::this_thread::get_id();
      if (i % 2 != 0)
        return;  // else the first of a share: waits until all threads have begun theirs
      ++t.waiting;
      while (t.waiting < kThreads) std::this_thread::yield();
    };
    ASSERT_EQ(runner->parallel_for(runner->pool, fn, &task, kTasks), 0);
    for (uint32_t n = 0; n < kThreads; ++n) {
      if (call == 0) first[n] = task.by[2 * n];
      ASSERT_EQ(task.by[2 * n], first[n]) << "share " << n << " of call " << call;
    }
    ASSERT_EQ(first[0], std::this_thread::get_id());
  }
}

TEST(Pool, WaitsForItsSlowestWorker) {
  const Pool pool = CreatePool(3);
  const rope_runner* runner = rope_pool_runner(pool.get());
  struct Round {
    std::thread::id caller = std::this_thread::get_id();
    std::atomic<int> arrived{0}, finished{0};
  };
  // Three tasks on three threads; the caller leaves its own at once, the workers theirs late.
  const auto fn = [](void* task, uint32_t) {
    auto* round = static_cast<Round*>(task);
    ++round->arrived;
    while (round->arrived < 3) std::this_thread::yield();
    if (std::this_thread::get_id() != round->caller) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ++round->finished;
  };
  for (int n = 0; n < 5; ++n) {
    Round round;
    ASSERT_EQ(runner->parallel_for(runner->pool, fn, &round, 3), 0);
    const int finished = round.finished;
    while (round.finished < 3) std::this_thread::yield();  // `round` outlives its tasks
    ASSERT_EQ(finished, 3);
  }
}

TEST(Pool, ConcurrentCallersGetTheBitsOfOneThread) {
  const Context context = Create(Config(kDim));
  const Pool pool = CreatePool(3);
  const std::vector<float> source = Random(600);
  std::vector<float> want = source;
  rope_qk_args args = ArgsOf(1, 600, &want, nullptr);
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int n = 0; n < 20; ++n) {
        std::vector<float> x = source;
        const rope_qk_args mine = ArgsOf(1, 600, &x, rope_pool_runner(pool.get()));
        EXPECT_EQ(rope_apply_qk(context.get(), &mine), ROPE_OK);
        EXPECT_EQ(std::memcmp(x.data(), want.data(), x.size() * 4), 0);
      }
    });
  }
  for (std::thread& c : callers) c.join();
}

TEST(Pool, MayBeMadeAndDestroyedOften) {
  for (int n = 0; n < 50; ++n) CreatePool(1 + n % 4);
}

// The inner calls run on the thread of the task, which could not wait for its own turn.
TEST(Pool, ATaskMayUseItsOwnPool) {
  const Pool pool = CreatePool(3);
  struct State {
    const rope_runner* runner;
    std::atomic<int> leaves{0};
    std::atomic<int> strangers{0};
  } state{rope_pool_runner(pool.get())};
  const auto outer = [](void* task, uint32_t) {
    auto* s = static_cast<State*>(task);
    struct Inner {
      State* state;
      std::thread::id thread;
    } inner{s, std::this_thread::get_id()};
    s->runner->parallel_for(
        s->runner->pool,
        [](void* leaf, uint32_t) {
          const auto* i = static_cast<Inner*>(leaf);
          ++i->state->leaves;
          i->state->strangers += std::this_thread::get_id() != i->thread;
        },
        &inner, 5);
  };
  for (int n = 0; n < 20; ++n) {
    ASSERT_EQ(state.runner->parallel_for(state.runner->pool, outer, &state, 7), 0);
  }
  EXPECT_EQ(state.leaves, 20 * 7 * 5);
  EXPECT_EQ(state.strangers, 0);
}

// A child has the pool, but none of its threads; and its locks as they are in the middle of a call.
TEST(Pool, AChildAfterForkMayUseAndDestroyIt) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer ends a child that forked with threads; other builds run this";
#endif
  Pool pool = CreatePool(3);
  const rope_runner* runner = rope_pool_runner(pool.get());
  const Context context = Create(Config(kDim));
  std::vector<float> want = Random(1000), x = want;
  const rope_qk_args args = ArgsOf(1, 1000, &want, runner);
  ASSERT_OK(rope_apply_qk(context.get(), &args));
  struct State {
    std::atomic<bool> begun{false}, forked{false};
  } state;
  std::thread other([&] {
    const auto task = [](void* of, uint32_t) {
      auto* s = static_cast<State*>(of);
      s->begun = true;
      while (!s->forked) std::this_thread::yield();
    };
    runner->parallel_for(runner->pool, task, &state, 3);
  });
  while (!state.begun) std::this_thread::yield();
  ExpectChildEnds([&] {
    const rope_qk_args mine = ArgsOf(1, 1000, &x, runner);
    const bool good = rope_apply_qk(context.get(), &mine) == ROPE_OK && x == want;
    pool.reset();
    _exit(good ? 0 : 1);
  });
  state.forked = true;
  other.join();
}

// Its threads wait for work, and a condition that has waiters cannot be destroyed.
TEST(Pool, AChildAfterForkMayDestroyAnIdleOne) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer ends a child that forked with threads; other builds run this";
#endif
  Pool pool = CreatePool(3);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // until they wait
  ExpectChildEnds([&] {
    pool.reset();
    _exit(0);
  });
}

// As an owner in static storage does at exit, in parent and child.
TEST(Pool, AChildAfterForkMayExitNormally) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer ends a child that forked with threads; other builds run this";
#endif
  static Pool at_exit = CreatePool(2);
  ExpectChildEnds([] { std::exit(0); });
}

TEST(Pool, ThreadsThatTheSystemRefusesAreAStatus) {
  auto* const untouched = reinterpret_cast<rope_pool*>(0x1234);
  rope_pool* pool = untouched;
  threads_left = 2;
  const rope_status status = rope_pool_create(4096, &pool);
  const int left = threads_left.exchange(kUnlimited);
  EXPECT_EQ(status, ROPE_ERROR_UNAVAILABLE);
  EXPECT_NE(std::string(rope_last_error()).find("threads (4096)"), std::string::npos)
      << rope_last_error();
  EXPECT_EQ(pool, untouched);
  EXPECT_EQ(left, 0) << "the pool's threads do not come from pthread_create here";
}

// The program's signals are for the program's threads.
TEST(Pool, ThreadsBlockSignals) {
  const Pool pool = CreatePool(2);
  struct Seen {
    std::thread::id caller = std::this_thread::get_id();
    std::atomic<int> arrived{0}, blocked{0}, of_caller{0};
  } seen;
  const auto fn = [](void* task, uint32_t) {
    auto* s = static_cast<Seen*>(task);
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, nullptr, &now);
    const bool blocks = sigismember(&now, SIGINT) == 1 && sigismember(&now, SIGTERM) == 1;
    (std::this_thread::get_id() == s->caller ? s->of_caller : s->blocked) += blocks;
    ++s->arrived;
    while (s->arrived < 2) std::this_thread::yield();
  };
  const rope_runner* runner = rope_pool_runner(pool.get());
  ASSERT_EQ(runner->parallel_for(runner->pool, fn, &seen, 2), 0);
  EXPECT_EQ(seen.blocked, 1);
  EXPECT_EQ(seen.of_caller, 0);
}

// But what an instruction raises is the thread's own, and may be repaired: page by page, here.
TEST(Pool, ThreadsTakeTheFaultsThatTheyRaise) {
  ExpectChildEnds([] {
    static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    constexpr size_t kPages = 2;
    static char* const memory = static_cast<char*>(
        mmap(nullptr, kPages * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    struct sigaction repair = {};
    repair.sa_flags = SA_SIGINFO;
    repair.sa_sigaction = [](int, siginfo_t* info, void*) {
      const auto at = static_cast<size_t>(static_cast<char*>(info->si_addr) - memory) / page;
      if (at >= kPages || mprotect(memory + at * page, page, PROT_READ | PROT_WRITE) != 0) _exit(2);
    };
    if (sigaction(SIGSEGV, &repair, nullptr) != 0) _exit(3);
    const Pool pool = CreatePool(2);
    const rope_runner* runner = rope_pool_runner(pool.get());
    static std::atomic<int> arrived{0};
    const auto write = [](void*, uint32_t i) {
      for (++arrived; arrived < 2;) std::this_thread::yield();  // each thread has one
      static_cast<volatile char*>(memory)[i * page] = 1;
    };
    std::_Exit(runner->parallel_for(runner->pool, write, nullptr, kPages));
  });
}

// Threads that find no task left count on, beyond 32 bits.
TEST(Pool, CallsEachIndexOnceUpToTheLargestCount) {
  if (!LongTests()) GTEST_SKIP() << "a minute: LIBROPE_TEST_LONG=1 runs it";
  const Pool pool = CreatePool(4);
  const rope_runner* runner = rope_pool_runner(pool.get());
  std::atomic<int> first{0};
  const auto fn = [](void* task, uint32_t i) {
    if (i == 0) ++*static_cast<std::atomic<int>*>(task);
  };
  EXPECT_EQ(runner->parallel_for(runner->pool, fn, &first, UINT32_MAX), 0);
  EXPECT_EQ(first, 1);
}

TEST(Context, IsSharedByThreads) {
  for (rope_angle angle : {ROPE_ANGLE_FLOAT32, ROPE_ANGLE_EXACT, ROPE_ANGLE_DIVIDE}) {
    rope_config config = Config(kDim);
    config.angle = angle;
    const Context context = Create(config);
    const std::vector<float> source = Random(4);
    std::vector<std::thread> threads;
    std::vector<std::vector<float>> results(4, source);
    for (auto& result : results) {
      threads.emplace_back([&context, &result] {
        const int64_t ids[4] = {5, 600, 70000, 8000000};
        for (int n = 0; n < 50; ++n) {
          EXPECT_EQ(rope_apply_thd(context.get(), ROPE_DTYPE_F32, 4, ids, result.data(), kHeads,
                                   nullptr, 0),
                    ROPE_OK);
          EXPECT_NE(rope_apply_thd(context.get(), ROPE_DTYPE_F32, -n - 1, ids, result.data(),
                                   kHeads, nullptr, 0),
                    ROPE_OK);
          EXPECT_NE(std::string(rope_last_error()).find("(" + std::to_string(-n - 1) + ")"),
                    std::string::npos);
        }
      });
    }
    for (std::thread& t : threads) t.join();
    for (const auto& result : results) EXPECT_EQ(result, results[0]);
  }
}

}  // namespace
}  // namespace rope::testing
