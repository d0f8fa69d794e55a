// Reads and checks a rope_config: what rope_context_create accepts is decided here and nowhere
// else.
#ifndef LIBROPE_SRC_CONTEXT_CONFIG_H_
#define LIBROPE_SRC_CONTEXT_CONFIG_H_

#include "base/limits.h"
#include "context/scaling_rules.h"
#include "librope/rope.h"

namespace rope {

// A rope_config of this version with every "0: ..." default of geometry filled in. Tables still
// point into the caller's memory.
struct Config {
  rope_config given;   // zero-extended copy
  int rotary_dim;      // the span in which pairs lie: head_dim for PROPORTIONAL
  int rotating_pairs;  // pairs with a frequency; below rotary_dim / 2 only for PROPORTIONAL
  int axes;
  int freq_heads;

  int pairs() const { return rotary_dim / 2; }
};

// `function` is the public function that the message names. kAny: the length is not asked for, and
// config->seq_len not read.
enum class SeqLen { kOfConfig, kAny };
rope_status CheckConfig(const char* function, const rope_config* config, Config* out,
                        SeqLen seq_len = SeqLen::kOfConfig);

}  // namespace rope

#endif  // LIBROPE_SRC_CONTEXT_CONFIG_H_
