// A C++ server with its own std::thread pool.
#include <atomic>
#include <thread>
#include <vector>
#include <librope/rope.h>
#include <cstdio>
#include <cstring>
static int32_t ParallelFor(void* pool, rope_task_fn fn, void* task, uint32_t count) {
  const int threads = *static_cast<int*>(pool);
  std::atomic<uint32_t> next{0};
  auto work = [&] {
    for (uint32_t i; (i = next++) < count;) fn(task, i);
  };
  std::vector<std::thread> pack;
  for (int i = 1; i < threads; ++i) pack.emplace_back(work);
  work();
  for (auto& t : pack) t.join();
  return 0;
}
int main() {
  const int T = 1024, H = 8, D = 128;
  std::vector<float> q(static_cast<size_t>(T) * H * D, 0.5f), r = q;
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = D;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope = nullptr;
  if (rope_context_create(&config, &rope) != ROPE_OK) return std::puts(rope_last_error()), 1;
  int threads = 3;
  rope_runner runner = {ParallelFor, &threads};
  rope_qk_args args = ROPE_INIT(rope_qk_args);
  args.batch = 1;
  args.tokens = T;
  args.q.data = q.data();
  args.q.dtype = ROPE_DTYPE_F32;
  args.q.layout = ROPE_LAYOUT_BSHD;
  args.q.heads = H;
  args.positions.kind = ROPE_POSITIONS_OFFSET;
  args.runner = &runner;
  if (rope_apply_qk(rope, &args) != ROPE_OK) return std::puts(rope_last_error()), 1;
  args.runner = nullptr;
  args.q.data = r.data();
  if (rope_apply_qk(rope, &args) != ROPE_OK) return 1;
  if (std::memcmp(q.data(), r.data(), q.size() * 4)) return std::puts("differs"), 1;
  rope_context_destroy(rope);
  std::puts("ok");
  return 0;
}
