/* librope starts no thread by itself. A call that is large enough is cut into tasks for a runner:
 * the program's own threads, or the pool of the library; the bits are the same. The runner here
 * starts POSIX threads for each call, to be short; programs hand over threads that they keep. */
#define _POSIX_C_SOURCE 200809L
#include <librope/rope.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 2048, Q_HEADS = 16, K_HEADS = 4, DIM = 128, THREADS = 3 };

struct job {
  rope_task_fn fn;
  void* task;
  uint32_t count, first;
};

/* Tasks first, first + THREADS, first + 2 * THREADS, ... */
static void* work(void* argument) {
  const struct job* job = argument;
  for (uint32_t i = job->first; i < job->count; i += THREADS) job->fn(job->task, i);
  return NULL;
}

/* The contract: call fn(task, i) exactly once for every i below count, return after the last. */
static int32_t run_on_pthreads(void* calls, rope_task_fn fn, void* task, uint32_t count) {
  struct job jobs[THREADS];
  pthread_t threads[THREADS];
  int started[THREADS] = {0};
  for (uint32_t t = 0; t < THREADS; ++t) {
    const struct job job = {fn, task, count, t};
    jobs[t] = job;
    if (t > 0) started[t] = pthread_create(&threads[t], NULL, work, &jobs[t]) == 0;
  }
  for (int t = 0; t < THREADS; ++t) { /* 0 is this thread; it stands in for others, if need be */
    if (!started[t])
      work(&jobs[t]);
    else
      pthread_join(threads[t], NULL);
  }
  ++*(int*)calls;
  printf("runner: %u tasks on %d threads\n", (unsigned)count, THREADS);
  return 0;
}

static float* some_floats(size_t count) {
  float* x = malloc(count * sizeof *x);
  if (x == NULL) exit(1);
  for (size_t i = 0; i < count; ++i) x[i] = (float)(i % 1000) / 500 - 1;
  return x;
}

static void check(rope_status status) {
  if (status == ROPE_OK) return;
  fprintf(stderr, "%s\n", rope_last_error());
  exit(1);
}

int main(void) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = DIM;
  config.theta = 500000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope;
  check(rope_context_create(&config, &rope));
  int calls = 0;
  const rope_runner mine = {run_on_pthreads, &calls};
  rope_pool* pool;
  check(rope_pool_create(0, &pool)); /* one thread per CPU */
  const rope_runner* runners[3] = {NULL, &mine, rope_pool_runner(pool)};
  const size_t q_count = (size_t)TOKENS * Q_HEADS * DIM, k_count = (size_t)TOKENS * K_HEADS * DIM;
  float *q[3], *k[3];
  for (int i = 0; i < 3; ++i) {
    q[i] = some_floats(q_count);
    k[i] = some_floats(k_count);
    rope_qk_args args = ROPE_INIT(rope_qk_args);
    args.batch = 1;
    args.tokens = TOKENS;
    args.q = (rope_tensor){
        .data = q[i], .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = Q_HEADS};
    args.k = (rope_tensor){
        .data = k[i], .dtype = ROPE_DTYPE_F32, .layout = ROPE_LAYOUT_BSHD, .heads = K_HEADS};
    args.positions.kind = ROPE_POSITIONS_OFFSET;
    args.runner = runners[i];
    check(rope_apply_qk(rope, &args));
  }
  int same = calls == 1;
  for (int i = 1; i < 3; ++i) {
    same = same && memcmp(q[0], q[i], q_count * sizeof(float)) == 0 &&
           memcmp(k[0], k[i], k_count * sizeof(float)) == 0;
  }
  puts(same ? "calling thread, own threads, pool: the same bits" : "results differ");
  for (int i = 0; i < 3; ++i) free(q[i]), free(k[i]);
  rope_pool_destroy(pool);
  rope_context_destroy(rope);
  return !same;
}
