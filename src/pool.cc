// The optional thread pool: workers sleep until a call hands them tasks. Each thread takes those of
// its own share, which is the same part of every call of a size, so that what it turned before may
// still be in its caches; then what others have left. Written here because no packaged pool has
// this shape (a C callback, no allocation per call, the caller works too) without a library at run
// time.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/guard.h"
#include "base/limits.h"
#include "base/status.h"

namespace {

// Blocks signals while it lives. Threads started then inherit that, so that the program's signals
// reach the program's own threads. Not those that an instruction raises: they are the thread's own,
// and a handler may repair the cause (write barriers, mapped caches), but a blocked one kills.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    for (int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT})
      sigdelset(&all, own);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

void RunSequentially(rope_task_fn fn, void* task, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) fn(task, i);
}

}  // namespace

struct rope_pool {
 public:
  explicit rope_pool(int32_t threads)
      : shares_(static_cast<size_t>(threads)),
        process_(getpid()),
        runner_{&rope_pool::ParallelFor, this} {
    workers_.reserve(static_cast<size_t>(threads - 1));
    const BlockedSignals blocked;
    try {
      for (int32_t i = 1; i < threads; ++i)
        workers_.emplace_back([this, i] { Work(static_cast<size_t>(i)); });
    } catch (...) {  // a thread could not be started: end those that run
      Stop();
      throw;
    }
  }
  ~rope_pool() { Stop(); }
  rope_pool(const rope_pool&) = delete;
  rope_pool& operator=(const rope_pool&) = delete;

  const rope_runner* runner() const { return &runner_; }

  // In a child after fork: it has none of the threads, and the locks are as they happened to be.
  bool IsForked() const { return getpid() != process_; }

 private:
  // Adjacent tasks, one share for each thread, on a line of its own.
  struct alignas(64) Share {
    std::atomic<uint64_t> next;  // beyond end by one per thread: wider than a task's index
    uint32_t end;
  };

  // One call of parallel_for. Workers read it only between joining and leaving, under which the
  // caller waits.
  struct Job {
    rope_task_fn fn;
    void* task;
  };

  // A thread's own share first, then what the others have left.
  void TakeTasks(const Job& job, size_t thread) {
    for (size_t i = 0; i < shares_.size(); ++i) {
      Share& share = shares_[(thread + i) % shares_.size()];
      while (share.next.load(std::memory_order_relaxed) < share.end) {
        const uint64_t index = share.next.fetch_add(1, std::memory_order_relaxed);
        if (index < share.end) job.fn(job.task, static_cast<uint32_t>(index));
      }
    }
  }

  static int32_t ParallelFor(void* pool, rope_task_fn fn, void* task, uint32_t count) {
    static_cast<rope_pool*>(pool)->Run(fn, task, count);
    return 0;
  }

  // Whether this thread runs a task of this pool: its turn is not over, so it must not wait for
  // one.
  bool IsInTask() const {
    const std::thread::id self = std::this_thread::get_id();
    return caller_.load(std::memory_order_relaxed) == self ||
           std::any_of(workers_.begin(), workers_.end(),
                       [self](const std::thread& worker) { return worker.get_id() == self; });
  }

  void Run(rope_task_fn fn, void* task, uint32_t count) {
    if (IsForked() || IsInTask()) return RunSequentially(fn, task, count);
    const std::lock_guard<std::mutex> turn(turns_);  // concurrent calls take turns
    caller_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    const Job job{fn, task};
    for (size_t i = 0; i < shares_.size(); ++i) {
      shares_[i].next.store(uint64_t{count} * i / shares_.size(), std::memory_order_relaxed);
      shares_[i].end = static_cast<uint32_t>(uint64_t{count} * (i + 1) / shares_.size());
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
      ++generation_;
    }
    wake_.notify_all();
    TakeTasks(job, 0);
    std::unique_lock<std::mutex> lock(mutex_);
    job_ = nullptr;  // late workers find nothing
    done_.wait(lock, [this] { return active_ == 0; });
    caller_.store(std::thread::id(), std::memory_order_relaxed);
  }

  void Work(size_t thread) {
#if defined(__linux__)
    pthread_setname_np(pthread_self(), "rope_pool");  // as top and debuggers show it
#endif
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stopping_ || (job_ != nullptr && generation_ != seen); });
      if (stopping_) return;
      seen = generation_;
      const Job* job = job_;
      ++active_;
      lock.unlock();
      TakeTasks(*job, thread);
      lock.lock();
      if (--active_ == 0) done_.notify_one();
    }
  }

  void Stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  std::mutex turns_;
  std::atomic<std::thread::id> caller_{};  // whose turn it is
  std::mutex mutex_;                       // guards what follows
  std::condition_variable wake_, done_;
  const Job* job_ = nullptr;
  uint64_t generation_ = 0;
  int active_ = 0;
  bool stopping_ = false;

  std::vector<Share> shares_;
  std::vector<std::thread> workers_;
  const pid_t process_;
  const rope_runner runner_;
};

namespace {

// CPUs this process may run on, which a container can limit below those of the machine.
int32_t AvailableCpus() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
#endif
  const unsigned count = std::thread::hardware_concurrency();
  return count > 0 ? static_cast<int32_t>(count) : 1;
}

}  // namespace

rope_status rope_pool_create(int32_t threads, rope_pool** out) {
  static constexpr char kFunction[] = "rope_pool_create";
  if (out == nullptr) {
    return rope::Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: out (NULL) must not be NULL", kFunction);
  }
  if (threads < 0 || threads > rope::kMaxPoolThreads) {
    return rope::Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: threads (%d) must be from 0 to %d",
                      kFunction, threads, rope::kMaxPoolThreads);
  }
  return rope::Guard(kFunction, [&]() -> rope_status {
    const int32_t count = threads > 0 ? threads : AvailableCpus();
    try {
      *out = new rope_pool(count);
    } catch (const std::system_error& error) {
      return rope::Fail(ROPE_ERROR_UNAVAILABLE,
                        "%s: threads (%d): the system refused to start one of %d (errno %d)",
                        kFunction, threads, count, error.code().value());
    }
    return ROPE_OK;
  });
}

void rope_pool_destroy(rope_pool* pool) {
  if (pool == nullptr || pool->IsForked()) return;  // the parent's: left as it is
  delete pool;
}

const rope_runner* rope_pool_runner(const rope_pool* pool) {
  return pool != nullptr ? pool->runner() : nullptr;
}
