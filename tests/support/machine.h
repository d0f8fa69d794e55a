// Where calls are made: the CPU, a grid that is walked on the host, or a device. The same cases run
// on all, so that on a device nothing of a test runs for the first time.
#ifndef LIBROPE_TESTS_SUPPORT_MACHINE_H_
#define LIBROPE_TESTS_SUPPORT_MACHINE_H_

#include <cstddef>
#include <vector>

#include "librope/rope.h"
#include "support/handles.h"
#include "support/random.h"

namespace rope::testing {

// A part of the memory that a call works on.
struct MemorySpan {
  const char* data;
  size_t size;
  bool is_read;  // and no more
};
template <class Bytes>
MemorySpan SpanOf(const Bytes& bytes, bool is_read = false) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size() * sizeof(*bytes.data()),
          is_read};
}

class Machine {
 public:
  virtual ~Machine() = default;

  // With a frequency set for each configuration.
  virtual Context Create(const std::vector<rope_config>& configs) = 0;
  // Makes a call whose tensors are in `memory`. One that is refused writes nothing.
  virtual rope_status Apply(const Context& context, const rope_qk_args& args,
                            const std::vector<MemorySpan>& memory, Random* random) = 0;

  // Launches of the last call, and how many of them were of gradients: 0 where nobody sees them.
  int launches = 0, gradients = 0;
};

class CpuMachine : public Machine {
 public:
  Context Create(const std::vector<rope_config>& configs) override { return CreateSets(configs); }
  rope_status Apply(const Context& context, const rope_qk_args& args,
                    const std::vector<MemorySpan>&, Random*) override {
    return rope_apply_qk(context.get(), &args);
  }
};

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_SUPPORT_MACHINE_H_
