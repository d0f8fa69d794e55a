// What is promised to have the same bytes is compared once before it is timed: a contender that
// does other work than those beside it would be measured against them for nothing.
#ifndef LIBROPE_BENCH_CHECK_H_
#define LIBROPE_BENCH_CHECK_H_

#include <librope/rope.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace bench {

inline constexpr int64_t kMostChecked = 8192;  // tokens of a group that is compared

using Bytes = std::vector<char>;

inline void AddBytes(Bytes* bytes, const void* data, size_t count) {
  const char* const first = static_cast<const char*>(data);
  bytes->insert(bytes->end(), first, first + count);
}

// Ends the program where two ways of a group differ, or where one has failed, whose bytes are none.
inline void ExpectSame(const std::string& group, const char* one, const Bytes& by_one,
                       const char* other, const Bytes& by_other) {
  if (!by_one.empty() && by_one == by_other) return;
  const bool failed = by_one.empty() || by_other.empty();
  std::fprintf(stderr, "rope_bench: %s: %s and %s %s%s\n", group.c_str(), one, other,
               failed ? "have failed: " : "have different bytes", failed ? rope_last_error() : "");
  std::exit(1);
}

}  // namespace bench

#endif  // LIBROPE_BENCH_CHECK_H_
