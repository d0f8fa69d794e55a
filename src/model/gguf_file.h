// Safe reading of an untrusted GGUF file (versions 2 and 3, little-endian): bytes -> keys with
// their values, and where the tensors of RoPE are. What the keys mean is none of its business.
//
// What a file may be: at most 2^16 keys and 2^20 tensors, arrays nested at most 4 deep. No memory
// is taken for what a length or a count claims: values stay where they are in the bytes, and every
// length is compared with what is left of them before it is believed. A key that appears twice is
// an error: programs disagree about which one counts.
#ifndef LIBROPE_SRC_MODEL_GGUF_FILE_H_
#define LIBROPE_SRC_MODEL_GGUF_FILE_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/json.h"

namespace rope::model {

// The numbers of the format.
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12
};

struct GgufValue {
  GgufType type = GgufType::kUint8;
  GgufType element = GgufType::kUint8;  // of an array
  uint64_t count = 1;                   // of elements of an array
  std::string_view bytes;               // a number, the characters of a string, or the elements
  mutable bool read = false;            // somebody looked it up
};

struct GgufTensor {
  uint32_t type = 0;
  std::vector<uint64_t> shape;
  uint64_t offset = 0;         // in the file
  std::vector<double> values;  // those of a tensor that is not in the bytes
};

struct GgufFile {
  std::string_view bytes;
  std::map<std::string_view, GgufValue> values;
  std::map<std::string_view, GgufTensor> rope_tensors;  // whose names speak of RoPE
  bool whole = false;  // tensors of all parts of the model are there
};

// Tensors that belong to no file any more, by name.
using GgufTensors = std::map<std::string, GgufTensor>;

// What is thrown where the bytes end before the file does.
struct GgufEndsEarly : Error {};

// Throws Error (ROPE_ERROR_PARSE; UNSUPPORTED: another version or byte order) or std::bad_alloc.
// The result points into `bytes`.
GgufFile ParseGguf(std::string_view bytes);

// The values of a tensor of F32 with one dimension. Throws Error, also if it is not one.
std::vector<double> TensorValues(const GgufFile& file, std::string_view name);

// An integer of 1, 2, 4 or 8 bytes, and a number of the format's types but bool, string and array.
uint64_t LittleEndian(std::string_view bytes);
bool IsInteger(GgufType type);
size_t SizeOf(GgufType type);  // 0: strings and arrays, and what is no type

}  // namespace rope::model

#endif  // LIBROPE_SRC_MODEL_GGUF_FILE_H_
