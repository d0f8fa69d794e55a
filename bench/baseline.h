/* The plain C loop of baseline.c, in its two builds. */
#ifndef LIBROPE_BENCH_BASELINE_H_
#define LIBROPE_BENCH_BASELINE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct baseline_table {
  const float *cos, *sin; /* [positions, dim / 2] */
  int32_t dim;
};

typedef void (*baseline_rotate)(const struct baseline_table* table, int64_t tokens,
                                const int64_t* positions, void* x, int32_t heads);

typedef void (*baseline_copy)(const struct baseline_table* table, int64_t tokens,
                              const int64_t* positions, const void* x, void* out, int32_t heads);

struct baseline { /* by rope_dtype - 1; NULL: no such type here */
  baseline_rotate halves[3], interleaved[3];
  baseline_copy halves_copy[3], interleaved_copy[3];
};

extern const struct baseline baseline_generic, baseline_native;

#ifdef __cplusplus
}
#endif
#endif /* LIBROPE_BENCH_BASELINE_H_ */
