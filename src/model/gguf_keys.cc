#include "model/gguf_keys.h"

#include <cmath>
#include <cstring>

#include "model/families.h"
#include "model/unread.h"

namespace rope::model {
namespace {

double ToDouble(GgufType type, std::string_view bytes) {
  const uint64_t bits = LittleEndian(bytes);
  if (type == GgufType::kFloat64) {
    double value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  const auto half = static_cast<uint32_t>(bits);
  float value;
  std::memcpy(&value, &half, sizeof(value));
  return value;
}

// As an integer of its own width, which is negative if its upper bit is set.
int64_t Signed(std::string_view bytes) {
  const size_t unused = 64 - 8 * bytes.size();
  return static_cast<int64_t>(LittleEndian(bytes) << unused) >> unused;
}

bool IsSigned(GgufType type) {
  return type == GgufType::kInt8 || type == GgufType::kInt16 || type == GgufType::kInt32 ||
         type == GgufType::kInt64;
}

std::string Show(GgufType type, std::string_view bytes) {
  switch (type) {
    case GgufType::kFloat32:
    case GgufType::kFloat64: {
      const double value = ToDouble(type, bytes);
      return std::isfinite(value) ? ToText(value)
             : std::isnan(value)  ? "nan"
             : value > 0          ? "inf"
                                  : "-inf";
    }
    case GgufType::kBool: return LittleEndian(bytes) != 0 ? "true" : "false";
    case GgufType::kString: return "\"" + Printable(bytes) + "\"";
    case GgufType::kArray: return "[..]";
    default: break;
  }
  return IsSigned(type) ? std::to_string(Signed(bytes)) : std::to_string(LittleEndian(bytes));
}

// llama.cpp adds biases of ALiBi where the greatest of them is above 0, and beside RoPE in no
// graph.
bool IsWithoutAlibi(std::string_view key, const GgufValue& value) {
  if (EndsWith(key, ".attention.max_alibi_bias") && value.type == GgufType::kFloat32) {
    return ToDouble(value.type, value.bytes) == 0;
  }
  const bool flag = value.type == GgufType::kBool;
  return EndsWith(key, ".use_alibi") && flag && LittleEndian(value.bytes) == 0;
}

}  // namespace

bool SpeaksOfRotation(std::string_view key) {
  // Names of people and datasets, and tokens, may contain a word by chance.
  for (std::string_view other : {"general.", "tokenizer."}) {
    if (key.substr(0, other.size()) == other) return false;
  }
  return SpeaksOfRope(key) || SpeaksOfRope(key.substr(key.rfind('.') + 1));
}

const GgufValue* GgufKeys::Find(std::string_view key) const {
  const auto found = file_->values.find(prefix_ + std::string(key));
  if (found == file_->values.end()) return nullptr;
  found->second.read = true;
  return &found->second;
}

int64_t GgufKeys::ToInteger(std::string_view key, GgufType type, std::string_view bytes) const {
  if (IsSigned(type)) return Signed(bytes);
  const uint64_t value = LittleEndian(bytes);
  if (value > INT64_MAX) RejectKey(key, "be less than 2^63");
  return static_cast<int64_t>(value);
}

bool GgufKeys::ToBool(std::string_view key, std::string_view bytes) const {
  const uint64_t value = LittleEndian(bytes);
  if (value > 1) RejectKey(key, "consist of bytes 0 and 1");
  return value == 1;
}

std::optional<int64_t> GgufKeys::Integer(std::string_view key, int64_t low, int64_t high) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!IsInteger(value->type)) RejectKey(key, "be an integer");
  const int64_t number = ToInteger(key, value->type, value->bytes);
  if (number < low || number > high) {
    RejectKey(key, "be from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return number;
}

std::optional<double> GgufKeys::Number(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  const bool real = value->type == GgufType::kFloat32 || value->type == GgufType::kFloat64;
  if (!real) RejectKey(key, "be a number of type float32 or float64");
  const double number = ToDouble(value->type, value->bytes);
  if (!std::isfinite(number)) RejectKey(key, "be finite");
  return number;
}

std::optional<bool> GgufKeys::Bool(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != GgufType::kBool) RejectKey(key, "be true or false");
  return ToBool(key, value->bytes);
}

std::optional<std::string_view> GgufKeys::String(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != GgufType::kString) RejectKey(key, "be a string");
  return value->bytes;
}

bool GgufKeys::IsArray(std::string_view key) const {
  const GgufValue* value = Find(key);
  return value != nullptr && value->type == GgufType::kArray;
}

std::vector<int64_t> GgufKeys::Array(std::string_view key, size_t least, size_t most) const {
  std::vector<int64_t> numbers;
  const GgufValue* value = Find(key);
  if (value == nullptr) return numbers;
  const bool flags = value->element == GgufType::kBool;
  if (value->type != GgufType::kArray || (!flags && !IsInteger(value->element))) {
    RejectKey(key, "be an array of integers or flags");
  }
  if (value->count < least || value->count > most) {
    Reject(ROPE_ERROR_PARSE, "%s has %llu entries and must have from %zu to %zu", Path(key).c_str(),
           static_cast<unsigned long long>(value->count), least, most);
  }
  const size_t size = SizeOf(value->element);
  for (size_t i = 0; i < value->count; ++i) {
    const std::string_view bytes = value->bytes.substr(i * size, size);
    numbers.push_back(flags ? ToBool(key, bytes) : ToInteger(key, value->element, bytes));
  }
  return numbers;
}

int64_t GgufKeys::Required(std::string_view key, int64_t low, int64_t high) const {
  const auto number = Integer(key, low, high);
  if (!number) RejectMissing(key, "every model has one");
  return *number;
}

void GgufKeys::RejectKey(std::string_view key, const std::string& rule, rope_status status) const {
  const GgufValue* value = Find(key);
  const std::string shown = value == nullptr ? "absent" : Show(value->type, value->bytes);
  Reject(status, "%s (%s) must %s", Path(key).c_str(), shown.c_str(), rule.c_str());
}

void GgufKeys::RejectMissing(std::string_view key, const std::string& reason) const {
  Reject(ROPE_ERROR_PARSE, "%s is missing: %s", Path(key).c_str(), reason.c_str());
}

void RejectOtherKeys(const GgufFile& first, const GgufFile& other, int64_t part) {
  const std::string prefix =
      std::string(GgufKeys(first, "general.").String("architecture").value_or("")) + ".";
  for (const auto& [key, value] : other.values) {
    const bool of_model = key == "general.architecture" || key.substr(0, prefix.size()) == prefix;
    if (!of_model && !SpeaksOfRotation(key)) continue;
    const auto found = first.values.find(key);
    const bool there = found != first.values.end();
    const GgufValue& says = there ? found->second : value;
    const bool same =
        says.type == value.type && says.element == value.element && says.bytes == value.bytes;
    if (there && same) continue;
    Reject(ROPE_ERROR_PARSE, "%s (%s) of part %lld must be what the first part says, %s",
           Printable(key, 90).c_str(), Show(value.type, value.bytes).c_str(),
           static_cast<long long>(part),
           there ? Show(says.type, says.bytes).c_str() : "where it is absent");
  }
}

void RejectUnread(const GgufFile& file) {
  for (const auto& [key, value] : file.values) {
    if (value.read || !SpeaksOfRotation(key) || IsWithoutAlibi(key, value)) continue;
    Reject(ROPE_ERROR_UNSUPPORTED,
           "%s (%s) speaks of RoPE, and is no key that this version reads for this architecture",
           Printable(key, 90).c_str(), Show(value.type, value.bytes).c_str());
  }
}

}  // namespace rope::model
