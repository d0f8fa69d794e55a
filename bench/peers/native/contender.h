// The four functions of peer.h for a library whose contenders are objects: it defines Names() and
// Make(), and includes this file last.
#ifndef LIBROPE_BENCH_PEERS_CONTENDER_H_
#define LIBROPE_BENCH_PEERS_CONTENDER_H_

#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>

#include "peer.h"

namespace peers {

struct Contender {
  virtual ~Contender() = default;
  virtual void Run() = 0;
};

// Thrown by Make() where the contender cannot run the case.
struct Unable : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Defined once per library.
const char* Names();
std::unique_ptr<Contender> Make(const std::string& name, const peer_case& c);

inline size_t ElementSize(const peer_case& c) { return c.dtype == PEER_F32 ? 4 : 2; }
inline size_t Bytes(const peer_case& c, int heads) {
  return static_cast<size_t>(c.tokens) * static_cast<size_t>(heads * c.head_dim) * ElementSize(c);
}
inline bool InPlace(const peer_case& c) { return c.q == c.q_out; }

}  // namespace peers

extern "C" {

const char* peer_contenders() { return peers::Names(); }

void* peer_prepare(const char* contender, const peer_case* c, char* why, size_t why_size) {
  try {
    return peers::Make(contender, *c).release();
  } catch (const std::exception& e) {
    std::snprintf(why, why_size, "%s", e.what());
    return nullptr;
  }
}

void peer_run(void* prepared) { static_cast<peers::Contender*>(prepared)->Run(); }
void peer_export(void*) {}
void peer_release(void* prepared) { delete static_cast<peers::Contender*>(prepared); }

}  // extern "C"

#endif  // LIBROPE_BENCH_PEERS_CONTENDER_H_
