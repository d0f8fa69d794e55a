#include "sweeps.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sweeps.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef LIBROPE_BENCH_SWEEPS_CC_  // once, not per target
#define LIBROPE_BENCH_SWEEPS_CC_
namespace bench {

enum Prefetch { kNone, kNear, kFar, kPrefetches };  // near: T0 2 KiB ahead; far: and T1 8 KiB

struct TargetSweeps {
  const char* target;
  int vector_bytes;
  void (*rmw[kPrefetches])(float*, size_t, float);
  void (*copy)(float*, const float*, size_t);
};

}  // namespace bench
#endif

HWY_BEFORE_NAMESPACE();
namespace bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <Prefetch kPrefetch>
void Rmw(float* x, size_t bytes, float c) {
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, c);
  const size_t n = hn::Lanes(d), count = bytes / sizeof(float), line = 64 / sizeof(float);
  const size_t step = 4 * n;  // a multiple or a divisor of a cache line
  size_t i = 0;
  for (; i + step <= count; i += step) {
    if (kPrefetch != kNone) {
      for (size_t j = 0; j < step; j += line) {
        __builtin_prefetch(x + i + j + 2048 / sizeof(float), 1, 3);
        if (kPrefetch == kFar) __builtin_prefetch(x + i + j + 8192 / sizeof(float), 1, 2);
      }
    }
    const auto a = hn::Mul(hn::LoadU(d, x + i), factor);
    const auto b = hn::Mul(hn::LoadU(d, x + i + n), factor);
    const auto e = hn::Mul(hn::LoadU(d, x + i + 2 * n), factor);
    const auto f = hn::Mul(hn::LoadU(d, x + i + 3 * n), factor);
    hn::StoreU(a, d, x + i);
    hn::StoreU(b, d, x + i + n);
    hn::StoreU(e, d, x + i + 2 * n);
    hn::StoreU(f, d, x + i + 3 * n);
  }
  for (; i < count; ++i) x[i] *= c;
}

void StreamingCopy(float* to, const float* from, size_t bytes) {
  const hn::ScalableTag<float> d;
  const size_t n = hn::Lanes(d), count = bytes / sizeof(float);
  for (size_t i = 0; i + n <= count; i += n) hn::Stream(hn::LoadU(d, from + i), d, to + i);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

const TargetSweeps* GetSweeps() {
  static const TargetSweeps kSweeps = {
      hwy::TargetName(HWY_TARGET),
      static_cast<int>(hn::Lanes(hn::ScalableTag<float>()) * sizeof(float)),
      {&Rmw<kNone>, &Rmw<kNear>, &Rmw<kFar>},
      &StreamingCopy};
  return &kSweeps;
}

}  // namespace HWY_NAMESPACE
}  // namespace bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bench {
namespace {

HWY_EXPORT(GetSweeps);

std::vector<const TargetSweeps*> AllTargets() {
  std::vector<const TargetSweeps*> all;
  int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  while (targets != 0) {
    const int64_t best = targets & -targets;
    hwy::ChosenTarget chosen;
    chosen.Update(best);
    all.push_back(HWY_DISPATCH_TABLE(GetSweeps)[chosen.GetIndex()]());
    targets ^= best;
  }
  return all;
}

}  // namespace

std::vector<Sweep> RmwSweeps() {
  static const char* const kNames[kPrefetches] = {"", "_near", "_far"};
  std::vector<Sweep> sweeps;
  for (const TargetSweeps* t : AllTargets()) {
    // Narrower than the one before, or it adds nothing.
    if (!sweeps.empty() && t->vector_bytes >= sweeps.back().vector_bytes) continue;
    if (t->vector_bytes < 16 && !sweeps.empty()) continue;
    for (int p = 0; p < kPrefetches; ++p) {
      sweeps.push_back({std::string("rmw_") + t->target + kNames[p], t->vector_bytes, t->rmw[p]});
    }
  }
  return sweeps;
}

std::vector<Copy> StreamingCopies() {
  std::vector<Copy> copies;
  int last = 1 << 20;
  for (const TargetSweeps* t : AllTargets()) {
    if (t->vector_bytes >= last || (t->vector_bytes < 16 && !copies.empty())) continue;
    last = t->vector_bytes;
    copies.push_back({std::string("nt_copy_") + t->target, t->copy});
  }
  return copies;
}

}  // namespace bench
#endif  // HWY_ONCE
