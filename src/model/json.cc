#include "model/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/status.h"

namespace rope::model {
namespace {

constexpr size_t kMaxBytes = size_t{16} << 20;
constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxValues = size_t{1} << 19;

// Builds the tree from the parser's events. Depth is checked when a container opens, so that no
// destructor can recurse further than kMaxDepth.
class Builder {
 public:
  // `literals`: which of the strings, keys included, stand for NaN and the like.
  Builder(std::string_view text, const std::vector<size_t>& literals)
      : text_(text), literals_(literals) {}

  Value root;

  bool null() { return Add(Value{nullptr}); }
  bool boolean(bool value) { return Add(Value{value}); }
  bool number_integer(int64_t value) { return Add(Value{value}); }
  bool number_unsigned(uint64_t value) {
    return value <= INT64_MAX ? Add(Value{static_cast<int64_t>(value)})
                              : Add(Value{static_cast<double>(value)});
  }
  bool number_float(double value, const std::string&) { return Add(Value{value}); }
  bool string(std::string& value) {
    const size_t number = strings_++;
    if (!std::binary_search(literals_.begin(), literals_.end(), number)) {
      return Add(Value{std::move(value)});
    }
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    return Add(Value{value == "NaN"        ? std::numeric_limits<double>::quiet_NaN()
                     : value == "Infinity" ? kInfinity
                                           : -kInfinity});
  }
  bool binary(nlohmann::json::binary_t&) { return false; }  // has no notation in JSON text
  bool start_object(size_t) { return Open(Value{Value::Object()}); }
  bool start_array(size_t) { return Open(Value{Value::Array()}); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }

  bool key(std::string& name) {
    ++strings_;
    auto& members = std::get<Value::Object>(open_.back()->data);
    const auto [member, inserted] = members.try_emplace(std::move(name));
    if (!inserted) {
      Reject(ROPE_ERROR_PARSE, "key \"%s\" appears twice in one object",
             Printable(member->first).c_str());
    }
    slot_ = &member->second;
    key_ = &member->first;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) {
    std::string_view reason = error.what();  // "[json.exception.parse_error.101] parse error at .."
    reason.remove_prefix(std::min(reason.size(), reason.find("] ") + 2));
    constexpr std::string_view kOverflow = "number overflow parsing ";  // JSON, but no double
    if (reason.substr(0, kOverflow.size()) == kOverflow) {
      Reject(ROPE_ERROR_PARSE, "the number %s at byte %zu%s must be one that a double holds",
             Printable(reason.substr(kOverflow.size()), 40).c_str(), position,
             key_ != nullptr ? (", after the key \"" + Printable(*key_) + "\",").c_str() : "");
    }
    Reject(ROPE_ERROR_PARSE, "the text (%zu bytes) is not JSON at byte %zu: %s", text_.size(),
           position, Printable(reason, 300).c_str());
  }

 private:
  // The new value's place: the root, the member of the last key, or the end of the open array.
  Value* Place(Value&& value) {
    if (++count_ > kMaxValues) {
      Reject(ROPE_ERROR_PARSE, "the text must not have more than %zu values", kMaxValues);
    }
    if (open_.empty()) {
      root = std::move(value);
      return &root;
    }
    if (auto* array = std::get_if<Value::Array>(&open_.back()->data)) {
      array->push_back(std::move(value));
      return &array->back();
    }
    *slot_ = std::move(value);
    return slot_;
  }

  bool Add(Value&& value) {
    Place(std::move(value));
    return true;
  }

  bool Open(Value&& value) {
    if (open_.size() == kMaxDepth) {
      Reject(ROPE_ERROR_PARSE, "the text must not nest deeper than %zu levels", kMaxDepth);
    }
    open_.push_back(Place(std::move(value)));
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  std::string_view text_;
  const std::vector<size_t>& literals_;
  size_t strings_ = 0;
  std::vector<Value*> open_;  // stable: a container only grows while it is the innermost one
  Value* slot_ = nullptr;
  const std::string* key_ = nullptr;  // the last one
  size_t count_ = 0;
};

// Puts Python's NaN, Infinity and -Infinity in quotes, and notes which strings of the text they are
// then. Empty if there is none.
std::string QuoteNonFinite(std::string_view text, std::vector<size_t>* literals) {
  static constexpr std::string_view kLiterals[] = {"NaN", "Infinity", "-Infinity"};
  std::string quoted;
  size_t copied = 0, strings = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') in_string = !in_string;
    if (c == '"' && in_string) ++strings;
    if (in_string) {
      if (c == '\\') ++i;
      continue;
    }
    if (c != 'N' && c != 'I' && c != '-') continue;
    for (std::string_view literal : kLiterals) {
      if (text.substr(i, literal.size()) != literal) continue;
      const size_t next = text.find_first_not_of(" \t\r\n", i + literal.size());
      if (next != std::string_view::npos && text[next] == ':') break;  // no value: left as it is
      quoted.append(text, copied, i - copied).append("\"").append(literal).append("\"");
      i += literal.size() - 1;
      copied = i + 1;
      literals->push_back(strings++);
      break;
    }
  }
  if (!quoted.empty()) quoted.append(text, copied, std::string_view::npos);
  return quoted;
}

}  // namespace

void Reject(rope_status status, const char* format, ...) {
  char message[448];
  va_list values;
  va_start(values, format);
  std::vsnprintf(message, sizeof(message), format, values);
  va_end(values);
  throw Error{Fail(status, "rope_model_create: %s", message)};
}

namespace {

// The letter of UTF-8 at the beginning of `text`, and how many bytes it takes; 0 if it is none.
size_t DecodeLetter(std::string_view text, uint32_t* letter) {
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const size_t length = byte(0) < 0x80 ? 1 : byte(0) < 0xe0 ? 2 : byte(0) < 0xf0 ? 3 : 4;
  if (length == 1) *letter = byte(0);
  if (length == 1) return 1;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < length) return 0;
  *letter = byte(0) & (0xffu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    *letter = (*letter << 6) | (byte(i) & 0x3f);
  }
  return length;
}

// As JSON and most languages write it: a program that copies it names the same key.
std::string Escaped(uint32_t letter) {
  char escape[16];
  if (letter < 0x10000) {
    std::snprintf(escape, sizeof(escape), "\\u%04x", letter);
  } else {
    const uint32_t above = letter - 0x10000;
    std::snprintf(escape, sizeof(escape), "\\u%04x\\u%04x", 0xd800 + (above >> 10),
                  0xdc00 + (above & 0x3ff));
  }
  return escape;
}

}  // namespace

std::string Printable(std::string_view text, size_t limit) {
  std::string shown;
  while (!text.empty()) {
    uint32_t letter = 0;
    const size_t length = DecodeLetter(text, &letter);
    const bool plain = letter >= 0x20 && letter <= 0x7e;
    const std::string piece = length == 0 ? "?" : plain ? std::string(1, text[0]) : Escaped(letter);
    if (shown.size() + piece.size() > limit) return shown + "..";
    shown += piece;
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return shown;
}

std::string ToText(double number) {
  char text[64];
  const double size = std::fabs(number);
  const bool plain = number == 0 || (size >= 1e-4 && size < 1e15);
  const auto end = std::to_chars(text, text + sizeof(text), number,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific);
  return std::string(text, end.ptr);
}

std::string Show(const Value& value) {
  if (const auto* text = value.As<std::string>()) return "\"" + Printable(*text) + "\"";
  if (const auto* flag = value.As<bool>()) return *flag ? "true" : "false";
  if (const auto* integer = value.As<int64_t>()) return std::to_string(*integer);
  if (const auto* real = value.As<double>()) {
    return std::isfinite(*real) ? ToText(*real)
           : std::isnan(*real)  ? "NaN"
           : *real > 0          ? "Infinity"
                                : "-Infinity";
  }
  const auto* list = value.As<Value::Array>();
  if (list == nullptr) return value.IsNull() ? "null" : "{..}";
  constexpr size_t kEnough = 40;
  std::string shown = "[";
  for (const Value& entry : *list) {
    if (shown.size() > 1) shown += ", ";
    if (shown.size() > kEnough) return shown + "..]";
    shown += entry.As<Value::Array>() != nullptr ? "[..]" : Show(entry);
  }
  return shown + "]";
}

Value ParseJson(std::string_view text) {
  if (text.size() > kMaxBytes) {
    Reject(ROPE_ERROR_PARSE, "length (%zu) must be at most %zu", text.size(), kMaxBytes);
  }
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {  // ends it for parsers
    Reject(
        ROPE_ERROR_PARSE,
        "byte %zu of the text is 0, and length (%zu) must not count a final 0 or what follows it",
        zero + 1, text.size());
  }
  std::vector<size_t> literals;
  const std::string quoted = QuoteNonFinite(text, &literals);
  if (!quoted.empty()) text = quoted;
  Builder builder(text, literals);
  // Every failure throws out of an event, parse errors included.
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return std::move(builder.root);
}

bool Same(const Value& a, const Value& b) {
  if (const auto* list = a.As<Value::Array>()) {
    const auto* other = b.As<Value::Array>();
    return other != nullptr &&
           std::equal(list->begin(), list->end(), other->begin(), other->end(), Same);
  }
  if (const auto* object = a.As<Value::Object>()) {
    const auto* other = b.As<Value::Object>();
    return other != nullptr && std::equal(object->begin(), object->end(), other->begin(),
                                          other->end(), [](const auto& x, const auto& y) {
                                            return x.first == y.first && Same(x.second, y.second);
                                          });
  }
  const auto number = [](const Value& value) -> std::optional<double> {
    if (const auto* integer = value.As<int64_t>()) return static_cast<double>(*integer);
    const auto* real = value.As<double>();
    return real != nullptr ? std::optional(*real) : std::nullopt;
  };
  if (const auto left = number(a)) {
    const auto right = number(b);
    return left == right || (right && std::isnan(*left) && std::isnan(*right));
  }
  if (a.As<bool>() != nullptr && b.As<bool>() != nullptr) return *a.As<bool>() == *b.As<bool>();
  if (const auto* text = a.As<std::string>()) {
    const auto* other = b.As<std::string>();
    return other != nullptr && *text == *other;
  }
  return a.IsNull() && b.IsNull();
}

void RejectValue(const std::string& path, const Value& value, const std::string& rule) {
  Reject(ROPE_ERROR_PARSE, "%s (%s) must %s", path.c_str(), Show(value).c_str(), rule.c_str());
}

double ToNumber(const std::string& path, const Value& value) {
  if (const auto* integer = value.As<int64_t>()) return static_cast<double>(*integer);
  const auto* real = value.As<double>();
  if (real == nullptr) RejectValue(path, value, "be a number");
  if (!std::isfinite(*real)) RejectValue(path, value, "be a finite number");
  return *real;
}

double ToPositive(const std::string& path, const Value& value) {
  const double number = ToNumber(path, value);
  if (!(number > 0)) RejectValue(path, value, "be positive");
  return number;
}

int64_t ToInteger(const std::string& path, const Value& value, int64_t low, int64_t high) {
  const double number = ToNumber(path, value);
  if (number != std::trunc(number)) RejectValue(path, value, "be an integer");
  // Bounds are far below 2^53, so comparing as double is exact.
  if (number < static_cast<double>(low) || number > static_cast<double>(high)) {
    RejectValue(path, value, "be from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return static_cast<int64_t>(number);
}

Dict::Dict(const Value& value, std::string path)
    : members_(value.As<Value::Object>()), path_(std::move(path)) {
  if (members_ == nullptr) RejectValue(Name(), value, "be an object");
}

std::string Dict::Name() const { return path_.empty() ? "the text" : path_; }

const Value::Object& Dict::members() const {
  static const Value::Object kNone;
  return members_ != nullptr ? *members_ : kNone;
}

const Value* Dict::Find(std::string_view key) const {
  const Value* value = Peek(key);
  if (value != nullptr) value->read = true;
  return value;
}

Dict Dict::WithDefaults(const Value::Object* defaults) const {
  Dict dict = *this;
  dict.defaults_ = defaults;
  return dict;
}

const Value* Dict::Peek(std::string_view key) const {
  const auto in = [key](const Value::Object& object) {
    const auto member = object.find(key);
    return member == object.end() || member->second.IsNull() ? nullptr : &member->second;
  };
  if (const Value* value = in(members()); value != nullptr || Mentions(key)) return value;
  return defaults_ != nullptr ? in(*defaults_) : nullptr;
}

bool Dict::Mentions(std::string_view key) const { return members().count(key) != 0; }

std::string Dict::Path(std::string_view key) const {
  std::string path = path_.empty() ? "" : path_ + ".";
  path.append(Printable(key));                       // keys come from the text, too
  constexpr size_t kLongest = 160, kBeginning = 60;  // the message has its rule to tell
  if (path.size() <= kLongest) return path;
  return path.substr(0, kBeginning) + ".." + path.substr(path.size() - (kLongest - kBeginning));
}

std::optional<double> Dict::Number(std::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  return ToNumber(Path(key), *value);
}

std::optional<double> Dict::Positive(std::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  return ToPositive(Path(key), *value);
}

std::optional<int64_t> Dict::Integer(std::string_view key, int64_t low, int64_t high) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  return ToInteger(Path(key), *value, low, high);
}

std::optional<int64_t> Dict::FirstInteger(std::initializer_list<const char*> keys, int64_t low,
                                          int64_t high) const {
  for (const char* key : keys) {
    if (const auto value = Integer(key, low, high)) return value;
  }
  return std::nullopt;
}

std::optional<bool> Dict::Bool(std::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  const auto* flag = value->As<bool>();
  if (flag == nullptr) RejectValue(Path(key), *value, "be true or false");
  return *flag;
}

std::optional<std::string_view> Dict::String(std::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  const auto* text = value->As<std::string>();
  if (text == nullptr) RejectValue(Path(key), *value, "be a string");
  return *text;
}

Dict Dict::Child(std::string_view key) const {
  const Value* value = Find(key);
  return value == nullptr ? Dict() : Dict(*value, Path(key));
}

const Value::Array* Dict::Array(std::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return nullptr;
  const auto* array = value->As<Value::Array>();
  if (array == nullptr) RejectValue(Path(key), *value, "be a list");
  return array;
}

void Dict::RejectNull(std::string_view key) const {
  if (!Mentions(key) || Peek(key) != nullptr) return;
  Reject(ROPE_ERROR_UNSUPPORTED,
         "%s (null) must have a value, or be absent for the default: programs take none",
         Path(key).c_str());
}

void Dict::RejectMissing(std::string_view key, const std::string& reason) const {
  Reject(ROPE_ERROR_PARSE, "%s is missing: %s", Path(key).c_str(), reason.c_str());
}

}  // namespace rope::model
