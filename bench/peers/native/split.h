// Cuts the tokens of a call into as many equal parts as the case has threads, and runs them on
// librope's pool, for contenders that know no threads of their own: all wake up at the same cost.
#ifndef LIBROPE_BENCH_PEERS_SPLIT_H_
#define LIBROPE_BENCH_PEERS_SPLIT_H_

#include <librope/rope.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>

namespace peers {

class Split {
 public:
  explicit Split(int threads) : threads_(threads) {
    if (threads > 1 && rope_pool_create(threads, &pool_) != ROPE_OK) {
      throw std::runtime_error(rope_last_error());
    }
  }
  ~Split() { rope_pool_destroy(pool_); }
  Split(const Split&) = delete;
  Split& operator=(const Split&) = delete;

  const rope_runner* runner() const { return pool_ == nullptr ? nullptr : rope_pool_runner(pool_); }

  // body(first, count) for parts of [0, count).
  template <class Body>
  void Run(int64_t count, const Body& body) const {
    if (pool_ == nullptr || count < 2) return body(int64_t{0}, count);
    struct Task {
      const Body* body;
      int64_t count, step;
    } task = {&body, count, (count + threads_ - 1) / threads_};
    const auto part = [](void* data, uint32_t i) {
      const Task& t = *static_cast<Task*>(data);
      const int64_t first = std::min(t.count, int64_t{i} * t.step);
      (*t.body)(first, std::min(t.step, t.count - first));
    };
    const rope_runner* runner = rope_pool_runner(pool_);
    runner->parallel_for(runner->pool, part, &task, static_cast<uint32_t>(threads_));
  }

 private:
  int threads_;
  rope_pool* pool_ = nullptr;
};

}  // namespace peers

#endif  // LIBROPE_BENCH_PEERS_SPLIT_H_
