// Writes GGUF files for tests: keys in the order of the calls, and tensors of F32.
#ifndef LIBROPE_TESTS_MODEL_GGUF_BYTES_H_
#define LIBROPE_TESTS_MODEL_GGUF_BYTES_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rope::testing {

// Little-endian, as the machines that run the tests.
template <class T>
std::string Raw(T value) {
  std::string bytes(sizeof(value), 0);
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

inline std::string RawString(std::string_view text) {
  return Raw<uint64_t>(text.size()) + std::string(text);
}

class GgufBytes {
 public:
  // The numbers of the format.
  enum Type : uint32_t {
    kU8,
    kI8,
    kU16,
    kI16,
    kU32,
    kI32,
    kF32,
    kBool,
    kString,
    kArray,
    kU64,
    kI64,
    kF64
  };

  uint32_t version = 3;
  uint64_t alignment = 32;

  GgufBytes() = default;
  // A model of an architecture with 4 layers, 8 heads of 64 channels and 4096 tokens.
  explicit GgufBytes(const std::string& architecture) : prefix_(architecture + ".") {
    String("general.architecture", architecture);
    Own<uint32_t>(kU32, "block_count", 4);
    Own<uint32_t>(kU32, "context_length", 4096);
    Own<uint32_t>(kU32, "embedding_length", 512);
    Own<uint32_t>(kU32, "attention.head_count", 8);
  }

  // A key of the architecture: "rope.freq_base".
  GgufBytes& Uint(const std::string& key, uint32_t value) { return Own(kU32, key, value); }
  GgufBytes& Float(const std::string& key, float value) { return Own(kF32, key, value); }
  GgufBytes& Bool(const std::string& key, bool value) {
    return Own<uint8_t>(kBool, key, value ? 1 : 0);
  }
  GgufBytes& Word(const std::string& key, const std::string& value) {
    return String(prefix_ + key, value);
  }
  GgufBytes& List(const std::string& key, const std::vector<int32_t>& values, Type type = kI32) {
    std::string bytes = Raw<uint32_t>(type) + Raw<uint64_t>(values.size());
    for (int32_t value : values) bytes += type == kBool ? Raw<uint8_t>(value != 0) : Raw(value);
    return Add(kArray, prefix_ + key, bytes);
  }
  template <class T>
  GgufBytes& Own(Type type, const std::string& key, T value) {
    return Add(type, prefix_ + key, Raw(value));
  }

  // Any key.
  GgufBytes& String(const std::string& key, const std::string& value) {
    return Add(kString, key, RawString(value));
  }
  GgufBytes& Add(Type type, const std::string& key, const std::string& value) {
    for (auto& [name, bytes] : keys_) {
      if (name == key) bytes = Raw<uint32_t>(type) + value;
      if (name == key) return *this;
    }
    keys_.emplace_back(key, Raw<uint32_t>(type) + value);
    return *this;
  }

  GgufBytes& Tensor(const std::string& name, const std::vector<float>& values) {
    tensors_.push_back({name, {values.size()}, 0, -1, values});
    return *this;
  }
  // A description that need not be true.
  GgufBytes& Describe(const std::string& name, const std::vector<uint64_t>& shape, uint32_t type,
                      int64_t offset) {
    tensors_.push_back({name, shape, type, offset, {}});
    return *this;
  }

  // The whole file; `weights` stands for what follows the tensors of RoPE.
  std::string Bytes(size_t weights = 0) const {
    std::string bytes =
        "GGUF" + Raw(version) + Raw<uint64_t>(tensors_.size()) + Raw<uint64_t>(keys_.size());
    for (const auto& [key, value] : keys_) bytes += RawString(key) + value;
    std::string data;
    for (const Described& tensor : tensors_) {
      bytes += RawString(tensor.name) + Raw(static_cast<uint32_t>(tensor.shape.size()));
      for (uint64_t size : tensor.shape) bytes += Raw(size);
      const auto offset = static_cast<int64_t>(data.size());
      bytes += Raw(tensor.type) + Raw(tensor.offset == -1 ? offset : tensor.offset);
      for (float value : tensor.values) data += Raw(value);
      data.resize((data.size() + alignment - 1) / alignment * alignment);
    }
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
    return bytes + data + std::string(weights, 0);
  }

 private:
  struct Described {
    std::string name;
    std::vector<uint64_t> shape;
    uint32_t type;
    int64_t offset;  // -1: where its values are
    std::vector<float> values;
  };

  std::string prefix_;
  std::vector<std::pair<std::string, std::string>> keys_;
  std::vector<Described> tensors_;
};

}  // namespace rope::testing

#endif  // LIBROPE_TESTS_MODEL_GGUF_BYTES_H_
