// An array of the oracle's files: base64 of little-endian elements with dtype and shape.
#ifndef LIBROPE_TESTS_MODEL_ORACLE_ARRAY_H_
#define LIBROPE_TESTS_MODEL_ORACLE_ARRAY_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "math/element.h"

struct OracleArray {
  explicit OracleArray(const nlohmann::json& array)
      : dtype(array.at("dtype")), shape(array.at("shape").get<std::vector<int64_t>>()) {
    uint32_t buffer = 0;
    int bits = 0;
    for (const char c : array.at("data").get_ref<const std::string&>()) {
      static const std::string kDigits =
          "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
      const size_t digit = kDigits.find(c);
      if (digit == std::string::npos) break;  // padding
      buffer = buffer << 6 | static_cast<uint32_t>(digit);
      bits += 6;
      if (bits >= 8) {
        bits -= 8;
        bytes.push_back(static_cast<uint8_t>(buffer >> bits));
      }
    }
  }

  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(bytes.data());
  }

  std::vector<float> ToFloat() const {
    const rope_dtype type = dtype == "f32"   ? ROPE_DTYPE_F32
                            : dtype == "f16" ? ROPE_DTYPE_F16
                                             : ROPE_DTYPE_BF16;
    std::vector<float> values(bytes.size() / static_cast<size_t>(rope::ElementSize(type)));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = rope::LoadElement(type, bytes.data(), static_cast<int64_t>(i));
    }
    return values;
  }

  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;
};

#endif  // LIBROPE_TESTS_MODEL_ORACLE_ARRAY_H_
