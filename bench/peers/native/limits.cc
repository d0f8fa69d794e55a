// What memory allows: the sweeps and copies of bench/sweeps.h over the bytes of q and k. In place a
// sweep is the limit, out of place a copy. With two threads each takes half of the tokens.
#include <cstring>
#include <functional>
#include <utility>

#include "contender.h"
#include "split.h"
#include "sweeps.h"

namespace peers {
namespace {

using Move = std::function<void(char* to, char* from, size_t bytes)>;

class Limit : public Contender {
 public:
  Limit(const peer_case& c, Move move) : c_(c), move_(std::move(move)), split_(c.threads) {}
  void Run() override {
    split_.Run(c_.tokens, [this](int64_t first, int64_t count) {
      Part(c_.q, c_.q_out, c_.q_heads, first, count);
      Part(c_.k, c_.k_out, c_.k_heads, first, count);
    });
  }

 private:
  void Part(void* x, void* y, int heads, int64_t first, int64_t count) const {
    const size_t row = static_cast<size_t>(heads * c_.head_dim) * ElementSize(c_);
    const size_t offset = static_cast<size_t>(first) * row;
    move_(static_cast<char*>(y) + offset, static_cast<char*>(x) + offset,
          static_cast<size_t>(count) * row);
  }

  const peer_case c_;
  const Move move_;
  const Split split_;
};

// The sweeps with the two widest vectors: narrower ones are never the fastest.
std::vector<bench::Sweep> WidestSweeps() {
  std::vector<bench::Sweep> sweeps;
  int kinds = 0, last = 0;
  for (const bench::Sweep& sweep : bench::RmwSweeps()) {
    if (sweep.vector_bytes != last) ++kinds;
    if (kinds > 2) break;
    last = sweep.vector_bytes;
    sweeps.push_back(sweep);
  }
  return sweeps;
}

float* Floats(char* x) { return reinterpret_cast<float*>(x); }

Move Find(const std::string& name, bool in_place) {
  static volatile float one = 1;
  for (const bench::Sweep& sweep : WidestSweeps()) {
    if (sweep.name != name) continue;
    if (!in_place) throw Unable("a limit of work in place");
    return [run = sweep.run](char*, char* x, size_t bytes) { run(Floats(x), bytes, one); };
  }
  if (in_place) throw Unable("a limit of work out of place");
  if (name == "memcpy") return [](char* y, char* x, size_t bytes) { std::memcpy(y, x, bytes); };
  for (const bench::Copy& copy : bench::StreamingCopies()) {
    if (copy.name != name) continue;
    return [run = copy.run](char* y, char* x, size_t bytes) { run(Floats(y), Floats(x), bytes); };
  }
  throw Unable("no such limit on this CPU");
}

}  // namespace

const char* Names() {
  static const std::string names = [] {
    std::string all = "memcpy";
    for (const bench::Copy& copy : bench::StreamingCopies()) all += " " + copy.name;
    for (const bench::Sweep& sweep : WidestSweeps()) all += " " + sweep.name;
    return all;
  }();
  return names.c_str();
}

std::unique_ptr<Contender> Make(const std::string& name, const peer_case& c) {
  return std::make_unique<Limit>(c, Find(name, InPlace(c)));
}

}  // namespace peers
