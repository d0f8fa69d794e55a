/* Shared by the usage programs: error exit, random data, and an independent double reference. */
#ifndef CHECK_H
#define CHECK_H
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <librope/rope.h>

#define OK(call)                                                             \
  do {                                                                       \
    if ((call) != ROPE_OK) {                                                 \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, rope_last_error()); \
      exit(1);                                                               \
    }                                                                        \
  } while (0)
#define FAILS(status, call)                                                        \
  do {                                                                             \
    rope_status s_ = (call);                                                       \
    if (s_ != (status)) {                                                          \
      fprintf(stderr, "%s:%d: got %d, want %d\n", __FILE__, __LINE__, s_, status); \
      exit(1);                                                                     \
    }                                                                              \
    printf("   %s\n", rope_last_error());                                          \
  } while (0)
#define CHECK(x)                                              \
  do {                                                        \
    if (!(x)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); \
      exit(1);                                                \
    }                                                         \
  } while (0)

static inline float rnd(void) {
  static unsigned s = 1;
  s = s * 1664525u + 1013904223u;
  return (float)(s >> 8) / 8388608.0f - 1.0f;
}
/* Memory until the end of the program: still reachable then, so that leak checkers find only others. */
static inline void* keep(size_t bytes) {
  static void* kept[4096];
  static unsigned count;
  return kept[count++ % 4096] = malloc(bytes);
}
static inline float* randoms(size_t n) {
  float* p = keep(n * sizeof *p);
  for (size_t i = 0; i < n; ++i) p[i] = rnd();
  return p;
}
static inline float* copyf(const float* x, size_t n) {
  float* p = keep(n * sizeof *p);
  memcpy(p, x, n * sizeof *p);
  return p;
}
static inline unsigned short bf16(float f) {
  unsigned u;
  memcpy(&u, &f, 4);
  return (unsigned short)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
static inline float unbf16(unsigned short h) {
  unsigned u = (unsigned)h << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}

/* y = rotation of one head x[dim] by `angle[pair]`; adj: pairs (2i, 2i+1), else (i, i + rot/2). */
static inline void ref_head(const float* x, double* y, int dim, int off, int rot, int adj_in,
                            int adj_out, const double* angle, double a) {
  for (int i = 0; i < dim; ++i) y[i] = x[i];
  for (int i = 0; i < rot / 2; ++i) {
    int i0 = off + (adj_in ? 2 * i : i), i1 = off + (adj_in ? 2 * i + 1 : rot / 2 + i);
    int o0 = off + (adj_out ? 2 * i : i), o1 = off + (adj_out ? 2 * i + 1 : rot / 2 + i);
    double c = cos(angle[i]) * a, s = sin(angle[i]) * a, x0 = x[i0], x1 = x[i1];
    y[o0] = x0 * c - x1 * s;
    y[o1] = x1 * c + x0 * s;
  }
}
static inline double* angles(double theta, int rot, double pos) {
  static double a[512];
  for (int i = 0; i < rot / 2; ++i) a[i] = pos * pow(theta, -2.0 * i / rot);
  return a;
}
static inline double err_head(const float* got, const double* want, int dim) {
  double e = 0;
  for (int i = 0; i < dim; ++i) {
    double d = fabs(got[i] - want[i]);
    if (!(d <= e)) e = d;
  }
  return e;
}
#define CHECK_HEAD(got, want, dim, tol)                             \
  do {                                                              \
    double e_ = err_head(got, want, dim);                           \
    if (!(e_ < (tol))) {                                            \
      fprintf(stderr, "%s:%d: error %g\n", __FILE__, __LINE__, e_); \
      exit(1);                                                      \
    }                                                               \
  } while (0)
#endif
