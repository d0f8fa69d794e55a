// Whether two configurations rotate alike: a text that says what a rotation does and not how it was
// described, and its digest. docs/digest.md has the form of the text.
#ifndef LIBROPE_SRC_CONTEXT_DIGEST_H_
#define LIBROPE_SRC_CONTEXT_DIGEST_H_

#include <string>
#include <string_view>

#include "librope/rope.h"

namespace rope {

// Sets *digest to that of a configuration, at all lengths of sequences: "rotation1:" and 64 digits.
// Neither seq_len nor the device is read. May throw std::bad_alloc.
rope_status DigestOf(const char* function, const rope_config* config, rope_digest same,
                     std::string* digest);

// That of a text, whose lines begin below the first: "rotation1:" and 64 digits.
std::string DigestOfLines(rope_digest same, std::string_view lines);

// As the C API has it: followed by zeros.
rope_digest_text AsDigest(const std::string& digest);

rope_status CheckSame(const char* function, rope_digest same);

}  // namespace rope

#endif  // LIBROPE_SRC_CONTEXT_DIGEST_H_
