// Times contenders against each other on a machine that is doing other things as well: in every
// round each runs once, in a new order, and the median over the rounds counts. Slow spells then hit
// all of them, and ratios hold where single times do not. Time is the time that the calling thread
// had the CPU, so contenders must not use others.
#ifndef LIBROPE_BENCH_ROUNDS_H_
#define LIBROPE_BENCH_ROUNDS_H_

#include <time.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace bench {

struct Contender {
  std::string name;
  std::function<void()> run;
  int repeat = 1;  // runs within one timing: enough to make the clock negligible
};

inline double ThreadNanoseconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

// Nanoseconds of one run() of each contender: the median over the rounds.
inline std::vector<double> MedianOfRounds(const std::vector<Contender>& contenders, int rounds) {
  std::vector<std::vector<double>> times(contenders.size());
  std::vector<size_t> order(contenders.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937 random(1);
  for (int round = -1; round < rounds; ++round) {  // round -1 warms up
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) {
      const double start = ThreadNanoseconds();
      for (int r = 0; r < contenders[i].repeat; ++r) contenders[i].run();
      const double elapsed = ThreadNanoseconds() - start;
      if (round >= 0) times[i].push_back(elapsed / contenders[i].repeat);
    }
  }
  std::vector<double> medians;
  for (auto& t : times) {
    const auto middle = t.begin() + static_cast<std::ptrdiff_t>(t.size() / 2);
    std::nth_element(t.begin(), middle, t.end());
    medians.push_back(*middle);
  }
  return medians;
}

}  // namespace bench

#endif  // LIBROPE_BENCH_ROUNDS_H_
