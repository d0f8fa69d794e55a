#include "model/gguf_given.h"

#include <algorithm>
#include <cstring>

#include "base/limits.h"

namespace rope::model {
namespace {

constexpr int32_t kMaxPairsOfKeys = 1 << 16;  // as many as a file may have
constexpr int32_t kMaxTensors = 8;

[[noreturn]] void RejectEntry(const char* list, int32_t i, const std::string& rule) {
  Reject(ROPE_ERROR_INVALID_ARGUMENT, "%s[%d]%s", list, i, rule.c_str());
}

bool IsBigEndian() {
  const uint16_t one = 1;
  unsigned char first;
  std::memcpy(&first, &one, 1);
  return first == 0;
}

GgufType TypeOf(uint32_t number, int32_t i, const char* field) {
  if (number <= static_cast<uint32_t>(GgufType::kFloat64)) return static_cast<GgufType>(number);
  RejectEntry("values", i,
              std::string(".") + field + " (" + std::to_string(number) + ") must be from 0 to 12");
}

// `bytes` are elements of `size` bytes, in the order of the machine.
std::string_view InOrderOfTheFormat(std::string_view bytes, size_t size, GivenGguf* out) {
  if (size == 1 || !IsBigEndian()) return bytes;
  std::string& swapped = out->swapped.emplace_back(bytes);
  for (size_t at = 0; at < swapped.size(); at += size) {
    std::reverse(swapped.begin() + static_cast<std::ptrdiff_t>(at),
                 swapped.begin() + static_cast<std::ptrdiff_t>(at + size));
  }
  return swapped;
}

GgufValue ValueOf(const rope_gguf_value& given, int32_t i, GivenGguf* out) {
  GgufValue value;
  value.type = TypeOf(given.type, i, "type");
  const bool array = value.type == GgufType::kArray, string = value.type == GgufType::kString;
  if (array) value.element = TypeOf(given.element, i, "element");
  if (array) value.count = given.count;
  const size_t size = string ? 1 : SizeOf(array ? value.element : value.type);
  const uint64_t elements = array || string ? given.count : 1;
  if (size == 0 || elements == 0) return value;  // strings and arrays in an array
  if (given.data == nullptr) RejectEntry("values", i, ".data (NULL) must not be NULL");
  if (elements > SIZE_MAX / 2 / size) {
    RejectEntry("values", i, ".count (" + std::to_string(elements) + ") is more than memory has");
  }
  value.bytes =
      InOrderOfTheFormat({static_cast<const char*>(given.data), elements * size}, size, out);
  return value;
}

void CheckCount(const char* name, int32_t count, int32_t most, const void* list) {
  if (count < 0 || count > most) {
    Reject(ROPE_ERROR_INVALID_ARGUMENT, "%s (%d) must be from 0 to %d", name, count, most);
  }
  if (count == 0 || list != nullptr) return;
  Reject(ROPE_ERROR_INVALID_ARGUMENT, "%s (%d) must be 0 where there is no list", name, count);
}

}  // namespace

void TakeGgufValues(const rope_gguf_value* values, int32_t count, const rope_gguf_factors* factors,
                    int32_t factor_count, GivenGguf* out) {
  CheckCount("count", count, kMaxPairsOfKeys, values);
  CheckCount("factor_count", factor_count, kMaxTensors, factors);
  for (int32_t i = 0; i < count; ++i) {
    if (values[i].key == nullptr) RejectEntry("values", i, ".key (NULL) must not be NULL");
    const std::string_view key = values[i].key;
    if (!out->file.values.emplace(key, ValueOf(values[i], i, out)).second) {
      RejectEntry("values", i, ".key (\"" + Printable(key) + "\") appears twice");
    }
  }
  for (int32_t i = 0; i < factor_count; ++i) {
    const rope_gguf_factors& given = factors[i];
    if (given.name == nullptr) RejectEntry("factors", i, ".name (NULL) must not be NULL");
    if (given.values == nullptr) RejectEntry("factors", i, ".values (NULL) must not be NULL");
    GgufTensor tensor;
    tensor.shape = {given.count};
    const uint64_t read = std::min<uint64_t>(given.count, kMaxPairs);  // more are refused later
    tensor.values.assign(given.values, given.values + read);
    if (!out->file.rope_tensors.emplace(given.name, std::move(tensor)).second) {
      RejectEntry("factors", i, ".name (\"" + Printable(given.name) + "\") appears twice");
    }
  }
}

}  // namespace rope::model
