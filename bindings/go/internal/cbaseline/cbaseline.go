// Package cbaseline measures the same call from C, for the benchmarks to compare with.
package cbaseline

/*
#cgo pkg-config: librope
#cgo CFLAGS: -std=c99 -O2 -D_POSIX_C_SOURCE=200809L
#include <librope/rope.h>
#include <time.h>

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

// Nanoseconds of n calls on bf16 q and k of 128 channels, arguments built per call; -1 on error.
static int64_t full(int64_t n, int64_t tokens, void* q, int32_t q_heads, void* k, int32_t k_heads) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = 128;
  config.theta = 500000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope;
  if (rope_context_create(&config, &rope)) return -1;
  rope_status status = ROPE_OK;
  int64_t start = now();
  for (int64_t i = 0; i < n; ++i) {
    rope_qk_args args = ROPE_INIT(rope_qk_args);
    args.batch = 1;
    args.tokens = tokens;
    args.q.data = q;
    args.q.dtype = ROPE_DTYPE_BF16;
    args.q.layout = ROPE_LAYOUT_BSHD;
    args.q.heads = q_heads;
    args.k = args.q;
    args.k.data = k;
    args.k.heads = k_heads;
    args.positions.kind = ROPE_POSITIONS_OFFSET;
    args.positions.offset = 1000;
    status |= rope_apply_qk(rope, &args);
  }
  int64_t time = now() - start;
  rope_context_destroy(rope);
  return status ? -1 : time;
}

static int64_t thd(int64_t n, int64_t tokens, const int64_t* ids, void* q, int32_t q_heads, void* k,
                   int32_t k_heads) {
  rope_config config = ROPE_INIT(rope_config);
  config.head_dim = 128;
  config.theta = 500000;
  config.pairing = ROPE_PAIRING_HALVES;
  rope_context* rope;
  if (rope_context_create(&config, &rope)) return -1;
  rope_status status = ROPE_OK;
  int64_t start = now();
  for (int64_t i = 0; i < n; ++i) {
    status |= rope_apply_thd(rope, ROPE_DTYPE_BF16, tokens, ids, q, q_heads, k, k_heads);
  }
  int64_t time = now() - start;
  rope_context_destroy(rope);
  return status ? -1 : time;
}
*/
import "C"

import (
	"time"
	"unsafe"
)

// Full is the time of n calls of rope_apply_qk on bf16 heads of 128 channels.
func Full(n, tokens int, q []uint16, qHeads int, k []uint16, kHeads int) time.Duration {
	return time.Duration(C.full(C.int64_t(n), C.int64_t(tokens), unsafe.Pointer(&q[0]),
		C.int32_t(qHeads), unsafe.Pointer(&k[0]), C.int32_t(kHeads)))
}

// THD is the time of n calls of rope_apply_thd on bf16 heads of 128 channels.
func THD(n int, ids []int64, q []uint16, qHeads int, k []uint16, kHeads int) time.Duration {
	return time.Duration(C.thd(C.int64_t(n), C.int64_t(len(ids)), (*C.int64_t)(&ids[0]),
		unsafe.Pointer(&q[0]), C.int32_t(qHeads), unsafe.Pointer(&k[0]), C.int32_t(kHeads)))
}
