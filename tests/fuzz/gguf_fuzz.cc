// libFuzzer target: any bytes are either refused with a message or gives a model whose every answer
// is consistent, and whose configurations the core accepts once the program's own fields are set.
//
//   clang++ -std=c++17 -g -O1 -fsanitize=fuzzer,address,undefined -Isrc -Iinclude -Itests/fuzz
//       tests/fuzz/gguf_fuzz.cc src/{model,base,context}/*.cc -o gguf_fuzz
//   python3 tests/fuzz/gguf_corpus.py corpus
//   ./gguf_fuzz -dict=tests/fuzz/gguf.dict -max_len=4096 corpus
#include <cstring>
#include <memory>

#include "check_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // An exact-size heap copy: reading one byte beyond it is an error.
  const std::unique_ptr<char[]> bytes(new char[size]);
  std::memcpy(bytes.get(), data, size);
  rope::fuzz::CheckModel("rope_model_create_gguf", [&](rope_model** out) {
    return rope_model_create_gguf(bytes.get(), size, out);
  });
  return 0;
}
