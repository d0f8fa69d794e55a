// SHA-256 of FIPS 180-4: what digests of rotations are made with. Written here because the library
// needs nothing but the C and C++ libraries; the test has the standard's own examples.
#ifndef LIBROPE_SRC_BASE_SHA256_H_
#define LIBROPE_SRC_BASE_SHA256_H_

#include <string>
#include <string_view>

namespace rope {

// As 64 lower-case hexadecimal digits. May throw std::bad_alloc.
std::string Sha256(std::string_view text);

}  // namespace rope

#endif  // LIBROPE_SRC_BASE_SHA256_H_
