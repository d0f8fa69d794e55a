// A hash of bytes, statuses and messages.
#ifndef LIBROPE_TESTS_BITS_HASH_H_
#define LIBROPE_TESTS_BITS_HASH_H_

#include <cctype>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "librope/rope.h"

namespace bits {

// FNV-1a, eight bytes at a time.
class Hash {
 public:
  void Bytes(const void* data, size_t size) {
    const auto* from = static_cast<const char*>(data);
    for (; size >= 8; size -= 8, from += 8) {
      uint64_t word;
      std::memcpy(&word, from, 8);
      Word(word);
    }
    uint64_t rest = 0;
    std::memcpy(&rest, from, size);
    Word(rest << 8 | size);
  }
  void Word(uint64_t word) {
    value_ = (value_ ^ word) * 0x100000001b3u;
    value_ ^= value_ >> 32;  // multiplication alone carries nothing downwards
  }
  template <class T>
  void Number(T value) {
    Bytes(&value, sizeof(value));
  }
  // Without addresses, which differ from run to run.
  void Text(const std::string& text) {
    std::string plain;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text.compare(i, 2, "0x") == 0) {
        while (i + 1 < text.size() && (std::isxdigit(text[i + 1]) || text[i + 1] == 'x')) ++i;
        plain += '@';
      } else {
        plain += text[i];
      }
    }
    Bytes(plain.data(), plain.size());
  }
  void Status(rope_status status) {
    Number(status);
    if (status != 0) Text(rope_last_error());
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace bits

#endif  // LIBROPE_TESTS_BITS_HASH_H_
