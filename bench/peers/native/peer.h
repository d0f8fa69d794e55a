/* What a contender in C, C++ or Rust exports to be measured by bench/peers: a shared library with
 * the four functions at the end. Loaded by worker.py; nothing of it is called while others run. */
#ifndef LIBROPE_BENCH_PEERS_PEER_H_
#define LIBROPE_BENCH_PEERS_PEER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers of rope_dtype and rope_pairing. */
enum { PEER_F32 = 1, PEER_F16 = 2, PEER_BF16 = 3 };
enum { PEER_HALVES = 1, PEER_INTERLEAVED = 2 };

/* One case: q [tokens, q_heads, head_dim], k [tokens, k_heads, head_dim], contiguous. Outputs are
 * the inputs themselves where the case is in place. All memory outlives the contender. */
typedef struct peer_case {
  int32_t dtype, pairing, threads;
  int32_t q_heads, k_heads, head_dim;
  int64_t tokens;
  const int64_t* positions; /* [tokens] */
  void *q, *k, *q_out, *k_out;
  /* cos and sin of these tokens in f32, [tokens, head_dim / 2], ... */
  const float *cos, *sin;
  /* ... and of every position below table_rows. */
  const float *table_cos, *table_sin;
  int64_t table_rows;
  double theta;
} peer_case;

/* Names of the contenders in this library, between spaces. */
const char* peer_contenders(void);

/* Whatever is done once per shape. NULL if this contender cannot run the case; `why` then says in
 * a few words what it lacks. */
void* peer_prepare(const char* contender, const peer_case* c, char* why, size_t why_size);

/* One rotation of q and k: what is timed. */
void peer_run(void* prepared);

/* Untimed, after a peer_run that is to be checked: a contender with outputs of its own copies them
 * into q_out and k_out. */
void peer_export(void* prepared);

void peer_release(void* prepared);

#ifdef __cplusplus
}
#endif
#endif /* LIBROPE_BENCH_PEERS_PEER_H_ */
