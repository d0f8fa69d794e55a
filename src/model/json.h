// Safe reading of untrusted JSON: text -> tree of values -> typed look-ups whose errors name the
// key by its path, its value and the rule. Nothing outside this pair of files knows the JSON
// library.
//
// What a text may be: JSON in UTF-8 of at most 16 MiB, 64 levels deep, 2^19 values (the largest
// real files, quantised mixtures of experts that list every expert, stay far below). A key that
// appears twice in one object is an error: parsers disagree about which one counts. Python writes
// the non-JSON literals NaN, Infinity and -Infinity, and published files contain them in keys that
// have nothing to do with RoPE ("time_step_limit": [0.0, Infinity] of Nemotron-H): they are read as
// numbers that are not finite, so one that RoPE needs is refused by name and others do no harm.
#ifndef LIBROPE_SRC_MODEL_JSON_H_
#define LIBROPE_SRC_MODEL_JSON_H_

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "librope/rope.h"

namespace rope::model {

// Thrown by Reject, whose message is already recorded; the C edge turns it into its status.
struct Error {
  rope_status status;
};

// Entries of a rope dictionary, and kinds of RoPE of a model. Real ones have a dozen; a hostile
// text of thousands would cost a table of frequencies each.
constexpr size_t kMaxEntries = 256;

// Records "rope_model_create: <message>" and throws.
[[noreturn]] __attribute__((cold, format(printf, 2, 3))) void Reject(rope_status status,
                                                                     const char* format, ...);

// Text of a file as a message may show it: printable ASCII, and what is none as JSON escapes it
// (\u00e4); at most `limit` characters.
std::string Printable(std::string_view text, size_t limit = 60);

// A number for messages and names, with a point whatever the locale: 0.5, 10000, 1e+300. Two
// numbers have the same text only if they are equal.
std::string ToText(double number);

struct Value {
  using Array = std::vector<Value>;
  using Object = std::map<std::string, Value, std::less<>>;

  std::variant<std::nullptr_t, bool, int64_t, double, std::string, Array, Object> data = nullptr;
  mutable bool read = false;      // a Dict looked it up
  mutable bool accepted = false;  // the caller knows that it changes nothing (model/accept.h),
  mutable bool spared = false;    // and it would have been refused

  template <class T>
  const T* As() const {
    return std::get_if<T>(&data);
  }
  bool IsNull() const { return As<std::nullptr_t>() != nullptr; }
};

// A value for messages: the first entries of a list, {..} for an object.
std::string Show(const Value& value);

// Throws Error (ROPE_ERROR_PARSE) or std::bad_alloc.
Value ParseJson(std::string_view text);

// Whether two values say the same: 1 and 1.0 do.
bool Same(const Value& a, const Value& b);

// Bounds of what a text may give: of a hidden state, of a length in tokens.
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;
inline constexpr int64_t kMaxLength = int64_t{1} << 40;

// "$.path" (value) must <rule>.
[[noreturn]] void RejectValue(const std::string& path, const Value& value, const std::string& rule);

// `value` as a finite number (an integer counts), or as an integer (4096.0 counts) within
// [low, high]. Throws Error naming `path`.
double ToNumber(const std::string& path, const Value& value);
double ToPositive(const std::string& path, const Value& value);
int64_t ToInteger(const std::string& path, const Value& value, int64_t low, int64_t high);

// An object of the text together with its path; or none, in which every key is absent. A key with
// the value null counts as absent, as in Python's `get(key) or default`. Every look-up but Peek and
// Mentions marks the key as read: see model/unread.h.
class Dict {
 public:
  Dict() = default;
  Dict(const Value& value, std::string path);  // throws if value is not an object

  // The same object, where look-ups of keys that are not there, not even with the value null, give
  // those of `defaults`, which must outlive it. members() and Mentions know the text alone.
  Dict WithDefaults(const Value::Object* defaults) const;

  bool exists() const { return members_ != nullptr; }
  bool empty() const { return members_ == nullptr || members_->empty(); }
  const Value::Object& members() const;

  // The member, or nullptr if absent or null.
  const Value* Find(std::string_view key) const;
  // The same, without marking it as read: for comparisons, and to tell one kind of text from
  // another.
  const Value* Peek(std::string_view key) const;
  // Whether the key is there, be it null.
  bool Mentions(std::string_view key) const;
  // For messages: printable.
  std::string Name() const;
  std::string Path(std::string_view key) const;

  std::optional<double> Number(std::string_view key) const;
  std::optional<double> Positive(std::string_view key) const;
  std::optional<int64_t> Integer(std::string_view key, int64_t low, int64_t high) const;
  // Of the first of `keys` that is there: families have different words for one thing.
  std::optional<int64_t> FirstInteger(std::initializer_list<const char*> keys, int64_t low,
                                      int64_t high) const;
  std::optional<bool> Bool(std::string_view key) const;
  std::optional<std::string_view> String(std::string_view key) const;
  Dict Child(std::string_view key) const;
  // nullptr if absent; throws if it is not an array.
  const Value::Array* Array(std::string_view key) const;

  // Throws Error if the key is there and null, where programs have a default for a key that is
  // absent, and fail on null.
  void RejectNull(std::string_view key) const;
  // For keys that must be there.
  [[noreturn]] void RejectMissing(std::string_view key, const std::string& reason) const;

 private:
  const Value::Object* members_ = nullptr;
  const Value::Object* defaults_ = nullptr;
  std::string path_;
};

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_JSON_H_
