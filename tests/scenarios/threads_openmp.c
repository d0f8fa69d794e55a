/* An OpenMP program lends its threads; and the pool of the library. */
#include "scenario.h"
enum { T = 2048, HQ = 16, HK = 4, D = 128 };
static int32_t omp_for(void* pool, rope_task_fn fn, void* task, uint32_t count) {
  (void)pool;
#pragma omp parallel for
  for (int64_t i = 0; i < count; ++i) fn(task, (uint32_t)i);
  return 0;
}
static const rope_runner omp_runner = {omp_for, NULL};
int main(void) {
  size_t n = (size_t)T * HQ * D, m = (size_t)T * HK * D;
  float *q = random_floats(n), *k = random_floats(m), *q1 = copy_of(q, n), *k1 = copy_of(k, m),
        *q2 = copy_of(q, n), *k2 = copy_of(k, m);
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = D;
  config.theta = 10000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope;
  must_succeed(rope_context_create(&config, &rope));
  rope_qk_args args = {
      .struct_size = sizeof args,
      .batch = 1,
      .tokens = T,
      .q = {.data = q, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = HQ},
      .k = {.data = k, .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = HK},
      .positions = {.kind = ROPE_POSITIONS_OFFSET}};
  must_succeed(rope_apply_qk(rope, &args));
  args.q.data = q1;
  args.k.data = k1;
  args.runner = &omp_runner;
  must_succeed(rope_apply_qk(rope, &args));
  rope_pool* pool;
  must_succeed(rope_pool_create(2, &pool));
  args.q.data = q2;
  args.k.data = k2;
  args.runner = rope_pool_runner(pool);
  must_succeed(rope_apply_qk(rope, &args));
  rope_pool_destroy(pool);
  must_be(!memcmp(q, q1, n * 4) && !memcmp(k, k1, m * 4) && !memcmp(q, q2, n * 4) &&
          !memcmp(k, k2, m * 4));
  rope_context_destroy(rope);
  puts("ok");
  return 0;
}
