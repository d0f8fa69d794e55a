// Typed look-ups in the keys of a GGUF file, whose errors name the key, its value and the rule; and
// the keys that speak of RoPE and that nobody looked up, which are errors, too (model/unread.h says
// why).
#ifndef LIBROPE_SRC_MODEL_GGUF_KEYS_H_
#define LIBROPE_SRC_MODEL_GGUF_KEYS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/gguf_file.h"

namespace rope::model {

// The keys of a file that begin with `prefix` ("llama."), named without it.
class GgufKeys {
 public:
  GgufKeys(const GgufFile& file, std::string prefix) : file_(&file), prefix_(std::move(prefix)) {}

  // Every look-up marks the key as read. None is "absent"; a value of another type is an error, but
  // for integers, which may have any width.
  bool Mentions(std::string_view key) const { return Find(key) != nullptr; }
  std::optional<int64_t> Integer(std::string_view key, int64_t low, int64_t high) const;
  std::optional<double> Number(std::string_view key) const;  // finite
  std::optional<bool> Bool(std::string_view key) const;
  std::optional<std::string_view> String(std::string_view key) const;
  bool IsArray(std::string_view key) const;
  // Integers or flags; empty if absent. Throws Error unless there are from `least` to `most`.
  std::vector<int64_t> Array(std::string_view key, size_t least, size_t most) const;

  int64_t Required(std::string_view key, int64_t low, int64_t high) const;
  // key (value) must <rule>.
  [[noreturn]] void RejectKey(std::string_view key, const std::string& rule,
                              rope_status status = ROPE_ERROR_PARSE) const;
  [[noreturn]] void RejectMissing(std::string_view key, const std::string& reason) const;
  std::string Path(std::string_view key) const { return Printable(prefix_ + std::string(key), 90); }

 private:
  const GgufValue* Find(std::string_view key) const;
  int64_t ToInteger(std::string_view key, GgufType type, std::string_view bytes) const;
  bool ToBool(std::string_view key, std::string_view bytes) const;

  const GgufFile* file_;
  std::string prefix_;
};

// Whether a key says rope, yarn, alibi or the like, by the words of model/unread.h.
bool SpeaksOfRotation(std::string_view key);

// Throws Error if another part of a model says anything else about its architecture, or about
// RoPE, than the first part, whose keys count.
void RejectOtherKeys(const GgufFile& first, const GgufFile& other, int64_t part);

// Throws Error if a key of the file speaks of RoPE and was not read.
void RejectUnread(const GgufFile& file);

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_GGUF_KEYS_H_
