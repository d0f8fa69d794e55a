/* What the programs of the guides share: an exit on errors, and test data. */
#ifndef LIBROPE_TESTS_DOCS_CHECK_H_
#define LIBROPE_TESTS_DOCS_CHECK_H_
#include <librope/rope.h>

#include <stdio.h>
#include <stdlib.h>

static inline void check(rope_status status) {
  if (status == ROPE_OK) return;
  fprintf(stderr, "%s\n", rope_last_error());
  exit(1);
}

static inline void expect(int condition, const char* what) {
  if (condition) return;
  fprintf(stderr, "not so: %s\n", what);
  exit(1);
}

/* Between -1 and 1, the same on every run. */
static inline void fill(float* x, size_t count) {
  static uint32_t state = 1;
  for (size_t i = 0; i < count; ++i) {
    state = state * 1664525u + 1013904223u;
    x[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
  }
}

#endif
