#include "model/gguf_file.h"

#include <algorithm>
#include <cstring>

#include "base/limits.h"
#include "base/status.h"
#include "model/unread.h"

namespace rope::model {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr uint64_t kMaxKeys = uint64_t{1} << 16;
constexpr uint64_t kMaxTensors = uint64_t{1} << 20;
constexpr int kMaxNesting = 4;       // arrays of arrays
constexpr uint32_t kMaxDims = 4;     // of ggml's tensors
constexpr uint32_t kF32 = 0;         // ggml's number
constexpr uint64_t kAlignment = 32;  // of tensors, unless general.alignment says otherwise

// `what` ends with the place in the file, as "inside the value of key 3 of 25".
[[noreturn]] void RejectEnd(uint64_t size, uint64_t least, const std::string& what) {
  Fail(ROPE_ERROR_PARSE,
       "rope_model_create: the file ends after %llu bytes, %s: at least its first %llu bytes are "
       "needed",
       static_cast<unsigned long long>(size), what.c_str(), static_cast<unsigned long long>(least));
  throw GgufEndsEarly{{ROPE_ERROR_PARSE}};
}

// Steps through the bytes. `place` says where in the file that is, for messages.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : bytes_(bytes) {}

  std::string place;

  uint64_t at() const { return at_; }

  std::string_view Take(uint64_t size) {
    const uint64_t left = bytes_.size() - at_;
    if (size > left) {
      const uint64_t least = size > UINT64_MAX - at_ ? UINT64_MAX : at_ + size;
      RejectEnd(bytes_.size(), least, "inside " + place);
    }
    const std::string_view taken = bytes_.substr(at_, size);
    at_ += size;
    return taken;
  }

  uint64_t TakeInteger(size_t size) { return LittleEndian(Take(size)); }
  std::string_view TakeString() { return Take(TakeInteger(8)); }

  GgufType TakeType() {
    const uint64_t number = TakeInteger(4);
    if (number > static_cast<uint64_t>(GgufType::kFloat64)) {
      Reject(ROPE_ERROR_PARSE, "%s has type %llu, and the last type is %d", place.c_str(),
             static_cast<unsigned long long>(number), static_cast<int>(GgufType::kFloat64));
    }
    return static_cast<GgufType>(number);
  }

 private:
  std::string_view bytes_;
  uint64_t at_ = 0;
};

// Goes over `count` values of a type. Each of them takes a byte at least, so the work is bounded by
// the bytes.
void Skip(Cursor* cursor, GgufType type, uint64_t count, int depth) {
  if (const size_t size = SizeOf(type); size != 0) {
    cursor->Take(count > UINT64_MAX / size ? UINT64_MAX : count * size);
    return;
  }
  for (uint64_t i = 0; i < count; ++i) {
    if (type == GgufType::kString) {
      cursor->TakeString();
      continue;
    }
    if (depth == kMaxNesting) {
      Reject(ROPE_ERROR_PARSE, "%s has arrays nested more than %d deep", cursor->place.c_str(),
             kMaxNesting);
    }
    const GgufType element = cursor->TakeType();
    Skip(cursor, element, cursor->TakeInteger(8), depth + 1);
  }
}

GgufValue TakeValue(Cursor* cursor, std::string_view whole) {
  GgufValue value;
  value.type = cursor->TakeType();
  if (value.type == GgufType::kString) {
    value.bytes = cursor->TakeString();
    return value;
  }
  GgufType type = value.type;
  if (type == GgufType::kArray) {
    value.element = type = cursor->TakeType();
    value.count = cursor->TakeInteger(8);
  }
  const uint64_t start = cursor->at();
  Skip(cursor, type, value.count, 1);
  value.bytes = whole.substr(start, cursor->at() - start);
  return value;
}

void TakeKeys(Cursor* cursor, uint64_t count, GgufFile* file) {
  for (uint64_t i = 0; i < count; ++i) {
    cursor->place = "key " + std::to_string(i + 1) + " of " + std::to_string(count);
    const std::string_view key = cursor->TakeString();
    cursor->place += " (\"" + Printable(key) + "\")";
    const GgufValue value = TakeValue(cursor, file->bytes);
    if (!file->values.emplace(key, value).second) {
      Reject(ROPE_ERROR_PARSE, "key \"%s\" appears twice", Printable(key).c_str());
    }
  }
}

void TakeTensors(Cursor* cursor, uint64_t count, GgufFile* file) {
  for (uint64_t i = 0; i < count; ++i) {
    cursor->place =
        "the description of tensor " + std::to_string(i + 1) + " of " + std::to_string(count);
    const std::string_view name = cursor->TakeString();
    const uint64_t dims = cursor->TakeInteger(4);
    if (dims > kMaxDims) {
      Reject(ROPE_ERROR_PARSE, "tensor \"%s\" has %llu dimensions and must have at most %u",
             Printable(name).c_str(), static_cast<unsigned long long>(dims), kMaxDims);
    }
    GgufTensor tensor;
    for (uint64_t d = 0; d < dims; ++d) tensor.shape.push_back(cursor->TakeInteger(8));
    tensor.type = static_cast<uint32_t>(cursor->TakeInteger(4));
    tensor.offset = cursor->TakeInteger(8);
    if (!SpeaksOfRope(name)) continue;
    if (!file->rope_tensors.emplace(name, std::move(tensor)).second) {
      Reject(ROPE_ERROR_PARSE, "tensor \"%s\" appears twice", Printable(name).c_str());
    }
  }
}

uint64_t Alignment(const GgufFile& file) {
  const auto found = file.values.find("general.alignment");
  if (found == file.values.end()) return kAlignment;
  const GgufValue& value = found->second;
  const uint64_t number = value.type == GgufType::kUint32 ? LittleEndian(value.bytes) : 0;
  if (number == 0 || (number & (number - 1)) != 0) {
    Reject(ROPE_ERROR_PARSE, "general.alignment must be a power of 2, of type uint32");
  }
  return number;
}

uint64_t Count(Cursor* cursor, const char* what, uint64_t most) {
  const uint64_t count = cursor->TakeInteger(8);
  if (count > most) {
    Reject(ROPE_ERROR_PARSE, "the file has %llu %s and must have at most %llu",
           static_cast<unsigned long long>(count), what, static_cast<unsigned long long>(most));
  }
  return count;
}

}  // namespace

uint64_t LittleEndian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

size_t SizeOf(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool: return 1;
    case GgufType::kUint16:
    case GgufType::kInt16: return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32: return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64: return 8;
    case GgufType::kString:
    case GgufType::kArray: break;
  }
  return 0;
}

bool IsInteger(GgufType type) {
  return SizeOf(type) != 0 && type != GgufType::kBool && type != GgufType::kFloat32 &&
         type != GgufType::kFloat64;
}

GgufFile ParseGguf(std::string_view bytes) {
  GgufFile file;
  file.bytes = bytes;
  Cursor cursor(bytes);
  cursor.place = "its header";
  if (cursor.Take(kMagic.size()) != kMagic) {
    Reject(ROPE_ERROR_PARSE, "the file begins with \"%s\" and must begin with \"GGUF\"",
           Printable(bytes.substr(0, kMagic.size())).c_str());
  }
  const auto version = static_cast<uint32_t>(cursor.TakeInteger(4));
  if (version != 2 && version != 3) {
    const bool swapped = version != 0 && (version & 0xffff) == 0;
    Reject(ROPE_ERROR_UNSUPPORTED,
           swapped ? "the file (version number 0x%08x) is big-endian, and must be little-endian"
                   : "the file has version %u of GGUF, and this version reads 2 and 3",
           version);
  }
  const uint64_t tensors = Count(&cursor, "tensors", kMaxTensors);
  const uint64_t keys = Count(&cursor, "keys", kMaxKeys);
  TakeKeys(&cursor, keys, &file);
  TakeTensors(&cursor, tensors, &file);
  const uint64_t alignment = Alignment(file);
  const uint64_t data = (cursor.at() + alignment - 1) / alignment * alignment;
  for (auto& [name, tensor] : file.rope_tensors) {
    if (tensor.offset % alignment != 0 || tensor.offset > UINT64_MAX - data) {
      Reject(ROPE_ERROR_PARSE,
             "tensor \"%s\" has offset %llu, which must be a multiple of the alignment (%llu)",
             Printable(name).c_str(), static_cast<unsigned long long>(tensor.offset),
             static_cast<unsigned long long>(alignment));
    }
    tensor.offset += data;
  }
  return file;
}

std::vector<double> TensorValues(const GgufFile& file, std::string_view name) {
  const GgufTensor& tensor = file.rope_tensors.at(name);
  const std::string shown = Printable(name);
  if (tensor.type != kF32 || tensor.shape.size() != 1) {
    Reject(ROPE_ERROR_PARSE,
           "tensor \"%s\" has type %u and %zu dimensions, and must have type 0 (F32) and 1",
           shown.c_str(), tensor.type, tensor.shape.size());
  }
  const uint64_t length = tensor.shape[0];
  if (length == 0 || length > kMaxPairs) {
    Reject(ROPE_ERROR_PARSE, "tensor \"%s\" has %llu values and must have from 1 to %d",
           shown.c_str(), static_cast<unsigned long long>(length), kMaxPairs);
  }
  if (!tensor.values.empty()) return tensor.values;
  constexpr size_t kSize = sizeof(float);
  const uint64_t size = file.bytes.size();
  if (tensor.offset > size || size - tensor.offset < length * kSize) {
    const uint64_t room = UINT64_MAX - tensor.offset;
    const uint64_t least = tensor.offset + std::min(room, length * kSize);
    RejectEnd(size, least, "before the data of tensor \"" + shown + "\"");
  }
  std::vector<double> values;
  for (uint64_t i = 0; i < length; ++i) {
    const auto bits =
        static_cast<uint32_t>(LittleEndian(file.bytes.substr(tensor.offset + i * kSize, kSize)));
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    values.push_back(value);
  }
  return values;
}

}  // namespace rope::model
