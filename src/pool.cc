// The optional thread pool: workers sleep until a call hands them tasks, and take these one by one
// from an atomic counter. Written here because no packaged pool has this shape (a C callback, no
// allocation per call, the caller works too) without a library at run time.
#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "guard.h"
#include "status.h"

struct rope_pool {
 public:
  explicit rope_pool(int32_t threads) : runner_{&rope_pool::ParallelFor, this} {
    workers_.reserve(static_cast<size_t>(threads - 1));
    try {
      for (int32_t i = 1; i < threads; ++i) workers_.emplace_back([this] { Work(); });
    } catch (...) {  // a thread could not be started: end those that run
      Stop();
      throw;
    }
  }
  ~rope_pool() { Stop(); }
  rope_pool(const rope_pool&) = delete;
  rope_pool& operator=(const rope_pool&) = delete;

  const rope_runner* runner() const { return &runner_; }

 private:
  // One call of parallel_for. Workers read it only between joining and leaving, under which the
  // caller waits.
  struct Job {
    rope_task_fn fn;
    void* task;
    uint32_t count;
    std::atomic<uint32_t> next{0};

    void TakeTasks() {
      for (;;) {
        const uint32_t index = next.fetch_add(1, std::memory_order_relaxed);
        if (index >= count) return;
        fn(task, index);
      }
    }
  };

  static int32_t ParallelFor(void* pool, rope_task_fn fn, void* task, uint32_t count) {
    static_cast<rope_pool*>(pool)->Run(fn, task, count);
    return 0;
  }

  void Run(rope_task_fn fn, void* task, uint32_t count) {
    const std::lock_guard<std::mutex> turn(turns_);  // concurrent calls take turns
    Job job{fn, task, count};
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
      ++generation_;
    }
    wake_.notify_all();
    job.TakeTasks();
    std::unique_lock<std::mutex> lock(mutex_);
    job_ = nullptr;  // late workers find nothing
    done_.wait(lock, [this] { return active_ == 0; });
  }

  void Work() {
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stopping_ || (job_ != nullptr && generation_ != seen); });
      if (stopping_) return;
      seen = generation_;
      Job* job = job_;
      ++active_;
      lock.unlock();
      job->TakeTasks();
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
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_, done_;
  Job* job_ = nullptr;
  uint64_t generation_ = 0;
  int active_ = 0;
  bool stopping_ = false;

  std::vector<std::thread> workers_;
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
  if (threads < 0 || threads > 4096) {
    return rope::Fail(ROPE_ERROR_INVALID_ARGUMENT, "%s: threads (%d) must be from 0 to 4096",
                      kFunction, threads);
  }
  return rope::Guard(kFunction, [&]() -> rope_status {
    *out = new rope_pool(threads > 0 ? threads : AvailableCpus());
    return ROPE_OK;
  });
}

void rope_pool_destroy(rope_pool* pool) { delete pool; }

const rope_runner* rope_pool_runner(const rope_pool* pool) {
  return pool != nullptr ? pool->runner() : nullptr;
}
