/* What the scenarios share: the words that end a program where its claim does not hold, random
 * data, and a rotation in double that knows nothing of the library. */
#ifndef SCENARIO_H
#define SCENARIO_H
#include <librope/rope.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- Claims --------------------------------------------------------------------------------------
 */

#define must_be(condition)                                            \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                        \
    }                                                                 \
  } while (0)
#define must_succeed(call)                                                   \
  do {                                                                       \
    if ((call) != ROPE_OK) {                                                 \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, rope_last_error()); \
      exit(1);                                                               \
    }                                                                        \
  } while (0)
/* With this status; prints the message. */
#define must_fail(status, call)                                                      \
  do {                                                                               \
    rope_status got_ = (call);                                                       \
    if (got_ != (status)) {                                                          \
      fprintf(stderr, "%s:%d: got %d, want %d\n", __FILE__, __LINE__, got_, status); \
      exit(1);                                                                       \
    }                                                                                \
    printf("   %s\n", rope_last_error());                                            \
  } while (0)
/* Each of the `dim` channels of a head to within `tolerance`. */
#define must_be_close(got, want, dim, tolerance)                        \
  do {                                                                  \
    double error_ = largest_error(got, want, dim);                      \
    if (!(error_ < (tolerance))) {                                      \
      fprintf(stderr, "%s:%d: error %g\n", __FILE__, __LINE__, error_); \
      exit(1);                                                          \
    }                                                                   \
  } while (0)

static inline double largest_error(const float* got, const double* want, int dim) {
  double largest = 0;
  for (int i = 0; i < dim; ++i) {
    double error = fabs(got[i] - want[i]);
    if (!(error <= largest)) largest = error; /* NaN counts */
  }
  return largest;
}

/* --- Data ----------------------------------------------------------------------------------------
 */

/* From -1 to 1, the same numbers in every run. */
static inline float random_float(void) {
  static unsigned state = 1;
  state = state * 1664525u + 1013904223u;
  return (float)(state >> 8) / 8388608.0f - 1.0f;
}
/* Memory until the end of the program, when it is still reachable: leak checkers find only others.
 */
static inline void* allocate(size_t bytes) {
  static void* kept[4096];
  static unsigned count;
  return kept[count++ % 4096] = malloc(bytes);
}
static inline float* random_floats(size_t n) {
  float* x = allocate(n * sizeof *x);
  for (size_t i = 0; i < n; ++i) x[i] = random_float();
  return x;
}
static inline float* copy_of(const float* x, size_t n) {
  float* copy = allocate(n * sizeof *copy);
  memcpy(copy, x, n * sizeof *copy);
  return copy;
}
static inline unsigned short to_bf16(float value) {
  unsigned bits;
  memcpy(&bits, &value, 4);
  return (unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
static inline float from_bf16(unsigned short half) {
  unsigned bits = (unsigned)half << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

/* --- The rotation --------------------------------------------------------------------------------
 */

enum pairs { HALVES, ADJACENT }; /* channels (i, i + rotary_dim / 2), or (2i, 2i + 1) */

/* y = x[dim], of which `rotary_dim` channels from `offset` on are turned by angle[pair] and scaled.
 * Pairs stand in x as `in` says, and in y as `out`. */
static inline void rotate_head(const float* x, double* y, int dim, int offset, int rotary_dim,
                               enum pairs in, enum pairs out, const double* angle, double scale) {
  for (int i = 0; i < dim; ++i) y[i] = x[i];
  for (int i = 0; i < rotary_dim / 2; ++i) {
    int in0 = offset + (in == ADJACENT ? 2 * i : i);
    int in1 = offset + (in == ADJACENT ? 2 * i + 1 : rotary_dim / 2 + i);
    int out0 = offset + (out == ADJACENT ? 2 * i : i);
    int out1 = offset + (out == ADJACENT ? 2 * i + 1 : rotary_dim / 2 + i);
    double c = cos(angle[i]) * scale, s = sin(angle[i]) * scale, x0 = x[in0], x1 = x[in1];
    y[out0] = x0 * c - x1 * s;
    y[out1] = x1 * c + x0 * s;
  }
}
/* Of all pairs; overwritten by the next call. */
static inline double* angles_at(double theta, int rotary_dim, double position) {
  static double angle[512];
  for (int i = 0; i < rotary_dim / 2; ++i) angle[i] = position * pow(theta, -2.0 * i / rotary_dim);
  return angle;
}
#endif
