// Refuses flags under which the compiler may compute something else than the source says. CMakeLists
// takes -ffast-math back for its targets; this stops builds that do without it.
#ifndef LIBROPE_SRC_MATH_STRICT_MATH_H_
#define LIBROPE_SRC_MATH_STRICT_MATH_H_

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || \
    defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || defined(__NO_SIGNED_ZEROS__)
#error "librope must not be compiled with -ffast-math: bits are part of its contract"
#endif

#endif  // LIBROPE_SRC_MATH_STRICT_MATH_H_
